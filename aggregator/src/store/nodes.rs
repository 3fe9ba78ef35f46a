//! Which server is asked, and what is done about answers that say "not I" or "I do not know that script".
//!
//! A single server holds everything. Of a cluster, a map of slots is read from any node, again every so often, and
//! at once after a sign that it is out of date. A command that meets a server which has not (or no longer) its slot
//! is sent on once to where that server points.
//!
//! Leaves to others: connections (`wire`), what commands mean (`script` and the rest).

use super::error::StoreError;
use super::options::Checked;
use super::script;
use super::slots::SLOTS;
use super::topology::{self, Address};
use super::wire::{HUNG_AFTER, Wire};
use parking_lot::RwLock;
use redis::{Client, Cmd, Pipeline, Value};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, Semaphore};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

/// Commands that are sent in one go.
const CHUNK: usize = 256;
/// Chunks of one call on their way to one server.
const CHUNKS_IN_FLIGHT: usize = 4;
/// A call of at most so many commands uses the quick connection.
const QUICK_COMMANDS: usize = 8;
/// Nodes of a cluster; further ones are not used.
const MAX_NODES: usize = 1_024;
/// Between readings of the slot map.
const MAP_INTERVAL: Duration = Duration::from_secs(10);
/// The same while there is none, or it is known to be wrong.
const MAP_RETRY: Duration = Duration::from_millis(100);

/// A command, and the slot that says where it goes.
pub(super) struct Command {
    pub(super) slot: u16,
    pub(super) what: Cmd,
}

type Answer = Result<Value, StoreError>;

/// All servers of the store.
pub(super) struct Nodes {
    shared: Arc<Shared>,
    mapper: Option<JoinHandle<()>>,
}

struct Shared {
    options: Checked,
    map: RwLock<Map>,
    outdated: Notify,
}

#[derive(Default)]
struct Map {
    nodes: BTreeMap<Address, Arc<Node>>,
    /// First and last slot of each range, and whose it is.
    ranges: BTreeMap<u16, (u16, Arc<Node>)>,
}

/// One server. Bulk work has a connection of its own, so that a single cell need not wait behind thousands.
struct Node {
    address: Address,
    quick: Wire,
    bulk: Wire,
}

/// One server's part of a call: commands, each with its place in the call.
struct Share {
    node: Arc<Node>,
    work: Vec<(usize, Cmd)>,
}

impl Drop for Nodes {
    fn drop(&mut self) {
        if let Some(mapper) = &self.mapper {
            mapper.abort();
        }
    }
}

impl Nodes {
    /// Starts connecting. Needs a tokio runtime. The error is the crate's: a TLS setting that it cannot use.
    pub(super) fn open(options: Checked) -> redis::RedisResult<Nodes> {
        let mut map = Map::default();
        let cluster = options.cluster;
        for seed in &options.seeds {
            let node = Arc::new(Node::open(Address::of(seed.addr()), &options.client(seed.clone())?));
            if !cluster {
                map.ranges.insert(0, (SLOTS - 1, Arc::clone(&node)));
            }
            map.nodes.insert(node.address.clone(), node);
        }
        let shared = Arc::new(Shared { options, map: RwLock::new(map), outdated: Notify::new() });
        let mapper = cluster.then(|| tokio::spawn(keep_map(Arc::clone(&shared))));
        Ok(Nodes { shared, mapper })
    }

    /// Sends every command to its server. The answers stand in the order of the commands.
    pub(super) async fn run(&self, commands: Vec<Command>, deadline: Instant) -> Vec<Answer> {
        let quick = commands.len() <= QUICK_COMMANDS;
        let mut answers: Vec<Answer> = commands.iter().map(|_| Err(StoreError::Away)).collect();
        let mut tasks = JoinSet::new();
        for mut share in self.shared.shares(commands) {
            let gate = Arc::new(Semaphore::new(CHUNKS_IN_FLIGHT));
            while !share.work.is_empty() {
                let rest = share.work.split_off(share.work.len().min(CHUNK));
                let chunk = std::mem::replace(&mut share.work, rest);
                let (shared, node, gate) =
                    (Arc::clone(&self.shared), Arc::clone(&share.node), Arc::clone(&gate));
                tasks.spawn(async move {
                    let _turn = gate.acquire().await;
                    let (places, commands): (Vec<_>, Vec<_>) = chunk.into_iter().unzip();
                    (places, shared.run_chunk(&node, commands, quick, deadline).await)
                });
            }
        }
        // A task that panicked or was cancelled with its runtime leaves `Away` in its places.
        while let Some(done) = tasks.join_next().await {
            if let Ok((places, fresh)) = done {
                put(&mut answers, &places, fresh);
            }
        }
        answers
    }

    /// Sends one command.
    pub(super) async fn run_one(&self, command: Command, deadline: Instant) -> Answer {
        self.run(vec![command], deadline).await.pop().unwrap_or(Err(StoreError::Away))
    }

    /// What connects to some server of the store: another one for each `attempt` where there are several.
    pub(super) fn any_client(&self, attempt: usize) -> Option<Client> {
        let map = self.shared.map.read();
        let nodes: Vec<_> = map.nodes.values().collect();
        let up: Vec<_> = nodes.iter().copied().filter(|node| node.quick.is_up()).collect();
        let candidates = if up.is_empty() { nodes } else { up };
        let address = &candidates.get(attempt.checked_rem(candidates.len())?)?.address;
        self.shared.client(address).ok()
    }
}

impl Shared {
    /// Who does what. Commands whose slot nobody is known to hold are in no share.
    fn shares(&self, commands: Vec<Command>) -> Vec<Share> {
        let mut shares: BTreeMap<Address, Share> = BTreeMap::new();
        for (place, command) in commands.into_iter().enumerate() {
            let Some(node) = self.owner(command.slot) else { continue };
            let share =
                shares.entry(node.address.clone()).or_insert_with(|| Share { node, work: Vec::new() });
            share.work.push((place, command.what));
        }
        shares.into_values().collect()
    }

    fn owner(&self, slot: u16) -> Option<Arc<Node>> {
        let map = self.map.read();
        let (_, (last, node)) = map.ranges.range(..=slot).next_back()?;
        (slot <= *last).then(|| Arc::clone(node))
    }

    async fn run_chunk(
        &self,
        node: &Node,
        commands: Vec<Cmd>,
        quick: bool,
        deadline: Instant,
    ) -> Vec<Answer> {
        let mut answers = node.send(&commands, quick, deadline).await;
        let forgotten = which(&answers, |error| error == "NOSCRIPT");
        if !forgotten.is_empty() {
            let again = pick(&commands, &forgotten);
            let (loads, skip) = script::load_all();
            put(&mut answers, &forgotten, node.send_after(loads, skip, &again, quick, deadline).await);
        }
        if self.options.cluster {
            self.follow(node, &commands, &mut answers, quick, deadline).await;
        }
        answers
    }

    /// Sends on what `node` said another server has.
    async fn follow(
        &self,
        node: &Node,
        commands: &[Cmd],
        answers: &mut [Answer],
        quick: bool,
        deadline: Instant,
    ) {
        if answers.iter().any(is_sign_of_change) {
            self.outdated.notify_one();
        }
        let mut elsewhere: BTreeMap<(bool, Address), Vec<usize>> = BTreeMap::new();
        for place in which(answers, |code| code == "MOVED" || code == "ASK") {
            if let Some(Err(StoreError::Refused { code, detail })) = answers.get(place)
                && let Some(address) = node.address.redirected(detail)
            {
                elsewhere.entry((code == "ASK", address)).or_default().push(place);
            }
        }
        for ((asking, address), places) in elsewhere {
            let Some(other) = self.node(&address) else { continue };
            let again = pick(commands, &places);
            let fresh = if asking {
                let mut each = Vec::new();
                for command in again {
                    let mut prelude = Pipeline::new();
                    prelude.cmd("ASKING");
                    each.extend(other.send_after(prelude, 1, &[command], quick, deadline).await);
                }
                each
            } else {
                let (loads, skip) = script::load_all();
                other.send_after(loads, skip, &again, quick, deadline).await
            };
            put(answers, &places, fresh);
        }
    }

    /// The node at `address`, connected to from now on if it was not known.
    fn node(&self, address: &Address) -> Option<Arc<Node>> {
        if let Some(node) = self.map.read().nodes.get(address) {
            return Some(Arc::clone(node));
        }
        let mut map = self.map.write();
        if map.nodes.len() >= MAX_NODES {
            return None;
        }
        let client = self.client(address).ok()?;
        let node = map
            .nodes
            .entry(address.clone())
            .or_insert_with(|| Arc::new(Node::open(address.clone(), &client)));
        Some(Arc::clone(node))
    }

    fn client(&self, address: &Address) -> redis::RedisResult<Client> {
        // Every node is reached like the first seed: same login, same TLS.
        let Some(seed) = self.options.seeds.first() else {
            return Err(redis::RedisError::from((redis::ErrorKind::InvalidClientConfig, "no URL")));
        };
        self.options.client(seed.clone().set_addr(address.like(seed.addr())))
    }

    /// Reads the slot map from any node. False if none has one.
    async fn read_map(&self) -> bool {
        let nodes: Vec<_> = self.map.read().nodes.values().cloned().collect();
        for node in nodes {
            let deadline = Instant::now() + HUNG_AFTER;
            let mut command = redis::cmd("CLUSTER");
            command.arg("SLOTS");
            let answer = node.send(&[command], true, deadline).await.pop();
            let Some(Ok(answer)) = answer else { continue };
            let ranges = topology::parse(answer, &node.address);
            if !ranges.is_empty() {
                self.install(ranges);
                return true;
            }
        }
        false
    }

    fn install(&self, ranges: Vec<topology::Range>) {
        let ranges: BTreeMap<_, _> = ranges
            .into_iter()
            .filter_map(|range| Some((range.first, (range.last, self.node(&range.owner)?))))
            .collect();
        let seeds: Vec<_> = self.options.seeds.iter().map(|seed| Address::of(seed.addr())).collect();
        let mut map = self.map.write();
        map.nodes.retain(|address, _| {
            seeds.contains(address) || ranges.values().any(|(_, node)| node.address == *address)
        });
        map.ranges = ranges;
    }
}

impl Node {
    fn open(address: Address, client: &Client) -> Node {
        Node { address, quick: Wire::open(client.clone()), bulk: Wire::open(client.clone()) }
    }

    async fn send(&self, commands: &[Cmd], quick: bool, deadline: Instant) -> Vec<Answer> {
        self.send_after(Pipeline::with_capacity(commands.len()), 0, commands, quick, deadline).await
    }

    /// Sends `commands` behind the `skip` ones of `prelude`, whose answers are left out.
    async fn send_after(
        &self,
        prelude: Pipeline,
        skip: usize,
        commands: &[Cmd],
        quick: bool,
        deadline: Instant,
    ) -> Vec<Answer> {
        let mut pipeline = prelude;
        for command in commands {
            pipeline.add_command(command.clone());
        }
        let wire = if quick { &self.quick } else { &self.bulk };
        match wire.send(pipeline, skip + commands.len(), deadline).await {
            Ok(values) => values.into_iter().skip(skip).map(answer).collect(),
            Err(error) => commands.iter().map(|_| Err(error.clone())).collect(),
        }
    }
}

async fn keep_map(shared: Arc<Shared>) {
    loop {
        let known = shared.read_map().await;
        if !known {
            sleep(MAP_RETRY).await;
            continue;
        }
        // Signs come in crowds, one for every command that met them: take a breath between two readings.
        sleep(MAP_RETRY).await;
        let _ = timeout(MAP_INTERVAL, shared.outdated.notified()).await;
    }
}

fn answer(value: Value) -> Answer {
    match value {
        Value::ServerError(error) => Err(StoreError::of_command(&error)),
        value => Ok(value),
    }
}

fn is_sign_of_change(answer: &Answer) -> bool {
    match answer {
        Err(StoreError::Away | StoreError::Timeout) => true,
        Err(StoreError::Refused { code, .. }) => {
            ["MOVED", "READONLY", "CLUSTERDOWN", "MASTERDOWN"].contains(&code.as_str())
        }
        _ => false,
    }
}

fn which(answers: &[Answer], wanted: impl Fn(&str) -> bool) -> Vec<usize> {
    let refused = |answer: &Answer| matches!(answer, Err(StoreError::Refused { code, .. }) if wanted(code));
    answers.iter().enumerate().filter(|(_, answer)| refused(answer)).map(|(place, _)| place).collect()
}

fn pick(commands: &[Cmd], places: &[usize]) -> Vec<Cmd> {
    places.iter().filter_map(|&place| commands.get(place).cloned()).collect()
}

fn put(answers: &mut [Answer], places: &[usize], fresh: Vec<Answer>) {
    for (&place, fresh) in places.iter().zip(fresh) {
        if let Some(answer) = answers.get_mut(place) {
            *answer = fresh;
        }
    }
}

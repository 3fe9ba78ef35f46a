//! Routes commands to servers, and handles redirections and missing scripts.
//!
//! If a server lacks a script, the script is loaded again. If a server does not hold a command's slot, the command is
//! sent once more, to the server named in the redirection.
//!
//! A pipeline of writes begins and ends with its receipt (`receipts`). Without it, its writes have failed.

use super::servers::{Answer, Node, Servers, keep_map};
use super::topology::Address;
use crate::redis::command::{Command, How, Part};
use crate::redis::error::StoreError;
use crate::redis::options::Checked;
use crate::redis::receipts::Markers;
use crate::redis::script;
use crate::redis::slots::slot_of;
use crate::redis::target::Target;
use redis::Cmd;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

/// Most keys of the commands in one pipeline.
const CHUNK_KEYS: usize = 256;
/// Most pipelines of one call in flight to one server.
const CHUNKS_IN_FLIGHT: usize = 4;
/// Calls of commands with at most this many keys use the connection for small calls.
const QUICK_KEYS: usize = 8;

/// Sends commands to the servers.
pub(in crate::redis) struct Nodes {
    servers: Arc<Servers>,
    markers: Arc<Markers>,
    mapper: Option<JoinHandle<()>>,
}

/// How the pipelines of a call are sent.
#[derive(Clone)]
struct Sender {
    servers: Arc<Servers>,
    /// The markers with the receipts of writes; `None` if nothing is written.
    markers: Option<Arc<Markers>>,
    how: How,
}

/// One server's part of a call: commands with their positions in the call.
struct Share {
    node: Arc<Node>,
    work: Vec<(usize, Command)>,
}

/// The commands of one pipeline, with their positions in the call.
struct Chunk {
    /// The slot of the first command.
    slot: u16,
    places: Vec<usize>,
    commands: Vec<Cmd>,
}

impl Share {
    /// Splits the work into pipelines.
    fn chunks(self) -> Vec<Chunk> {
        let (mut chunks, mut keys) = (Vec::new(), CHUNK_KEYS);
        for (place, command) in self.work {
            keys = keys.saturating_add(command.keys);
            if keys > CHUNK_KEYS {
                chunks.push(Chunk { slot: command.slot, places: Vec::new(), commands: Vec::new() });
                keys = command.keys;
            }
            if let Some(chunk) = chunks.last_mut() {
                chunk.places.push(place);
                chunk.commands.push(command.what);
            }
        }
        chunks
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        if let Some(mapper) = &self.mapper {
            mapper.abort();
        }
    }
}

impl Nodes {
    /// Starts connecting. Must be called within a tokio runtime. Fails if the `redis` crate rejects a TLS setting.
    pub(in crate::redis) fn open(options: Checked, markers: Arc<Markers>) -> redis::RedisResult<Nodes> {
        let servers = Arc::new(Servers::open(options)?);
        let mapper = servers.is_cluster().then(|| tokio::spawn(keep_map(Arc::clone(&servers))));
        Ok(Nodes { servers, markers, mapper })
    }

    /// Sends every command to its server. The answers are in the order of the commands.
    pub(in crate::redis) async fn run(&self, commands: Vec<Command>, deadline: Instant) -> Vec<Answer> {
        self.send(commands, None, deadline).await
    }

    /// The same for commands that write what is repeated after a loss: they succeed with their receipts.
    pub(in crate::redis) async fn write(&self, commands: Vec<Command>, deadline: Instant) -> Vec<Answer> {
        self.send(commands, Some(Arc::clone(&self.markers)), deadline).await
    }

    async fn send(
        &self,
        commands: Vec<Command>,
        markers: Option<Arc<Markers>>,
        deadline: Instant,
    ) -> Vec<Answer> {
        let quick = commands.iter().map(|command| command.keys).sum::<usize>() <= QUICK_KEYS;
        // All commands of a call have one part.
        let part = commands.first().map_or(Part::Region, |command| command.part);
        let how = How { quick, part, deadline };
        let mut answers: Vec<Answer> = commands.iter().map(|_| Err(StoreError::Unavailable)).collect();
        let sender = Sender { servers: Arc::clone(&self.servers), markers, how };
        let mut tasks = JoinSet::new();
        for share in self.shares(commands, &mut answers) {
            let turns = Arc::new(Semaphore::new(CHUNKS_IN_FLIGHT));
            let node = Arc::clone(&share.node);
            for chunk in share.chunks() {
                let (sender, node, turns) = (sender.clone(), Arc::clone(&node), Arc::clone(&turns));
                tasks.spawn(async move {
                    let _turn = turns.acquire().await;
                    let answers = sender.run(&node, &chunk).await;
                    (chunk.places, answers)
                });
            }
        }
        // If a task panicked or was cancelled with its runtime, its answers remain `Unavailable`.
        while let Some(done) = tasks.join_next().await {
            if let Ok((places, fresh)) = done {
                put(&mut answers, &places, fresh);
            }
        }
        answers
    }

    /// Sends one command.
    pub(in crate::redis) async fn run_one(&self, command: Command, deadline: Instant) -> Answer {
        self.run(vec![command], deadline).await.pop().unwrap_or(Err(StoreError::Unavailable))
    }

    /// The server that holds `key`, if known.
    pub(in crate::redis) fn owner(&self, key: &str) -> Option<Arc<Node>> {
        self.servers.owner(slot_of(key.as_bytes())).ok()
    }

    /// Whether the store is a Redis Cluster.
    pub(in crate::redis) fn is_cluster(&self) -> bool {
        self.servers.is_cluster()
    }

    /// Where some server of the store is. If there are several servers, each `attempt` selects another one.
    pub(in crate::redis) fn any_target(&self, attempt: usize) -> Option<Target> {
        self.servers.any_target(attempt)
    }

    /// Splits commands by server. Commands whose slot has no known server fail at once.
    fn shares(&self, commands: Vec<Command>, answers: &mut [Answer]) -> Vec<Share> {
        let mut shares: BTreeMap<Address, Share> = BTreeMap::new();
        for (place, command) in commands.into_iter().enumerate() {
            match self.servers.owner(command.slot) {
                Ok(node) => {
                    let share = shares
                        .entry(node.address.clone())
                        .or_insert_with(|| Share { node, work: Vec::new() });
                    share.work.push((place, command));
                }
                Err(problem) => put(answers, &[place], vec![Err(problem)]),
            }
        }
        shares.into_values().collect()
    }
}

impl Sender {
    /// Sends a pipeline to `node`, and again what that one cannot execute.
    async fn run(&self, node: &Node, chunk: &Chunk) -> Vec<Answer> {
        let mut answers = self.send(node, chunk.slot, &[], &chunk.commands).await;
        let unloaded = which(&answers, |error| error == "NOSCRIPT");
        if !unloaded.is_empty() {
            let again = pick(&chunk.commands, &unloaded);
            put(&mut answers, &unloaded, self.send(node, chunk.slot, &script::load_all(), &again).await);
        }
        if self.servers.is_cluster() {
            self.follow(node, chunk, &mut answers).await;
        } else if !which(&answers, |code| code == "READONLY" || code == "MASTERDOWN").is_empty() {
            // What was the primary is a replica, so another server is the primary.
            node.connect_again();
        }
        answers
    }

    /// Sends redirected commands to the servers that `node` named.
    async fn follow(&self, node: &Node, chunk: &Chunk, answers: &mut [Answer]) {
        if answers.iter().any(is_sign_of_change) {
            self.servers.doubt_map();
        }
        let mut elsewhere: BTreeMap<(bool, Address), Vec<usize>> = BTreeMap::new();
        for place in which(answers, is_redirection) {
            if let Some(Err(StoreError::Refused { code, detail })) = answers.get(place)
                && let Some(address) = node.address.redirected(detail)
            {
                elsewhere.entry((code == "ASK", address)).or_default().push(place);
            }
        }
        for ((asking, address), places) in elsewhere {
            let Some(other) = self.servers.node(&address) else { continue };
            let again = pick(&chunk.commands, &places);
            let fresh = if asking {
                let mut each = Vec::new();
                for command in again {
                    // It is for the next command alone.
                    let both = [redis::cmd("ASKING"), command];
                    each.extend(self.send(&other, chunk.slot, &[], &both).await.pop());
                }
                each
            } else {
                self.send(&other, chunk.slot, &script::load_all(), &again).await
            };
            put(answers, &places, fresh);
        }
    }

    /// Sends one pipeline to `node`: `commands` after a `prelude` whose answers are dropped, and with a receipt if they write. A
    /// marker may have moved to another server, which holds none of the cells; then the pipeline is sent once more, with a
    /// receipt in the next one of this server that has not moved. If none is left, it has none.
    async fn send(&self, node: &Node, slot: u16, prelude: &[Cmd], commands: &[Cmd]) -> Vec<Answer> {
        let here = self.markers.iter().flat_map(|markers| {
            let here = markers.near(slot).filter(|(_, slot)| self.servers.holds(node, *slot));
            here.filter_map(|(place, _)| markers.begin(place))
        });
        for (moved, open) in here.enumerate() {
            let Some([first, last]) = open.commands() else { continue };
            if moved > 0 {
                // Others may have moved too. The first command of a receipt may be repeated, so it is sent alone.
                let alone = [prelude, std::slice::from_ref(&first)].concat();
                if node.send(&alone, prelude.len(), self.how).await.iter().any(is_redirected) {
                    continue;
                }
            }
            let all = [prelude, &[first], commands, &[last]].concat();
            let mut answers = node.send(&all, prelude.len(), self.how).await;
            let last = answers.pop().unwrap_or(Err(StoreError::Protocol));
            let first = if answers.is_empty() { Err(StoreError::Protocol) } else { answers.remove(0) };
            if answers.iter().all(Result::is_err) {
                return answers;
            }
            if [&first, &last].into_iter().any(is_redirected) {
                self.servers.doubt_map();
                continue;
            }
            if let Err(error) = open.answered(first, last) {
                let written = answers.iter_mut().filter(|answer| answer.is_ok());
                written.for_each(|answer| *answer = Err(error.clone()));
            }
            return answers;
        }
        node.send(&[prelude, commands].concat(), prelude.len(), self.how).await
    }
}

fn is_redirected(answer: &Answer) -> bool {
    matches!(answer, Err(StoreError::Refused { code, .. }) if is_redirection(code))
}

fn is_redirection(code: &str) -> bool {
    code == "MOVED" || code == "ASK"
}

fn is_sign_of_change(answer: &Answer) -> bool {
    match answer {
        Err(StoreError::Unavailable | StoreError::Unreachable(_) | StoreError::Timeout) => true,
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

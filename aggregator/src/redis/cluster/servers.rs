//! The known servers, and which of them holds which slot.
//!
//! A single server holds all slots. For a cluster, the slot map is read from any node at an interval, and at once after
//! a sign that it is outdated.

use super::server_clock::ServerClock;
use super::topology::{self, Address};
use crate::redis::command::{How, Part};
use crate::redis::connection::Connection;
use crate::redis::error::StoreError;
use crate::redis::options::Checked;
use crate::redis::slots::SLOTS;
use crate::redis::target::Target;
use parking_lot::RwLock;
use redis::{Cmd, Pipeline, Value};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};

/// Most nodes of a cluster; further nodes are not used.
const MAX_NODES: usize = 1_024;
/// Interval between reads of the slot map.
const MAP_INTERVAL: Duration = Duration::from_secs(10);
/// Interval while there is no slot map, or while it is known to be outdated.
const MAP_RETRY: Duration = Duration::from_millis(100);
/// A node that does not return its slot map within this time is skipped.
const MAP_TIMEOUT: Duration = Duration::from_millis(500);

/// The result of one command.
pub(in crate::redis) type Answer = Result<Value, StoreError>;

/// All servers of the store.
pub(in crate::redis) struct Servers {
    options: Checked,
    map: RwLock<Map>,
    outdated: Notify,
}

struct Map {
    nodes: BTreeMap<Address, Arc<Node>>,
    /// The first slot of each range, mapped to its last slot and its server.
    ranges: BTreeMap<u16, (u16, Arc<Node>)>,
    /// Why there is no slot map, or no server for some slot.
    problem: StoreError,
}

/// One server. Bulk calls have their own connection, so that a small call does not wait behind thousands of commands.
pub(in crate::redis) struct Node {
    pub(in crate::redis) address: Address,
    pub(in crate::redis) clock: ServerClock,
    target: Target,
    quick: Connection,
    bulk: Connection,
}

impl Servers {
    /// Starts connecting. Must be called within a tokio runtime. Fails if the `redis` crate rejects a TLS setting.
    pub(in crate::redis) fn open(options: Checked) -> redis::RedisResult<Servers> {
        let mut map =
            Map { nodes: BTreeMap::new(), ranges: BTreeMap::new(), problem: StoreError::Unavailable };
        let cluster = options.cluster;
        for seed in options.seeds() {
            let node = Arc::new(Node::open(Address::of(seed.addr()), options.target(seed)?));
            if !cluster {
                map.ranges.insert(0, (SLOTS - 1, Arc::clone(&node)));
            }
            map.nodes.insert(node.address.clone(), node);
        }
        Ok(Servers { options, map: RwLock::new(map), outdated: Notify::new() })
    }

    /// Whether the store is a Redis Cluster.
    pub(in crate::redis) fn is_cluster(&self) -> bool {
        self.options.cluster
    }

    /// Reports that the slot map may be outdated.
    pub(in crate::redis) fn doubt_map(&self) {
        self.outdated.notify_one();
    }

    /// The server that holds `slot`.
    pub(in crate::redis) fn owner(&self, slot: u16) -> Result<Arc<Node>, StoreError> {
        let map = self.map.read();
        match map.ranges.range(..=slot).next_back() {
            Some((_, (last, node))) if slot <= *last => Ok(Arc::clone(node)),
            _ => Err(map.problem.clone()),
        }
    }

    /// Whether `node` holds `slot`.
    pub(in crate::redis) fn holds(&self, node: &Node, slot: u16) -> bool {
        self.owner(slot).is_ok_and(|owner| owner.address == node.address)
    }

    /// Where some server of the store is. If there are several servers, each `attempt` selects another one.
    pub(in crate::redis) fn any_target(&self, attempt: usize) -> Option<Target> {
        let map = self.map.read();
        let nodes: Vec<_> = map.nodes.values().collect();
        let up: Vec<_> = nodes.iter().copied().filter(|node| node.quick.is_up()).collect();
        let candidates = if up.is_empty() { nodes } else { up };
        Some(candidates.get(attempt.checked_rem(candidates.len())?)?.target.clone())
    }

    /// The node at `address`. A node that was not known is connected to.
    pub(in crate::redis) fn node(&self, address: &Address) -> Option<Arc<Node>> {
        if let Some(node) = self.map.read().nodes.get(address) {
            return Some(Arc::clone(node));
        }
        let mut map = self.map.write();
        if map.nodes.len() >= MAX_NODES {
            return None;
        }
        // All nodes use the login and TLS settings of the first seed.
        let seed = self.options.seeds().first()?;
        let target = self.options.target(&seed.clone().set_addr(address.like(seed.addr()))).ok()?;
        let node =
            map.nodes.entry(address.clone()).or_insert_with(|| Arc::new(Node::open(address.clone(), target)));
        Some(Arc::clone(node))
    }

    /// Reads the slot map from any node.
    async fn read_map(&self) -> Result<(), StoreError> {
        let mut problem = StoreError::Unavailable;
        let nodes: Vec<_> = self.map.read().nodes.values().cloned().collect();
        for node in nodes {
            let deadline = Instant::now() + MAP_TIMEOUT;
            let mut command = redis::cmd("CLUSTER");
            command.arg("SLOTS");
            let how = How { quick: true, part: Part::Region, deadline };
            let ranges = match node.send(&[command], 0, how).await.pop() {
                Some(Ok(answer)) => topology::parse(answer, &node.address),
                Some(Err(error)) => {
                    problem = error;
                    continue;
                }
                None => continue,
            };
            if !ranges.is_empty() {
                self.install(ranges);
                return Ok(());
            }
        }
        Err(problem)
    }

    fn install(&self, ranges: Vec<topology::Range>) {
        let ranges: BTreeMap<_, _> = ranges
            .into_iter()
            .filter_map(|range| Some((range.first, (range.last, self.node(&range.owner)?))))
            .collect();
        let seeds: Vec<_> = self.options.seeds().iter().map(|seed| Address::of(seed.addr())).collect();
        let mut map = self.map.write();
        map.nodes.retain(|address, _| {
            seeds.contains(address) || ranges.values().any(|(_, node)| node.address == *address)
        });
        map.ranges = ranges;
    }
}

impl Node {
    /// Replaces connections that lead to the wrong server.
    pub(in crate::redis) fn connect_again(&self) {
        self.quick.connect_again();
        self.bulk.connect_again();
    }

    fn open(address: Address, target: Target) -> Node {
        let ends = watch::Sender::default();
        let [quick, bulk] = [(); 2].map(|()| Connection::open(target.clone(), ends.clone()));
        Node { address, clock: ServerClock::new(), target, quick, bulk }
    }

    /// Sends `commands` as one pipeline. The answers to the first `skip` are dropped.
    pub(in crate::redis) async fn send(&self, commands: &[Cmd], skip: usize, how: How) -> Vec<Answer> {
        let mut pipeline = Pipeline::with_capacity(commands.len());
        for command in commands {
            pipeline.add_command(command.clone());
        }
        let connection = if how.quick { &self.quick } else { &self.bulk };
        match connection.send(pipeline, commands.len(), how).await {
            Ok(values) => values.into_iter().skip(skip).map(answer).collect(),
            Err(error) => commands.iter().skip(skip).map(|_| Err(error.clone())).collect(),
        }
    }
}

/// Keeps the slot map up to date; never returns.
pub(in crate::redis) async fn keep_map(servers: Arc<Servers>) {
    loop {
        let read = servers.read_map().await;
        // Many commands report an outdated map at the same time, so reads are spaced by `MAP_RETRY`.
        sleep(MAP_RETRY).await;
        match read {
            Ok(()) => {
                let _ = timeout(MAP_INTERVAL, servers.outdated.notified()).await;
            }
            Err(problem) => servers.map.write().problem = problem,
        }
    }
}

fn answer(value: Value) -> Answer {
    match value {
        Value::ServerError(error) => Err(StoreError::of_command(&error)),
        value => Ok(value),
    }
}

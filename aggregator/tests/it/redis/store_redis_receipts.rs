//! Receipts: a server that was set back by less than the time between two looks at its marker, or within a pipeline.

use crate::support::redis::*;
use parking_lot::Mutex;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use redis::Connection;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;
use weir_aggregator::redis::{Incarnation, Store, StoreOptions};
use weir_core::model::key::Key;
use weir_core::region::exchange::LowerBound;
use weir_core::replication::regional::marker::{Look, Marker};
use weir_core::replication::regional::receipts::{Ended, Receipts};
use weir_envoy::{Redis, RedisCluster, RedisOptions};

const MARKER: &str = "weir:eu:incarnation:{0}";
const COPY: &str = "weir:eu:copy:{0}";

fn copy(hand: &mut Connection, from: &str, to: &str) {
    redis::cmd("COPY").arg(from).arg(to).arg("REPLACE").exec(hand).unwrap();
}

/// A copy of each marker of a server. The data beside them are not compared.
fn copies(hand: &mut Connection) -> Vec<(String, String)> {
    let markers: Vec<String> = redis::cmd("KEYS").arg("weir:eu:incarnation:*").query(hand).unwrap();
    markers.into_iter().map(|marker| (marker.replace("incarnation", "copy"), marker)).collect()
}

#[tokio::test]
async fn a_set_back_after_the_last_look_is_found_for_each_kind_of_write() {
    let (redis, store) = started().await;
    let mut hand = hand(&redis);
    let mut last = LastRead::default();
    let (one, many) = (key(b"alice"), (0..700).map(numbered).collect::<Vec<_>>());
    for kind in ["merge", "merges", "query", "lower bound", "hot index"] {
        for is_set_back in [false, true] {
            let before = look(&store, &mut last).await[0];
            copy(&mut hand, MARKER, COPY);
            match kind {
                "merge" => drop(merge_one(&store, merge(&one, &[(A, 1)])).await),
                "merges" => {
                    let cells: Vec<_> = many.iter().map(|key| merge(key, &[(A, 1)])).collect();
                    assert!(store.merge(&cells, now(), AMPLE).await.iter().all(Result::is_ok));
                }
                "query" => drop(merge_one(&store, proposing(&one, proposal(B, 1, 10))).await),
                "lower bound" => {
                    let bound = LowerBound { key: one.clone(), sequence: CELL, total: 5, expires: LATE };
                    store.raise_to(&[bound], now(), AMPLE).await.pop().unwrap().unwrap();
                }
                _ => store.note_hot(&[(one.clone(), CELL, LATE)], now(), AMPLE).await.unwrap(),
            }
            if is_set_back {
                copy(&mut hand, COPY, MARKER);
            }
            let after = look(&store, &mut last).await[0];
            assert_eq!(after.id != before.id, is_set_back, "{kind}");
            assert_eq!(look(&store, &mut last).await[0].id, after.id, "{kind}: one loss");
        }
    }
}

/// What happens to a server before a command of a pipeline of writes.
#[derive(Clone, Copy, Debug)]
enum Happens {
    Nothing,
    SetBack,
    Flushed,
}

/// A proxy that hands commands on one by one.
struct Splitter {
    hand: Mutex<Connection>,
    server: SocketAddr,
    /// Before which command of the next pipeline of writes, of which the first and the last are its receipt.
    happens: Mutex<(usize, Happens)>,
    /// How many scripts were handed on.
    scripts: Mutex<u64>,
}

impl Splitter {
    async fn listen(self: Arc<Self>, listener: TcpListener) {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(Arc::clone(&self).forward(client));
        }
    }

    async fn forward(self: Arc<Self>, client: TcpStream) {
        let (mut requests, mut to_client) = client.into_split();
        let (mut answers, mut to_server) = TcpStream::connect(self.server).await.unwrap().into_split();
        tokio::spawn(async move { tokio::io::copy(&mut answers, &mut to_client).await });
        let (mut read, mut within) = (Vec::new(), None);
        while requests.read_buf(&mut read).await.is_ok_and(|bytes| bytes > 0) {
            while let Some(length) = length_of_command(&read) {
                let command: Vec<u8> = read.drain(..length).collect();
                let is_receipt = command.starts_with(b"*9\r\n") && has(&command, MARKER);
                let number = within.map_or(is_receipt.then_some(0), |number: usize| Some(number + 1));
                within = number.filter(|number| *number == 0 || !is_receipt);
                if let Some(number) = number {
                    self.before(number).await;
                }
                *self.scripts.lock() += u64::from(has(&command, "EVALSHA"));
                to_server.write_all(&command).await.unwrap();
            }
        }
    }

    /// How many scripts the server has executed.
    fn executed(&self) -> u64 {
        let stats: String = redis::cmd("INFO").arg("commandstats").query(&mut self.hand.lock()).unwrap();
        let calls = stats.split("cmdstat_evalsha:calls=").nth(1);
        calls.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
    }

    async fn before(&self, number: usize) {
        let (at, happens) = *self.happens.lock();
        if at != number {
            return;
        }
        // All before it must have been executed.
        while self.executed() != *self.scripts.lock() {
            sleep(Duration::from_millis(1)).await;
        }
        let mut hand = self.hand.lock();
        match happens {
            Happens::Nothing => {}
            Happens::SetBack => {
                let cells: Vec<String> =
                    redis::cmd("KEYS").arg("weir:eu:{default*").query(&mut hand).unwrap();
                cells.iter().for_each(|cell| redis::cmd("DEL").arg(cell).exec(&mut hand).unwrap());
                copy(&mut hand, COPY, MARKER);
            }
            Happens::Flushed => redis::cmd("FLUSHALL").exec(&mut hand).unwrap(),
        }
    }
}

fn has(command: &[u8], text: &str) -> bool {
    command.windows(text.len()).any(|window| window == text.as_bytes())
}

/// The length of the first command, an array of strings, if all of it was read.
fn length_of_command(read: &[u8]) -> Option<usize> {
    let number = |at: usize| {
        let line = read.get(at + 1..)?;
        let end = line.iter().position(|byte| *byte == b'\r')?;
        let number: usize = std::str::from_utf8(&line[..end]).ok()?.parse().ok()?;
        Some((number, at + 1 + end + 2))
    };
    let (strings, mut at) = number(0)?;
    for _ in 0..strings {
        let (length, begins) = number(at)?;
        at = begins + length + 2;
    }
    (read.len() >= at).then_some(at)
}

/// The server may do something else between two commands of a pipeline.
#[tokio::test]
async fn a_set_back_within_a_pipeline_is_found() {
    let redis = redis().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let name = listener.local_addr().unwrap();
    let splitter = Arc::new(Splitter {
        hand: Mutex::new(hand(&redis)),
        server: redis.address(),
        happens: Mutex::new((0, Happens::Nothing)),
        scripts: Mutex::default(),
    });
    let listens = tokio::spawn(Arc::clone(&splitter).listen(listener));
    let store = open(&options(&format!("redis://{name}"))).await;
    let (mut last, mut count) = (LastRead::default(), 0);
    for happens in [Happens::Nothing, Happens::SetBack, Happens::Flushed] {
        // Its receipt, the merge, and its receipt.
        for at in 0..3 {
            let before = look(&store, &mut last).await[0].id;
            copy(&mut splitter.hand.lock(), MARKER, COPY);
            *splitter.happens.lock() = (at, happens);
            count += 1;
            merge_one(&store, merge(&key(b"alice"), &[(A, count)])).await;
            *splitter.happens.lock() = (0, Happens::Nothing);
            let is_found = look(&store, &mut last).await[0].id != before;
            let is_lost = match happens {
                Happens::Nothing => false,
                Happens::SetBack => at > 0,
                Happens::Flushed => true,
            };
            assert_eq!(is_found, is_lost, "{happens:?} before command {at}");
        }
    }
    listens.abort();
}

/// A marker, a client's state, and what the client has read, in the core.
struct Model {
    marker: Option<Marker>,
    receipts: Receipts,
    last: LastRead,
    reader: [u8; 16],
}

impl Model {
    /// A look that was answered as `read`, apart from the id.
    fn look(&mut self, fresh: u128, read: &Incarnation) -> Incarnation {
        let (last, receipts) = (self.last.clone(), self.receipts.clone());
        let look = Look { reader: self.reader, fresh, last, receipts };
        let read = Marker::read(&mut self.marker, 0, &look, read.server, read.read_at());
        self.receipts.read(read.place, read.id);
        self.last.insert(read);
        read
    }

    fn write(&mut self) {
        let Some(receipt) = self.receipts.begin(0) else { return };
        Marker::record(&mut self.marker, &self.reader, &receipt, receipt.first);
        let is_recorded = Marker::record(&mut self.marker, &self.reader, &receipt, receipt.last);
        self.receipts.end(&receipt, if is_recorded { Ended::Recorded } else { Ended::Unrecorded });
    }
}

/// The scripts do what the core's rules do, which the simulator runs.
#[tokio::test]
async fn the_scripts_keep_the_marker_as_the_core_does() {
    let (redis, store) = started().await;
    let mut hand = hand(&redis);
    redis::cmd("DEL").arg(MARKER).exec(&mut hand).unwrap();
    let mut random = StdRng::seed_from_u64(5);
    let (mut model, mut last) = (
        Model { marker: None, receipts: Receipts::default(), last: LastRead::default(), reader: [1; 16] },
        LastRead::default(),
    );
    let mut copied: Vec<(String, Option<Marker>)> = vec![];
    // By the ids of Redis, those of the core.
    let mut ids = std::collections::BTreeMap::new();
    let mut lost = 0;
    for step in 1..600_u128 {
        match random.random_range(0..10) {
            0..4 => {
                let before = last.at(0).map(|last| last.id);
                let read = look(&store, &mut last).await[0];
                let expected = model.look(step, &read);
                assert_eq!(*ids.entry(read.id).or_insert(expected.id), expected.id, "step {step}");
                assert_eq!(read.looks, expected.looks, "step {step}");
                lost += u32::from(before.is_some_and(|before| before != read.id));
            }
            4..8 => {
                merge_one(&store, merge(&key(b"alice"), &[(A, 1)])).await;
                model.write();
            }
            8 if model.marker.is_some() => {
                let name = format!("weir:eu:copy-{step}:{{0}}");
                copy(&mut hand, MARKER, &name);
                copied.push((name, model.marker.clone()));
            }
            9 if !copied.is_empty() => {
                let (name, marker) = copied[random.random_range(0..copied.len())].clone();
                copy(&mut hand, &name, MARKER);
                model.marker = marker;
            }
            _ => {}
        }
    }
    assert!(lost > 10 && ids.len() > 10, "{lost} losses, {} incarnations", ids.len());
}

#[tokio::test]
async fn a_missing_marker_takes_no_receipt_and_the_next_look_begins_an_incarnation() {
    let (redis, store) = started().await;
    let mut hand = hand(&redis);
    let mut last = LastRead::default();
    let before = look(&store, &mut last).await[0];
    copy(&mut hand, MARKER, COPY);
    redis::cmd("DEL").arg(MARKER).exec(&mut hand).unwrap();
    merge_one(&store, merge(&key(b"alice"), &[(A, 1)])).await;
    assert!(!redis::cmd("EXISTS").arg(MARKER).query::<bool>(&mut hand).unwrap());
    // What was merged meanwhile is not in the data that the server is then set back to.
    copy(&mut hand, COPY, MARKER);
    assert_ne!(look(&store, &mut last).await[0].id, before.id);
    redis::cmd("SET").arg(MARKER).arg("by hand").exec(&mut hand).unwrap();
    merge_one(&store, merge(&key(b"alice"), &[(A, 2)])).await;
    look(&store, &mut last).await;
}

#[tokio::test]
async fn writes_without_a_receipt_have_failed() {
    let rules = "--user weir on >secret ~* &* +@all".split(' ').map(str::to_owned).collect();
    let redis = Redis::start(RedisOptions { port: 0, arguments: rules }).await.unwrap();
    let mut hand = hand(&redis);
    let store = open(&options(&format!("redis://weir:secret@{}", redis.address()))).await;
    let all = |keys: &[&str], hand: &mut Connection| {
        redis::cmd("ACL").arg(&["SETUSER", "weir", "resetkeys"]).arg(keys).exec(hand).unwrap();
    };
    all(&["~weir:eu:{default*"], &mut hand);
    let refused = store.merge(&[merge(&key(b"alice"), &[(A, 1)])], now(), AMPLE).await.pop().unwrap();
    assert_eq!(refused.unwrap_err().reason(), "refused");
    all(&["~weir:*"], &mut hand);
    assert_eq!(merge_one(&store, merge(&key(b"alice"), &[(A, 2)])).await.current, [(A, 2)]);
}

/// A cluster of three servers, a store on it, and a connection to each server.
async fn cluster() -> (RedisCluster, Store, Vec<Connection>) {
    let mut cluster = RedisCluster::start(3).await.unwrap();
    let store = open(&StoreOptions { cluster: true, ..options(&cluster.url()) }).await;
    let hands = cluster.nodes().iter().map(hand).collect();
    (cluster, store, hands)
}

fn slot_of(name: &str, hand: &mut Connection) -> u64 {
    redis::cmd("CLUSTER").arg("KEYSLOT").arg(name).query(hand).unwrap()
}

/// The slot of the cells of `key`.
fn slot_of_cell(key: &Key, hand: &mut Connection) -> u64 {
    let identifier = String::from_utf8_lossy(key.parts().identifier).into_owned();
    slot_of(&format!("weir:eu:{{default/login/{identifier}/60000/0/1}}"), hand)
}

async fn ids(store: &Store, last: &mut LastRead) -> Vec<u128> {
    look(store, last).await.iter().map(|read| read.id).collect()
}

#[tokio::test]
async fn the_receipt_is_in_a_marker_on_the_server_of_the_cells() {
    let (_cluster, store, mut hands) = cluster().await;
    let mut last = LastRead::default();
    look(&store, &mut last).await;
    // Each marker is for 256 slots. Two such parts have slots of two servers.
    let ends = [16_384 / 3, 16_384 * 2 / 3];
    let is_at_an_end = |slot: u64| ends.iter().any(|end| end / 256 == slot / 256);
    let mut slots: Vec<(Key, u64)> = vec![];
    for key in (0..4_000).map(numbered) {
        let slot = slot_of_cell(&key, &mut hands[0]);
        if slots.len() < 6 || is_at_an_end(slot) && slots.len() < 26 {
            slots.push((key, slot));
        }
    }
    let mut owners = std::collections::BTreeSet::new();
    for (key, slot) in slots {
        let owner = ends.iter().filter(|end| **end <= slot).count();
        owners.insert((owner, slot / 256));
        let before = ids(&store, &mut last).await;
        let all = copies(&mut hands[owner]);
        all.iter().for_each(|(copied, marker)| copy(&mut hands[owner], marker, copied));
        merge_one(&store, merge(&key, &[(A, 1)])).await;
        all.iter().for_each(|(copied, marker)| copy(&mut hands[owner], copied, marker));
        let after = ids(&store, &mut last).await;
        let changed = before.iter().zip(&after).filter(|(before, after)| before != after).count();
        assert_eq!(changed, 1, "slot {slot} of server {owner}");
    }
    for end in ends {
        let both = owners.iter().filter(|(_, part)| *part == end / 256).count();
        assert_eq!(both, 2, "cells on both servers of part {}", end / 256);
    }
}

#[tokio::test]
async fn a_marker_that_moves_leaves_the_receipts_to_another_of_its_server() {
    let (mut cluster, store, mut hands) = cluster().await;
    let mut last = LastRead::default();
    let ports: Vec<_> = cluster.nodes().iter().map(Redis::port).collect();
    let [to_id, from_id] =
        [1, 0].map(|at: usize| redis::cmd("CLUSTER").arg("MYID").query::<String>(&mut hands[at]).unwrap());
    let in_part = |slot: u64| slot / 256 == 3;
    let cell = (0..10_000).map(numbered).find(|key| in_part(slot_of_cell(key, &mut hands[0]))).unwrap();
    let markers = copies(&mut hands[0]).into_iter().map(|(_, marker)| marker);
    let marker = markers.clone().find(|marker| in_part(slot_of(marker, &mut hands[0]))).unwrap();
    let slot = slot_of(&marker, &mut hands[0]);
    assert_ne!(slot_of_cell(&cell, &mut hands[0]), slot);
    let set_slot = |hand: &mut Connection, state: &str, id: &str| {
        redis::cmd("CLUSTER").arg("SETSLOT").arg(slot).arg(state).arg(id).exec(hand).unwrap();
    };
    set_slot(&mut hands[1], "IMPORTING", &from_id);
    set_slot(&mut hands[0], "MIGRATING", &to_id);
    let mut migrate = redis::cmd("MIGRATE");
    migrate.arg("127.0.0.1").arg(ports[1]).arg(&marker).arg(0).arg(5_000).exec(&mut hands[0]).unwrap();
    let before = ids(&store, &mut last).await;
    // The old owner redirects for this marker (ASK), and holds the cells.
    let all = copies(&mut hands[0]);
    all.iter().for_each(|(copied, marker)| copy(&mut hands[0], marker, copied));
    merge_one(&store, merge(&cell, &[(A, 1)])).await;
    assert_eq!(ids(&store, &mut last).await, before, "a move is no loss");
    all.iter().for_each(|(copied, marker)| copy(&mut hands[0], copied, marker));
    assert_ne!(ids(&store, &mut last).await, before, "a set-back is one");
}

//! Tests of the regional store whose primary Sentinels name.

use crate::support::redis::*;
use std::time::Duration;
use tokio::time::timeout;
use weir_aggregator::redis::{Received, Store, StoreError, StoreOptions};
use weir_core::model::key::Key;
use weir_envoy::{Redis, wait};

const PASSWORD: &str = "hunter2:/@,%";
const ENCODED: &str = "hunter2%3A%2F%40%2C%25";

/// A URL of Sentinels that have a password, unlike the servers.
fn url(sentinels: &[Sentinel], name: &str, password: &str) -> String {
    let hosts: Vec<String> =
        sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port)).collect();
    format!("redis+sentinel://{}/{name}/0?sentinel_password={password}", hosts.join(","))
}

/// Three Sentinels of `primary` and `replica`, which have found each other.
async fn sentinels(primary: &Redis, replica: &Redis) -> Vec<Sentinel> {
    let lines = format!("requirepass \"{PASSWORD}\"\nsentinel sentinel-pass \"{PASSWORD}\"");
    let mut all: Vec<Sentinel> = (0..3).map(|_| Sentinel::start(primary.port(), 2, &lines)).collect();
    for sentinel in &mut all {
        sentinel.knows(replica, 2, &format!(":{ENCODED}@")).await;
    }
    all
}

async fn merges(store: &Store, key: &Key, count: u64) -> bool {
    let merged = store.merge(&[merge(key, &[(A, count)])], now(), AMPLE).await.pop().unwrap();
    merged.is_ok_and(|merged| merged.current == [(A, count)])
}

#[tokio::test]
async fn the_primary_is_followed_at_failovers() {
    let mut first = redis().await;
    let second = replica_of(&first).await;
    let sentinels = sentinels(&first, &second).await;
    // One that hangs is the first to be asked.
    sentinels[0].process.pause().await.unwrap();
    let options = options(&url(&sentinels, "weir", ENCODED));
    assert!(!format!("{options:?}").contains("hunter2"));
    let store = open(&options).await;
    let mut messages = store.subscribe();
    let connected = async |messages: &mut tokio::sync::mpsc::Receiver<Received>| {
        timeout(HEALED, messages.recv()).await.unwrap() == Some(Received::Connected)
    };
    assert!(connected(&mut messages).await);
    let mut last = LastRead::default();
    let before = look(&store, &mut last).await[0];
    assert!(merges(&store, &key(b"alice"), 5).await);
    replicated(&first).await;
    sentinels[0].process.resume().unwrap();

    first.process().kill().unwrap();
    wait::until("the store has followed", HEALED, async || merges(&store, &key(b"alice"), 6).await)
        .await
        .unwrap();
    assert!(second.command("INFO replication").await.unwrap().contains("role:master"));
    assert_ne!(look(&store, &mut last).await[0].id, before.id, "a failover counts as a loss");
    assert!(connected(&mut messages).await, "what was published meanwhile may be lost");
    store.publish(b"change", AMPLE).await.unwrap();
    let received = timeout(HEALED, messages.recv()).await.unwrap();
    assert_eq!(received, Some(Received::Message(b"change".to_vec())));

    // Back, by hand, while the former primary lives: it is told to be a replica, and the store leaves it.
    first.restart().await.unwrap();
    let link = async || {
        first.command("INFO replication").await.is_ok_and(|info| info.contains("master_link_status:up"))
    };
    wait::until("the first server is a replica", HEALED, link).await.unwrap();
    let failover = async || {
        let url = format!("redis://:{ENCODED}@127.0.0.1:{}", sentinels[1].port);
        let mut hand = redis::Client::open(url).unwrap().get_connection_with_timeout(AMPLE).unwrap();
        redis::cmd("SENTINEL").arg(&["FAILOVER", "weir"]).exec(&mut hand).is_ok()
    };
    wait::until("the Sentinels let another failover begin", HEALED * 2, failover).await.unwrap();
    let back = async || {
        let info = first.command("INFO replication").await.unwrap_or_default();
        info.contains("role:master") && merges(&store, &key(b"bob"), 1).await
    };
    wait::until("the store is back on the first server", HEALED, back).await.unwrap();
    assert!(merges(&store, &key(b"alice"), 6).await, "all that was replicated is there");
}

#[tokio::test]
async fn the_sentinels_and_the_servers_have_tls() {
    let folder = tempfile::tempdir().unwrap();
    make_certificates(folder.path());
    let (_redis, tls_port) = redis_with_tls(folder.path()).await;
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let lines = [
        ("cert-file", file("server.pem")),
        ("key-file", file("server.key")),
        ("ca-cert-file", file("ca.pem")),
        ("auth-clients", "no".to_owned()),
        ("replication", "yes".to_owned()),
    ];
    let lines: Vec<String> = lines.iter().map(|(name, value)| format!("tls-{name} {value}")).collect();
    let sentinel = Sentinel::start(tls_port, 1, &lines.join("\n"));
    let trusting = |scheme: &str, ca: &str| StoreOptions {
        ca_file: Some(folder.path().join(ca)),
        ..options(&format!("{scheme}://127.0.0.1:{}/weir", sentinel.port))
    };
    let store = open(&trusting("rediss+sentinel", "ca.pem")).await;
    assert!(merges(&store, &key(b"alice"), 1).await);
    let plain = Store::open(&trusting("redis+sentinel", "ca.pem"));
    assert_eq!(plain.unwrap_err(), weir_aggregator::redis::OptionsError::CaWithoutTls(1));
    let store = Store::open(&trusting("rediss+sentinel", "other.pem")).unwrap();
    wait::until("the authority is refused", HEALED, async || {
        let read = store.read(&[(key(b"alice"), CELL)], Duration::from_secs(1)).await.pop().unwrap();
        read.is_err_and(|error| error.to_string().contains("--redis-ca-file"))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn what_the_sentinels_refuse_is_named() {
    let primary = redis().await;
    let replica = replica_of(&primary).await;
    let sentinels = sentinels(&primary, &replica).await;
    let refused = async |url: &str| {
        let store = Store::open(&options(url)).unwrap();
        let mut seen = String::new();
        wait::until("the store says why", HEALED, async || {
            let read = store.read(&[(key(b"alice"), CELL)], Duration::from_secs(1)).await.pop().unwrap();
            let Err(error) = read else { return false };
            seen = error.to_string();
            error != StoreError::Unavailable
        })
        .await
        .unwrap();
        assert!(!seen.contains("hunter2"), "{seen}");
        seen
    };
    assert!(refused(&url(&sentinels, "other", ENCODED)).await.contains("no Sentinel names a primary"));
    for password in ["wrong", ""] {
        let error = refused(&url(&sentinels, "weir", password)).await;
        assert!(error.contains("WRONGPASS") || error.contains("NOAUTH"), "{error}");
    }
    // A server is no Sentinel.
    let server = format!("redis+sentinel://{}/weir", primary.address());
    let error = refused(&server).await;
    assert!(error.contains("no Sentinel"), "{error}");
}

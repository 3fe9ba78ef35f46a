//! Limits and states of servers, and the round trips to them.

use super::pair;
use crate::support::database::far::Far;
use crate::support::database::packets::*;
use crate::support::database::*;
use std::time::{Duration, Instant};
use weir_core::replication::global::packet::MAX_PACKET_ROWS;
use weir_envoy::ports;

/// After a failover, the address may lead to a server that accepts no writes.
pub async fn a_server_that_is_read_only_is_read(store: &Store) {
    let scene = store.fresh().await;
    let (mut a, mut b) = pair(&scene).await;
    b.send(&[row("x", 1)]).await;
    let (server, database) = scene.url.rsplit_once('/').unwrap();
    scene
        .run(&format!(
            "CREATE USER IF NOT EXISTS 'app'@'%' IDENTIFIED BY 'geheim'; GRANT SELECT, INSERT, UPDATE ON {database}.* TO 'app'@'%'"
        ))
        .await;
    a.database = open(&format!("{}/{database}", server.replace("weir:", "app:")), "a");
    a.send(&[row("y", 1)]).await;
    let kinds: &[&str] =
        if is_mariadb(&scene).await { &["read_only"] } else { &["read_only", "super_read_only"] };
    for kind in kinds {
        scene.run(&format!("SET GLOBAL {kind} = 1")).await;
        let packet = a.writing(&[row("y", 2)]);
        let error = a.exchange(&packet).await.unwrap_err();
        assert_eq!(error.reason(), "refused", "{error}");
        assert!(
            error.to_string().contains("read-only") || error.to_string().contains("read_only"),
            "{error}"
        );
        assert_eq!(a.exchange(&a.reading()).await.unwrap().feed.own, a.acknowledged);
        assert_eq!(a.count("b", "x"), 1);
        scene.run("SET GLOBAL read_only = 0").await;
        a.send(&[row("y", 2)]).await;
    }
    b.catch_up().await;
    assert_eq!(b.count("a", "y"), 2);
}

async fn is_mariadb(scene: &Scene) -> bool {
    scene.number("@@version LIKE '%MariaDB%'").await == 1
}

pub async fn a_packet_above_the_servers_limit(store: &Store) {
    let scene = store.fresh().await;
    let (mut a, mut b) = pair(&scene).await;
    let before = scene.number("@@global.max_allowed_packet").await;
    scene.run("SET GLOBAL max_allowed_packet = 65536").await;
    // The limit is that of a new session.
    a.database = scene.open("a");
    let all = rows("k", MAX_PACKET_ROWS, 1);
    let packet = a.writing(&all);
    let error = a.exchange(&packet).await.unwrap_err();
    assert!(error.to_string().ends_with("the server accepts 65536: raise max_allowed_packet"), "{error}");
    assert_eq!(a.exchange(&a.reading()).await.unwrap().feed.own.version, 1);
    a.send(&all[..100]).await;
    scene.run(&format!("SET GLOBAL max_allowed_packet = {before}")).await;
    a.database = scene.open("a");
    a.send(&all[100..]).await;
    b.catch_up().await;
    assert_eq!(b.held.len(), all.len());
}

pub async fn a_packet_takes_one_round_trip(store: &Store) {
    const ROUND_TRIP: Duration = Duration::from_millis(60);
    let scene = store.fresh().await;
    let port = store.server.as_ref().unwrap().port();
    let far = Far::start(ports::local(port), ROUND_TRIP).await;
    let mut b = Node::new(scene.open("b"), 2);
    b.send(&rows("b", 500, 1)).await;
    let mut a =
        Node::new(open(&scene.url.replace(&format!(":{port}/"), &format!(":{}/", far.port())), "a"), 1);
    // Connects.
    a.send(&[]).await;
    for count in 1..=3 {
        let (trips, began) = (far.round_trips(), Instant::now());
        a.send(&rows("a", MAX_PACKET_ROWS, count)).await;
        eprintln!("{MAX_PACKET_ROWS} rows over {ROUND_TRIP:?}: {:?}", began.elapsed());
        assert_eq!(far.round_trips() - trips, 1);
    }
    assert_eq!(a.held.len(), 500);
}

pub async fn a_file_that_is_read_only_is_read(store: &Store) {
    let scene = store.fresh().await;
    let (mut a, mut b) = pair(&scene).await;
    b.send(&[row("x", 1)]).await;
    a.database = open(&format!("{}?mode=ro", scene.url), "a");
    let packet = a.writing(&[row("y", 2)]);
    let error = a.exchange(&packet).await.unwrap_err();
    assert_eq!(error.reason(), "refused", "{error}");
    assert!(error.to_string().contains("readonly"), "{error}");
    assert_eq!(a.catch_up().await, fed(&[("x", 1)]));
    a.database = scene.open("a");
    a.send(&[row("y", 2)]).await;
    assert_eq!(b.catch_up().await, fed(&[("y", 2)]));
}

//! A table that lost its rows, or was set back.

use super::pair;
use crate::support::database::packets::*;
use crate::support::database::*;

pub async fn a_truncated_table(store: &Store) {
    let scene = store.fresh().await;
    let (mut a, mut b) = pair(&scene).await;
    let (own_a, own_b) = ([row("x", 5), row("y", 6)], [row("x", 8)]);
    a.send(&own_a).await;
    b.send(&own_b).await;
    a.catch_up().await;
    b.catch_up().await;
    scene.wipe().await;
    let packet = a.reading();
    assert_eq!(a.exchange(&packet).await.unwrap().feed.own, None);
    // Each finds the loss with its next packet, and sends everything again with a version that it never used.
    assert!(a.read().await.lost && b.send(&[]).await.lost);
    for (node, own) in [(&mut a, &own_a[..]), (&mut b, &own_b)] {
        assert!(node.cursors.values().all(|version| *version == 0));
        node.held.clear();
        assert!(!node.send(own).await.lost);
    }
    let mut fresh = Node::new(scene.open("c"), 9);
    assert_eq!(fresh.catch_up().await, fed(&[("x", 5), ("x", 8), ("y", 6)]));
    for node in [&mut a, &mut b] {
        node.catch_up().await;
    }
    assert_eq!((a.count("b", "x"), b.count("a", "x"), b.count("a", "y")), (8, 5, 6));
}

/// A restored dump has markers and versions of before.
pub async fn a_table_set_back(store: &Store) {
    let scene = store.fresh().await;
    let (mut a, mut b) = pair(&scene).await;
    a.send(&[row("x", 5)]).await;
    a.catch_up().await;
    b.catch_up().await;
    scene.run("CREATE TABLE dump AS SELECT * FROM ratelimit_window_counts").await;
    a.send(&[row("x", 6), row("y", 7)]).await;
    b.send(&[row("z", 8)]).await;
    a.catch_up().await;
    b.catch_up().await;
    scene.wipe().await;
    scene.run("INSERT INTO ratelimit_window_counts SELECT * FROM dump").await;
    assert_eq!(a.exchange(&a.reading()).await.unwrap().feed.own, Some(2));
    // The first packet after the restore writes a new marker, and its answer shows the old one.
    assert!(a.send(&[row("x", 9)]).await.lost && b.read().await.lost);
    for (node, own) in [(&mut a, &[row("x", 9), row("y", 7)][..]), (&mut b, &[row("z", 8)])] {
        assert!(node.cursors.values().all(|version| *version == 0));
        node.held.clear();
        node.send(own).await;
        assert!(!node.read().await.lost);
    }
    let mut fresh = Node::new(scene.open("c"), 9);
    assert_eq!(fresh.catch_up().await, fed(&[("x", 9), ("y", 7), ("z", 8)]));
    for node in [&mut a, &mut b] {
        node.catch_up().await;
    }
    assert_eq!((a.count("b", "z"), b.count("a", "x"), b.count("a", "y")), (8, 9, 7));
}

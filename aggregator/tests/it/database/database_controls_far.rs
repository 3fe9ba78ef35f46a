//! Tests of live control with a remote or disconnected database, on MariaDB and MySQL. A change locks one row, for
//! which all other changes wait.

use crate::support::database::far::Far;
use crate::support::database::{NOW, Scene, Store, WITHIN, on_servers, open, run};
use sqlx::{Connection, Executor};
use std::time::{Duration, Instant};
use weir_aggregator::database::{Database, DatabaseError};
use weir_core::control::book::Book;
use weir_core::control::change::{Change, ChangeOutcome, Wish};
use weir_core::control::{Effect, Selector, Target};
use weir_core::model::time::UnixMs;
use weir_envoy::{Proxy, ports};

/// A round trip between continents.
const ROUND_TRIP: Duration = Duration::from_millis(40);
/// Number of bans that `control::bans` stores in one batch, and its deadline.
const BATCH: usize = 25;
const BATCH_WITHIN: Duration = Duration::from_secs(5);
/// The deadline of an operator's change (`api::http::overrides`).
const PERSON_WITHIN: Duration = Duration::from_secs(5);

on_servers!(|store| scenarios(&store));

async fn scenarios(store: &Store) {
    run!(
        store,
        a_batch_takes_as_many_round_trips_as_one_change_and_admits_other_changes,
        a_transaction_that_is_cut_off_does_not_delay_others,
    );
}

fn change(name: &str, wish: Wish) -> Change {
    let selector = Selector::Identifier(name.into());
    Change {
        target: Target { workspace: "w".into(), scope: "n".into(), selector, window_ms: None },
        wish,
        reason: "why".into(),
        author: "ann".into(),
        automatic: None,
    }
}

fn set(name: &str) -> Change {
    change(name, Wish::Set(Effect::Exempt, None))
}

fn bans(prefix: &str, until: u64) -> Vec<Change> {
    let ban = |i| change(&format!("{prefix}{i}"), Wish::Set(Effect::Ban, Some(UnixMs(until))));
    (0..BATCH).map(|i| Change { automatic: Some(NOW), ..ban(i) }).collect()
}

/// How many of these changes were made.
async fn made(database: &Database, changes: &[Change], within: Duration) -> Result<usize, DatabaseError> {
    let changed = database.change_controls(changes, &Book::new(), NOW, within).await?;
    Ok(changed.iter().filter(|changed| matches!(changed, ChangeOutcome::Done(..))).count())
}

/// The port of a scene's server.
fn port(store: &Store) -> u16 {
    store.server.as_ref().unwrap().port()
}

/// The same database through a proxy.
fn through(scene: &Scene, store: &Store, way: u16) -> Database {
    open(&scene.url.replace(&format!(":{}/", port(store)), &format!(":{way}/")), "a")
}

async fn a_batch_takes_as_many_round_trips_as_one_change_and_admits_other_changes(store: &Store) {
    let scene = store.fresh().await;
    let far = Far::start(ports::local(port(store)), ROUND_TRIP).await;
    let (rules, person) = (through(&scene, store, far.port()), through(&scene, store, far.port()));
    // Connects, and creates the edition.
    for (name, database) in [("rules", &rules), ("person", &person)] {
        assert_eq!(made(database, &[set(name)], PERSON_WITHIN).await, Ok(1));
    }
    let trips = async |changes: Vec<Change>| {
        let before = far.round_trips();
        assert_eq!(made(&rules, &changes, BATCH_WITHIN).await, Ok(changes.len()));
        far.round_trips() - before
    };
    let (one, new) = (trips(vec![set("one")]).await, trips(bans("b", NOW.0 + 60_000)).await);
    let longer = trips(bans("b", NOW.0 + 90_000)).await;
    println!("round trips: {one} for one change, {new} for {BATCH} new bans, {longer} to extend them");
    // Six, plus one if a connection was idle long enough to be pinged first.
    assert!([one, new, longer].into_iter().all(|trips| trips <= 7));

    // Consecutive batches, and an operator's change at the same time.
    let flood = async {
        let began = Instant::now();
        for batch in 0..4 {
            let changes = bans(&format!("f{batch}-"), NOW.0 + 60_000);
            assert_eq!(made(&rules, &changes, BATCH_WITHIN).await, Ok(BATCH));
        }
        began.elapsed()
    };
    let people = async {
        let mut longest = Duration::ZERO;
        for i in 0..4 {
            let began = Instant::now();
            assert_eq!(made(&person, &[set(&format!("p{i}"))], PERSON_WITHIN).await, Ok(1));
            longest = longest.max(began.elapsed());
        }
        longest
    };
    let (flood, longest) = tokio::join!(flood, people);
    println!("four batches took {flood:?}, and an operator waited {longest:?} at most");
}

async fn a_transaction_that_is_cut_off_does_not_delay_others(store: &Store) {
    let scene = store.fresh().await;
    let proxy = Proxy::start(ports::local(port(store))).await.unwrap();
    let (lost, other) = (through(&scene, store, proxy.port()), scene.open("b"));
    for database in [&lost, &other] {
        assert!(made(database, &[set("held")], PERSON_WITHIN).await.is_ok());
    }
    // The transaction has locked the edition and waits for a row. Then the proxy stops all bytes, and the transaction
    // stays open.
    let mut connection = scene.mysql().await;
    let mut row = connection.begin().await.unwrap();
    row.execute("SELECT * FROM weir_controls FOR UPDATE").await.unwrap();
    let changing = {
        let lost = lost.clone();
        tokio::spawn(
            async move { made(&lost, &[change("held", Wish::Set(Effect::Ban, None))], WITHIN).await },
        )
    };
    scene.until_a_transaction_waits().await;
    proxy.black_hole().await.unwrap();
    row.rollback().await.unwrap();

    let began = Instant::now();
    assert_eq!(made(&other, &[set("other")], PERSON_WITHIN).await, Ok(1));
    println!("another change took {:?}", began.elapsed());
    assert!(!changing.is_finished());
    proxy.forward().await.unwrap();
    assert_eq!(changing.await.unwrap(), Ok(1), "the change must be retried");
}

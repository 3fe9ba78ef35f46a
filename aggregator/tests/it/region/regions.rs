//! Tests of several regions in one process, each with its own streams, on one real database: the counts that they
//! exchange, exact to the last unit, and those that they do not share.

use crate::support::database::{Scene, Store, publish};
use crate::support::server::{HOUR_MS, Peer, ShiftedClock, Weir, clock, hello_frame};
use sqlx::{AssertSqlSafe, Connection, Executor};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use weir_aggregator::admin::explain::explain;
use weir_aggregator::admin::parts::parts;
use weir_aggregator::admin::query::KeyQuery;
use weir_aggregator::database::DatabaseOptions;
use weir_aggregator::server::{Server, Settings};
use weir_aggregator::telemetry::clock::Clock;
use weir_core::model::breaker::Policy;
use weir_core::model::key::{Key, KeyParts};
use weir_core::model::schedule::Schedule;
use weir_core::model::time::UnixMs;
use weir_core::model::wire::{Answer, Count, FilterFrame, Query, Report};
use weir_core::region::RegionLimits;
use weir_core::region::exchange::Publication;
use weir_core::region::top::Top;
use weir_envoy::{Proxy, http, ports, wait};

const MINUTE_MS: u64 = 60_000;
const LIMIT: u64 = 100;
/// A busy machine is slow; a condition that never becomes true is rare.
const SOON: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb() {
    let store = Store::mariadb().await;
    scenarios(&store).await;
    a_replica_is_read_and_its_failures_stay_its_own(&store).await;
    deadlocks_cost_no_count(&store).await;
    a_database_that_is_cut_off(&store).await;
    a_database_that_comes_back_after_the_grace_period(&store).await;
    a_restart_beside_a_failing_database_admits_no_used_up_key(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql() {
    if let Some(store) = Store::mysql().await {
        scenarios(&store).await;
        deadlocks_cost_no_count(&store).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite() {
    scenarios(&Store::sqlite()).await;
}

async fn scenarios(store: &Store) {
    each_region_publishes_its_own_use_and_imports_the_sum_of_the_others(store).await;
    a_key_is_explained_across_regions(store).await;
    a_denial_costs_nothing_anywhere(store).await;
    a_denial_by_the_previous_window_counts_nowhere(store).await;
    little_use_and_short_windows_are_not_published(store).await;
    an_unchanged_row_is_not_written_again(store).await;
    rows_that_are_none_are_skipped(store).await;
    keys_without_room_are_no_bad_rows(store).await;
    a_row_that_was_lowered_lowers_nothing(store).await;
    a_table_that_is_wiped_is_written_again(store).await;
    identifiers_stay_apart(store).await;
    an_aggregator_that_restarts_reads_what_was_used(store).await;
    a_restart_admits_no_used_up_key_again(store).await;
    restarts_in_a_row_admit_a_limit_once(store).await;
}

fn schedule() -> Schedule {
    Schedule { publish_ms: 100, exchange_ms: 50, import_ms: 100, ..Schedule::for_tests() }
}

/// The options of a region.
struct Options {
    region: &'static str,
    url: String,
    read_url: Option<String>,
    limits: RegionLimits,
    schedule: Schedule,
    clock: Arc<ShiftedClock>,
}

impl Options {
    fn new(region: &'static str, scene: &Scene, clock: &Arc<ShiftedClock>) -> Options {
        let (url, limits, clock) = (scene.url.clone(), RegionLimits::default(), clock.clone());
        Options { region, url, read_url: None, limits, schedule: schedule(), clock }
    }

    async fn start(self) -> Region {
        let settings = Settings {
            region: self.region.into(),
            grpc_listen: "127.0.0.1:0".into(),
            admin_listen: "127.0.0.1:0".into(),
            admin_hosts: Default::default(),
            admin_links: Default::default(),
            token: None,
            limits: self.limits,
            store: None,
            database: Some(DatabaseOptions {
                url: self.url,
                read_url: self.read_url,
                region: self.region.into(),
            }),
            migrate: false,
            schedule: self.schedule,
            api: weir_aggregator::api::ApiSettings::default(),
            telemetry: None,
        };
        let server = Server::start(settings, self.clock.clone()).await.unwrap();
        let weir = Weir { server, clock: self.clock };
        let peer = join(&weir, 1).await;
        Region { weir, peer }
    }
}

/// A welcomed stream of another Envoy.
async fn join(weir: &Weir, node: u8) -> Peer {
    let mut peer = Peer::open(weir.connect().await).await;
    peer.send(hello_frame(node, false)).await;
    peer.next_with(|frame| frame.welcome).await;
    peer
}

/// A region without Redis, and an Envoy's stream to it.
struct Region {
    weir: Weir,
    peer: Peer,
}

impl Region {
    async fn start(region: &'static str, scene: &Scene, clock: &Arc<ShiftedClock>) -> Region {
        Options::new(region, scene, clock).start().await
    }

    fn sequence(&self, duration_ms: u64) -> u64 {
        self.weir.clock.now().0 / duration_ms
    }

    /// Reports the Envoy's counts, each against a limit of [`LIMIT`], and waits until they are merged.
    async fn used(&mut self, duration_ms: u64, counts: &[(&[u8], u64)]) {
        let sequence = self.sequence(duration_ms);
        let count = |(identifier, own): &(&[u8], u64)| Count {
            key: key(identifier, duration_ms).as_bytes().to_vec(),
            sequence,
            own: *own,
            limit: LIMIT,
            ..Count::default()
        };
        let counts = counts.iter().map(count).collect();
        self.peer
            .send(FilterFrame { report: Some(Report { id: 7, counts }), ..FilterFrame::default() })
            .await;
        let ack = self.peer.next_with(|frame| frame.ack).await;
        assert_eq!(ack.refused, [0; 0]);
    }

    async fn query(
        &mut self,
        identifier: &[u8],
        duration_ms: u64,
        own: u64,
        cost: u64,
        limit: u64,
    ) -> Answer {
        let key = key(identifier, duration_ms).as_bytes().to_vec();
        let sequence = self.sequence(duration_ms);
        let query = Query { id: 9, key, sequence, own, cost, limit, ..Default::default() };
        self.peer.answers(vec![query]).await.remove(0)
    }

    /// The use of the region and of the others in the current window.
    fn holds(&self, identifier: &[u8], duration_ms: u64) -> (u64, u64) {
        let sequence = self.sequence(duration_ms);
        let explained = self.weir.server.services().explain(b"w", b"n", identifier);
        let cells = explained.iter().filter(|found| found.key.parts().duration_ms == duration_ms);
        let cell = cells.flat_map(|found| &found.cells).find(|cell| cell.sequence == sequence);
        cell.map_or((0, 0), |cell| (cell.regional_total(), cell.global_others))
    }

    async fn comes_to_hold(&self, identifier: &[u8], duration_ms: u64, expected: (u64, u64)) {
        let held = wait::until("the counts are received", SOON, async || {
            self.holds(identifier, duration_ms) == expected
        });
        if held.await.is_err() {
            let (name, holds) = (identifier.escape_ascii(), self.holds(identifier, duration_ms));
            panic!("{} holds {holds:?} of {name}, not {expected:?}", self.weir.server.services().region_name);
        }
    }

    /// Waits until the region has completed `times` more packets and imports.
    async fn intervals(&self, times: u32) {
        for operation in ["exchange", "import"] {
            let name = format!("weir_ratelimit_origin_operations_total{{op=\"{operation}\"}}");
            // One that is already running does not count.
            let enough = self.weir.metric(&name) + f64::from(times + 1);
            wait::until(&name, SOON, async || self.weir.metric(&name) >= enough).await.unwrap();
        }
    }

    /// Status and text of `/readyz`.
    async fn readiness(&self) -> (u16, String) {
        let admin = self.weir.server.admin_address();
        let answer = http::send(admin, http::Request::get("/readyz")).await.unwrap();
        (answer.status, String::from_utf8(answer.body.to_vec()).unwrap())
    }

    /// The number of keys over their limits, as operators see it.
    fn keys_over(&self) -> u64 {
        let mut top = Top::default();
        while self.weir.server.services().region(|region, now| region.rank(&mut top, now)) {}
        top.over
    }

    async fn metric_becomes(&self, name: &str, accept: impl Fn(f64) -> bool) {
        let waited = wait::until(name, SOON, async || accept(self.weir.metric(name))).await;
        assert!(waited.is_ok(), "{name} is {}", self.weir.metric(name));
    }
}

fn key(identifier: &[u8], duration_ms: u64) -> Key {
    let parts =
        KeyParts { workspace: b"w", namespace: b"n", identifier, duration_ms, epoch: 0, resolution: 1 };
    Key::new(&parts).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Scene {
    /// The count in the row of an identifier and a region; 0 if there is none.
    async fn row(&self, identifier: &[u8], region: &str) -> i64 {
        let identifier = hex(identifier);
        let region = hex(region.as_bytes());
        self.number(&format!(
            "SELECT COALESCE(SUM(count), 0) FROM ratelimit_window_counts
             WHERE identifier = x'{identifier}' AND region = x'{region}' AND duration_ms > 0"
        ))
        .await
    }

    async fn row_becomes(&self, identifier: &[u8], region: &str, expected: i64) {
        let written = async || self.row(identifier, region).await == expected;
        let waited = wait::until("the row is written", SOON, written).await;
        assert!(waited.is_ok(), "the row of {region} is {}", self.row(identifier, region).await);
    }

    /// Number of rows that are cells.
    async fn cells(&self) -> i64 {
        self.number("SELECT COUNT(*) FROM ratelimit_window_counts WHERE duration_ms > 0").await
    }
}

async fn each_region_publishes_its_own_use_and_imports_the_sum_of_the_others(store: &Store) {
    let (scene, clock) = (store.fresh().await, clock());
    let mut regions = Vec::new();
    for (name, own) in [("a", 60), ("b", 55), ("c", 51)] {
        let mut region = Region::start(name, &scene, &clock).await;
        region.used(HOUR_MS, &[(b"x", own)]).await;
        regions.push((name, own, region));
    }
    let began = Instant::now();
    for (_, own, region) in &regions {
        region.comes_to_hold(b"x", HOUR_MS, (*own, 60 + 55 + 51 - own)).await;
    }
    println!("three regions agree after {:?}", began.elapsed());
    for (_, _, region) in &regions {
        region.intervals(3).await;
    }
    for (name, own, region) in &regions {
        assert_eq!(
            scene.row(b"x", name).await,
            own.cast_signed(),
            "imported counts must not be published again"
        );
        assert_eq!(region.holds(b"x", HOUR_MS), (*own, 60 + 55 + 51 - own));
    }
    assert_eq!(scene.cells().await, 3);
}

async fn a_key_is_explained_across_regions(store: &Store) {
    let (scene, clock) = (store.fresh().await, clock());
    let mut a = Region::start("a", &scene, &clock).await;
    let mut b = Region::start("b", &scene, &clock).await;
    a.used(HOUR_MS, &[(b"x", 60)]).await;
    b.used(HOUR_MS, &[(b"x", 55)]).await;
    a.comes_to_hold(b"x", HOUR_MS, (60, 55)).await;
    b.comes_to_hold(b"x", HOUR_MS, (55, 60)).await;
    let services = a.weir.server.services();
    let key = KeyQuery::parse("workspace=w&namespace=n&identifier=x").unwrap();
    let window = explain(services, &key).await.windows.remove(0);
    assert_eq!((window.used, window.global_others, window.passes), (115, 55, Some(false)));
    let [cell] = &window.cells[..] else { panic!("one cell: {window:?}") };
    let [other] = &cell.regions[..] else { panic!("one other region: {cell:?}") };
    assert_eq!((other.region.as_str(), other.count), ("b", 55));
    assert!(other.age_ms < MINUTE_MS);
    let shown = parts(services);
    let regions: Vec<_> = shown.regions.iter().map(|one| (one.name.as_str(), one.own)).collect();
    assert_eq!(regions, [("a", true), ("b", false)]);
    assert!(shown.regions.iter().all(|one| one.seen_age_ms.is_some_and(|age| age < MINUTE_MS)));
    // The use of both is 15 beyond the limit of 100.
    let excess =
        "weir_ratelimit_global_excess_ratio{workspace=\"w\",namespace=\"n\",window_seconds=\"3600\"}";
    crate::support::server::until("the excess is recorded", || a.weir.metric(excess) == 0.15).await;
    assert_eq!(a.weir.metric("weir_ratelimit_global_regions"), 2.0);
}

async fn a_denial_costs_nothing_anywhere(store: &Store) {
    let (scene, clock) = (store.fresh().await, clock());
    let mut a = Region::start("a", &scene, &clock).await;
    let mut b = Region::start("b", &scene, &clock).await;
    assert!(!a.query(b"cold", HOUR_MS, 0, 2 * LIMIT, LIMIT).await.granted);
    a.intervals(2).await;
    b.intervals(2).await;
    assert_eq!(scene.cells().await, 0);
    assert_eq!((a.holds(b"cold", HOUR_MS), b.holds(b"cold", HOUR_MS)), ((0, 0), (0, 0)));
    assert!(b.query(b"cold", HOUR_MS, 0, LIMIT, LIMIT).await.granted, "all of the limit is left");
}

async fn a_denial_by_the_previous_window_counts_nowhere(store: &Store) {
    const FULL: u64 = 10;
    let (scene, clock) = (store.fresh().await, clock());
    let mut a = Region::start("a", &scene, &clock).await;
    let mut b = Region::start("b", &scene, &clock).await;
    assert!(a.query(b"x", MINUTE_MS, 0, 8, FULL).await.granted);
    b.comes_to_hold(b"x", MINUTE_MS, (0, 8)).await;
    let into_next = |ms: u64| MINUTE_MS - clock.now().0 % MINUTE_MS + ms;
    // A clock that steps begins no window, so the aggregators start again by the later time.
    let begin_again = async |old: [Region; 2], later_ms: u64| {
        for Region { weir, peer } in old {
            drop(peer);
            weir.server.stop().await;
        }
        clock.0.fetch_add(later_ms.cast_signed(), Relaxed);
        (Region::start("a", &scene, &clock).await, Region::start("b", &scene, &clock).await)
    };
    (a, b) = begin_again([a, b], into_next(50)).await;
    for region in [&mut a, &mut b] {
        let denied = region.query(b"x", MINUTE_MS, 0, 4, FULL).await;
        assert!(!denied.granted, "8 of the previous window and 4 exceed 10");
    }
    a.intervals(2).await;
    b.intervals(2).await;
    assert_eq!((a.holds(b"x", MINUTE_MS), b.holds(b"x", MINUTE_MS)), ((0, 0), (0, 0)));
    assert_eq!(scene.cells().await, 1, "only the previous window must be published");
    // Half a window later, 4 of the 8 still count. What `b` uses fits whether or not it has received what `a` used.
    (a, b) = begin_again([a, b], 30_000).await;
    assert!(a.query(b"x", MINUTE_MS, 0, 4, FULL).await.granted);
    assert!(b.query(b"x", MINUTE_MS, 0, 2, FULL).await.granted);
}

async fn little_use_and_short_windows_are_not_published(store: &Store) {
    let (scene, clock) = (store.fresh().await, clock());
    let mut a = Region::start("a", &scene, &clock).await;
    let mut b = Region::start("b", &scene, &clock).await;
    // Below a quarter of the limit in two regions together, no excess is possible.
    a.used(HOUR_MS, &[(b"x", LIMIT / 4 - 6)]).await;
    b.used(HOUR_MS, &[(b"x", 5)]).await;
    a.used(9_000, &[(b"short", LIMIT)]).await;
    a.intervals(3).await;
    b.intervals(3).await;
    assert_eq!(scene.cells().await, 0);
    a.used(HOUR_MS, &[(b"x", LIMIT / 4)]).await;
    // Once one region has published a key, the others know of it and publish theirs.
    a.comes_to_hold(b"x", HOUR_MS, (LIMIT / 4, 5)).await;
    b.comes_to_hold(b"x", HOUR_MS, (5, LIMIT / 4)).await;
    b.used(HOUR_MS, &[(b"x", 6)]).await;
    a.comes_to_hold(b"x", HOUR_MS, (LIMIT / 4, 6)).await;
    assert_eq!(scene.cells().await, 2);
}

async fn an_unchanged_row_is_not_written_again(store: &Store) {
    const WRITES: &str = "weir_ratelimit_global_writes_total";
    const UPDATED: &str = "SELECT MAX(updated_at) FROM ratelimit_window_counts WHERE duration_ms > 0";
    let (scene, clock) = (store.fresh().await, clock());
    let mut a = Region::start("a", &scene, &clock).await;
    a.used(HOUR_MS, &[(b"x", 70)]).await;
    scene.row_becomes(b"x", "a", 70).await;
    a.metric_becomes(WRITES, |writes| writes == 1.0).await;
    let (written, updated) = (a.weir.metric(WRITES), scene.number(UPDATED).await);
    a.used(HOUR_MS, &[(b"x", 70)]).await;
    a.used(HOUR_MS, &[(b"x", 60)]).await;
    a.intervals(3).await;
    assert_eq!((a.weir.metric(WRITES), scene.number(UPDATED).await), (written, updated));
    a.used(HOUR_MS, &[(b"x", 71)]).await;
    scene.row_becomes(b"x", "a", 71).await;
    assert!(scene.number(UPDATED).await > updated);
    a.metric_becomes(WRITES, |writes| writes == written + 1.0).await;
}

async fn keys_without_room_are_no_bad_rows(store: &Store) {
    let (scene, clock) = (store.fresh().await, clock());
    let limits = RegionLimits { max_keys: 8, ..RegionLimits::default() };
    let a = Options { limits, ..Options::new("a", &scene, &clock) }.start().await;
    let sequence = a.sequence(HOUR_MS);
    let expires = (sequence + 2) * HOUR_MS;
    for number in 0..12 {
        scene
            .run(&format!(
                "INSERT INTO ratelimit_window_counts
                 (workspace_id, namespace, identifier, duration_ms, sequence, region, count, expires_at, updated_at)
                 VALUES (x'77', x'6e', x'{}', {HOUR_MS}, {sequence}, x'62', 7, {expires}, 1)",
                hex(format!("key-{number}").as_bytes())
            ))
            .await;
    }
    const LEFT_OUT: &str = "weir_aggregator_cells_without_room_total{source=\"regions\"}";
    a.metric_becomes(LEFT_OUT, |cells| cells >= 6.0).await;
    a.intervals(1).await;
    assert_eq!(a.weir.metric("weir_aggregator_bad_rows_total"), 0.0);
    assert_eq!(
        a.weir.metric("weir_aggregator_keys"),
        6.0,
        "a quarter of the room is for this region's own keys"
    );
}

async fn rows_that_are_none_are_skipped(store: &Store) {
    let (scene, clock) = (store.fresh().await, clock());
    let a = Region::start("a", &scene, &clock).await;
    let sequence = a.sequence(HOUR_MS);
    let expires = (sequence + 2) * HOUR_MS;
    let bad = [
        (br"\@1".as_slice(), HOUR_MS, sequence, 7),
        (b"much", HOUR_MS, sequence, 1_u64 << 60),
        (b"none", 1, sequence, 7),
        (b"early", HOUR_MS, sequence + 9, 7),
        (b"short", 5_000, clock.now().0 / 5_000, 7),
    ];
    for (identifier, duration_ms, sequence, count) in
        bad.into_iter().chain([(&b"good"[..], HOUR_MS, sequence, 7)])
    {
        let identifier = hex(identifier);
        scene
            .run(&format!(
                "INSERT INTO ratelimit_window_counts
                 (workspace_id, namespace, identifier, duration_ms, sequence, region, count, expires_at, updated_at)
                 VALUES (x'77', x'6e', x'{identifier}', {duration_ms}, {sequence}, x'62', {count}, {expires}, 1)"
            ))
            .await;
    }
    a.comes_to_hold(b"good", HOUR_MS, (0, 7)).await;
    let before = a.weir.metric("weir_aggregator_bad_rows_total");
    a.intervals(1).await;
    assert!(
        a.weir.metric("weir_aggregator_bad_rows_total") >= before + bad.len() as f64,
        "bad rows must be counted at each import"
    );
    assert_eq!(a.weir.metric("weir_ratelimit_global_entries_created_total"), 1.0);
    assert_eq!(a.weir.metric("weir_ratelimit_global_sync_errors_total{reason=\"other\"}"), 0.0);
    for (identifier, ..) in bad {
        assert_eq!(a.holds(identifier, HOUR_MS), (0, 0));
    }
}

async fn a_row_that_was_lowered_lowers_nothing(store: &Store) {
    let (scene, clock) = (store.fresh().await, clock());
    let a = Region::start("a", &scene, &clock).await;
    let mut b = Region::start("b", &scene, &clock).await;
    b.used(HOUR_MS, &[(b"x", 70)]).await;
    a.comes_to_hold(b"x", HOUR_MS, (0, 70)).await;
    // One that runs would write its row again.
    let Region { weir, peer } = b;
    drop(peer);
    weir.server.stop().await;
    scene.run("UPDATE ratelimit_window_counts SET count = 1 WHERE region = x'62' AND duration_ms > 0").await;
    assert_eq!(scene.row(b"x", "b").await, 1);
    a.intervals(2).await;
    assert_eq!(a.holds(b"x", HOUR_MS), (0, 70));
}

async fn a_table_that_is_wiped_is_written_again(store: &Store) {
    let (scene, clock) = (store.fresh().await, clock());
    let mut a = Region::start("a", &scene, &clock).await;
    let mut b = Region::start("b", &scene, &clock).await;
    a.used(HOUR_MS, &[(b"x", 60), (b"y", 80)]).await;
    b.used(HOUR_MS, &[(b"x", 70)]).await;
    a.comes_to_hold(b"x", HOUR_MS, (60, 70)).await;
    b.comes_to_hold(b"x", HOUR_MS, (70, 60)).await;
    b.comes_to_hold(b"y", HOUR_MS, (0, 80)).await;
    scene.wipe().await;
    let wiped = Instant::now();
    for (identifier, region, count) in [(b"x", "a", 60), (b"y", "a", 80), (b"x", "b", 70)] {
        scene.row_becomes(identifier, region, count).await;
    }
    println!("written again {:?} after the wipe", wiped.elapsed());
    assert_eq!(a.weir.metric("weir_aggregator_store_wipes_total{store=\"global\"}"), 1.0);
    a.intervals(2).await;
    b.intervals(2).await;
    assert_eq!(
        (a.holds(b"x", HOUR_MS), b.holds(b"x", HOUR_MS)),
        ((60, 70), (70, 60)),
        "no count may be lost"
    );
    assert_eq!(b.holds(b"y", HOUR_MS), (0, 80));
    assert_eq!(scene.cells().await, 3);
}

async fn identifiers_stay_apart(store: &Store) {
    let (scene, clock) = (store.fresh().await, clock());
    let mut a = Region::start("a", &scene, &clock).await;
    let b = Region::start("b", &scene, &clock).await;
    let long = vec![b'x'; 64];
    let longer = [&long[..63], b"y"].concat();
    let traps: Vec<&[u8]> = vec![
        b"Alice",
        b"alice",
        "alic\u{e9}".as_bytes(),
        "alice\u{301}".as_bytes(),
        b"alice ",
        b" alice",
        b"alice\t",
        b"alice\0",
        b"",
        b"\0",
        b" ",
        b"\xff\xfe",
        b"\xc3",
        b"a|b",
        b"a:b",
        b"a/b",
        b"a,b",
        b"a;b",
        b"a{b}",
        b"a%00b",
        b"a\\b",
        b"a\\\\b",
        b"a'b",
        b"a\"b",
        b"a`b",
        b"a\nb",
        b"a\r\nb",
        br"\@0.1:a",
        br"\@1.1:a",
        b"~",
        br"\~",
        "\u{df}".as_bytes(),
        b"ss",
        b"SS",
        "\u{130}".as_bytes(),
        b"i",
        b"I",
        &long,
        &longer,
        b"NULL",
        b"0",
        b"00",
    ];
    let counts: Vec<_> = traps.iter().copied().zip(50..).collect();
    a.used(HOUR_MS, &counts).await;
    for (identifier, own) in &counts {
        b.comes_to_hold(identifier, HOUR_MS, (0, *own)).await;
        assert_eq!(a.holds(identifier, HOUR_MS), (*own, 0));
    }
    assert_eq!(scene.cells().await, i64::try_from(traps.len()).unwrap());
}

async fn an_aggregator_that_restarts_reads_what_was_used(store: &Store) {
    let (scene, clock) = (store.fresh().await, clock());
    let mut a = Region::start("a", &scene, &clock).await;
    let mut b = Region::start("b", &scene, &clock).await;
    a.used(HOUR_MS, &[(b"x", 80), (b"y", 100)]).await;
    b.used(HOUR_MS, &[(b"z", 100)]).await;
    scene.row_becomes(b"x", "a", 80).await;
    a.comes_to_hold(b"z", HOUR_MS, (0, 100)).await;
    drop(a.peer);
    a.weir.server.stop().await;

    let mut a = Region::start("a", &scene, &clock).await;
    // Another Envoy, with its first query.
    a.peer = join(&a.weir, 2).await;
    assert!(!a.query(b"y", HOUR_MS, 0, 1, LIMIT).await.granted, "used up by this region");
    assert!(!a.query(b"z", HOUR_MS, 0, 1, LIMIT).await.granted, "used up by another");
    assert!(!a.query(b"x", HOUR_MS, 0, 21, LIMIT).await.granted, "80 are used");
    assert!(a.query(b"x", HOUR_MS, 0, 3, LIMIT).await.granted);
    a.used(HOUR_MS, &[(b"x", 5)]).await;
    assert_eq!(a.holds(b"x", HOUR_MS), (85, 0), "what is new comes on top at once");
    // The use counted before the loss becomes a baseline, to which new use is added.
    let settled = async || {
        let explained = a.weir.server.services().explain(b"w", b"n", b"x");
        explained.iter().flat_map(|key| &key.cells).any(|cell| cell.components.len() == 2)
    };
    wait::until("the baseline is set", SOON, settled).await.unwrap();
    assert_eq!(a.holds(b"x", HOUR_MS), (85, 0));
    assert!(!a.query(b"x", HOUR_MS, 5, 16, LIMIT).await.granted);
    assert!(a.query(b"x", HOUR_MS, 5, 15, LIMIT).await.granted);
    assert_eq!(a.holds(b"x", HOUR_MS), (100, 0));
    b.comes_to_hold(b"x", HOUR_MS, (0, 100)).await;
}

/// Each life ends as soon as it has granted something, before the recovery grace periods have ended.
async fn restarts_in_a_row_admit_a_limit_once(store: &Store) {
    let (scene, clock) = (store.fresh().await, clock());
    let mut granted = Vec::new();
    for (life, cost) in (1..).zip([60, 20, 20, 20, 1]) {
        let mut a = Region::start("a", &scene, &clock).await;
        a.peer = join(&a.weir, life).await;
        granted.push(a.query(b"x", HOUR_MS, 0, cost, LIMIT).await.granted);
        drop(a.peer);
        a.weir.server.stop().await;
    }
    assert_eq!(granted, [true, true, true, false, false], "{LIMIT} in all");
}

async fn a_replica_is_read_and_its_failures_stay_its_own(store: &Store) {
    let (scene, replica, clock) = (store.fresh().await, store.fresh().await, clock());
    let mut a =
        Options { read_url: Some(replica.url.clone()), ..Options::new("a", &scene, &clock) }.start().await;
    let mut at_replica = Region::start("b", &replica, &clock).await;
    let mut at_primary = Region::start("c", &scene, &clock).await;
    at_replica.used(HOUR_MS, &[(b"x", 60)]).await;
    at_primary.used(HOUR_MS, &[(b"x", 70)]).await;
    a.comes_to_hold(b"x", HOUR_MS, (0, 60 + 70)).await;
    replica.run("RENAME TABLE ratelimit_window_counts TO elsewhere").await;
    a.metric_becomes("weir_aggregator_breaker_state{store=\"global_replica\"}", |state| state == 2.0).await;
    a.metric_becomes("weir_ratelimit_global_sync_errors_total{reason=\"schema\"}", |errors| errors >= 3.0)
        .await;
    a.used(HOUR_MS, &[(b"x", 51)]).await;
    at_primary.comes_to_hold(b"x", HOUR_MS, (70, 51)).await;
    assert_eq!(a.weir.metric("weir_aggregator_breaker_state{store=\"global\"}"), 0.0);
    replica.run("RENAME TABLE elsewhere TO ratelimit_window_counts").await;
    at_replica.used(HOUR_MS, &[(b"x", 65)]).await;
    a.comes_to_hold(b"x", HOUR_MS, (51, 65 + 70)).await;
    a.metric_becomes("weir_aggregator_breaker_state{store=\"global_replica\"}", |state| state == 0.0).await;
}

/// Other transactions lock the same rows in reverse order, repeatedly, while a region publishes.
async fn deadlocks_cost_no_count(store: &Store) {
    const CELLS: u64 = 40;
    let (scene, clock) = (store.fresh().await, clock());
    let mut a = Region::start("a", &scene, &clock).await;
    let b = Region::start("b", &scene, &clock).await;
    let deadlocks = if scene.number("@@version LIKE '%MariaDB%'").await == 1 {
        "SELECT VARIABLE_VALUE FROM information_schema.global_status WHERE VARIABLE_NAME = 'INNODB_DEADLOCKS'"
    } else {
        "SELECT COUNT FROM information_schema.innodb_metrics WHERE NAME = 'lock_deadlocks'"
    };
    let before = scene.number(deadlocks).await;
    let names: Vec<_> = (0..CELLS).map(|place| format!("x{place:02}")).collect();
    let sequence = a.sequence(HOUR_MS);
    for place in 0..10 * CELLS {
        scene
            .run(&format!(
                "INSERT INTO ratelimit_window_counts
                 (workspace_id, namespace, identifier, duration_ms, sequence, region, count, expires_at, updated_at)
                 VALUES ('w', 'n', 'ballast{place}', 1, 1, 'c', 1, 1, 1)"
            ))
            .await;
    }
    let (mut own, mut ours_lost, mut theirs_lost) = (50, 0, 0);
    let deadline = Instant::now() + SOON;
    let mut other = scene.mysql().await;
    other.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await.unwrap();
    // The server ends the transaction that has done less work: theirs without the extra work, ours with it.
    while ours_lost == 0 || theirs_lost == 0 {
        assert!(Instant::now() < deadline, "{ours_lost} and {theirs_lost} deadlocks");
        own += 1;
        let counts: Vec<_> = names.iter().map(|name| (name.as_bytes(), own)).collect();
        a.used(HOUR_MS, &counts).await;
        let mut transaction = other.begin().await.unwrap();
        if theirs_lost > 0 {
            let ballast = "UPDATE ratelimit_window_counts SET updated_at = updated_at + 1 WHERE region = 'c'";
            transaction.execute(ballast).await.unwrap();
        }
        let mut lost = false;
        for name in names.iter().rev() {
            let name = hex(name.as_bytes());
            let lock = format!(
                "UPDATE ratelimit_window_counts SET updated_at = updated_at + 1 WHERE workspace_id = 'w'
                 AND namespace = 'n' AND identifier = x'{name}' AND duration_ms = {HOUR_MS}
                 AND sequence = {sequence} AND region = 'a'"
            );
            lost = transaction.execute(sqlx::raw_sql(AssertSqlSafe(lock))).await.is_err();
            if lost {
                break;
            }
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
        // If this transaction was ended, there is nothing to commit.
        let _ = transaction.commit().await;
        theirs_lost += i64::from(lost);
        ours_lost = scene.number(deadlocks).await - before - theirs_lost;
    }
    println!("deadlocks: {ours_lost} ended a packet, {theirs_lost} the other transaction");
    for name in &names {
        b.comes_to_hold(name.as_bytes(), HOUR_MS, (0, own)).await;
        assert_eq!(scene.row(name.as_bytes(), "a").await, own.cast_signed());
    }
}

async fn a_database_that_is_cut_off(store: &Store) {
    const BREAKER: &str = "weir_aggregator_breaker_state{store=\"global\"}";
    const AGE: &str = "weir_aggregator_snapshot_age_seconds{what=\"import\"}";
    const PUBLISH_AGE: &str = "weir_aggregator_snapshot_age_seconds{what=\"publish\"}";
    let (scene, clock) = (store.fresh().await, clock());
    let port = store.server.as_ref().unwrap().port();
    let proxy = Proxy::start(ports::local(port)).await.unwrap();
    let policy = Policy { rest_ms: 200, ..schedule().global_breaker };
    let schedule =
        Schedule { global_timeout_ms: 300, packet_timeout_ms: 300, global_breaker: policy, ..schedule() };
    let url = scene.url.replace(&format!(":{port}/"), &format!(":{}/", proxy.port()));
    let mut a = Options { url, schedule, ..Options::new("a", &scene, &clock) }.start().await;
    let mut b = Region::start("b", &scene, &clock).await;
    a.used(HOUR_MS, &[(b"x", 60)]).await;
    b.used(HOUR_MS, &[(b"x", 50)]).await;
    b.comes_to_hold(b"x", HOUR_MS, (50, 60)).await;
    a.comes_to_hold(b"x", HOUR_MS, (60, 50)).await;
    for (round, refuses) in (1..).zip([false, true]) {
        if refuses {
            proxy.refuse().await.unwrap();
            proxy.cut();
        } else {
            proxy.black_hole().await.unwrap();
        }
        a.metric_becomes(BREAKER, |state| state == 2.0).await;
        let (more, others) = (60 + round, 50 + round);
        a.used(HOUR_MS, &[(b"x", more)]).await;
        b.used(HOUR_MS, &[(b"x", others)]).await;
        scene.row_becomes(b"x", "b", others.cast_signed()).await;
        a.metric_becomes(AGE, |age| age > 1.0).await;
        a.metric_becomes(PUBLISH_AGE, |age| age > 1.0).await;
        assert_eq!(
            a.holds(b"x", HOUR_MS),
            (more, others - 1),
            "the region must continue with its own counts"
        );
        // No query waits for the database, which does not answer until this query has been answered.
        assert!(!a.query(b"x", HOUR_MS, more, LIMIT, LIMIT).await.granted);
        proxy.forward().await.unwrap();
        a.comes_to_hold(b"x", HOUR_MS, (more, others)).await;
        b.comes_to_hold(b"x", HOUR_MS, (others, more)).await;
        a.metric_becomes(BREAKER, |state| state == 0.0).await;
        a.metric_becomes(AGE, |age| age < 1.0).await;
        a.metric_becomes(PUBLISH_AGE, |age| age < 1.0).await;
    }
    assert!(a.weir.metric("weir_ratelimit_global_write_errors_total{reason=\"timeout\"}") > 0.0);
    assert!(a.weir.metric("weir_ratelimit_global_write_errors_total{reason=\"unavailable\"}") > 0.0);
}

async fn a_database_that_comes_back_after_the_grace_period(store: &Store) {
    let (scene, clock) = (store.fresh().await, clock());
    let port = store.server.as_ref().unwrap().port();
    let proxy = Proxy::start(ports::local(port)).await.unwrap();
    let url = scene.url.replace(&format!(":{port}/"), &format!(":{}/", proxy.port()));
    let mut a = Region::start("a", &scene, &clock).await;
    a.used(HOUR_MS, &[(b"x", 80)]).await;
    scene.row_becomes(b"x", "a", 80).await;
    drop(a.peer);
    a.weir.server.stop().await;
    proxy.refuse().await.unwrap();
    let grace_period_ms = 200;
    let schedule = Schedule { grace_period_ms, ..schedule() };
    let mut a = Options { url, schedule, ..Options::new("a", &scene, &clock) }.start().await;
    let tried = "weir_ratelimit_origin_errors_total{op=\"recover\",reason=\"unavailable\"}";
    a.metric_becomes(tried, |errors| errors >= 4.0).await;
    assert_eq!(a.holds(b"x", HOUR_MS), (0, 0));
    assert_eq!(a.weir.metric("weir_aggregator_recovering"), 1.0);
    let (status, text) = a.readiness().await;
    assert!(status == 503 && text.starts_with("live control was not read"), "{status} {text}");
    proxy.forward().await.unwrap();
    a.comes_to_hold(b"x", HOUR_MS, (80, 0)).await;
    a.metric_becomes("weir_aggregator_recovering", |recovering| recovering == 0.0).await;
    a.metric_becomes("weir_aggregator_controls_read", |read| read == 1.0).await;
    assert_eq!(a.readiness().await, (200, "ready\n".to_owned()));
    let granted = a.query(b"x", HOUR_MS, 0, 20, LIMIT).await.granted;
    assert!(granted && !a.query(b"x", HOUR_MS, 20, 1, LIMIT).await.granted);
    scene.row_becomes(b"x", "a", 100).await;
}

/// Keys that region `a` has used up, as its aggregator left them in the database; more than a page.
const USED_UP: usize = 2_500;

async fn use_up(scene: &Scene, clock: &ShiftedClock) -> Vec<String> {
    let sequence = clock.now().0 / HOUR_MS;
    let names: Vec<String> = (0..USED_UP).map(|number| format!("used-{number}")).collect();
    let row = |name: &String| Publication {
        key: key(name.as_bytes(), HOUR_MS),
        sequence,
        count: LIMIT,
        limit: LIMIT,
        expires: UnixMs((sequence + 2) * HOUR_MS),
    };
    publish(&scene.open("a"), &names.iter().map(row).collect::<Vec<_>>()).await;
    names
}

/// No key of `names` is admitted by an aggregator that serves, from the first query on, and operators see them all.
async fn admits_none(a: &mut Region, names: &[String]) {
    for name in names.iter().step_by(7) {
        assert!(!a.query(name.as_bytes(), HOUR_MS, 0, 1, LIMIT).await.granted, "{name} is used up");
    }
    assert_eq!(a.weir.metric("weir_aggregator_recovered_cells_total"), USED_UP as f64);
    assert_eq!(a.keys_over(), USED_UP as u64);
}

async fn a_restart_admits_no_used_up_key_again(store: &Store) {
    let (scene, clock) = (store.fresh().await, clock());
    let names = use_up(&scene, &clock).await;
    let schedule = Schedule { page_rows: 100, ..schedule() };
    let mut a = Options { schedule, ..Options::new("a", &scene, &clock) }.start().await;
    admits_none(&mut a, &names).await;
    assert_eq!(a.readiness().await, (200, "ready\n".to_owned()));
    // A new Envoy is pushed all of them, and only then is its snapshot complete.
    a.peer = Peer::open(a.weir.connect().await).await;
    a.peer.send(hello_frame(3, true)).await;
    let mut pushed = BTreeSet::new();
    loop {
        let push = a.peer.next_with(|frame| frame.push).await;
        let others = push.snapshots.iter().filter(|cell| cell.region_others == LIMIT);
        pushed.extend(others.map(|cell| cell.key.clone()));
        if push.complete {
            break;
        }
    }
    assert_eq!(pushed.len(), USED_UP);
}

async fn a_restart_beside_a_failing_database_admits_no_used_up_key(store: &Store) {
    let (scene, clock) = (store.fresh().await, clock());
    let names = use_up(&scene, &clock).await;
    let port = store.server.as_ref().unwrap().port();
    let proxy = Proxy::start(ports::local(port)).await.unwrap();
    let url = scene.url.replace(&format!(":{port}/"), &format!(":{}/", proxy.port()));
    let schedule = Schedule { page_rows: 100, restore_stall_ms: 60_000, ..schedule() };
    let starts = Options { url, schedule, ..Options::new("a", &scene, &clock) }.start();
    let faults = async {
        for round in 0..12 {
            tokio::time::sleep(Duration::from_millis(40)).await;
            match round % 4 {
                0 => proxy.black_hole().await.unwrap(),
                1 => proxy.refuse().await.unwrap(),
                _ => proxy.forward().await.unwrap(),
            }
            proxy.cut();
        }
    };
    let (mut a, ()) = tokio::join!(starts, faults);
    admits_none(&mut a, &names).await;
}

/// Prints how long an aggregator takes to read a million rows before it serves, and how much memory they take.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes; run it by hand"]
async fn a_million_rows() {
    for store in [Store::sqlite(), Store::mariadb().await] {
        let (scene, clock) = (store.fresh().await, clock());
        let sequence = clock.now().0 / HOUR_MS;
        let digit = format!(
            "(SELECT 0 AS d{})",
            (1..10).map(|d| format!(" UNION ALL SELECT {d}")).collect::<String>()
        );
        let (digits, from): (Vec<_>, Vec<_>) =
            (0..6).map(|place| (format!("t{place}.d"), format!("{digit} AS t{place}"))).unzip();
        let identifier = match scene.is_mysql() {
            true => format!("CONCAT('i', {})", digits.join(", ")),
            false => format!("CAST('i' || {} AS BLOB)", digits.join(" || ")),
        };
        let expires = (sequence + 2) * HOUR_MS;
        scene
            .run(&format!(
                "INSERT INTO ratelimit_window_counts (workspace_id, namespace, identifier, duration_ms, sequence, region,
                 count, expires_at, updated_at, lowest_limit, writer, version)
                 SELECT x'77', x'6e', {identifier}, {HOUR_MS}, {sequence}, x'61', {LIMIT}, {expires}, 0, {LIMIT}, 7, 1
                 FROM {}",
                from.join(", ")
            ))
            .await;
        let began = Instant::now();
        let (schedule, before) = (Schedule::default(), resident_mb());
        let mut a = Options { schedule, ..Options::new("a", &scene, &clock) }.start().await;
        let (took, memory) = (began.elapsed(), resident_mb() - before);
        let first = Instant::now();
        let mut passed = u64::from(a.query(b"i765432", HOUR_MS, 0, 1, LIMIT).await.granted);
        let answered = first.elapsed();
        for number in (0..1_000_000).step_by(997) {
            let name = format!("i{number:06}");
            passed += u64::from(a.query(name.as_bytes(), HOUR_MS, 0, 1, LIMIT).await.granted);
        }
        let cells = a.weir.metric("weir_aggregator_recovered_cells_total");
        println!(
            "mysql {}: {cells} cells in {took:?}, {memory} MB, the first query in {answered:?}; {}",
            scene.is_mysql(),
            a.readiness().await.1
        );
        assert_eq!((cells, passed, a.keys_over()), (1e6, 0, 1_000_000));
        assert_eq!(a.readiness().await, (200, "ready\n".to_owned()));
    }
}

/// The memory of this process.
fn resident_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok()).unwrap_or(0) / 1_024
}

//! Packets exchanged with a database, step by step, with its faults.

use super::super::super::testing::{NODE, NOW, SEQUENCE, at, count, key, state};
use super::*;
use crate::model::wire::{FilterFrame, Report};
use crate::region::exchange::{Page as TablePage, Stored, StoredRegion};
use crate::replication::global::recover::Recovery;
use crate::replication::members::Member;
use std::format;
use std::vec;

const ID: [u8; 16] = [0, 0, 0, 7, 0, 0, 0, 71, 0, 0, 0, 72, 0, 0, 0, 73];
const ME: Writer = Writer::new(7);
const NORTH: Writer = Writer::new(8);
const SOUTH: Writer = Writer::new(9);
const PEER: Writer = Writer::new(10);

/// A region with a database, its packets, and the clock.
struct Driven {
    state: RegionState,
    sync: GlobalSync,
    ms: u64,
    within_ms: u64,
    /// The packet that was sent last.
    packet: Option<Packet>,
    /// The own marker in the table.
    marker: OwnMarker,
}

fn driven() -> Driven {
    let schedule = Schedule { jitter_percent: 0, ..Schedule::default() };
    let state = state().with_database(schedule.global_breaker, false);
    let sync = GlobalSync::new(schedule, ID, b"here", NOW.mono, 5_000);
    Driven { state, sync, ms: 0, within_ms: 0, packet: None, marker: OwnMarker::default() }
}

impl Driven {
    /// Lets time pass until the next packet.
    fn packet(&mut self) -> Packet {
        for _ in 0..10_000 {
            match self.sync.next(&mut at(&mut self.state, self.ms), 0) {
                Next::Call(call) => {
                    self.within_ms = call.within_ms;
                    self.packet = Some(call.packet.clone());
                    return call.packet;
                }
                Next::Sleep(ms) => self.ms += ms,
                Next::Wait { at_most_ms, .. } => {
                    let is_notified = self.state.take_events().has(Event::Publish);
                    self.ms += if is_notified { 0 } else { at_most_ms.unwrap() };
                }
                Next::Yield => {}
                Next::Over => panic!("packets never end"),
            }
        }
        panic!("no packet within a long time");
    }

    /// Writes the last packet, as the database does.
    fn write(&mut self) {
        let Packet { version: Some(version), acknowledged, .. } = self.packet.take().unwrap() else {
            return;
        };
        if self.marker.version == 0 || self.marker.version < acknowledged {
            self.marker.since = version;
        }
        self.marker.version = self.marker.version.max(version);
    }

    /// Reads the own marker and these.
    fn read(&mut self, others: &[(Writer, &[u8], u64)]) -> bool {
        let markers = others.iter().map(|other| marker(*other)).collect();
        self.feed(Feed { own: self.marker, markers, ..Feed::default() })
    }

    fn reply(&mut self, others: &[(Writer, &[u8], u64)]) -> bool {
        self.write();
        self.read(others)
    }

    fn feed(&mut self, feed: Feed) -> bool {
        self.sync.exchanged(&mut at(&mut self.state, self.ms), Ok(feed))
    }

    fn fail(&mut self) {
        self.sync.exchanged(&mut at(&mut self.state, self.ms), Err(Failure::Timeout));
    }

    fn use_keys(&mut self, keys: core::ops::Range<usize>, own: u64) {
        let keys: Vec<usize> = keys.collect();
        for keys in keys.chunks(crate::model::wire::MAX_FRAME_CELLS) {
            let counts = keys.iter().map(|key| count(&format!("i{key}"), own)).collect();
            let frame = FilterFrame { report: Some(Report { id: 1, counts }), ..FilterFrame::default() };
            self.state.take(NODE, frame, super::super::super::testing::NOW).unwrap();
        }
    }
}

fn marker((writer, region, version): (Writer, &[u8], u64)) -> Marker {
    Marker { writer, region: region.to_vec(), version }
}

fn cells(keys: core::ops::Range<usize>, region: &[u8]) -> Vec<StoredRegion> {
    let cell = |n: usize| Stored { key: key(&format!("i{n}")), sequence: SEQUENCE, count: 4, limit: 10 };
    vec![StoredRegion { region: region.to_vec(), cells: keys.map(cell).collect() }]
}

const LISTED: [u8; 16] = [0, 0, 0, 10, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3];

/// Reads a peer's marker, which moves at each interval, for so long. The store lists `aggregators`, unless it does not answer.
fn beside_a_peer(driven: &mut Driven, seconds: u64, version: &mut u64, aggregators: Option<&[[u8; 16]]>) {
    let until = driven.ms + seconds * 1_000;
    while driven.ms < until {
        *version += u64::from(driven.packet().version.is_some());
        if let Some(aggregators) = aggregators {
            let now = NOW.mono.after(driven.ms);
            let listed: Vec<_> = aggregators.iter().map(|id| Member { id: *id, owes: false }).collect();
            driven.state.members.listed(&listed, &ID, now);
        }
        driven.reply(&[(PEER, b"here", *version), (NORTH, b"north", *version)]);
    }
}

#[test]
fn a_writer_of_the_region_that_its_store_does_not_list_splits_it() {
    let (mut driven, mut version) = (driven(), 5);
    driven.state =
        std::mem::replace(&mut driven.state, state()).with_store(Schedule::default().store_breaker);
    beside_a_peer(&mut driven, 60, &mut version, Some(&[ID, LISTED]));
    assert_eq!(driven.state.foreign_writers(), 0, "it is listed");
    beside_a_peer(&mut driven, 25, &mut version, Some(&[ID]));
    assert_eq!(driven.state.foreign_writers(), 0, "the store may have been emptied a moment ago");
    beside_a_peer(&mut driven, 30, &mut version, Some(&[ID]));
    assert_eq!(driven.state.foreign_writers(), 1);
    beside_a_peer(&mut driven, 2, &mut version, Some(&[ID, LISTED]));
    assert_eq!(driven.state.foreign_writers(), 0, "it is listed again");
}

#[test]
fn neither_a_restart_nor_a_store_that_is_away_splits_the_region() {
    let (mut driven, mut version) = (driven(), 5);
    driven.state =
        std::mem::replace(&mut driven.state, state()).with_store(Schedule::default().store_breaker);
    beside_a_peer(&mut driven, 120, &mut version, None);
    assert_eq!(driven.state.foreign_writers(), 0, "the store lists nothing");
    // The peer ends: the store does not list it any more, and its marker stays as it is.
    for second in 0..120 {
        driven.packet();
        let now = NOW.mono.after(driven.ms);
        driven.state.members.listed(&[Member { id: ID, owes: false }], &ID, now);
        driven.reply(&[(PEER, b"here", version + u64::from(second > 3))]);
        assert_eq!(driven.state.foreign_writers(), 0);
    }
    // Another number, as another process has taken the first.
    let second = Writer::new(0x0101_0101);
    assert_eq!([0, 1, 4].map(|attempt| Writer::of(&LISTED, attempt)), [PEER, second, PEER]);
}

#[test]
fn a_region_without_a_store_has_no_second_writer() {
    let (mut driven, mut version) = (driven(), 5);
    beside_a_peer(&mut driven, 60, &mut version, None);
    assert_eq!(driven.state.foreign_writers(), 1);
}

#[test]
fn a_packet_each_second_reads_and_one_each_ten_seconds_writes_the_marker() {
    let mut driven = driven();
    let mut written = vec![];
    for packet in 0..31 {
        let sent = driven.packet();
        assert_eq!(sent.rows, vec![]);
        if let Some(version) = sent.version {
            written.push((driven.ms / 1_000, version));
        }
        assert!(!driven.reply(&[]), "packet {packet}");
    }
    assert_eq!(written, vec![(0, 1), (5, 2), (15, 3), (25, 4)]);
    assert!((28_000..=31_000).contains(&driven.ms), "{}", driven.ms);
}

#[test]
fn what_is_due_at_once_is_written_at_once_and_packets_keep_their_distance() {
    let mut driven = driven();
    driven.packet();
    driven.reply(&[]);
    driven.ms += 300;
    let mut times = vec![];
    for keys in 0..14 {
        driven.use_keys(keys..keys + 1, 9);
        let packet = driven.packet();
        assert_eq!((packet.rows.len(), packet.version), (1, Some(keys as u64 + 2)));
        times.push(driven.ms);
        driven.reply(&[]);
    }
    let pauses: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(times[0], 300);
    assert!(pauses[..8].iter().all(|pause| *pause == 100), "{pauses:?}");
    assert!(times[10] - times[0] >= 2_000, "ten in two seconds: {times:?}");
}

#[test]
fn all_due_keys_are_written_a_thousand_in_a_packet_and_what_failed_is_written_again() {
    let mut driven = driven();
    driven.packet();
    driven.reply(&[]);
    driven.use_keys(0..2_500, 9);
    let mut rows = vec![];
    for expected in [1_000, 1_000, 500] {
        let packet = driven.packet();
        assert_eq!(packet.rows.len(), expected);
        rows.extend(packet.rows);
        driven.reply(&[]);
    }
    let keys: alloc::collections::BTreeSet<_> = rows.iter().map(|row| &row.key).collect();
    assert_eq!(keys.len(), 2_500);
    assert!(!driven.state.region.has_rows(Due::AtInterval));
    driven.use_keys(5_000..5_010, 9);
    let lost = driven.packet();
    assert_eq!(lost.rows.len(), 10);
    driven.fail();
    let read = driven.packet();
    assert_eq!((read.version, read.rows.len()), (None, 0), "the packet after a failure only reads");
    driven.reply(&[]);
    let again = driven.packet();
    assert_eq!(again.rows.len(), 10);
    assert!(again.version > lost.version, "no version is used twice");
}

/// What happens to the table.
type Loss = fn(&mut Driven);

const WIPED: Loss = |driven| driven.marker = OwnMarker::default();
/// Packet 1 is in the dump, and packet 2 is not.
const SET_BACK: Loss = |driven| driven.marker = OwnMarker { version: 1, since: 1 };

/// Three keys are published by packet 2.
fn published() -> Driven {
    let mut driven = driven();
    driven.packet();
    driven.reply(&[(NORTH, b"north", 5)]);
    driven.use_keys(0..3, 9);
    assert_eq!(driven.packet().version, Some(2));
    driven.reply(&[(NORTH, b"north", 5)]);
    driven
}

/// The next packet writes all keys, and reads from the beginning. What is kept then is not lost again.
fn is_written_again(driven: &mut Driven, keys: usize) {
    let packet = driven.packet();
    assert_eq!((packet.rows.len(), packet.cursors[0].version), (keys, 0));
    for _ in 0..20 {
        assert!(!driven.reply(&[(NORTH, b"north", 5)]));
        driven.packet();
    }
    assert_eq!(driven.packet().cursors, vec![Cursor { writer: NORTH, version: 5 }]);
    assert_eq!(driven.state.figures.database_wipes, 1);
}

#[test]
fn a_table_that_loses_rows_at_any_moment_of_a_packet_is_written_and_read_again() {
    for loss in [WIPED, SET_BACK] {
        // Before the packet is written, and after.
        for is_written_first in [false, true] {
            let mut driven = published();
            driven.use_keys(3..4, 9);
            assert_eq!(driven.packet().rows.len(), 1);
            if is_written_first {
                driven.write();
                loss(&mut driven);
            } else {
                loss(&mut driven);
                driven.write();
            }
            assert!(driven.read(&[(NORTH, b"north", 5)]), "written first: {is_written_first}");
            is_written_again(&mut driven, 4);
        }
        // Beside a packet that writes nothing.
        let mut driven = published();
        assert_eq!(driven.packet().version, None);
        loss(&mut driven);
        assert!(driven.reply(&[(NORTH, b"north", 5)]));
        is_written_again(&mut driven, 3);
    }
}

#[test]
fn a_loss_is_found_although_the_answer_that_showed_it_was_lost() {
    for loss in [WIPED, SET_BACK] {
        let mut driven = published();
        driven.use_keys(3..4, 9);
        driven.packet();
        loss(&mut driven);
        driven.write();
        driven.fail();
        driven.packet();
        assert!(driven.reply(&[(NORTH, b"north", 5)]), "read by the packet after the failure");
        is_written_again(&mut driven, 4);
    }
    // The packet is committed after the next one was read, and before the one after that is written.
    let mut driven = published();
    driven.use_keys(3..4, 9);
    driven.packet();
    let late = driven.packet.take();
    driven.fail();
    driven.packet();
    assert!(!driven.reply(&[(NORTH, b"north", 5)]));
    WIPED(&mut driven);
    assert_eq!(driven.packet().version, Some(4));
    let next = core::mem::replace(&mut driven.packet, late);
    driven.write();
    driven.packet = next;
    assert!(driven.reply(&[(NORTH, b"north", 5)]));
    is_written_again(&mut driven, 4);
}

#[test]
fn a_packet_that_is_committed_late_is_no_loss() {
    let mut driven = published();
    let mut late = vec![];
    for key in 3..6 {
        driven.use_keys(key..key + 1, 9);
        while driven.packet().version.is_none() {
            driven.reply(&[(NORTH, b"north", 5)]);
        }
        late.push(driven.packet.take());
        driven.fail();
    }
    let mut next = driven.packet();
    for packet in late {
        assert!(!driven.reply(&[(NORTH, b"north", 5)]), "{next:?}");
        next = driven.packet();
        let this = core::mem::replace(&mut driven.packet, packet);
        driven.write();
        driven.packet = this;
    }
    assert!(!driven.reply(&[(NORTH, b"north", 5)]));
    assert_eq!(driven.state.figures.database_wipes, 0);
}

#[test]
fn what_a_peer_had_published_is_lost_if_its_marker_goes_back() {
    let mut driven = published();
    driven.use_keys(3..4, 4);
    driven.packet();
    driven.reply(&[(NORTH, b"north", 5), (PEER, b"here", 7)]);
    // Another writer of this region has published a key: this one need not.
    driven.packet();
    driven.write();
    let markers = vec![marker((NORTH, b"north", 5)), marker((PEER, b"here", 7))];
    let own = driven.marker;
    driven.feed(Feed { own, markers, pages: vec![], regions: cells(3..4, b"here") });
    for (peer, is_lost) in [(7, false), (8, false), (6, true), (6, false), (9, false)] {
        driven.packet();
        let others: [(Writer, &[u8], u64); 2] = [(NORTH, b"north", 2), (PEER, b"here", peer)];
        assert_eq!(driven.reply(&others), is_lost, "{peer}");
    }
    assert_eq!(driven.state.figures.database_wipes, 1, "the marker of another region that goes back is none");
}

#[test]
fn a_writer_whose_number_another_process_uses_takes_another_one() {
    for version in [3, crate::model::window::MAX_COUNT] {
        let mut driven = published();
        driven.packet();
        driven.marker.version = version;
        assert!(driven.read(&[]));
        driven.use_keys(0..3, 9);
        let packet = driven.packet();
        let other = Writer::of(&ID, 1);
        assert_eq!((packet.writer, packet.version, packet.rows.len()), (other, Some(1), 3));
        driven.marker = OwnMarker::default();
        for _ in 0..20 {
            assert!(!driven.reply(&[(ME, b"here", version)]));
            assert_eq!(driven.packet().writer, other);
        }
    }
}

#[test]
fn each_writer_is_read_on_from_where_it_was_and_pages_are_not_split() {
    let mut driven = driven();
    driven.packet();
    driven.reply(&[(NORTH, b"north", 5)]);
    let before = driven.ms;
    assert_eq!(driven.packet().cursors, vec![Cursor { writer: NORTH, version: 0 }], "a new writer");
    assert!(driven.ms - before <= 100, "it is read at once");
    driven.feed(Feed {
        own: driven.marker,
        markers: vec![marker((NORTH, b"north", 9)), marker((SOUTH, b"south", 1))],
        pages: vec![Page { writer: NORTH, rows: MAX_FEED_ROWS, last_version: 7 }],
        regions: cells(0..600, b"north"),
    });
    let cursors = driven.packet().cursors;
    assert_eq!(cursors[0], Cursor { writer: NORTH, version: 6 }, "rows of version 7 may be missing");
    assert_eq!(cursors[1], Cursor { writer: SOUTH, version: 0 });
    assert_eq!(driven.state.figures.imports_created, 600);
    assert_eq!(driven.state.region.regions(), 3);
    driven.feed(Feed {
        own: driven.marker,
        markers: vec![marker((NORTH, b"north", 9))],
        pages: vec![Page { writer: NORTH, rows: 30, last_version: 9 }],
        regions: cells(0..1, b"here"),
    });
    assert_eq!(driven.packet().cursors, vec![Cursor { writer: NORTH, version: 9 }]);
    assert_eq!(driven.state.figures.imports_merged, 600, "own rows are not imported");
}

#[test]
fn a_region_counts_as_alive_while_its_marker_moves() {
    let mut driven = driven();
    let quiet: &[(Writer, &[u8], u64)] = &[(NORTH, b"north", 5)];
    driven.packet();
    driven.reply(quiet);
    assert_eq!(driven.state.region.regions(), 2);
    driven.ms += ALIVE - 2_000;
    driven.packet();
    driven.reply(&[(NORTH, b"north", 5), (SOUTH, b"south", 1)]);
    assert_eq!(driven.state.region.regions(), 3);
    // While the database is unavailable, the number stays.
    driven.ms += ALIVE;
    driven.packet();
    driven.fail();
    assert_eq!(driven.state.region.regions(), 3);
    driven.packet();
    driven.reply(&[(NORTH, b"north", 5), (SOUTH, b"south", 2)]);
    assert_eq!(driven.state.region.regions(), 2);
}

const ALIVE: u64 = 600_000;

#[test]
fn a_failing_database_is_tried_once_a_second() {
    let mut driven = driven();
    let mut times = vec![];
    for _ in 0..20 {
        driven.use_keys(0..5, 9);
        driven.packet();
        times.push(driven.ms);
        driven.fail();
    }
    let pauses: Vec<u64> = times[6..].windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(pauses.iter().all(|pause| (900..=2_100).contains(pause)), "{pauses:?}");
    driven.packet();
    driven.reply(&[]);
    assert_eq!(driven.packet().rows.len(), 5);
}

#[test]
fn a_slow_database_gets_more_time() {
    let mut driven = driven();
    let mut timeouts = vec![];
    for _ in 0..5 {
        driven.packet();
        timeouts.push(driven.within_ms);
        driven.ms += driven.within_ms;
        driven.fail();
    }
    assert_eq!(timeouts, vec![2_000, 4_000, 8_000, 10_000, 10_000]);
    for (took_ms, next_ms) in [(3_000, 6_000), (7_000, 10_000), (90, 2_000)] {
        driven.packet();
        driven.ms += took_ms;
        driven.reply(&[]);
        driven.packet();
        assert_eq!(driven.within_ms, next_ms, "after {took_ms} ms");
        driven.reply(&[]);
    }
}

#[test]
fn rows_beyond_the_budget_wait_for_the_interval() {
    let mut driven = driven();
    driven.packet();
    driven.reply(&[]);
    driven.use_keys(0..22_000, 9);
    let mut written = 0;
    while driven.ms < 4_900 {
        written += driven.packet().rows.len();
        driven.reply(&[]);
    }
    assert!((19_000..=22_000).contains(&written), "{written}");
    while driven.ms < 6_000 {
        written += driven.packet().rows.len();
        driven.reply(&[]);
    }
    assert_eq!(written, 22_000);
}

/// A row of the own region, of which 9 of 10 were used.
fn own_row() -> Vec<StoredRegion> {
    let cell = Stored { key: key("i0"), sequence: SEQUENCE, count: 9, limit: 10 };
    vec![StoredRegion { region: b"here".to_vec(), cells: vec![cell] }]
}

/// The rows of the next packets.
fn written(driven: &mut Driven, packets: usize) -> Vec<u64> {
    let mut rows = vec![];
    for _ in 0..packets {
        rows.extend(driven.packet().rows.iter().map(|row| row.count));
        driven.reply(&[]);
    }
    rows
}

#[test]
fn what_was_recovered_before_a_loss_that_no_marker_shows_is_written_again() {
    let mut driven = driven();
    let mut recovery = Recovery::before_serving(Schedule::default(), NOW.mono);
    assert!(matches!(recovery.next(&mut at(&mut driven.state, 0)), Next::Call(_)));
    let page = TablePage { regions: own_row(), end: None };
    recovery.recovered(&mut at(&mut driven.state, 0), Ok(&page));
    // The table is wiped before the first packet is written. The node sends its count again.
    driven.use_keys(0..1, 9);
    assert_eq!(written(&mut driven, 20), [9]);
}

#[test]
fn what_a_peer_had_published_is_written_again_if_a_loss_shows_in_no_marker() {
    let mut driven = driven();
    driven.packet();
    driven.fail();
    driven.packet();
    driven.read(&[(PEER, b"here", 3)]);
    driven.use_keys(0..1, 9);
    // The database accepts no writes, and is read.
    while driven.packet().version.is_some() {
        driven.fail();
    }
    let markers = vec![marker((PEER, b"here", 3))];
    driven.feed(Feed { own: OwnMarker::default(), markers, pages: vec![], regions: own_row() });
    // The table is wiped. Then it accepts writes again.
    assert_eq!(written(&mut driven, 20), [9]);
}

#[test]
fn what_a_peer_had_published_is_lost_if_its_marker_is_gone() {
    let mut driven = driven();
    let mut lost = vec![];
    for peer in [Some(1), Some(1), Some(2), None, None] {
        driven.packet();
        let others: Vec<(Writer, &[u8], u64)> =
            peer.map(|version| (PEER, &b"here"[..], version)).into_iter().collect();
        lost.push(driven.reply(&others));
    }
    assert_eq!(lost, [false, false, false, true, false], "a restore from before its first packet");
    // A marker that has not moved for long has expired.
    for (peer, ms) in [(Some(5), 0), (Some(6), 0), (None, 3_600_000)] {
        driven.ms += ms;
        driven.packet();
        let others: Vec<(Writer, &[u8], u64)> =
            peer.map(|version| (PEER, &b"here"[..], version)).into_iter().collect();
        assert!(!driven.reply(&others));
    }
}

#[test]
fn an_aggregator_that_ends_publishes_what_would_be_due_later() {
    let mut driven = driven();
    driven.packet();
    driven.reply(&[]);
    // Used by this region alone, and less above the published count than is due at once.
    driven.use_keys(0..1, 5);
    assert_eq!(driven.packet().rows.len(), 1);
    driven.reply(&[]);
    driven.use_keys(0..1, 6);
    let began_ms = driven.ms;
    driven.state.publish_all();
    let rows = driven.packet().rows;
    assert_eq!((rows.len(), rows[0].count), (1, 6));
    assert!(driven.ms < began_ms + 1_000, "before the next tick");
    driven.reply(&[]);
    assert!(driven.state.figures.published_at.is_some_and(|at| at >= NOW.mono.after(began_ms)));
}

/// The last process of a region without a store has ended. Its last packet is committed after its successor has read the region's rows.
#[test]
fn what_an_earlier_process_commits_late_counts() {
    for (late_ms, grace_ms) in [(100, 2_100), (3_000, 3_000)] {
        let mut driven = driven();
        driven.packet();
        driven.reply(&[]);
        let mut recovery = Recovery::before_serving(Schedule::default(), NOW.mono);
        assert!(matches!(recovery.next(&mut at(&mut driven.state, 0)), Next::Call(_)));
        recovery.recovered(&mut at(&mut driven.state, 0), Ok(&TablePage::default()));
        recovery.serve(&mut at(&mut driven.state, 0));
        driven.packet();
        driven.reply(&[(PEER, b"here", 2)]);
        driven.ms = driven.ms.max(late_ms);
        driven.packet();
        let markers = vec![marker((PEER, b"here", 3))];
        driven.write();
        driven.feed(Feed { own: driven.marker, markers, pages: vec![], regions: own_row() });
        driven.packet();
        let used = |driven: &Driven| {
            let explained = driven.state.region.explain(b"w", b"n", b"i0");
            explained.first().map_or(0, |key| key.cells[0].regional_total())
        };
        assert_eq!(used(&driven), 9);
        let settled = at(&mut driven.state, grace_ms).now.unix;
        driven.state.region.end_grace_period_here(NOW.unix, settled);
        let explained = driven.state.region.explain(b"w", b"n", b"i0");
        assert_eq!(explained[0].cells[0].components.len(), 1, "it is the baseline");
        assert!(driven.state.region.stats(NOW.mono).pending_publications == 0, "the database holds it");
    }
}

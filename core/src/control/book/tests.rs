use super::super::{Controls, Effect, MAX_PATTERN_BYTES, Selector};
use super::*;
use crate::model::key::MAX_TEXT_BYTES;
use crate::model::wire::MAX_FRAME_BYTES;
use proptest::prelude::*;
use prost::Message;
use std::format;
use std::string::String;

const NOW: UnixMs = UnixMs(1_800_000_000_000);

fn entry(name: &str, effect: Effect, revision: u64) -> Entry {
    let selector = Selector::Identifier(name.into());
    let target = Target { workspace: "w".into(), scope: "n".into(), selector, window_ms: None };
    Entry { control: Control { target, effect, expires: None, revision }, is_deleted: false }
}

fn edition(incarnation: u64, revision: u64, floor: u64) -> Edition {
    Edition { incarnation, revision, floor }
}

fn known(incarnation: u64, revision: u64) -> Option<ControlsKnown> {
    Some(known_of(Edition { incarnation, revision, floor: 0 }))
}

#[test]
fn a_filter_is_sent_only_the_controls_that_it_lacks() {
    let mut book = Book::new();
    assert_eq!(
        book.frames_since(None, NOW),
        vec![],
        "a book that was never read from the database sends nothing"
    );
    let entries = (1..=300).map(|i| entry(&format!("i{i}"), Effect::Ban, i)).collect();
    assert!(book.take(edition(7, 300, 0), 0, entries, NOW));
    assert_eq!(book.frames_since(known(7, 300), NOW), vec![]);
    assert_eq!(book.frames_since(known(7, 301), NOW), vec![], "the filter has a newer revision");
    let shape = |known| -> Vec<(usize, bool, u64)> {
        let frames = book.frames_since(known, NOW);
        frames.iter().map(|frame| (frame.entries.len(), frame.from_scratch, frame.complete_through)).collect()
    };
    assert_eq!(shape(known(7, 298)), vec![(2, false, 300)]);
    for unrelated in [None, known(8, 300), known(0, 0)] {
        assert_eq!(shape(unrelated), vec![(128, true, 0), (128, false, 0), (44, false, 300)]);
    }
    let nothing = edition(9, 1, 0);
    assert!(book.take(nothing, 0, vec![], NOW));
    let frames = book.frames_since(known(7, 300), NOW);
    let all = wire::Controls {
        incarnation: sent_incarnation(9),
        from_scratch: true,
        complete_through: 1,
        proof: proof(9, 1),
        now_ms: NOW.0,
        as_of: 1,
        ..Default::default()
    };
    assert_eq!(frames, vec![all]);
}

#[test]
fn the_part_of_the_database_that_is_read_next() {
    let mut book = Book::new();
    assert_eq!(book.reading(edition(7, 5, 0)), Reading::All);
    assert!(book.take(edition(7, 5, 0), 0, vec![], NOW));
    for (found, expected) in [
        (edition(7, 5, 0), Reading::Nothing),
        (edition(7, 6, 5), Reading::Since(5)),
        (edition(7, 5, 4), Reading::Since(5)),
        (edition(7, 9, 6), Reading::All),
        (edition(7, 4, 0), Reading::WentBack(5)),
        (edition(8, 1, 0), Reading::All),
    ] {
        assert_eq!(book.reading(found), expected, "{found:?}");
    }
    book.acknowledged(known(6, 99).unwrap(), NOW);
    for claim in [
        ControlsKnown { incarnation: 7, revision: 8, proof: 0 },
        ControlsKnown { proof: 0, ..known(7, 8).unwrap() },
        ControlsKnown { revision: 9, ..known(7, 5).unwrap() },
        ControlsKnown { revision: 8, ..known(7, 7).unwrap() },
    ] {
        book.acknowledged(claim, NOW);
        assert_eq!(book.reading(edition(7, 5, 0)), Reading::Nothing, "no filter was sent {claim:?}");
    }
    let too_many = NOW.0 / 1_000 + MAX_AHEAD + 1;
    for revision in [too_many, MAX_REVISION, u64::MAX] {
        book.acknowledged(known(7, revision).unwrap(), NOW);
    }
    assert_eq!(book.reading(edition(7, 5, 0)), Reading::Nothing, "implausible revisions are ignored");
    book.acknowledged(known(7, 8).unwrap(), NOW);
    assert_eq!(book.reading(edition(7, 7, 0)), Reading::WentBack(8), "a filter has a newer revision");
    assert_eq!(book.reading(edition(7, 8, 0)), Reading::Since(5));
    assert!(book.take(edition(8, 9, 0), 0, vec![], NOW));
    assert_eq!(book.reading(edition(7, 20, 0)), Reading::WentBack(9), "an incarnation that had ended");
    assert_eq!(book.reading(edition(6, 20, 0)), Reading::All);
}

#[test]
fn dropped_controls_stay_dropped_after_the_database_is_set_back() {
    let mut book = Book::new();
    assert!(book.take(edition(7, 5, 5), 0, vec![], NOW));
    assert_eq!(book.reading(edition(7, 5, 0)), Reading::Nothing);
    assert_eq!(book.reading(edition(7, 6, 0)), Reading::Since(5));
    assert!(book.take(edition(7, 6, 0), 5, vec![entry("a", Effect::Ban, 6)], NOW));
    let frames = book.frames_since(known(7, 4), NOW);
    assert!(frames[0].from_scratch, "the fifth change was dropped");
}

#[test]
fn a_read_that_does_not_continue_the_book_is_refused() {
    let mut book = Book::new();
    assert!(!book.take(edition(7, 5, 0), 4, vec![entry("a", Effect::Ban, 5)], NOW));
    assert!(book.take(edition(7, 5, 0), 0, vec![entry("a", Effect::Ban, 5)], NOW));
    assert!(!book.take(edition(7, 4, 0), 0, vec![], NOW), "read before");
    assert!(!book.take(edition(7, 9, 0), 6, vec![], NOW), "a gap");
    assert!(!book.take(edition(8, 9, 0), 5, vec![], NOW), "another incarnation");
    assert!(book.take(
        edition(7, 6, 0),
        5,
        vec![entry("a", Effect::Exempt, 6), entry("b", Effect::Ban, 7)],
        NOW
    ));
    let held: Vec<u64> = book.entries().map(|entry| entry.control.revision).collect();
    assert_eq!(held, vec![6], "the newer control of a, and none from after the edition");
}

#[test]
fn expired_and_deleted_controls_are_dropped_up_to_the_floor() {
    let mut book = Book::new();
    let expired = |mut entry: Entry| {
        entry.control.expires = Some(UnixMs(NOW.0 - KEPT_OVER_MS));
        entry
    };
    let deleted = |entry| Entry { is_deleted: true, ..entry };
    let entries = vec![
        expired(entry("a", Effect::Ban, 1)),
        deleted(entry("b", Effect::Ban, 2)),
        entry("c", Effect::Ban, 3),
        deleted(entry("d", Effect::Ban, 4)),
    ];
    assert!(book.take(edition(7, 4, 0), 0, entries, NOW));
    assert_eq!((book.entries().count(), book.in_force(NOW)), (4, 1));
    assert!(book.take(edition(7, 4, 2), 4, vec![], NOW));
    assert_eq!(book.entries().map(|entry| entry.control.revision).collect::<Vec<_>>(), vec![3, 4]);
    let since_three = book.frames_since(known(7, 3), NOW);
    assert!(since_three[0].entries[0].deleted && !since_three[0].from_scratch);
    let from_scratch = book.frames_since(known(7, 1), NOW);
    assert!(from_scratch[0].from_scratch && from_scratch[0].entries.len() == 1, "{from_scratch:?}");
}

#[test]
fn an_aggregator_with_a_fast_clock_keeps_and_sends_controls_in_force() {
    let soon = |name, revision| {
        let mut entry = entry(name, Effect::Ban, revision);
        entry.control.expires = Some(UnixMs(NOW.0 + 1_000));
        entry
    };
    let fast = UnixMs(NOW.0 + 60 * 60 * 1_000);
    let mut book = Book::new();
    assert!(book.take(edition(7, 2, 0), 0, vec![soon("a", 1), soon("b", 2)], fast));
    assert!(book.take(edition(7, 2, 1), 2, vec![], fast), "the database has dropped a control");
    let mut peer = Controls::default();
    book.frames_since(None, fast).iter().for_each(|frame| apply(&mut peer, frame));
    assert_eq!(held(&peer), ["a", "b"]);
    assert_eq!(book.frames_since(None, UnixMs(NOW.0 + KEPT_OVER_MS + 1_000))[0].entries, vec![]);
}

#[test]
fn a_full_book_drops_expired_controls_up_to_the_floor() {
    let mut book = Book::new();
    let many = MAX_KEPT as u64;
    let over = |revision| {
        let mut entry = entry(&format!("i{revision}"), Effect::Ban, revision);
        entry.control.expires = Some(UnixMs(NOW.0 - 1));
        entry
    };
    assert!(book.take(edition(7, many, 0), 0, (1..=many).map(over).collect(), NOW));
    assert!(book.take(edition(7, many + 1, 9), many, vec![over(many + 1)], NOW));
    assert_eq!(book.entries().count(), MAX_KEPT - 8);
}

#[test]
fn the_largest_frame_is_within_the_limits_of_a_frame() {
    let long = |bytes| "x".repeat(bytes);
    let target = |i: u64| Target {
        workspace: long(MAX_TEXT_BYTES),
        scope: long(MAX_TEXT_BYTES),
        selector: Selector::Identifier(format!("{i:0width$}", width = MAX_PATTERN_BYTES)),
        window_ms: Some(2_678_400_000),
    };
    let control = |i| Control {
        target: target(i),
        effect: Effect::Limit(crate::model::window::MAX_COUNT),
        expires: Some(UnixMs(u64::MAX)),
        revision: MAX_REVISION - i,
    };
    let entries = (0..200).map(|i| Entry { control: control(i), is_deleted: false }).collect();
    let mut book = Book::new();
    assert!(book.take(edition(u64::MAX, MAX_REVISION, 0), 0, entries, NOW));
    for frame in book.frames_since(None, NOW) {
        assert!(frame.entries.len() <= MAX_FRAME_CONTROLS && frame.encoded_len() <= MAX_FRAME_BYTES);
    }
}

/// A step of the database, the aggregator or the filter.
#[derive(Clone, Debug)]
enum Action {
    Set(u8, bool),
    Delete(u8),
    /// Drops expired and deleted controls.
    Clean,
    /// Sets the database back to a copy from before the last changes.
    Restore,
    Wipe,
    /// The aggregator reads the database.
    Read,
    /// The aggregator sends frames to the filter, of which this many arrive.
    Broadcast(usize),
}

/// A simplified database.
#[derive(Clone, Debug)]
struct Tables {
    edition: Edition,
    rows: BTreeMap<String, Entry>,
}

/// An incarnation that was never used before.
fn fresh_incarnation(held: Edition, book: &Book) -> u64 {
    held.incarnation.max(book.edition().map_or(0, |edition| edition.incarnation)) + 1
}

impl Tables {
    /// Stores a change through the aggregator that holds `book`.
    fn change(&mut self, book: &Book, name: u8, is_deleted: bool, is_over: bool) {
        self.renew(book);
        self.edition.revision += 1;
        let name = format!("i{name}");
        let mut entry = Entry { is_deleted, ..entry(&name, Effect::Ban, self.edition.revision) };
        entry.control.expires = is_over.then_some(UnixMs(NOW.0 - 1));
        self.rows.insert(name, entry);
    }

    fn clean(&mut self) {
        let over = self.rows.values().filter(|entry| entry.is_over(NOW));
        self.edition.floor = over.map(|entry| entry.control.revision).fold(self.edition.floor, u64::max);
        self.rows.retain(|_, entry| !entry.is_over(NOW));
    }

    /// Begins a new incarnation if the database is older than the book.
    fn renew(&mut self, book: &Book) {
        if let Reading::WentBack(known) = book.reading(self.edition) {
            self.edition.incarnation = fresh_incarnation(self.edition, book);
            self.edition.revision = self.edition.revision.max(known) + 1;
        }
    }

    fn read_by(&mut self, book: &mut Book) {
        self.renew(book);
        let since = match book.reading(self.edition) {
            Reading::Nothing => return,
            Reading::Since(since) => since,
            _ => 0,
        };
        let newer = self.rows.values().filter(|entry| entry.control.revision > since).cloned().collect();
        assert!(book.take(self.edition, since, newer, NOW));
    }

    fn in_force(&self) -> Vec<String> {
        self.rows.iter().filter(|(_, entry)| !entry.is_over(NOW)).map(|(name, _)| name.clone()).collect()
    }
}

/// Applies a frame. Ignores whether it changed anything.
fn apply(peer: &mut Controls, frame: &wire::Controls) {
    peer.apply(frame);
}

/// The names of a filter's controls in force.
fn held(peer: &Controls) -> Vec<String> {
    let name = |control: Control| match control.target.selector {
        Selector::Identifier(name) => name,
        other => panic!("{other:?}"),
    };
    let mut names: Vec<String> = peer.iter().filter(|control| control.is_in_force(NOW)).map(name).collect();
    names.sort();
    names
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let action = prop_oneof![
        4 => (0..6_u8, any::<bool>()).prop_map(|(name, over)| Action::Set(name, over)),
        2 => (0..6_u8).prop_map(Action::Delete),
        1 => Just(Action::Clean),
        1 => Just(Action::Restore),
        1 => Just(Action::Wipe),
        4 => Just(Action::Read),
        4 => (0..3_usize).prop_map(Action::Broadcast),
    ];
    prop::collection::vec(action, 0..60)
}

proptest! {
    /// After any changes, cleaning, wipes, restores, late reads and lost frames, all hold the same controls.
    #[test]
    fn filters_converge_to_the_controls_of_the_database(actions in actions()) {
        let mut tables = Tables { edition: edition(1, 1, 0), rows: BTreeMap::new() };
        let (mut backup, mut book, mut peer) = (tables.clone(), Book::new(), Controls::default());
        for action in actions {
            match action {
                Action::Set(name, is_over) => tables.change(&book, name, false, is_over),
                Action::Delete(name) => tables.change(&book, name, true, false),
                Action::Clean => {
                    backup = tables.clone();
                    tables.clean();
                }
                Action::Restore => tables = backup.clone(),
                Action::Wipe => {
                    tables = Tables { edition: edition(fresh_incarnation(tables.edition, &book), 1, 0), rows: BTreeMap::new() };
                    backup = tables.clone();
                }
                Action::Read => tables.read_by(&mut book),
                Action::Broadcast(arrive) => {
                    book.acknowledged(peer.known(), NOW);
                    let frames = book.frames_since(Some(peer.known()), NOW);
                    frames.iter().take(arrive).for_each(|frame| apply(&mut peer, frame));
                }
            }
        }
        book.acknowledged(peer.known(), NOW);
        tables.read_by(&mut book);
        let mut push = ControlPush::new(peer.known());
        push.next(&book, NOW).iter().for_each(|frame| apply(&mut peer, frame));
        prop_assert_eq!(push.next(&book, NOW), vec![]);
        prop_assert_eq!(held(&peer), tables.in_force());
        prop_assert_eq!(book.in_force(NOW), held(&peer).len());
    }
}

#[test]
fn a_new_revision_is_above_all_that_were_read_in_any_incarnation() {
    let now = UnixMs(1_000_000);
    let mut book = Book::new();
    assert_eq!(book.next_revision(5, now), Some(1_000), "one a second on average");
    assert!(book.take(edition(1, 1_040, 0), 0, Vec::new(), now));
    // The database was emptied, and its next incarnation begins by the clock.
    assert_eq!(book.next_revision(1_000, now), Some(1_041));
    assert!(book.take(edition(2, 1_000, 0), 0, Vec::new(), now));
    assert_eq!(book.next_revision(1_000, now), Some(1_041));
    assert_eq!(book.next_revision(2_000, now), Some(2_001));
    // A database that was wrong once does not use up the revisions of the next one.
    assert!(book.take(edition(3, MAX_REVISION - 1, 0), 0, Vec::new(), now));
    assert_eq!(book.next_revision(1_000, now), Some(1_041));
    assert_eq!(book.next_revision(MAX_REVISION - 1, now), Some(MAX_REVISION));
    assert_eq!(book.next_revision(MAX_REVISION, now), None);
}

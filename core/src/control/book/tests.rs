use super::super::{Control, Effect, MAX_PATTERN_BYTES, Selector, Target};
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
    Entry {
        control: Control { target, effect, expires: None, revision },
        is_deleted: false,
        stamp: stamp(revision),
    }
}

fn edition(incarnation: u64, revision: u64, floor: u64) -> Edition {
    let dropped_before = if floor > 0 { NOW } else { UnixMs(0) };
    Edition { incarnation, revision, stamp: stamp(revision), floor, dropped_before }
}

/// The stamp of a revision, as long as no revision is used twice.
fn stamp(revision: u64) -> u64 {
    revision.wrapping_mul(7) & MAX_STAMP
}

fn known(incarnation: u64, revision: u64) -> Option<ControlsKnown> {
    Some(known_of(edition(incarnation, revision, 0)))
}

/// Reads from a table that has what the book then has.
fn take(book: &mut Book, found: Edition, since: u64, entries: Vec<Entry>, now: UnixMs) -> bool {
    let news = |contents| News { edition: found, since, entries: entries.clone(), bad: 0, contents };
    let mut after = book.clone();
    after.take(news(Contents::default()), now);
    let kept = after.kept(found);
    let took = book.take(news(Contents { kept, ..Contents::default() }), now);
    assert!(!took || !book.has_lost());
    took
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
    assert!(take(&mut book, edition(7, 300, 0), 0, entries, NOW));
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
    assert!(take(&mut book, nothing, 0, vec![], NOW));
    let frames = book.frames_since(known(7, 300), NOW);
    let all = wire::Controls {
        incarnation: sent_incarnation(9),
        from_scratch: true,
        complete_through: 1,
        proof: proof(9, 1),
        stamp: stamp(1),
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
    assert!(take(&mut book, edition(7, 5, 0), 0, vec![], NOW));
    for (found, expected) in [
        (edition(7, 5, 0), Reading::Nothing),
        (edition(7, 6, 5), Reading::Since(5)),
        (edition(7, 5, 4), Reading::Since(5)),
        (edition(7, 9, 6), Reading::All),
        (edition(7, 4, 0), Reading::WentBack(5)),
        (Edition { stamp: 1, ..edition(7, 5, 0) }, Reading::WentBack(5)),
        (edition(8, 1, 0), Reading::All),
    ] {
        assert_eq!(book.reading(found), expected, "{found:?}");
    }
    book.acknowledged(known(6, 99).unwrap(), NOW);
    for claim in [
        ControlsKnown { incarnation: 7, ..known(7, 8).unwrap() },
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
    assert!(take(&mut book, edition(8, 9, 0), 0, vec![], NOW));
    assert_eq!(book.reading(edition(7, 20, 0)), Reading::WentBack(9), "an incarnation that had ended");
    assert_eq!(book.reading(edition(6, 20, 0)), Reading::All);
}

#[test]
fn a_floor_that_fell_shows_that_the_database_was_set_back() {
    let mut book = Book::new();
    assert!(take(&mut book, edition(7, 5, 5), 0, vec![], NOW));
    assert_eq!(book.reading(edition(7, 5, 5)), Reading::Nothing);
    for found in [edition(7, 5, 4), edition(7, 6, 0)] {
        assert_eq!(book.reading(found), Reading::WentBack(5), "{found:?}");
    }
}

#[test]
fn a_read_that_does_not_continue_the_book_is_refused() {
    let mut book = Book::new();
    assert!(!take(&mut book, edition(7, 5, 0), 4, vec![entry("a", Effect::Ban, 5)], NOW));
    assert!(take(&mut book, edition(7, 5, 0), 0, vec![entry("a", Effect::Ban, 5)], NOW));
    assert!(!take(&mut book, edition(7, 4, 0), 0, vec![], NOW), "read before");
    assert!(!take(&mut book, edition(7, 9, 0), 6, vec![], NOW), "a gap");
    assert!(!take(&mut book, edition(8, 9, 0), 5, vec![], NOW), "another incarnation");
    assert!(take(
        &mut book,
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
    assert!(take(&mut book, edition(7, 4, 0), 0, entries, NOW));
    assert_eq!((book.entries().count(), book.in_force(NOW)), (4, 1));
    assert!(take(&mut book, edition(7, 4, 2), 4, vec![], NOW));
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
    assert!(take(&mut book, edition(7, 2, 0), 0, vec![soon("a", 1), soon("b", 2)], fast));
    let found = Edition { dropped_before: fast, ..edition(7, 2, 1) };
    assert!(take(&mut book, found, 2, vec![], fast), "the database has dropped a control");
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
    assert!(take(&mut book, edition(7, many, 0), 0, (1..=many).map(over).collect(), NOW));
    assert!(take(&mut book, edition(7, many + 1, 9), many, vec![over(many + 1)], NOW));
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
    let entries =
        (0..200).map(|i| Entry { control: control(i), is_deleted: false, stamp: MAX_STAMP }).collect();
    let mut book = Book::new();
    assert!(take(&mut book, edition(u64::MAX, MAX_REVISION, 0), 0, entries, NOW));
    for frame in book.frames_since(None, NOW) {
        assert!(frame.entries.len() <= MAX_FRAME_CONTROLS && frame.encoded_len() <= MAX_FRAME_BYTES);
    }
}

/// A step of the database, an aggregator or a filter. There are two aggregators, each with one filter.
#[derive(Clone, Debug)]
enum Action {
    Set(usize, u8, bool),
    Delete(usize, u8),
    /// Drops expired and deleted controls.
    Clean,
    /// Sets the database back to a copy from before the last changes.
    Restore,
    Wipe,
    /// Deletes a row by hand.
    Lose(u8),
    /// An aggregator reads the database.
    Read(usize),
    /// An aggregator sends frames to its filter, of which this many arrive.
    Broadcast(usize, usize),
    /// An aggregator starts again.
    Restart(usize),
    /// The filters change places.
    Move,
}

/// A simplified database.
#[derive(Clone, Debug)]
struct Tables {
    edition: Edition,
    rows: BTreeMap<String, Entry>,
    /// The digest of the rows that the changes have left.
    stated: Digest,
}

/// The database, and the random numbers of its clients.
struct World {
    tables: Tables,
    backup: Tables,
    books: [Book; 2],
    peers: [Controls; 2],
    drawn: u64,
}

impl Tables {
    fn new(incarnation: u64) -> Tables {
        Tables { edition: edition(incarnation, 1, 0), rows: BTreeMap::new(), stated: Digest::default() }
    }

    fn digest(&self, of: impl Fn(&Entry) -> bool) -> Digest {
        let rows = self.rows.values().filter(|entry| of(entry));
        rows.fold(Digest::default(), |digest, entry| digest.with(entry.stamp))
    }

    /// Inserts and removes rows, as a change does that states what it has left.
    fn replace(&mut self, remove: impl Fn(&str, &Entry) -> bool, insert: Option<(String, Entry)>) {
        let gone = |tables: &Tables| {
            let gone = tables.rows.iter().filter(|(name, entry)| remove(name, entry));
            gone.fold(Digest::default(), |digest, (_, entry)| digest.with(entry.stamp))
        };
        let Digest { rows, stamps } = gone(self);
        // Rows that were deleted by hand are not subtracted.
        self.stated = Digest {
            rows: self.stated.rows.wrapping_sub(rows),
            stamps: self.stated.stamps.wrapping_sub(stamps),
        };
        self.rows.retain(|name, entry| !remove(name, entry));
        if let Some((name, entry)) = insert {
            self.stated = self.stated.with(entry.stamp);
            self.rows.insert(name, entry);
        }
    }

    fn clean(&mut self) {
        let over = self.rows.values().filter(|entry| entry.is_over(NOW));
        let floor = over.map(|entry| entry.control.revision).fold(self.edition.floor, u64::max);
        self.edition = Edition { floor, dropped_before: NOW, ..self.edition };
        self.replace(|_, entry| entry.is_over(NOW), None);
    }

    fn in_force(&self) -> Vec<String> {
        self.rows.iter().filter(|(_, entry)| !entry.is_over(NOW)).map(|(name, _)| name.clone()).collect()
    }
}

impl World {
    fn new() -> World {
        let tables = Tables::new(1);
        World {
            backup: tables.clone(),
            tables,
            books: Default::default(),
            peers: Default::default(),
            drawn: 1,
        }
    }

    /// A number that was never drawn before.
    fn draw(&mut self) -> u64 {
        self.drawn += 1;
        self.drawn
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Set(by, name, is_over) => self.change(by, name, false, is_over),
            Action::Delete(by, name) => self.change(by, name, true, false),
            Action::Clean => {
                self.backup = self.tables.clone();
                self.tables.clean();
            }
            Action::Restore => self.tables = self.backup.clone(),
            Action::Wipe => {
                self.tables = Tables::new(self.draw());
                self.backup = self.tables.clone();
            }
            Action::Lose(name) => drop(self.tables.rows.remove(&format!("i{name}"))),
            Action::Read(by) => self.read(by),
            Action::Broadcast(by, arrive) => self.broadcast(by, arrive),
            Action::Restart(which) => self.books[which] = Book::new(),
            Action::Move => self.peers.swap(0, 1),
        }
    }

    /// Stores a change through an aggregator.
    fn change(&mut self, by: usize, name: u8, is_deleted: bool, is_over: bool) {
        self.renew(by);
        let (name, stamp) = (format!("i{name}"), self.draw());
        let revision = self.tables.edition.revision + 1;
        self.tables.edition = Edition { revision, stamp, ..self.tables.edition };
        let mut entry = Entry { is_deleted, stamp, ..entry(&name, Effect::Ban, revision) };
        entry.control.expires = is_over.then_some(UnixMs(NOW.0 - 1));
        let old = name.clone();
        self.tables.replace(move |name, _| name == old, Some((name, entry)));
    }

    /// Begins a new incarnation if the book of an aggregator shows a loss.
    fn renew(&mut self, by: usize) {
        let (incarnation, stamp) = (self.draw(), self.draw());
        if let Reading::WentBack(known) = self.books[by].reading(self.tables.edition) {
            let revision = self.tables.edition.revision.max(known) + 1;
            self.tables.edition = Edition { incarnation, revision, stamp, ..self.tables.edition };
            self.tables.stated = self.tables.digest(|_| true);
        }
    }

    /// A reading that compares the table.
    fn read(&mut self, by: usize) {
        loop {
            self.renew(by);
            let (tables, book) = (&self.tables, &mut self.books[by]);
            let since = match book.reading(tables.edition) {
                Reading::Nothing => tables.edition.revision,
                Reading::Since(since) => since,
                _ => 0,
            };
            let newer = tables.rows.values().filter(|entry| entry.control.revision > since);
            let contents = Contents {
                stated: tables.stated,
                all: tables.digest(|_| true),
                kept: tables.digest(|entry| tables.edition.keeps(entry)),
            };
            let entries = newer.cloned().collect();
            book.take(News { edition: tables.edition, since, entries, bad: 0, contents }, NOW);
            if !book.has_lost() {
                return;
            }
        }
    }

    fn broadcast(&mut self, by: usize, arrive: usize) {
        let (book, peer) = (&mut self.books[by], &mut self.peers[by]);
        book.acknowledged(peer.known(), NOW);
        let frames = book.frames_since(Some(peer.known()), NOW);
        frames.iter().take(arrive).for_each(|frame| apply(peer, frame));
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
    let by = || 0..2_usize;
    let action = prop_oneof![
        4 => (by(), 0..6_u8, any::<bool>()).prop_map(|(by, name, over)| Action::Set(by, name, over)),
        2 => (by(), 0..6_u8).prop_map(|(by, name)| Action::Delete(by, name)),
        1 => Just(Action::Clean),
        1 => Just(Action::Restore),
        1 => Just(Action::Wipe),
        1 => (0..6_u8).prop_map(Action::Lose),
        4 => by().prop_map(Action::Read),
        4 => (by(), 0..3_usize).prop_map(|(by, arrive)| Action::Broadcast(by, arrive)),
        1 => by().prop_map(Action::Restart),
        1 => Just(Action::Move),
    ];
    prop::collection::vec(action, 0..60)
}

proptest! {
    /// After any changes, cleaning, wipes, restores, lost rows, late reads, restarts and lost frames, all hold the same controls.
    #[test]
    fn filters_converge_to_the_controls_of_the_database(actions in actions()) {
        let mut world = World::new();
        actions.into_iter().for_each(|action| world.act(action));
        // What one aggregator learns of its filter or its table, the other reads.
        for by in [0, 1, 0, 1] {
            let known = world.peers[by].known();
            world.books[by].acknowledged(known, NOW);
            world.read(by);
        }
        for (book, peer) in world.books.iter().zip(&mut world.peers) {
            let mut push = ControlPush::new(peer.known());
            push.next(book, NOW).iter().for_each(|frame| apply(peer, frame));
            prop_assert_eq!(push.next(book, NOW), vec![]);
            prop_assert_eq!(held(peer), world.tables.in_force());
            prop_assert_eq!(book.in_force(NOW), held(peer).len());
        }
    }
}

/// The aggregator that writes has not read what is lost, and its filter has not either.
#[test]
fn a_loss_is_found_though_another_aggregator_has_written_over_it() {
    for overwritten in [[3, 4], [1, 2], [3, 2]] {
        for also in [None, Some(Action::Restart(1)), Some(Action::Move)] {
            let mut world = World::new();
            let [first, last] = overwritten.map(|name| Action::Set(0, name, false));
            let before = [Action::Set(0, 0, false), Action::Read(0), Action::Broadcast(0, 9), Action::Clean];
            let lost = [Action::Set(1, 1, false), Action::Set(1, 2, false), Action::Set(1, 5, false)];
            let seen = [Action::Read(1), Action::Broadcast(1, 9), Action::Restore];
            let written = [first, last, Action::Set(0, 3, false), Action::Read(0)];
            let after = [Action::Read(1), Action::Read(0), Action::Broadcast(0, 9), Action::Broadcast(1, 9)];
            let all = before.into_iter().chain(lost).chain(seen).chain(written).chain(also.clone());
            all.chain(after).for_each(|action| world.act(action));
            for (book, peer) in world.books.iter().zip(&world.peers) {
                assert_eq!(book.edition(), Some(world.tables.edition), "{overwritten:?} {also:?}");
                assert_eq!(held(peer), world.tables.in_force(), "{overwritten:?} {also:?}");
            }
        }
    }
}

#[test]
fn a_new_revision_is_above_all_that_were_read_in_any_incarnation() {
    let now = UnixMs(1_000_000);
    let mut book = Book::new();
    assert_eq!(book.next_revision(5, now), Some(1_000), "one a second on average");
    assert!(take(&mut book, edition(1, 1_040, 0), 0, Vec::new(), now));
    // The database was emptied, and its next incarnation begins by the clock.
    assert_eq!(book.next_revision(1_000, now), Some(1_041));
    assert!(take(&mut book, edition(2, 1_000, 0), 0, Vec::new(), now));
    assert_eq!(book.next_revision(1_000, now), Some(1_041));
    assert_eq!(book.next_revision(2_000, now), Some(2_001));
    // A database that was wrong once does not use up the revisions of the next one.
    assert!(take(&mut book, edition(3, MAX_REVISION - 1, 0), 0, Vec::new(), now));
    assert_eq!(book.next_revision(1_000, now), Some(1_041));
    assert_eq!(book.next_revision(MAX_REVISION - 1, now), Some(MAX_REVISION));
    assert_eq!(book.next_revision(MAX_REVISION, now), None);
}

//! Sliding logs under any order of charges, refunds and waits.

use weir_core::model::exact::ExactRequestId;
use weir_core::model::key::{Key, KeyParts};
use weir_core::region::log::{EntryId, Log, LogCharge, LogDecision, Logs, LogsLimits, Micros, Outcome};

const WINDOW_US: u64 = 1_000_000;
const WAITS_US: [u64; 8] =
    [0, 1, WINDOW_US / 7, WINDOW_US / 2, WINDOW_US - 1, WINDOW_US, WINDOW_US + 1, 9 * WINDOW_US];
/// The limit of each log while the clock steps back.
const MOST: u64 = 6;
const KEYS: u8 = 4;
const LIMITS: LogsLimits = LogsLimits { max_keys: 3, max_entries: 8 };

/// Four bytes of what is fuzzed.
#[derive(Clone, Copy)]
struct Step {
    refunds: bool,
    steps_back: bool,
    wait_us: u64,
    which: u8,
    cost: u64,
    most: u64,
}

/// One log against a model that adds up everything each time; then many logs while the clock steps back: no true window
/// holds more than the limit, and no more is kept than is allowed.
pub fn sliding_log(data: &[u8]) {
    let (steps, _) = data.as_chunks::<4>();
    let steps: Vec<Step> = steps.iter().map(Step::new).collect();
    compare(&steps);
    step_back(&steps);
}

impl Step {
    fn new([what, which, cost, most]: &[u8; 4]) -> Step {
        Step {
            refunds: what % 8 == 7,
            steps_back: what & 0x40 != 0,
            wait_us: WAITS_US[usize::from(what >> 3 & 7)],
            which: *which,
            cost: u64::from(cost % 8),
            most: u64::from(most % 16),
        }
    }
}

/// Entries that count: when each was charged, what it cost, its name.
struct Model(Vec<(u64, u64, EntryId)>);

impl Model {
    fn used(&self, now: u64) -> u64 {
        self.0.iter().filter(|(at, ..)| now - at < WINDOW_US).map(|(_, cost, _)| cost).sum()
    }

    fn decide(&mut self, now: u64, id: EntryId, cost: u64, most: u64) -> LogDecision {
        self.0.retain(|(at, ..)| now - at < WINDOW_US);
        let known = self.0.iter().any(|entry| entry.2 == id);
        let passes = known || self.used(now) + cost <= most;
        if passes && !known && cost > 0 {
            self.0.push((now, cost, id));
        }
        // In order, as the entries are.
        let ends: Vec<u64> = self.0.iter().map(|(at, ..)| at + WINDOW_US).collect();
        let free = ends.iter().find(|end| self.used(**end) + cost <= most);
        let retry_after_us = free.filter(|_| cost <= most).map(|end| end - now);
        LogDecision {
            outcome: if passes { Outcome::Allowed } else { Outcome::Denied { retry_after_us } },
            at: Micros(now),
            used: self.used(now),
            reset_us: ends.first().map_or(0, |end| end - now),
        }
    }
}

fn compare(steps: &[Step]) {
    let (mut log, mut model, mut now) = (Log::new(WINDOW_US), Model(Vec::new()), 5);
    for step in steps {
        now += step.wait_us;
        let id = id(u64::from(step.which));
        if step.refunds {
            log.tick(Micros(now));
            model.0.retain(|(at, ..)| now - at < WINDOW_US);
            let before = model.0.len();
            model.0.retain(|entry| entry.2 != id);
            assert_eq!(log.refund(id), model.0.len() < before);
        } else {
            let expected = model.decide(now, id, step.cost, step.most);
            assert_eq!(log.peek(Micros(now), id, step.cost, step.most).outcome, expected.outcome);
            assert_eq!(log.decide(Micros(now), id, step.cost, step.most), expected);
        }
        assert_eq!(log.len(), model.0.len());
    }
}

fn step_back(steps: &[Step]) {
    // What is full evicts single uses, so what passes is held against one that has room for all.
    // A namespace alone has about half of the room.
    let room = LogsLimits { max_keys: 4 * usize::from(KEYS), max_entries: 4 * steps.len().max(1) };
    let (mut logs, mut tight) = (Logs::new(room), Logs::new(LIMITS));
    // Of each charge: whose, when by the true clock, its cost, its name.
    let mut charged: Vec<(u8, u64, u64, EntryId)> = Vec::new();
    let (mut truth, mut back) = (0, 0);
    for (number, step) in (0..).zip(steps) {
        truth += step.wait_us;
        back += if step.steps_back { step.most * WINDOW_US / 5 } else { 0 };
        let shown = Micros((50_000 * WINDOW_US + truth).saturating_sub(back));
        let which = step.which % KEYS;
        let last = charged.iter().rposition(|charge| charge.0 == which);
        if let Some(place) = last.filter(|_| step.refunds) {
            tight.refund(&key(which), charged[place].3);
            if logs.refund(&key(which), charged[place].3) {
                charged.remove(place);
            }
        } else {
            let charge = LogCharge { key: key(which), id: id(number), cost: step.cost, most: MOST };
            let _ = tight.decide(shown, &charge);
            let decided = logs.decide(shown, &charge);
            if decided.is_ok_and(|decided| decided.outcome == Outcome::Allowed) {
                charged.push((which, truth, step.cost, charge.id));
                assert!(used(&charged, which, truth) <= MOST, "more than {MOST} in one window");
            }
        }
        assert!(tight.len() <= LIMITS.max_keys && tight.entries() <= LIMITS.max_entries);
    }
    let end = Micros(u64::MAX);
    for mut logs in [logs, tight] {
        while logs.tick(end) {}
        assert_eq!((logs.len(), logs.entries()), (0, 0));
    }
}

/// What a log's charges of the window that ends at `end` cost.
fn used(charged: &[(u8, u64, u64, EntryId)], which: u8, end: u64) -> u64 {
    let window = charged.iter().filter(|(whose, at, ..)| *whose == which && end - at < WINDOW_US);
    window.map(|(_, _, cost, _)| cost).sum()
}

fn id(number: u64) -> EntryId {
    EntryId { request: ExactRequestId::of(7, number), place: 0 }
}

fn key(which: u8) -> Key {
    let parts = KeyParts {
        workspace: b"w",
        namespace: b"n",
        identifier: &[which],
        duration_ms: 1_000,
        epoch: 0,
        resolution: 1,
    };
    Key::new(&parts).expect("the parts are short")
}

//! Random schedules of requests with windows, logs and ledgers: the charges equal the costs of the admitted requests.

use super::harness::*;
use crate::limiter::*;
use crate::model::exact::Algorithm;
use crate::model::key::Key;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::vec::Vec;

/// One step of a schedule.
#[derive(Clone, Debug)]
enum Step {
    Request { worker: usize, of: RequestSpec },
    Pass { ms: u64 },
    Cut { worker: usize },
    Slow { most_ms: u64 },
    Lose { one_in: u64 },
    Unavailable { unavailable: bool },
    LoseAnswers { loses: bool },
    Freeze { frozen: bool },
}

/// The limits, the cost and the policy of a request.
#[derive(Clone, Debug)]
struct RequestSpec {
    windows: Vec<usize>,
    log: Option<usize>,
    ledger: bool,
    cost: u64,
    deny: bool,
    timeout_ms: u32,
}

const WINDOW_LIMITS: [u64; 2] = [12, 1_000];
const LOG_LIMITS: [u64; 2] = [10, 300];
const ZONE: u32 = 7;
const RATE: u64 = 20;

fn of() -> impl Strategy<Value = RequestSpec> {
    let windows = prop::collection::btree_set(0usize..2, 0..3);
    (windows, prop::option::of(0usize..2), any::<bool>(), 0u64..4, any::<bool>(), 20u32..150).prop_map(
        |(windows, log, ledger, cost, deny, timeout_ms)| {
            let windows = windows.into_iter().collect();
            RequestSpec { windows, log, ledger, cost, deny, timeout_ms }
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let pass = prop_oneof![4 => 0u64..30, 2 => 30u64..400, 1 => 400u64..3_000];
    prop_oneof![
        12 => (0usize..2, of()).prop_map(|(worker, of)| Step::Request { worker, of }),
        8 => pass.prop_map(|ms| Step::Pass { ms }),
        1 => (0usize..2).prop_map(|worker| Step::Cut { worker }),
        1 => (0u64..300).prop_map(|most_ms| Step::Slow { most_ms }),
        1 => (0u64..4).prop_map(|one_in| Step::Lose { one_in }),
        1 => any::<bool>().prop_map(|unavailable| Step::Unavailable { unavailable }),
        1 => any::<bool>().prop_map(|loses| Step::LoseAnswers { loses }),
        1 => any::<bool>().prop_map(|frozen| Step::Freeze { frozen }),
    ]
}

/// A request that waits, and since when.
struct PendingRequest {
    of: RequestSpec,
    since: u64,
}

struct Run {
    world: World,
    windows: Vec<Key>,
    logs: Vec<Key>,
    waiting: BTreeMap<u64, PendingRequest>,
    passed: Vec<(RequestSpec, ExactDetails)>,
    /// The longest time that a request waited beyond its timeouts.
    overdue_ms: u64,
}

/// Rules: windows 0 and 1, logs 2 and 3, the ledger 4.
impl Run {
    fn of(steps: &[Step]) -> Run {
        let mut world = World::connected(2, 1);
        world.exact_store.zones.insert(ZONE, (RATE, HOUR));
        world.latency = (0, 8);
        let (windows, logs) = (keys(2, HOUR), keys(2, MINUTE * 30));
        let (waiting, passed) = (BTreeMap::new(), Vec::new());
        let mut run = Run { world, windows, logs, waiting, passed, overdue_ms: 0 };
        for step in steps {
            run.take(step);
        }
        // All frames in flight arrive, and all requests are resolved.
        run.take(&Step::Freeze { frozen: false });
        run.pass_time(connection::exact_requests::LATE_MS + 12_000);
        run
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Request { worker, of } => self.request(*worker, of),
            Step::Pass { ms } => self.pass_time(*ms),
            Step::Cut { worker } => self.world.cut(*worker, 0),
            Step::Slow { most_ms } => self.world.exact_store.delay_ms = (0, *most_ms),
            Step::Lose { one_in } => self.world.exact_store.loses_one_in = *one_in,
            Step::Unavailable { unavailable } => self.world.exact_store.unavailable = *unavailable,
            Step::LoseAnswers { loses } => self.world.exact_store.loses_answers = *loses,
            Step::Freeze { frozen } => self.world.paused = *frozen,
        }
        self.collect();
    }

    fn request(&mut self, worker: usize, of: &RequestSpec) {
        let policy = Policy { deny_on_failure: of.deny, timeout_ms: of.timeout_ms, ..Policy::default() };
        let windows: Vec<Check<'_>> = of
            .windows
            .iter()
            .map(|at| Check {
                rule: *at as u16,
                policy: Policy { timeout_ms: 50, ..Policy::default() },
                ..check(&self.windows[*at], WINDOW_LIMITS[*at], of.cost)
            })
            .collect();
        let log = of.log.map(|at| {
            let (key, limit) = (self.logs[at].as_bytes(), LOG_LIMITS[at]);
            Check {
                rule: 2 + at as u16,
                algorithm: Algorithm::Log,
                key,
                cell_ms: 0,
                limit,
                configured: None,
                cost: of.cost,
                policy,
            }
        });
        let algorithm = Algorithm::Ledger { zone: ZONE };
        let ledger = Check {
            rule: 4,
            algorithm,
            key: b"b",
            cell_ms: 0,
            limit: 0,
            configured: None,
            cost: of.cost,
            policy,
        };
        let ledger = of.ledger.then_some(ledger);
        let exact: Vec<Check<'_>> = log.into_iter().chain(ledger).collect();
        let (id, outcome) = self.world.request_exact(worker, 0, &windows, &exact);
        let sender = PendingRequest { of: of.clone(), since: self.world.now };
        match outcome.decision {
            Decision::Wait => drop(self.waiting.insert(id, sender)),
            _ => self.record(&sender, self.world.now, &outcome),
        }
    }

    fn pass_time(&mut self, ms: u64) {
        self.world.run(ms);
        self.collect();
    }

    fn collect(&mut self) {
        for (id, (at, outcome)) in std::mem::take(&mut self.world.resolved) {
            let sender = self.waiting.remove(&id).unwrap();
            self.record(&sender, at, &outcome);
        }
    }

    fn record(&mut self, sender: &PendingRequest, at: u64, outcome: &Outcome) {
        // Each of the two timeouts may be noticed one tick late.
        let windows = if sender.of.windows.is_empty() { 0 } else { 50 + WAITING_TICK_MS };
        let most = u64::from(sender.of.timeout_ms) + WAITING_TICK_MS + windows;
        self.overdue_ms = self.overdue_ms.max((at - sender.since).saturating_sub(most));
        if outcome.passes() {
            self.passed.push((sender.of.clone(), outcome.exact.clone()));
        }
    }

    /// The sum of the charges in a log.
    fn charged(&mut self, log: usize) -> u64 {
        self.world.charged(self.logs[log].as_bytes())
    }

    /// The sum of the admitted costs under `rule`, and the part of it that the rule decided.
    fn sums(&self, rule: u16, applies: impl Fn(&RequestSpec) -> bool) -> (u64, u64) {
        let all = || self.passed.iter().filter(|(of, _)| applies(of));
        let decided = all().filter(|(_, details)| !details.undecided.contains(rule));
        (all().map(|(of, _)| of.cost).sum(), decided.map(|(of, _)| of.cost).sum())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn admitted_requests_are_charged_to_all_their_limits_and_denied_ones_to_none(
        steps in prop::collection::vec(step(), 1..80)
    ) {
        let mut run = Run::of(&steps);
        prop_assert!(run.waiting.is_empty(), "a request is never resolved");
        prop_assert_eq!(run.overdue_ms, 0, "a request waited too long");
        for (at, limit) in LOG_LIMITS.into_iter().enumerate() {
            // A request admitted without a decision may have been charged, if its result came late or was lost.
            let (all, decided) = run.sums(2 + at as u16, |of| of.log == Some(at));
            let charged = run.charged(at);
            prop_assert!((decided..=all).contains(&charged), "log {at}: {charged}, of {decided} to {all}");
            prop_assert!(charged <= limit);
        }
        let (all, decided) = run.sums(4, |of| of.ledger);
        let recorded = run.world.exact_store.recorded(ZONE, b"b");
        let orphaned = run.world.exact_store.orphaned(ZONE, b"b");
        let refundable = recorded - orphaned;
        prop_assert!((decided..=all).contains(&refundable), "ledger: {refundable}, of {decided} to {all}");
        prop_assert!(recorded <= RATE);
        for at in 0..2 {
            let (all, _) = run.sums(at as u16, |of| of.windows.contains(&at));
            let owns = (0..2).filter_map(|process| run.world.entry(process, &run.windows[at]));
            prop_assert_eq!(owns.map(|entry| entry.current.own).sum::<u64>(), all, "window {}", at);
        }
        for process in 0..2 {
            let limiter = &run.world.processes[process].workers[0].as_ref().unwrap().limiter;
            prop_assert!(limiter.connection.exact.requests.is_idle() && limiter.connection.exact.requests.open.is_empty() && limiter.is_quiet());
        }
    }
}

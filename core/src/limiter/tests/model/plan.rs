//! A world of one Envoy as data, so that a complaint is shown with the smallest one that has it.

use super::super::harness::{HOUR, MINUTE, Random};
use std::format;
use std::string::String;
use std::vec::Vec;

const STEPS: u64 = 160;

/// A window, whether its limit is hard, and the limit that applies first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    pub(super) window_ms: u64,
    pub(super) is_hard: bool,
    pub(super) limit: u64,
}

/// The rules of a request, by number, each with its cost.
pub(super) type Costs = Vec<(usize, u64)>;

#[derive(Clone, Debug)]
pub(super) enum Step {
    /// By a worker.
    Request(usize, Costs),
    Pass(u64),
    /// A rule's limit, and the one without live control if live control sets it.
    Limit(usize, u64, Option<u64>),
    /// The machine's clock steps.
    Clock(i64),
    Kill(usize),
    /// A worker's stream ends.
    Cut(usize),
    RestartRegion,
    PauseRegion(bool),
}

#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) workers: usize,
    pub(super) has_region: bool,
    /// The table has four places.
    pub(super) is_crowded: bool,
    pub(super) rules: Vec<Rule>,
    /// All requests have one rule and the same cost.
    pub(super) has_equal_costs: bool,
    pub(super) steps: Vec<Step>,
}

/// What is wrong: in a word, and in detail.
pub(super) type Complaint = (&'static str, String);

impl Plan {
    pub(super) fn draw(seed: u64) -> Plan {
        let mut random = Random::new(seed);
        let is_crowded = random.below(4) == 0;
        // Without a region no entry leaves that a window counts.
        let has_region = !is_crowded && random.below(2) == 0;
        let has_steps = random.below(4) == 0;
        // Without a region the process' clock approaches the machine's, and each worker's at its own ticks.
        let workers = if has_steps && !has_region { 1 } else { 1 + random.below(4) };
        let keys = if is_crowded { 8 } else { 1 + random.below(3) };
        let rules: Vec<Rule> = (0..keys).map(|_| draw_rule(&mut random)).collect();
        let equal_cost = (random.below(3) == 0).then(|| 1 + random.below(3));
        let limits = rules.iter().map(|rule| (rule.limit, None)).collect();
        let mut drawn = Drawn { random, workers, equal_cost, limits, has_steps, steps: Vec::new() };
        (0..STEPS).for_each(|_| drawn.step());
        let (workers, has_equal_costs) = (workers as usize, equal_cost.is_some());
        Plan { seed, workers, has_region, is_crowded, rules, has_equal_costs, steps: drawn.steps }
    }

    /// A smaller plan with the same complaint: steps leave, in ever smaller parts, as long as it stays.
    pub(super) fn shrink(
        mut self,
        mut complaint: Complaint,
        run: impl Fn(&Plan) -> Result<u64, Complaint>,
    ) -> String {
        let mut part = self.steps.len();
        while part > 0 {
            let mut at = 0;
            while at < self.steps.len() {
                let mut smaller = self.clone();
                smaller.steps.drain(at..(at + part).min(self.steps.len()));
                match run(&smaller) {
                    Err(same) if same.0 == complaint.0 => (self, complaint) = (smaller, same),
                    _ => at += part,
                }
            }
            part /= 2;
        }
        let (what, details) = complaint;
        let steps: String = self.steps.iter().map(|step| format!("  {step:?}\n")).collect();
        format!("{what}: {details}\n{:?}\n{steps}", Plan { steps: Vec::new(), ..self })
    }
}

/// A plan as far as it is drawn.
struct Drawn {
    random: Random,
    workers: u64,
    equal_cost: Option<u64>,
    /// The limit of each rule, and the configured one if live control sets it.
    limits: Vec<(u64, Option<u64>)>,
    has_steps: bool,
    steps: Vec<Step>,
}

impl Drawn {
    fn step(&mut self) {
        let worker = self.random.below(self.workers) as usize;
        let step = match self.random.below(100) {
            0..60 => {
                for _ in 0..1 + self.random.below(20) {
                    let request = Step::Request(self.random.below(self.workers) as usize, self.costs());
                    self.steps.push(request);
                }
                return;
            }
            60..80 => Step::Pass(self.random.below(30)),
            80..83 => self.limit(),
            83..90 => Step::Pass(self.random.below(400)),
            90..95 => Step::Pass(self.random.below(9_000)),
            95..99 if self.has_steps => {
                let most = [10, 1_000, HOUR][self.random.below(3) as usize];
                Step::Clock(self.random.below(2 * most) as i64 - most as i64)
            }
            95 => Step::Kill(worker),
            96 => Step::Cut(worker),
            97 => Step::RestartRegion,
            98 => Step::PauseRegion(self.random.below(2) == 0),
            _ => Step::Pass(self.random.below(2 * MINUTE)),
        };
        self.steps.push(step);
    }

    fn costs(&mut self) -> Costs {
        let keys = self.limits.len();
        let first = self.random.below(keys as u64) as usize;
        if let Some(cost) = self.equal_cost {
            return Vec::from([(first, cost)]);
        }
        let second = (first + 1) % keys;
        let both = second != first && self.random.below(3) == 0;
        let rules = [first, second].into_iter().take(1 + usize::from(both));
        rules.map(|rule| (rule, draw_cost(&mut self.random, self.limits[rule].0))).collect()
    }

    /// A limit rises or falls: by its rule, also under live control, or by live control, which may end.
    fn limit(&mut self) -> Step {
        let rule = self.random.below(self.limits.len() as u64) as usize;
        let (limit, configured) = self.limits[rule];
        let without = configured.unwrap_or(limit);
        let other = match self.random.below(3) {
            0 => 1 + without / 2,
            1 => 2 * without,
            _ => 1 + self.random.below(2 * without),
        };
        self.limits[rule] = match self.random.below(4) {
            0 => (other, None),
            1 => (other, Some(without)),
            2 if configured.is_some() => (limit, Some(other)),
            _ => (without, None),
        };
        let (limit, configured) = self.limits[rule];
        Step::Limit(rule, limit, configured)
    }
}

fn draw_rule(random: &mut Random) -> Rule {
    let window_ms = [1_000, 5_000, MINUTE, HOUR][random.below(4) as usize];
    let limit = match random.below(5) {
        0 => 1 + random.below(12),
        1 => 50 + random.below(300),
        2 => 1_000 + random.below(5_000),
        3 => 20_000,
        _ => 1_000_000,
    };
    Rule { window_ms, is_hard: random.below(4) == 0, limit }
}

/// Mostly 1, often some of the limit, at times nothing or more than the limit.
fn draw_cost(random: &mut Random, limit: u64) -> u64 {
    match random.below(20) {
        0 => 0,
        1 => 1 + random.below(limit + limit / 8 + 1),
        2..8 => 1 + random.below(limit / 8 + 1),
        _ => 1,
    }
}

//! Named plans.
//!
//! - `naive`: situations in which simpler designs failed.
//! - `regions`: what several regions share, each with a simpler rule that fails.
//! - `faults`: each kind of fault.
//! - `traffic`: heavy traffic, and traffic that targets a weakness; without faults.
//! - `tokens`: budgets of tokens, which answers charge.
//! - `random`: plans drawn from the seed.
//! - `link`: plans and scenarios in an address.
//! - `scenario`: what all of these are made of.

mod faults;
pub mod link;
mod naive;
mod random;
mod regions;
mod scenario;
mod tokens;
mod traffic;

pub use scenario::Scenario;

/// The plan that is drawn from the seed.
pub const RANDOM: Scenario =
    Scenario::new("random", "topology, rules, traffic and faults are drawn from the seed", random::plan);

/// As `random`, with tables that are too small. It runs only when it is selected by name.
const WILD: Scenario = Scenario::new(
    "wild",
    "like random, with tables that are too small; a checker may report a violation that is none",
    random::wild,
)
.long();

/// As `wild`, with keys that leave the tables all the time and no faults. It runs only when it is selected by name.
const CROWDED: Scenario =
    Scenario::new("crowded", "like wild, with four places in each table and without faults", random::crowded)
        .long();

/// All scenarios, in the order in which they are listed.
pub fn all() -> impl Iterator<Item = Scenario> {
    [naive::ALL, regions::ALL, faults::ALL, traffic::ALL, tokens::ALL, &[RANDOM, WILD, CROWDED]]
        .into_iter()
        .flatten()
        .copied()
}

/// The scenario of this name.
pub fn find(name: &str) -> Option<Scenario> {
    all().find(|scenario| scenario.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Plan, Wrong};
    use std::collections::BTreeSet;
    use std::mem::discriminant;

    #[test]
    fn scenario_names_are_valid_and_unique() {
        let mut names = BTreeSet::new();
        for scenario in all() {
            assert!(scenario.name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'));
            assert!(names.insert(scenario.name), "two scenarios are named {}", scenario.name);
            assert_eq!(find(scenario.name).map(|found| found.name), Some(scenario.name));
        }
    }

    #[test]
    fn plans_depend_on_the_seed_only_and_round_trip_through_json() {
        for scenario in all() {
            let plan = (scenario.plan)(5);
            assert_eq!(plan, (scenario.plan)(5), "{}", scenario.name);
            assert_eq!(plan.seed, 5, "{}", scenario.name);
            assert!(!plan.rules.is_empty() && !plan.traffic.is_empty(), "{}", scenario.name);
            let text = serde_json::to_string(&plan).unwrap();
            assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan, "{}", scenario.name);
            let rules = plan.rules.len() as u32;
            assert!(plan.traffic.iter().all(|traffic| traffic.rules < 1 << rules), "{}", scenario.name);
        }
    }

    #[test]
    fn each_kind_of_fault_has_a_scenario_and_occurs_in_random_plans() {
        let kind = |wrong: &Wrong| format!("{:?}", discriminant(wrong));
        let kinds = |plans: Vec<Plan>| -> BTreeSet<String> {
            plans.iter().flat_map(|plan| plan.faults.iter().map(|fault| kind(&fault.what))).collect()
        };
        let named = kinds(faults::ALL.iter().map(|scenario| (scenario.plan)(1)).collect());
        assert_eq!(named.len(), 17, "kinds of faults with a scenario");
        assert_eq!(kinds((0..300).map(random::wild).collect()), named);
    }
}

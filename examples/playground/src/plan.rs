//! Plans as the page stores them: JSON, with the seed as separate text, since a script represents numbers exactly up to
//! 2⁵³ only.

use crate::bounds::{SAFE_MAX, check};
use serde_json::Value;
use weir_simulator::plan::Plan;

/// Parses and checks a plan and its seed.
pub fn read(plan: &str, seed: &str) -> Result<Plan, String> {
    let mut plan: Plan =
        serde_json::from_str(plan).map_err(|error| format!("this is not a plan: {error}"))?;
    plan.seed = seed.parse().map_err(|_| format!("the seed {seed:?} is not a whole number below 2⁶⁴"))?;
    check(&plan)?;
    Ok(plan)
}

/// A plan as JSON for the page, without its seed.
pub fn for_page(plan: &Plan) -> Result<Value, String> {
    let unseeded = Plan { seed: 0, ..plan.clone() };
    let value = serde_json::to_value(unseeded).map_err(|error| error.to_string())?;
    if is_safe(&value) { Ok(value) } else { Err("the plan contains numbers above 2⁵³".to_owned()) }
}

fn is_safe(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.as_u64().is_none_or(|number| number <= SAFE_MAX),
        Value::Array(values) => values.iter().all(is_safe),
        Value::Object(fields) => fields.values().all(is_safe),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_simulator::scenarios;

    #[test]
    fn plans_round_trip_through_the_page() {
        for scenario in scenarios::all() {
            for seed in [1, u64::MAX] {
                let plan = (scenario.plan)(seed);
                let text = for_page(&plan).unwrap_or_else(|error| panic!("{}: {error}", scenario.name));
                assert_eq!(read(&text.to_string(), &seed.to_string()), Ok(plan), "{}", scenario.name);
            }
        }
    }

    #[test]
    fn invalid_plans_are_reported() {
        let mut plan = (scenarios::find("steady").unwrap().plan)(1);
        let text = for_page(&plan).unwrap().to_string();
        assert!(read("{}", "1").unwrap_err().contains("not a plan"));
        assert!(read(&text, "-").unwrap_err().contains("seed"));
        assert!(
            read(&text.replace("\"regions\":1", "\"regions\":17"), "1").unwrap_err().contains("17 regions")
        );
        plan.rules[0].limit = 1 << 53;
        assert!(for_page(&plan).is_err());
    }
}

//! A plan as the fragment of the playground's address: `plan=` and the plan's JSON in URL-safe Base64, or `scenario=`
//! and `seed=` for a scenario.

use crate::plan::Plan;
use crate::scenarios;
use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine};

/// Longest fragment that is printed, in bytes. Some terminals and browsers truncate longer ones.
pub const LONGEST: usize = 16_000;

/// The fragment of `plan`, without its `#`.
pub fn of_plan(plan: &Plan) -> String {
    // A plan has numbers, names and lists, all of which JSON can represent.
    let json = serde_json::to_vec(plan).unwrap_or_default();
    format!("plan={}", BASE64_URL_SAFE_NO_PAD.encode(json))
}

/// The fragment of a scenario at a seed, without its `#`.
pub fn of_scenario(name: &str, seed: u64) -> String {
    format!("scenario={name}&seed={seed}")
}

/// The plan of a fragment, with or without its `#`, or a sentence that states what is wrong with the fragment.
pub fn read(fragment: &str) -> Result<Plan, String> {
    let fields = || fragment.trim_start_matches('#').split('&').filter_map(|field| field.split_once('='));
    let value = |wanted| fields().find(|(name, _)| *name == wanted).map(|(_, value)| value);
    if let Some(text) = value("plan") {
        let json = BASE64_URL_SAFE_NO_PAD
            .decode(text.trim_end_matches('='))
            .map_err(|error| format!("the link is damaged: its plan is not URL-safe Base64: {error}"))?;
        return serde_json::from_slice(&json)
            .map_err(|error| format!("the link holds no valid plan: {error}"));
    }
    let name = value("scenario").ok_or("the link names neither a plan nor a scenario")?;
    let scenario = scenarios::find(name).ok_or_else(|| format!("there is no scenario {name:?}"))?;
    let seed = value("seed").unwrap_or("1");
    let seed = seed.parse().map_err(|_| format!("the seed {seed:?} is not a whole number below 2⁶⁴"))?;
    Ok((scenario.plan)(seed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_round_trip_through_links() {
        for scenario in scenarios::all() {
            let plan = (scenario.plan)(u64::MAX);
            assert_eq!(read(&of_plan(&plan)), Ok(plan.clone()), "{}", scenario.name);
            assert_eq!(read(&format!("#{}", of_scenario(scenario.name, u64::MAX))), Ok(plan));
        }
    }

    #[test]
    fn an_invalid_link_returns_its_error() {
        for (fragment, message) in [
            ("", "neither a plan nor a scenario"),
            ("plan=%%%", "damaged"),
            ("plan=e30", "no valid plan: missing field"),
            ("scenario=none", "no scenario \"none\""),
            ("scenario=random&seed=-1", "not a whole number"),
        ] {
            let error = read(fragment).unwrap_err();
            assert!(error.contains(message), "{fragment}: {error}");
        }
    }
}

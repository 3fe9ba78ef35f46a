//! Arrivals as text, for example made from an access log, to be run again.
//!
//! A line for each arrival, in order of time; seven numbers with spaces between them:
//!
//! ```text
//! # at_us region envoy worker identifier cost rules
//! 1500 0 2 1 77 1 0
//! 1720 0 0 0 12 3 0,2
//! ```
//!
//! `at_us` counts microseconds since the traffic began. Region, Envoy in the region and serving worker count from 0.
//! `rules` lists the numbers of the rules that apply, from 0, separated by commas. Empty lines and text after a `#`
//! are ignored.

use crate::plan::traffic::Arrival;
use std::fmt::{self, Write as _};

const HEADER: &str = "# at_us region envoy worker identifier cost rules\n";
/// A mask of rules has this many bits.
const RULES_MAX: u32 = u64::BITS;

/// Why a text is not a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadLine {
    /// The line's number, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub why: String,
}

impl fmt::Display for BadLine {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "line {} of the trace: {}", self.line, self.why)
    }
}

impl std::error::Error for BadLine {}

/// Reads a trace, or returns the first line that is wrong.
pub fn read(text: &str) -> Result<Vec<Arrival>, BadLine> {
    let mut arrivals: Vec<Arrival> = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        let text = text.split('#').next().unwrap_or_default().trim();
        if text.is_empty() {
            continue;
        }
        let arrival = arrival(text).map_err(|why| BadLine { line, why })?;
        if let Some(before) = arrivals.last().filter(|before| before.at_us > arrival.at_us) {
            let why = format!(
                "at_us is {}, which is less than {} of the previous arrival",
                arrival.at_us, before.at_us
            );
            return Err(BadLine { line, why });
        }
        arrivals.push(arrival);
    }
    Ok(arrivals)
}

/// Writes a trace, with a first line that names the columns.
pub fn write<'a>(arrivals: impl IntoIterator<Item = &'a Arrival>) -> String {
    let mut text = HEADER.to_owned();
    for one in arrivals {
        let rules: Vec<String> =
            (0..RULES_MAX).filter(|rule| one.rules & (1 << rule) != 0).map(|rule| rule.to_string()).collect();
        let rules = if rules.is_empty() { "-".to_owned() } else { rules.join(",") };
        let Arrival { at_us, region, envoy, worker, identifier, cost, .. } = one;
        let _ = writeln!(text, "{at_us} {region} {envoy} {worker} {identifier} {cost} {rules}");
    }
    text
}

fn arrival(line: &str) -> Result<Arrival, String> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [at_us, region, envoy, worker, identifier, cost, rules] = fields[..] else {
        return Err(format!("{} fields instead of 7", fields.len()));
    };
    Ok(Arrival {
        at_us: number("at_us", at_us)?,
        region: number("region", region)?,
        envoy: number("envoy", envoy)?,
        worker: number("worker", worker)?,
        identifier: number("identifier", identifier)?,
        cost: number("cost", cost)?,
        rules: mask(rules)?,
    })
}

fn number<T: std::str::FromStr>(name: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{name} is {text:?}, which is not a number or is too large"))
}

/// A comma-separated list of rules; `-` stands for no rule.
fn mask(text: &str) -> Result<u64, String> {
    if text == "-" {
        return Ok(0);
    }
    text.split(',').try_fold(0, |mask, rule| match number::<u32>("rules", rule)? {
        rule if rule < RULES_MAX => Ok(mask | 1 << rule),
        rule => Err(format!("rules contains {rule}, but the last rule is {}", RULES_MAX - 1)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_round_trip_through_text() {
        let first =
            Arrival { at_us: 1, region: 2, envoy: 3, worker: 4, identifier: u64::MAX, cost: 6, rules: 1 };
        let all = [first, Arrival { rules: 0, ..first }, Arrival { at_us: 9, rules: 1 << 63 | 5, ..first }];
        let text = write(&all);
        assert_eq!(text.lines().last(), Some("9 2 3 4 18446744073709551615 6 0,2,63"));
        assert_eq!(read(&text).unwrap(), all);
    }

    #[test]
    fn an_invalid_line_returns_its_number_and_error() {
        for (text, line, why) in [
            ("1 0 0 0 1 1", 1, "6 fields instead of 7"),
            (
                "# comment\n\n1 0 0 0 1 1 0 # fine\n1 0 x 0 1 1 0",
                4,
                "envoy is \"x\", which is not a number or is too large",
            ),
            ("1 70000 0 0 1 1 0", 1, "region is \"70000\", which is not a number or is too large"),
            ("-1 0 0 0 1 1 0", 1, "at_us is \"-1\", which is not a number or is too large"),
            ("1 0 0 0 1 1 0,64", 1, "rules contains 64, but the last rule is 63"),
            ("1 0 0 0 1 1 0,", 1, "rules is \"\", which is not a number or is too large"),
            ("5 0 0 0 1 1 0\n4 0 0 0 1 1 0", 2, "at_us is 4, which is less than 5 of the previous arrival"),
        ] {
            assert_eq!(read(text), Err(BadLine { line, why: why.to_owned() }), "{text}");
        }
    }
}

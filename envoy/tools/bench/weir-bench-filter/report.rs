//! The table: medians over rounds. Processor time is compared inside each round first, as machines drift.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::Result;

use crate::median::median;
use crate::variants::Variant;
use crate::wrk::Run;

/// One variant in one round.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub run: Run,
    /// Processor time of the Envoy process for each request.
    pub cpu_us: f64,
}

/// All samples, by variant; each variant has one for each round, in order.
pub type Samples = BTreeMap<Variant, Vec<Sample>>;

pub fn markdown(samples: &Samples) -> Result<String> {
    let mut table = String::from(
        "| variant | requests/s | CPU µs/request | added µs | added ÷ no-op's | requests ÷ no-op's | p50 µs | p99 µs |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    let noop_added = added(samples, Variant::Noop);
    for (variant, own) in samples {
        let of = |field: fn(&Sample) -> f64| median(own.iter().map(field));
        let added = added(samples, *variant);
        let added_ratio = added.zip(noop_added).map(|(own, noop)| own / noop);
        let rate_ratio =
            paired(samples, *variant, Variant::Noop, |own, noop| own.run.per_second / noop.run.per_second);
        writeln!(
            table,
            "| {} | {:.0} | {:.2} | {} | {} | {} | {:.0} | {:.0} |",
            variant.title(),
            of(|sample| sample.run.per_second),
            of(|sample| sample.cpu_us),
            cell(added),
            cell(added_ratio),
            cell(rate_ratio),
            of(|sample| sample.run.p50_us),
            of(|sample| sample.run.p99_us),
        )?;
    }
    Ok(table)
}

/// Processor time that a variant adds to no filter; None for that one itself, or when it was not measured.
fn added(samples: &Samples, variant: Variant) -> Option<f64> {
    if variant == Variant::None {
        return None;
    }
    paired(samples, variant, Variant::None, |own, none| own.cpu_us - none.cpu_us)
}

fn paired(
    samples: &Samples,
    one: Variant,
    other: Variant,
    compare: fn(&Sample, &Sample) -> f64,
) -> Option<f64> {
    let (one, other) = (samples.get(&one)?, samples.get(&other)?);
    Some(median(one.iter().zip(other).map(|(one, other)| compare(one, other))))
}

fn cell(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.2}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(cpu_us: f64, per_second: f64) -> Sample {
        Sample { cpu_us, run: Run { per_second, ..Run::default() } }
    }

    #[test]
    fn additions_are_compared_inside_each_round() {
        let samples = Samples::from([
            (Variant::None, vec![sample(10.0, 100.0), sample(20.0, 50.0)]),
            (Variant::Noop, vec![sample(14.0, 80.0), sample(24.0, 40.0)]),
            (Variant::Leased, vec![sample(15.0, 76.0), sample(25.0, 38.0)]),
        ]);
        let table = markdown(&samples).unwrap();
        assert!(table.contains("| no filter | 75 | 15.00 | – | – | 1.25 |"), "{table}");
        assert!(table.contains("| Weir allowing, 1 M/min | 57 | 20.00 | 5.00 | 1.25 | 0.95 |"), "{table}");
    }
}

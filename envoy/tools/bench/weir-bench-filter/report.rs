//! The table: medians over rounds. Processor time is compared inside each round first, as machines drift.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::Result;

use crate::client::Run;
use crate::median::median;
use crate::variants::Variant;

/// One variant in one round.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub run: Run,
    /// Processor time of the Envoy process for each request, in microseconds.
    pub cpu_us: f64,
}

/// All samples, by variant; each variant has one for each round, in order.
pub type Samples = BTreeMap<Variant, Vec<Sample>>;

pub fn markdown(samples: &Samples) -> Result<String> {
    let mut table = String::from(
        "| variant | Envoy µs/request | one filter adds µs | ÷ its floor | ÷ no-op | p50 µs | p99 µs |\n\
         |---|--:|--:|--:|--:|--:|--:|\n",
    );
    for (variant, own) in samples {
        let of = |field: fn(&Sample) -> f64| median(own.iter().map(field));
        let measure = variant.measure();
        let added = median_of(added(samples, *variant));
        let floor = measure.floor.and_then(|floor| median_of(ratios(samples, *variant, floor)));
        let noop = median_of(ratios(samples, *variant, Variant::Noop));
        writeln!(
            table,
            "| {} | {:.2} | {} | {} | {} | {:.0} | {:.0} |",
            measure.title,
            of(|sample| sample.cpu_us),
            cell(added),
            cell(floor),
            cell(noop),
            of(|sample| sample.run.p50_us),
            of(|sample| sample.run.p99_us),
        )?;
    }
    Ok(table)
}

/// Processor time that one copy of a variant's filter adds, in each round; none for a variant without a filter.
fn added(samples: &Samples, variant: Variant) -> Vec<f64> {
    let measure = variant.measure();
    let (Some(own), Some(without)) = (samples.get(&variant), samples.get(&measure.without)) else {
        return Vec::new();
    };
    if measure.is_bare() {
        return Vec::new();
    }
    let copies = measure.copies() as f64;
    own.iter().zip(without).map(|(own, without)| (own.cpu_us - without.cpu_us) / copies).collect()
}

/// What `one` adds, as multiples of what `other` adds, in each round.
fn ratios(samples: &Samples, one: Variant, other: Variant) -> Vec<f64> {
    let (one, other) = (added(samples, one), added(samples, other));
    one.iter().zip(&other).map(|(one, other)| one / other).collect()
}

fn median_of(values: Vec<f64>) -> Option<f64> {
    (!values.is_empty()).then(|| median(values))
}

fn cell(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.2}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(cpu_us: f64) -> Sample {
        Sample { cpu_us, run: Run::default() }
    }

    #[test]
    fn additions_are_compared_inside_each_round() {
        let samples = Samples::from([
            (Variant::None, vec![sample(10.0), sample(20.0)]),
            (Variant::Noop, vec![sample(50.0), sample(60.0)]),
            (Variant::FloorHeaders, vec![sample(60.0), sample(70.0)]),
            (Variant::Leased, vec![sample(70.0), sample(80.0)]),
        ]);
        let table = markdown(&samples).unwrap();
        assert!(table.contains("| no filter | 15.00 | – | – | – |"), "{table}");
        assert!(table.contains("| no-op on the SDK, one header | 55.00 | 4.00 | – | 1.00 |"), "{table}");
        assert!(table.contains("| Weir, lease serves | 75.00 | 6.00 | 1.20 | 1.50 |"), "{table}");
    }
}

//! The table: medians over rounds. Processor time is compared inside each round first, as machines drift.

use std::collections::BTreeMap;

use crate::client::Run;
use crate::median::median;
use crate::results::{Table, cell};
use crate::variants::Variant;

const TITLE: &str = "What the filter adds to a request";
const COLUMNS: [&str; 6] =
    ["Envoy µs/request", "one filter adds µs", "÷ its floor", "÷ no-op's", "p50 µs", "p99 µs"];

const NATIVE_TITLE: &str = "What the native filter adds to a request";
const NATIVE_COLUMNS: [&str; 4] = ["one filter adds µs", "÷ WASM's", "a quarter below", "a quarter above"];

/// One variant in one round.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub run: Run,
    /// Processor time of the Envoy process for each request, in microseconds.
    pub cpu_us: f64,
}

/// All samples, by variant; each variant has one for each round, in order.
pub type Samples = BTreeMap<Variant, Vec<Sample>>;

pub fn table(samples: &Samples) -> Table {
    let rows = samples.iter().map(|(variant, own)| {
        let of = |field: fn(&Sample) -> f64| median(own.iter().map(field));
        let measure = variant.measure();
        let noop = if measure.copies() == 1 { Variant::NoopAlone } else { Variant::Noop };
        let ratio =
            |other: Option<Variant>| other.map_or(f64::NAN, |other| median(ratios(samples, *variant, other)));
        let figures = [
            of(|sample| sample.cpu_us),
            median(added(samples, *variant)),
            ratio(measure.floor),
            ratio(Some(noop)),
            of(|sample| sample.run.p50_us),
            of(|sample| sample.run.p99_us),
        ];
        (measure.title.to_owned(), figures.map(cell).to_vec())
    });
    Table { title: TITLE.to_owned(), columns: COLUMNS.map(str::to_owned).to_vec(), rows: rows.collect() }
}

/// The native filter beside that of WASM, in the same rounds.
pub fn native_table(samples: &Samples) -> Table {
    let beside = [Variant::Local, Variant::LocalAlone].map(|local| (None, local));
    let pairs = Variant::NATIVE.into_iter().flat_map(|(wasm, native)| [(None, wasm), (Some(wasm), native)]);
    let rows = beside.into_iter().chain(pairs).map(|(wasm, variant)| {
        let adds = added(samples, variant);
        let of_wasm = wasm.map_or_else(Vec::new, |wasm| ratios(samples, variant, wasm));
        let quarters = |values: &[f64]| {
            [0.25, 0.5, 0.75].map(|share| {
                let mut sorted = values.to_vec();
                sorted.sort_by(f64::total_cmp);
                sorted.get((sorted.len() as f64 * share) as usize).copied().unwrap_or(f64::NAN)
            })
        };
        let [low, middle, high] = quarters(&of_wasm);
        let figures = [median(adds.iter().copied()), middle, low, high];
        (variant.measure().title.to_owned(), figures.map(cell).to_vec())
    });
    let columns = NATIVE_COLUMNS.map(str::to_owned).to_vec();
    Table { title: NATIVE_TITLE.to_owned(), columns, rows: rows.collect() }
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
            (Variant::NoopAlone, vec![sample(14.0), sample(26.0)]),
            (Variant::LeasedAlone, vec![sample(18.0), sample(32.0)]),
        ]);
        let table = table(&samples).markdown();
        for row in [
            "| no filter | 15.0 | – | – | – |",
            "| no-op on the same SDK, one header | 55.0 | 4.00 | – | 1.00 |",
            "| Weir, a lease serves | 75.0 | 6.00 | 1.20 | 1.50 |",
            "| Weir alone, a lease serves | 25.0 | 10.0 | – | 2.00 |",
        ] {
            assert!(table.contains(row), "{row}\n{table}");
        }
    }
}

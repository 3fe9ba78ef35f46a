//! Percentiles, the spread of a measurement, and sums of an aggregator's metrics.

use std::time::Duration;

use crate::median::median;

/// How far the values lie apart, in per cent of their median; 0 for fewer than two.
pub fn spread_percent(values: &[f64]) -> f64 {
    let (Some(least), Some(most)) =
        (values.iter().copied().min_by(f64::total_cmp), values.iter().copied().max_by(f64::total_cmp))
    else {
        return 0.0;
    };
    let middle = median(values.iter().copied());
    if middle == 0.0 { 0.0 } else { (most - least) / middle * 100.0 }
}

/// Times, for percentiles.
#[derive(Debug, Default)]
pub struct Times(Vec<Duration>);

impl Times {
    /// Notes one.
    pub fn push(&mut self, time: Duration) {
        self.0.push(time);
    }

    /// Takes those of another.
    pub fn extend(&mut self, others: Times) {
        self.0.extend(others.0);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// How many are longer than `bound`.
    pub fn over(&self, bound: Duration) -> usize {
        self.0.iter().filter(|time| **time > bound).count()
    }

    /// The least time, in milliseconds, that `share` of all do not exceed; NaN if there are none.
    pub fn percentile_ms(&mut self, share: f64) -> f64 {
        self.0.sort_unstable();
        let place = (share * self.0.len() as f64).ceil() as usize;
        self.0.get(place.saturating_sub(1)).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
    }
}

/// The sum of a metric over all its labels that contain `label`, in Prometheus' text format.
pub fn metric(text: &str, name: &str, label: &str) -> f64 {
    let values = text.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let (labels, value) = rest.rsplit_once(' ')?;
        let whole_name = labels.is_empty() || labels.starts_with('{');
        (whole_name && labels.contains(label)).then(|| value.parse::<f64>().ok())?
    });
    // The sum of no floats is -0.
    values.sum::<f64>() + 0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread() {
        assert_eq!(spread_percent(&[]), 0.0);
        assert_eq!(spread_percent(&[7.0]), 0.0);
        assert_eq!(spread_percent(&[8.0, 10.0, 14.0]), 60.0);
        assert_eq!(spread_percent(&[0.0, 0.0]), 0.0);
    }

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let mut times = Times::default();
        assert!(times.percentile_ms(0.5).is_nan());
        for ms in (1..=100).rev() {
            times.push(Duration::from_millis(ms));
        }
        for (share, expected) in [(0.0, 1.0), (0.5, 50.0), (0.99, 99.0), (0.991, 100.0), (1.0, 100.0)] {
            assert_eq!(times.percentile_ms(share), expected, "{share}");
        }
        assert_eq!(times.over(Duration::from_millis(98)), 2);
        let mut all = Times::default();
        all.push(Duration::from_secs(1));
        all.extend(times);
        assert_eq!((all.len(), all.percentile_ms(1.0)), (101, 1_000.0));
    }

    #[test]
    fn metrics_are_summed_over_their_labels() {
        let text = "# HELP a_total Things\na_total 3\na_totals 100\nb_total{op=\"x\"} 1\nb_total{op=\"y\"} 2.5\n# EOF\n";
        assert_eq!(metric(text, "a_total", ""), 3.0);
        assert_eq!(metric(text, "b_total", ""), 3.5);
        assert_eq!(metric(text, "b_total", "op=\"y\""), 2.5);
        assert_eq!(metric(text, "c_total", ""), 0.0);
    }
}

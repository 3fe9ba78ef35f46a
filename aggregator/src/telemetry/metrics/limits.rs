//! What each configured limit of the rate-limit service has decided, under the names that the reference service has behind its
//! statsd exporter, so that its dashboards and alerts apply.
//!
//! A limit has one series of each metric, by the keys and values that the configuration states. Values of requests are in labels only
//! where the configuration asks for them, and of each limit at most [`MAX_VALUES`]: the hits of further ones, and of long ones, are in the
//! limit's own series. A configuration that replaces another one continues its series; the series of limits that it lacks end.

use crate::telemetry::text::identifier;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Most series of values of one limit.
const MAX_VALUES: usize = 1_000;
/// Longest value in a label, in bytes.
const MAX_VALUE_BYTES: usize = 128;

/// The metrics, in the order of [`Counts`].
const METRICS: [(&str, &str); 5] = [
    ("ratelimit_service_rate_limit_total_hits", "Hits of a limit of the rate-limit service"),
    ("ratelimit_service_rate_limit_within_limit", "Hits that the limit admitted"),
    ("ratelimit_service_rate_limit_near_limit", "Hits that the limit admitted beyond four fifths of it"),
    ("ratelimit_service_rate_limit_over_limit", "Hits that exceeded the limit"),
    (
        "ratelimit_service_rate_limit_shadow_mode",
        "Hits that exceeded the limit and passed, as it is in shadow mode",
    ),
];
/// The sums of a series, in the order of [`METRICS`].
type Counts = [u64; METRICS.len()];
/// The domain, then the key of each level, with its value if it has one.
type Labels = Vec<String>;

/// The decision on a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decided {
    /// What the call costs.
    pub hits: u64,
    /// It exceeds the limit.
    pub over: bool,
    /// The limit is in shadow mode.
    pub shadow: bool,
    /// What is used after the call.
    pub used: u64,
    /// The limit.
    pub limit: u64,
}

impl Decided {
    fn counts(&self) -> Counts {
        let Decided { hits, over, shadow, used, limit } = *self;
        // As in the reference service, hits beyond four fifths of the limit are near it.
        let near = used.saturating_sub(limit / 5 * 4 + limit % 5 * 4 / 5).min(hits);
        match over {
            true => [hits, 0, 0, hits, if shadow { hits } else { 0 }],
            false => [hits, hits, near, 0, 0],
        }
    }
}

/// The series of a limit.
#[derive(Debug)]
pub struct LimitSeries {
    labels: Labels,
    /// The levels whose labels have the request's values.
    valued: Vec<usize>,
    /// Those of a former configuration, if it had this limit.
    sums: OnceLock<Arc<Sums>>,
}

/// What a limit has decided.
#[derive(Debug, Default)]
struct Sums {
    own: [AtomicU64; METRICS.len()],
    by_values: Mutex<HashMap<Vec<String>, Counts>>,
}

impl PartialEq for LimitSeries {
    fn eq(&self, other: &LimitSeries) -> bool {
        (&self.labels, &self.valued) == (&other.labels, &other.valued)
    }
}

impl LimitSeries {
    /// Of the domain and the levels' keys; `valued` are the levels whose labels have the values of requests.
    pub fn new(labels: Labels, valued: Vec<usize>) -> LimitSeries {
        let labels = labels.iter().map(|label| as_there(label)).collect();
        LimitSeries { labels, valued, sums: OnceLock::new() }
    }

    /// The labels as one text, as the reference service names the limit.
    pub fn path(&self) -> String {
        self.labels.join(".")
    }

    fn sums(&self) -> &Arc<Sums> {
        self.sums.get_or_init(Arc::default)
    }

    /// Counts a decision about a request with these values, one for each level.
    pub fn count<'a>(&self, decided: Decided, values: impl Iterator<Item = &'a [u8]>) {
        let counts = decided.counts();
        let sums = self.sums();
        if !self.valued.is_empty() {
            let values: Vec<&[u8]> = values
                .enumerate()
                .filter(|(at, _)| self.valued.contains(at))
                .map(|(_, value)| value)
                .collect();
            let is_short = values.iter().all(|value| value.len() <= MAX_VALUE_BYTES);
            if is_short && sums.count_by(values.into_iter().map(shown).collect(), counts) {
                return;
            }
        }
        for (sum, count) in sums.own.iter().zip(counts) {
            sum.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// The labels with values.
    fn labels_of(&self, values: &[String]) -> Labels {
        let mut labels = self.labels.clone();
        for (level, value) in self.valued.iter().zip(values) {
            // The first label is the domain.
            if let Some(label) = labels.get_mut(level.saturating_add(1)) {
                *label = format!("{label}_{value}");
            }
        }
        labels
    }
}

impl Sums {
    /// Whether there is room for these values.
    fn count_by(&self, values: Vec<String>, counts: Counts) -> bool {
        let mut by_values = self.by_values.lock();
        if by_values.len() >= MAX_VALUES && !by_values.contains_key(&values) {
            return false;
        }
        let sums = by_values.entry(values).or_default();
        add(sums, counts);
        true
    }
}

/// A value as a label. Clients send any bytes.
fn shown(value: &[u8]) -> String {
    as_there(&identifier(value))
}

/// A label as the reference service writes it for statsd: with `_` in place of each `:` and `|`, and of the dots of an IPv4 address.
fn as_there(text: &str) -> String {
    let mut shown = text.replace([':', '|'], "_").into_bytes();
    let mut at = 0;
    while at < shown.len() {
        match ipv4_at(&shown, at) {
            Some(end) => {
                let address = shown.get_mut(at..end).into_iter().flatten();
                address.filter(|byte| **byte == b'.').for_each(|dot| *dot = b'_');
                at = end;
            }
            None => at += 1,
        }
    }
    String::from_utf8_lossy(&shown).into_owned()
}

/// The end of four numbers of one to three digits with dots between them, if they begin at `at`.
fn ipv4_at(text: &[u8], at: usize) -> Option<usize> {
    let digits = |at: usize| {
        let rest = text.get(at..).unwrap_or_default();
        let count = rest.iter().take(3).take_while(|byte| byte.is_ascii_digit()).count();
        (count > 0).then_some(at + count)
    };
    let mut end = digits(at)?;
    for _ in 0..3 {
        end = digits((text.get(end) == Some(&b'.')).then_some(end + 1)?)?;
    }
    Some(end)
}

fn add(sums: &mut Counts, counts: Counts) {
    sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum = sum.saturating_add(count));
}

/// The series of the limits in force. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct LimitMetrics(Arc<Mutex<Vec<Arc<LimitSeries>>>>);

impl LimitMetrics {
    /// Shows the series of another configuration, before it is in force. A series that both have continues.
    pub fn replace(&self, series: Vec<Arc<LimitSeries>>) {
        let mut shown = self.0.lock();
        let mut former: HashMap<(&Labels, &Vec<usize>), &Arc<Sums>> =
            shown.iter().map(|one| ((&one.labels, &one.valued), one.sums())).collect();
        for one in &series {
            // Limits of equal labels share a series.
            let sums = Arc::clone(former.entry((&one.labels, &one.valued)).or_insert_with(|| one.sums()));
            let _ = one.sums.set(sums);
        }
        drop(former);
        *shown = series;
    }

    /// The sums of all series, by their labels.
    fn all(&self) -> BTreeMap<Labels, Counts> {
        let mut all = BTreeMap::<Labels, Counts>::new();
        let mut seen = HashSet::new();
        for one in self.0.lock().iter() {
            let sums = one.sums();
            if !seen.insert(Arc::as_ptr(sums)) {
                continue;
            }
            let own = std::array::from_fn(|at| sums.own.get(at).map_or(0, |sum| sum.load(Ordering::Relaxed)));
            add(all.entry(one.labels.clone()).or_default(), own);
            for (values, counts) in sums.by_values.lock().iter() {
                add(all.entry(one.labels_of(values)).or_default(), *counts);
            }
        }
        all
    }
}

impl Collector for LimitMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let all = self.all();
        if all.is_empty() {
            return Ok(());
        }
        for (at, (name, help)) in METRICS.into_iter().enumerate() {
            // Without a type, as a counter would have to be named `…_total`.
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Unknown)?;
            for (labels, counts) in &all {
                let name = |at: usize| if at == 0 { "domain".to_owned() } else { format!("key{at}") };
                let labels: Vec<(String, &str)> =
                    labels.iter().enumerate().map(|(at, label)| (name(at), label.as_str())).collect();
                let count = counts.get(at).and_then(|count| i64::try_from(*count).ok()).unwrap_or(i64::MAX);
                metric.encode_family(&labels)?.encode_gauge(&count)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(labels: &[&str], valued: &[usize]) -> Arc<LimitSeries> {
        Arc::new(LimitSeries::new(labels.iter().map(|label| (*label).to_owned()).collect(), valued.to_vec()))
    }

    fn decided(used: u64, over: bool) -> Decided {
        Decided { hits: 2, over, shadow: false, used, limit: 10 }
    }

    fn hits(metrics: &LimitMetrics) -> Vec<(String, u64)> {
        metrics.all().into_iter().map(|(labels, counts)| (labels.join(" "), counts[0])).collect()
    }

    #[test]
    fn hits_are_within_near_or_over() {
        for (used, over, shadow, expected) in [
            (8, false, false, [2, 2, 0, 0, 0]),
            (9, false, false, [2, 2, 1, 0, 0]),
            (10, false, true, [2, 2, 2, 0, 0]),
            (10, true, false, [2, 0, 0, 2, 0]),
            (10, true, true, [2, 0, 0, 2, 2]),
        ] {
            assert_eq!(Decided { shadow, ..decided(used, over) }.counts(), expected, "{used}");
        }
        assert_eq!(Decided { limit: u64::MAX, used: u64::MAX, ..decided(0, false) }.counts()[2], 2);
    }

    #[test]
    fn a_series_continues_in_the_next_configuration() {
        let metrics = LimitMetrics::default();
        let (one, gone) = (series(&["d", "a"], &[]), series(&["d", "b"], &[]));
        metrics.replace(vec![one.clone(), gone]);
        one.count(decided(0, false), std::iter::empty());
        let (next, new) = (series(&["d", "a"], &[]), series(&["d", "c"], &[]));
        metrics.replace(vec![next.clone(), new, series(&["d", "a"], &[])]);
        // A call that began before is counted as well.
        one.count(decided(0, false), std::iter::empty());
        next.count(decided(0, false), std::iter::empty());
        assert_eq!(hits(&metrics), [("d a".to_owned(), 6), ("d c".to_owned(), 0)]);
    }

    #[test]
    fn values_of_requests_are_bounded() {
        let metrics = LimitMetrics::default();
        let one = series(&["d", "path", "user"], &[1]);
        metrics.replace(vec![one.clone()]);
        let count = |user: &[u8]| one.count(decided(0, false), [&b"/"[..], user].into_iter());
        count(b"\r\xff");
        for user in 1..MAX_VALUES {
            count(user.to_string().as_bytes());
        }
        for user in [&[b'x'; MAX_VALUE_BYTES + 1][..], b"one too many", b"7"] {
            count(user);
        }
        let hits: BTreeMap<String, u64> = hits(&metrics).into_iter().collect();
        assert_eq!((hits.len(), hits["d path user"], hits["d path user_7"]), (MAX_VALUES + 1, 4, 4));
        assert_eq!(hits["d path user_\\u{d}\u{fffd}"], 2, "{hits:?}");
    }

    #[test]
    fn labels_are_those_of_the_reference_service() {
        for (text, expected) in [
            ("masked_remote_address_0.0.0.0/0", "masked_remote_address_0_0_0_0/0"),
            ("remote_address_10.1.2.3", "remote_address_10_1_2_3"),
            ("remote_address_2001:db8::1", "remote_address_2001_db8__1"),
            ("destination_cluster_outbound|80||shop.svc", "destination_cluster_outbound_80__shop.svc"),
            ("1234.5.6.7890", "1234_5_6_7890"),
            ("v1.2.3 1.2..3.4 1.2.3.", "v1.2.3 1.2..3.4 1.2.3."),
            ("é1.2.3.4.5.6.7.8", "é1_2_3_4.5_6_7_8"),
        ] {
            assert_eq!(as_there(text), expected);
        }
        let one = series(&["a:b", "address_10.1.2.3", "user"], &[1]);
        assert_eq!(one.path(), "a_b.address_10_1_2_3.user");
        assert_eq!(one.labels_of(&[shown(b"1.2.3.4|x")])[2], "user_1_2_3_4_x");
    }
}

//! A table of the filter's metrics: a row is all that a metric needs to be defined and reported, and tests compare the rows with the
//! documentation.

/// A metric, and how it is read from the state `S`.
#[derive(Clone, Copy, Debug)]
pub struct Metric<S: 'static> {
    /// Its name in Prometheus.
    pub name: &'static str,
    /// How values are passed on.
    pub kind: Kind,
    /// Its label, if it has one.
    pub label: Option<Label>,
    /// The value, of the label's value in this place, or of the only one.
    pub value: fn(&S, usize) -> u64,
}

/// How values are passed on. All workers share Envoy's metrics, so they add differences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A counter, which each worker adds to.
    Counter,
    /// A gauge that is the sum of what all workers have; a decrease is the two's complement.
    Sum,
    /// A gauge that one worker sets; `u64::MAX` if this one does not.
    Set,
}

/// A label and all its values.
#[derive(Clone, Copy, Debug)]
pub struct Label {
    /// Its name.
    pub name: &'static str,
    /// Its values, in the order of their places.
    pub values: &'static [&'static str],
}

impl<S> Metric<S> {
    /// A counter without labels.
    pub const fn counter(name: &'static str, value: fn(&S, usize) -> u64) -> Metric<S> {
        Metric { name, kind: Kind::Counter, label: None, value }
    }

    /// A gauge without labels, of this kind.
    pub const fn gauge(name: &'static str, kind: Kind, value: fn(&S, usize) -> u64) -> Metric<S> {
        Metric { name, kind, label: None, value }
    }

    /// A counter for each value of a label.
    pub const fn labelled(
        name: &'static str,
        label: &'static str,
        values: &'static [&'static str],
        value: fn(&S, usize) -> u64,
    ) -> Metric<S> {
        Metric { name, kind: Kind::Counter, label: Some(Label { name: label, values }), value }
    }
}

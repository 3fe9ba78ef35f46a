//! Families of metrics by labels with fixed sets of values.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

/// A label, with name and value from fixed sets.
pub(crate) type Label = [(&'static str, &'static str); 1];

/// Two labels.
pub(crate) type Labels = [(&'static str, &'static str); 2];

/// A family that shows each of its values from the start, as an alert does not see the first increase of a new series.
pub(crate) fn at_zero(label: &'static str, values: &[&'static str]) -> Family<Label, Counter> {
    let family = Family::default();
    values.iter().for_each(|value| drop(family.get_or_create(&[(label, *value)])));
    family
}

/// The same with two labels.
pub(crate) fn at_zero_by(
    label: &'static str,
    values: &[&'static str],
    other: &'static str,
    others: &[&'static str],
) -> Family<Labels, Counter> {
    let family = Family::default();
    for value in values {
        others.iter().for_each(|second| drop(family.get_or_create(&[(label, *value), (other, *second)])));
    }
    family
}

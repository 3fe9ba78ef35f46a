//! How a rule's check of a request ends.
//!
//! One row of [`outcome_table`] is an outcome: its variant, its name in metrics, JSON and access logs, its label on the status page, its
//! [`Group`], and its meaning. Order, JSON, columns of the terminal and figures of the page follow from the rows, so a further outcome is a
//! row here, a field of [`RuleCounters`](crate::model::wire::RuleCounters), and the place that counts it.

use serde::{Deserialize, Serialize};

/// Passes the rows to a macro.
macro_rules! outcome_table {
    ($with:ident) => {
        $with! {
            /// The request passed.
            Allowed allowed "allowed" Allowed;
            /// The request was denied.
            Denied denied "denied" Denied;
            /// A rule in shadow mode would have denied the request.
            ShadowDenied shadow_denied "shadow" Shadow;
            /// An override or live control exempts the identifier.
            Exempt exempt "exempt" Other;
            /// The limit is exact, and its store did not decide in time.
            Undecided undecided "undecided" Other;
            /// The request was denied by a ban.
            Banned banned "banned" Denied;
        }
    };
}
pub(in crate::model) use outcome_table;

macro_rules! outcomes {
    ($($(#[$meaning:meta])* $variant:ident $name:ident $label:literal $group:ident;)*) => {
        /// How a rule's check ended: a value of the label `outcome` of `weir_decisions_total`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum RuleOutcome {
            $($(#[$meaning])* $variant,)*
        }

        impl RuleOutcome {
            /// All outcomes, in their order.
            pub const ALL: &[RuleOutcome] = &[$(RuleOutcome::$variant),*];

            /// The name in metrics, JSON and access logs.
            pub const fn name(self) -> &'static str {
                match self {
                    $(RuleOutcome::$variant => stringify!($name),)*
                }
            }

            /// The label of figures.
            pub const fn label(self) -> &'static str {
                match self {
                    $(RuleOutcome::$variant => $label,)*
                }
            }

            /// The group.
            pub const fn group(self) -> Group {
                match self {
                    $(RuleOutcome::$variant => Group::$group,)*
                }
            }
        }

        /// A value for each outcome, in JSON by its name.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Outcomes<T> {
            $($(#[$meaning])* pub $name: T,)*
        }

        impl<T> Outcomes<T> {
            /// The value that `of` has for each outcome.
            pub fn each(mut of: impl FnMut(RuleOutcome) -> T) -> Outcomes<T> {
                Outcomes { $($name: of(RuleOutcome::$variant),)* }
            }

            /// The value of an outcome.
            pub const fn get(&self, outcome: RuleOutcome) -> &T {
                match outcome {
                    $(RuleOutcome::$variant => &self.$name,)*
                }
            }

            /// The value of an outcome, to be changed.
            pub const fn get_mut(&mut self, outcome: RuleOutcome) -> &mut T {
                match outcome {
                    $(RuleOutcome::$variant => &mut self.$name,)*
                }
            }
        }
    };
}
outcome_table!(outcomes);

/// Outcomes that are shown as one figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// The rule let the request pass.
    Allowed,
    /// The rule denied the request.
    Denied,
    /// The rule would have denied the request, and is in shadow mode.
    Shadow,
    /// The rule did not limit the request.
    Other,
}

impl Group {
    /// All groups.
    pub const ALL: [Group; 4] = [Group::Allowed, Group::Denied, Group::Shadow, Group::Other];

    /// The name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Group::Allowed => "allowed",
            Group::Denied => "denied",
            Group::Shadow => "shadow",
            Group::Other => "other",
        }
    }

    /// The outcomes of the group, in their order.
    pub fn outcomes(self) -> impl Iterator<Item = RuleOutcome> {
        RuleOutcome::ALL.iter().copied().filter(move |outcome| outcome.group() == self)
    }
}

impl<T> Outcomes<T> {
    /// All values, in the order of the outcomes.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        RuleOutcome::ALL.iter().map(|outcome| self.get(*outcome))
    }
}

impl<T: Copy> Outcomes<T> {
    /// Combines each value with its counterpart.
    pub fn zip<U: Copy, R>(&self, other: &Outcomes<U>, with: impl Fn(T, U) -> R) -> Outcomes<R> {
        Outcomes::each(|outcome| with(*self.get(outcome), *other.get(outcome)))
    }

    /// Changes each value.
    pub fn map<R>(&self, with: impl Fn(T) -> R) -> Outcomes<R> {
        Outcomes::each(|outcome| with(*self.get(outcome)))
    }
}

impl Outcomes<f64> {
    /// The sum of a group.
    pub fn sum(&self, group: Group) -> f64 {
        group.outcomes().map(|outcome| *self.get(outcome)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::wire::RuleCounters;
    use prost::Message;

    #[test]
    fn outcomes_are_ordered_as_their_tags_and_sent_as_ever() {
        let mut sent = RuleCounters {
            name: "r".into(),
            namespace: "n".into(),
            algorithm: "a".into(),
            limit: 1,
            window_ms: 2,
            shadow: true,
            zone: 9,
            ..RuleCounters::default()
        };
        for (outcome, count) in RuleOutcome::ALL.iter().zip(3..) {
            *sent.count_mut(*outcome) = count;
        }
        let bytes = [
            b"\x0a\x01r\x12\x01n\x1a\x01a\x20\x01\x28\x02\x30\x01".as_slice(),
            b"\x38\x03\x40\x04\x48\x05\x50\x06\x58\x07\x60\x08\x68\x09",
        ];
        assert_eq!(sent.encode_to_vec(), bytes.concat());
        assert!(sent.outcomes().values().copied().eq([3, 4, 5, 6, 7, 8]));
    }

    #[test]
    fn json_has_all_outcomes_by_their_names() {
        let counts = Outcomes::each(|outcome| outcome as u64);
        let json = serde_json::to_value(counts).unwrap();
        assert_eq!(json.as_object().map(serde_json::Map::len), Some(RuleOutcome::ALL.len()));
        for (outcome, value) in RuleOutcome::ALL.iter().zip(counts.values()) {
            assert_eq!(json.get(outcome.name()).and_then(serde_json::Value::as_u64), Some(*value));
        }
        let newer = serde_json::json!({"denied": 4, "later": 1});
        let expected = Outcomes { denied: 4, ..Outcomes::default() };
        assert_eq!(serde_json::from_value::<Outcomes<u64>>(newer).unwrap(), expected);
    }
}

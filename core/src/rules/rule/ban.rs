//! A rule's ban: an identifier that violates the rule a number of times within a window is banned, for a time that
//! doubles from ban to ban. A denial is a violation, or what the rule charged.

use crate::fields::Errors;
use crate::fields::Node;
use crate::fields::duration::Span;
use core::ops::RangeInclusive;

/// The longest ban: 31 days.
pub const MAX_BAN_MS: u64 = 31 * 24 * 3_600_000;
pub(in crate::rules) const FOR: Span = Span { min_ms: 1_000, max_ms: MAX_BAN_MS, example: "10m" };
pub(in crate::rules) const WITHIN: Span = Span { example: "1m", ..FOR };
const UP_TO_MS_DEFAULT: u64 = 86_400_000;
pub(in crate::rules) const DENIALS: RangeInclusive<u64> = 1..=1_000_000;
pub(in crate::rules) const FIELDS: [&str; 5] = ["threshold", "window", "duration", "max_duration", "count"];

/// `ban`: when a rule bans an identifier, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ban {
    /// `threshold` (required): 1 to 1 000 000; the number of violations of an identifier that lead to a ban.
    pub threshold: u64,
    /// `window` (required): `"1s"` to `"31d"`, or whole milliseconds; the window in which violations count, here in
    /// milliseconds.
    pub window_ms: u64,
    /// `duration` (required): `"1s"` to `"31d"`; the length of the first ban, here in milliseconds. Each further ban
    /// lasts twice as long as the one before.
    pub first_ms: u64,
    /// `max_duration` (default a day, or `duration` if that is longer): `duration` to `"31d"`; the greatest length of a
    /// ban, here in milliseconds. If an identifier is not banned for this long after a ban, its next ban is again a
    /// first one.
    pub max_duration_ms: u64,
    /// `count` (default `denials`; only with a cost from the response): what counts as violations.
    pub count: Violations,
}

/// What counts as violations of an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Violations {
    /// `denials`: each request that the rule denies is one.
    #[default]
    Denials,
    /// `charged`: each unit that a response is charged is one, and a denial is none.
    Charged,
}

impl Violations {
    pub(in crate::rules) const WORDS: [(&str, Violations); 2] =
        [("denials", Violations::Denials), ("charged", Violations::Charged)];

    fn read(node: Node<'_>, is_deferred: bool, errors: &mut Errors) -> Option<Violations> {
        match node.word(&Violations::WORDS, errors)? {
            Violations::Charged if !is_deferred => node.reject(
                errors,
                "has no effect here, as no response settles the cost",
                "denials, or a cost by the response",
            ),
            count => Some(count),
        }
    }
}

impl Ban {
    /// Reads `ban` of a rule whose cost is deferred or not.
    pub(in crate::rules) fn read(node: Node<'_>, is_deferred: bool, errors: &mut Errors) -> Option<Ban> {
        let fields = node.object(&FIELDS, errors)?;
        let threshold =
            fields.required("threshold", "a number of violations, such as 100", errors, |n, e| {
                n.integer(DENIALS, e)
            });
        let within = fields.required("window", "a duration such as \"1m\"", errors, |n, e| WITHIN.read(n, e));
        let lasts = fields.required("duration", "a duration such as \"10m\"", errors, |n, e| FOR.read(n, e));
        let least = lasts.unwrap_or(FOR.min_ms);
        let up_to =
            fields.or("max_duration", UP_TO_MS_DEFAULT.max(least), errors, |n, e| match FOR.read(n, e)? {
                up_to if up_to < least => {
                    n.reject(e, "is shorter than the first ban", "at least the duration")
                }
                up_to => Some(up_to),
            });
        let count =
            fields.or("count", Violations::default(), errors, |n, e| Violations::read(n, is_deferred, e));
        Some(Ban {
            threshold: threshold?,
            window_ms: within?,
            first_ms: lasts?,
            max_duration_ms: up_to?,
            count: count?,
        })
    }

    /// The length of the ban of this `level`, in milliseconds. Level 1 is the first in a row.
    pub fn length_ms(&self, level: u32) -> u64 {
        let doubled = 1u64.checked_shl(level.saturating_sub(1)).unwrap_or(u64::MAX);
        self.first_ms.saturating_mul(doubled).min(self.max_duration_ms)
    }

    /// How long after its end a ban must be stored, in milliseconds: until the next one is again a first one, and no
    /// violation that led to it counts any more.
    pub fn kept_ms(&self) -> u64 {
        self.max_duration_ms.max(self.window_ms.saturating_mul(2))
    }

    /// The lowest level whose ban lasts at least `left_ms`: an estimate for a ban that another process imposed.
    pub fn level_lasting(&self, left_ms: u64) -> u32 {
        let lasts = |level: &u32| self.length_ms(*level) >= left_ms.min(self.max_duration_ms);
        (1..=u64::BITS).find(lasts).unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bans_double_up_to_the_longest() {
        let ban = Ban {
            threshold: 1,
            window_ms: 1_000,
            first_ms: 600,
            max_duration_ms: 5_000,
            count: Violations::Denials,
        };
        for (level, expected) in [
            (0, 600),
            (1, 600),
            (2, 1_200),
            (3, 2_400),
            (4, 4_800),
            (5, 5_000),
            (64, 5_000),
            (u32::MAX, 5_000),
        ] {
            assert_eq!(ban.length_ms(level), expected, "level {level}");
        }
        for (left_ms, expected) in [(0, 1), (600, 1), (601, 2), (2_300, 3), (4_801, 5), (u64::MAX, 5)] {
            assert_eq!(ban.level_lasting(left_ms), expected, "{left_ms} ms left");
        }
    }
}

//! The share of identifiers for which a rule is enforced. For the others it is in shadow mode.
//!
//! The share is computed from workspace, namespace and identifier alone, so it is the same on every node and after each
//! restart. A larger share contains a smaller one. SHA-256 has no structure by which an identifier outside could be
//! found except by trying.

use crate::fields::{Errors, Node, Value};
use core::fmt;
use sha2::{Digest, Sha256};

/// All identifiers, in hundredths of a percent.
const ALL: u16 = 10_000;
/// The highest percentage.
pub(in crate::rules) const PERCENT_MAX: u64 = 100;

/// `enforce_percent`: a share of identifiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// In hundredths of a percent, at most [`ALL`].
    hundredths: u16,
}

impl Share {
    /// All identifiers.
    pub const ALL: Share = Share { hundredths: ALL };
    /// No identifier.
    pub const NONE: Share = Share { hundredths: 0 };

    pub(in crate::rules) fn read(node: Node<'_>, errors: &mut Errors) -> Option<Share> {
        let hundredths = match *node.value {
            Value::Unsigned(percent) => percent.checked_mul(100),
            ref value => value.as_decimal().and_then(hundredths_of),
        };
        let fitting =
            hundredths.and_then(|number| u16::try_from(number).ok()).filter(|number| *number <= ALL);
        let expected = "a number from 0 to 100 with at most two decimals";
        match fitting {
            Some(hundredths) => Some(Share { hundredths }),
            None => node.reject(errors, "is not a percentage", expected),
        }
    }

    /// Whether an identifier, in canonical form, is in the share. Without a share nothing is computed.
    pub fn has(self, workspace: &str, namespace: &str, identifier: &[u8]) -> bool {
        match self.hundredths {
            0 => false,
            ALL => true,
            // Names contain no zero bytes, so different parts are never the same text.
            _ => {
                let names = Sha256::new_with_prefix(workspace).chain_update([0]).chain_update(namespace);
                let digest = names.chain_update([0]).chain_update(identifier).finalize();
                let number =
                    digest.iter().take(4).fold(0_u64, |number, byte| (number << 8) | u64::from(*byte));
                (number.saturating_mul(ALL.into()) >> 32) < self.hundredths.into()
            }
        }
    }
}

/// Hundredths of a percent, if that is a whole number.
fn hundredths_of(percent: f64) -> Option<u64> {
    let hundredths = percent * 100.0;
    let nearest = (hundredths + 0.5) as u64;
    let differs = (hundredths - nearest as f64).abs() > 1e-6;
    (percent >= 0.0 && !differs).then_some(nearest)
}

impl Default for Share {
    fn default() -> Share {
        Share::ALL
    }
}

impl fmt::Display for Share {
    /// The percentage.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", f64::from(self.hundredths) / 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::Bounds;
    use alloc::format;
    use alloc::string::{String, ToString};
    use alloc::vec::Vec;

    fn read(json: &str) -> Result<Share, String> {
        let mut errors = Errors::default();
        let json = Value::parse(json.as_bytes(), Bounds::OF_A_FILE).unwrap();
        let share = Share::read(Node::root("share", &json), &mut errors);
        errors.finish(share).map_err(|errors| errors.to_string())
    }

    #[test]
    fn percentages_have_two_decimals() {
        for (json, expected) in [
            ("0", "0"),
            ("100", "100"),
            ("5.0", "5"),
            ("0.01", "0.01"),
            ("0.29", "0.29"),
            ("99.99", "99.99"),
            ("1e1", "10"),
            ("\"12.34\"", "12.34"),
            ("\"50.0\"", "50"),
            ("\"5e-1\"", "0.5"),
        ] {
            assert_eq!(read(json).map(|share| share.to_string()), Ok(expected.to_string()), "{json}");
        }
        for hundredths in 0..=ALL {
            let json = format!("{}.{:02}", hundredths / 100, hundredths % 100);
            assert_eq!(read(&json), Ok(Share { hundredths }), "{json}");
        }
        for json in [
            "100.01",
            "101",
            "-1",
            "-0.001",
            "0.005",
            "1e300",
            "18446744073709551615",
            "\"5\"",
            "\"5%\"",
            "\"5.0%\"",
            "\"0.005\"",
            "\"1e400\"",
            "null",
            "[]",
        ] {
            let error = read(json).unwrap_err();
            let expected = "is not a percentage; expected a number from 0 to 100 with at most two decimals";
            assert!(error.starts_with("share: ") && error.ends_with(expected), "{error}");
        }
    }

    fn members(json: &str, namespace: &str) -> Vec<usize> {
        let share = read(json).unwrap();
        (0..20_000).filter(|n| share.has("w", namespace, format!("user-{n}").as_bytes())).collect()
    }

    #[test]
    fn a_share_has_about_its_percentage_and_a_larger_one_contains_it() {
        let mut before = Vec::new();
        for (json, expected) in
            [("0", 0), ("0.5", 100), ("5", 1_000), ("50", 10_000), ("99.99", 19_998), ("100", 20_000)]
        {
            let share = members(json, "n");
            assert!(share.len().abs_diff(expected) <= expected / 5, "{json}: {}", share.len());
            assert!(before.iter().all(|member| share.binary_search(member).is_ok()), "{json}");
            before = share;
        }
        assert_ne!(members("5", "n"), members("5", "m"), "another namespace has another share");
    }

    /// Every version, on every machine, must have the same share:
    /// `printf 'default\0api\0alice' | sha256sum | cut -c-8`.
    #[test]
    fn the_share_never_changes() {
        for (identifier, slot) in [("alice", ALICE), ("bob", BOB)] {
            let has = |hundredths| Share { hundredths }.has("default", "api", identifier.as_bytes());
            assert!(!has(slot) && has(slot + 1), "{identifier}");
        }
    }
    const ALICE: u16 = 9644;
    const BOB: u16 = 4139;
}

//! Numbers in decimal digits, as headers and metadata state them.

/// A number of digits only; `None` for any other text. One that is too large counts as the largest.
pub(super) fn parse(digits: &[u8]) -> Option<u64> {
    let mut value: u64 = 0;
    for byte in digits {
        let digit = char::from(*byte).to_digit(10)?;
        value = value.saturating_mul(10).saturating_add(u64::from(digit));
    }
    (!digits.is_empty()).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_alone_are_a_number() {
        for (text, expected) in [
            ("0", Some(0)),
            ("0042", Some(42)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", Some(u64::MAX)),
            ("99999999999999999999999x", None),
            ("", None),
            ("+4", None),
            (" 4", None),
            ("1e3", None),
        ] {
            assert_eq!(parse(text.as_bytes()), expected, "{text}");
        }
    }
}

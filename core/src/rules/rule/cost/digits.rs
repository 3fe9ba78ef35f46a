//! Numbers in decimal digits, as headers and metadata state them.

/// A number of digits only; `None` for any other text, and for a number that is too large.
pub(super) fn parse(digits: &[u8]) -> Option<u64> {
    let mut value: u64 = 0;
    for byte in digits {
        let digit = char::from(*byte).to_digit(10)?;
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    (!digits.is_empty()).then_some(value)
}

//! Formats numbers and times, and pads texts to a fixed width.

/// Groups digits with commas: 1,234,567.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A number with its noun in singular or plural.
pub fn plural(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { many })
}

/// At most one decimal, and none for large numbers.
pub fn rate(per_second: f64) -> String {
    match per_second {
        0.0 => "0".to_owned(),
        rate if rate < 0.1 => "<0.1".to_owned(),
        rate if rate < 100.0 => format!("{rate:.1}"),
        rate => count(rate.round() as u64),
    }
}

/// A duration in its two largest units.
pub fn time(ms: u64) -> String {
    const UNITS: [(&str, u64); 4] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)];
    if ms < 1_000 {
        return format!("{ms} ms");
    }
    let mut rest = ms / 1_000 * 1_000;
    let mut parts = Vec::new();
    for (unit, length) in UNITS {
        let many = rest / length;
        rest %= length;
        if many > 0 {
            parts.push(format!("{many}{unit}"));
        } else if !parts.is_empty() {
            break;
        }
        if parts.len() == 2 {
            break;
        }
    }
    parts.join(" ")
}

/// A share of a limit in whole per cent, rounded down, so that 100 % is shown only when the limit is reached.
pub fn percent(used: u64, limit: u64) -> String {
    let share = u128::from(used) * 100 / u128::from(limit.max(1));
    if share > 9_999 { ">9999%".to_owned() } else { format!("{share}%") }
}

/// A bar of `width` characters, full at the limit.
pub fn bar(used: u64, limit: u64, width: usize) -> String {
    let full = u128::from(used) * width as u128 / u128::from(limit.max(1));
    let full = usize::try_from(full).unwrap_or(width).min(width);
    "█".repeat(full) + &"·".repeat(width - full)
}

/// Cut or padded to `width` characters. Control characters must have been escaped before.
pub fn fit(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length > width {
        let kept: String = text.chars().take(width.saturating_sub(1)).collect();
        return kept + if width > 0 { "…" } else { "" };
    }
    text.to_owned() + &" ".repeat(width - length)
}

/// Like [`fit`], aligned to the right.
pub fn right(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length >= width { fit(text, width) } else { " ".repeat(width - length) + text }
}

/// Escapes characters that a terminal would interpret.
pub fn plain(text: &str) -> String {
    crate::telemetry::text::identifier(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(count(u64::MAX), "18,446,744,073,709,551,615");
        assert_eq!([0.0, 0.01, 1.25, 99.94, 1_234.5].map(rate), ["0", "<0.1", "1.2", "99.9", "1,235"]);
        let times = [0, 999, 1_000, 61_000, 3_600_000, 3_605_000, 90_061_000];
        assert_eq!(times.map(time), ["0 ms", "999 ms", "1s", "1m 1s", "1h", "1h", "1d 1h"]);
        assert_eq!(percent(999, 1_000), "99%");
        assert_eq!(percent(u64::MAX, 0), ">9999%");
        assert_eq!(
            [(0, 10), (5, 10), (99, 10), (1, 0)].map(|(used, limit)| bar(used, limit, 4)),
            ["····", "██··", "████", "████"]
        );
        assert_eq!(
            [fit("abc", 2), fit("abc", 5), right("abc", 5), fit("a", 0)],
            ["a…", "abc  ", "  abc", ""]
        );
        assert_eq!(plain("a\x1b[2Jb\r"), "a\\u{1b}[2Jb\\u{d}");
    }
}

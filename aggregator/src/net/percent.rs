//! Percent-encoded bytes, which need not be UTF-8, and the parameters of query strings.

use percent_encoding::percent_decode_str;

/// Decodes percent-encoding; `None` if a `%` is not followed by two hexadecimal digits.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let is_code = |after: &str| matches!(after.as_bytes(), [one, other, ..] if one.is_ascii_hexdigit() && other.is_ascii_hexdigit());
    text.split('%').skip(1).all(is_code).then(|| percent_decode_str(text).collect())
}

/// The parameters of a query string: each name with its decoded value, in which `+` stands for a space; `None` if it is not validly
/// encoded.
pub fn parameters(query: &str) -> impl Iterator<Item = (&str, Option<Vec<u8>>)> {
    query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (name, decode(&value.replace('+', " ")))
    })
}

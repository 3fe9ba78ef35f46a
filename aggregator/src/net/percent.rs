//! Percent-decoding of query strings, to bytes that need not be UTF-8.

/// Decodes percent-encoding, with `+` for a space; `None` if it is invalid.
pub fn decode(value: &str) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(value.len());
    let mut bytes = value.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'+' => b' ',
            b'%' => digit(bytes.next()?)? << 4 | digit(bytes.next()?)?,
            other => other,
        });
    }
    Some(decoded)
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

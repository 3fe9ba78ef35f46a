//! Bytes as text, for operators: identifiers come from headers and may contain any bytes.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

/// As text; invalid UTF-8 is replaced.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// As text, with invisible characters escaped: a line break, or a mark that changes the direction of writing, would
/// make two identifiers look the same.
pub fn identifier(bytes: &[u8]) -> String {
    let lossy = String::from_utf8_lossy(bytes);
    let mut out = String::with_capacity(lossy.len());
    for character in lossy.chars() {
        match is_seen(character) {
            true => out.push(character),
            false => out.extend(character.escape_unicode()),
        }
    }
    out
}

/// Percent-encoded; `net::percent::decode` restores the same bytes.
pub fn encode(bytes: &[u8]) -> String {
    const ENCODED: &AsciiSet =
        &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b':').remove(b'@');
    percent_encode(bytes, ENCODED).to_string()
}

/// Whether a character is visible and changes nothing around it.
pub fn is_seen(character: char) -> bool {
    let turns = matches!(character, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}');
    !character.is_control() && !turns
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::percent::decode;
    use proptest::prelude::*;

    #[test]
    fn what_cannot_be_seen_is_spelt_out() {
        let cases: [(&[u8], &str); 6] = [
            ("a\u{61c}b\u{ad}\u{e0041}".as_bytes(), r"a\u{61c}b\u{ad}\u{e0041}"),
            (b"alice", "alice"),
            ("zoë <b>".as_bytes(), "zoë <b>"),
            (b"a\nb\x1b[2J", "a\\u{a}b\\u{1b}[2J"),
            ("a\u{202e}b".as_bytes(), "a\\u{202e}b"),
            (b"\xff", "\u{fffd}"),
        ];
        for (bytes, expected) in cases {
            assert_eq!(identifier(bytes), expected);
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded_to_the_same(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let encoded = encode(&bytes);
            prop_assert!(encoded.is_ascii() && !encoded.contains(['&', '=', '+', ' ', '#']));
            prop_assert_eq!(decode(&encoded), Some(bytes));
        }
    }
}

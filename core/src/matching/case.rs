//! Texts that are compared without their case.
//!
//! Letters are equal if one is a form of the other in Unicode: upstreams that ignore case also take `ſ` for `s`, the Kelvin sign for `k`,
//! and `ı` and `İ` for `i`. Bytes that are not UTF-8 are equal to themselves.

use alloc::vec::Vec;

/// A folded text has at least this part of the text's length.
pub const MOST_FOLDED: usize = 3;

/// Whether both texts are equal.
pub fn equal(one: &[u8], other: &[u8]) -> bool {
    match one.is_ascii() && other.is_ascii() {
        true => one.eq_ignore_ascii_case(other),
        false => folded(one).eq(folded(other)),
    }
}

/// Whether a text begins with `prefix`.
pub fn begins_with(text: &[u8], prefix: &[u8]) -> bool {
    let mut text = folded(text);
    folded(prefix).all(|wanted| text.next() == Some(wanted))
}

/// Writes the form that all texts have which are equal to this one.
pub fn fold(text: &[u8], out: &mut Vec<u8>) {
    out.clear();
    if text.is_ascii() {
        out.extend_from_slice(text);
        return out.make_ascii_lowercase();
    }
    for one in folded(text) {
        match one {
            Ok(letter) => out.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes()),
            Err(byte) => out.push(byte),
        }
    }
}

fn folded(text: &[u8]) -> impl Iterator<Item = Result<char, u8>> {
    text.utf8_chunks().flat_map(|chunk| {
        let letters = chunk.valid().chars().flat_map(|letter| {
            // It is no capital of `i` for Unicode, but for upstreams.
            let letter = if letter == 'İ' { 'I' } else { letter };
            letter.to_uppercase().flat_map(char::to_lowercase)
        });
        letters.map(Ok).chain(chunk.invalid().iter().copied().map(Err))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn texts_are_equal_without_their_case() {
        for (one, other, expected) in [
            ("Login", "LOGIN", true),
            ("signin", "ſıgnİn", true),
            ("key", "\u{212a}EY", true),
            ("café", "CAFÉ", true),
            ("σας", "ΣΑΣ", true),
            ("login", "logins", false),
            ("cafe", "café", false),
            ("", "", true),
        ] {
            assert_eq!(equal(one.as_bytes(), other.as_bytes()), expected, "{one} {other}");
        }
        assert!(equal(b"A\xff", b"a\xff") && !equal(b"\xff", b"\xfe"));
        assert!(begins_with("/ſIGN\u{e9}".as_bytes(), b"/sign") && !begins_with(b"/sig", b"/sign"));
    }

    proptest! {
        #[test]
        fn equal_texts_have_one_form(one in "[aA-Zſıİ\u{212a}éÉß\u{e000}]{0,5}", other in "[aA-Zſıİ\u{212a}éÉß]{0,5}") {
            let form = |text: &str| {
                let mut out = Vec::from(*b"earlier");
                fold(text.as_bytes(), &mut out);
                out
            };
            prop_assert_eq!(equal(one.as_bytes(), other.as_bytes()), form(&one) == form(&other));
            prop_assert!(form(&one).len() * MOST_FOLDED >= one.len());
        }
    }
}

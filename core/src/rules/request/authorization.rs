//! The credential of an `authorization` header, in one form for all spellings that upstreams accept.
//!
//! The scheme is left out, as some upstreams accept any: `Bearer x`, `bearer  x` and `x` are `x`. With the scheme `Basic` it is the
//! user. Base64 is decoded without regard to padding and to the unused bits of its last character, as upstreams do. A token
//! that is signed as JSON has one form wherever it is sent: see `token`.

use super::{has_foreign_blank, trim};
use alloc::vec::Vec;
use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

pub(super) const LENIENT: GeneralPurposeConfig = GeneralPurposeConfig::new()
    .with_encode_padding(false)
    .with_decode_padding_mode(DecodePaddingMode::RequireNone)
    .with_decode_allow_trailing_bits(true);
const STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, LENIENT);

/// The credential of a header's line; empty if it has none, `None` if upstreams read it differently. `buffer` is for a credential
/// that is not in the line.
pub(in crate::rules) fn credential<'a>(line: &'a [u8], buffer: &'a mut Vec<u8>) -> Option<&'a [u8]> {
    buffer.clear();
    let line = trim(line);
    let blank = line.iter().position(|byte| matches!(byte, b' ' | b'\t'));
    let (scheme, text) = blank.and_then(|at| line.split_at_checked(at)).unwrap_or((&[], line));
    let text = trim(text);
    if scheme.is_empty() && (text.eq_ignore_ascii_case(b"basic") || text.eq_ignore_ascii_case(b"bearer")) {
        return Some(&[]);
    }
    // Spring takes any byte behind `Basic` for the blank.
    if scheme.is_empty() && text.get(..5).is_some_and(|begin| begin.eq_ignore_ascii_case(b"basic")) {
        return None;
    }
    // Some upstreams end the credential at a blank, a comma or a semicolon, and drop quotes; others do not.
    if !text.iter().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b',' | b';' | b'"')) {
        return None;
    }
    // Rails also takes it as a parameter of that name.
    let text = text.strip_prefix(b"token=").filter(|_| !scheme.is_empty()).unwrap_or(text);
    match scheme.eq_ignore_ascii_case(b"basic") {
        true => user(text, buffer),
        false => Some(text),
    }
}

/// The user of the scheme `Basic`.
fn user<'a>(text: &[u8], decoded: &'a mut Vec<u8>) -> Option<&'a [u8]> {
    STANDARD.decode_vec(without_padding(text), decoded).ok()?;
    let user = decoded.split(|byte| *byte == b':').next()?;
    // Upstreams differ in what they take other bytes for.
    (core::str::from_utf8(user).is_ok() && !has_foreign_blank(trim(user))).then(|| trim(user))
}

pub(super) fn without_padding(mut text: &[u8]) -> &[u8] {
    while let [rest @ .., b'='] = text {
        text = rest;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;

    #[test]
    fn credentials() {
        for (line, expected) in [
            ("Bearer x", Some("x")),
            ("bearer \t x ", Some("x")),
            ("x", Some("x")),
            ("", Some("")),
            ("BASIC", Some("")),
            ("Bearer x,y", None),
            ("Bearer x y", None),
            ("Bearer x;1", None),
            ("Bearer \"x\"", None),
            ("Token token=x", Some("x")),
            ("token=x", Some("token=x")),
            ("Basic:dTpwdw==", None),
            ("bASIC~dTpwdw==", None),
            ("Bearer \u{e9}", None),
            ("Basic dTpwdw==", Some("u")),
            ("basic dTpwdz", Some("u")),
            ("Basic CnU6cHc=", None),
            ("Basic dTpwd", None),
            ("Basic dTpw_dw", None),
            ("Basic gDpw", None),
            ("Token dTpwdw==", Some("dTpwdw==")),
            ("Bearer eyA.e30.AB=", Some("eyA.e30.AB=")),
        ] {
            let mut buffer = Vec::from(*b"earlier");
            let found = credential(line.as_bytes(), &mut buffer);
            assert_eq!(found.map(String::from_utf8_lossy).as_deref(), expected, "{line}");
        }
    }
}

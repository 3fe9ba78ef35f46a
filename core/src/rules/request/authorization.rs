//! The credential of an `authorization` header, in one form for all spellings that upstreams accept.
//!
//! The scheme is left out, as some upstreams accept any: `Bearer x`, `bearer  x` and `x` are `x`. With the scheme `Basic` it is the
//! user. Base64 is decoded without regard to padding and to the unused bits of its last character, as upstreams do; of a
//! token that is signed as JSON, those bits are cleared.

use super::{has_foreign_blank, trim};
use alloc::vec::Vec;
use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

const LENIENT: GeneralPurposeConfig = GeneralPurposeConfig::new()
    .with_encode_padding(false)
    .with_decode_padding_mode(DecodePaddingMode::RequireNone)
    .with_decode_allow_trailing_bits(true);
const STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, LENIENT);
const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, LENIENT);

/// In base64.
const BYTE_ORDER_MARK: &[u8] = b"77u_";

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
    if scheme.eq_ignore_ascii_case(b"basic") {
        return user(text, buffer);
    }
    if !has_header(text) {
        return Some(text);
    }
    match text.iter().filter(|byte| **byte == b'.').count() {
        2 => write_token(text, |part| part == 2, buffer).map(|()| buffer.as_slice()),
        4 => write_token(text, |part| part > 0, buffer).map(|()| buffer.as_slice()),
        _ => Some(text),
    }
}

/// Whether the first part of a token is a JSON object, which begins after white space, also after a byte order mark.
fn has_header(token: &[u8]) -> bool {
    let header = token.split(|byte| *byte == b'.').next().unwrap_or_default();
    let mut bytes = [0; 3];
    for digits in header.strip_prefix(BYTE_ORDER_MARK).unwrap_or(header).chunks(4) {
        let Ok(length) = URL_SAFE.decode_slice(digits, &mut bytes) else { return false };
        let decoded = bytes.iter().take(length);
        match decoded.copied().find(|byte| !matches!(byte, b' ' | b'\t' | b'\n' | b'\r')) {
            None => {}
            Some(first) => return first == b'{',
        }
    }
    false
}

/// The user of the scheme `Basic`.
fn user<'a>(text: &[u8], decoded: &'a mut Vec<u8>) -> Option<&'a [u8]> {
    STANDARD.decode_vec(without_padding(text), decoded).ok()?;
    let user = decoded.split(|byte| *byte == b':').next()?;
    // Upstreams differ in what they take other bytes for.
    (core::str::from_utf8(user).is_ok() && !has_foreign_blank(trim(user))).then(|| trim(user))
}

/// Writes a token in parts with dots between them. Nothing signs the text of the parts that are `free`, only what it decodes to.
fn write_token(token: &[u8], is_free: impl Fn(usize) -> bool, out: &mut Vec<u8>) -> Option<()> {
    for (number, part) in token.split(|byte| *byte == b'.').enumerate() {
        if number > 0 {
            out.push(b'.');
        }
        match is_free(number) {
            true => write_canonical(without_padding(part), out)?,
            false => out.extend_from_slice(part),
        }
    }
    Some(())
}

/// Writes base64url with the unused bits of its last character cleared; `None` if it is none.
fn write_canonical(text: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let tail = text.len().checked_rem(4)?;
    let (whole, tail) = text.split_at_checked(text.len().checked_sub(tail)?)?;
    let is_digit = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if !whole.iter().all(is_digit) {
        return None;
    }
    let (mut bytes, mut digits) = ([0; 3], [0; 4]);
    let length = URL_SAFE.decode_slice(tail, &mut bytes).ok()?;
    let length = URL_SAFE.encode_slice(bytes.get(..length)?, &mut digits).ok()?;
    out.extend_from_slice(whole);
    out.extend_from_slice(digits.get(..length)?);
    Some(())
}

fn without_padding(mut text: &[u8]) -> &[u8] {
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
            ("Bearer eyA.e30.AB", Some("eyA.e30.AA")),
            ("Bearer eyA.e31.AAB=", Some("eyA.e31.AAA")),
            ("Bearer eyA.e30.", Some("eyA.e30.")),
            ("Bearer eyA.e30.A", None),
            ("Bearer eyA.AB.AB.AAAA.AB", Some("eyA.AA.AA.AAAA.AA")),
            // `{`, white space and `"`, in several orders, also behind a byte order mark.
            ("Bearer ewogICJhIjoxfQ.e30.AB", Some("ewogICJhIjoxfQ.e30.AA")),
            ("Bearer ewogICJhIjoxfQ.e30.AC=", Some("ewogICJhIjoxfQ.e30.AA")),
            ("Bearer IHsiYSI6MX0.e30.AB", Some("IHsiYSI6MX0.e30.AA")),
            ("Bearer CgkNIHt9.AB.AB.AAAA.AB", Some("CgkNIHt9.AA.AA.AAAA.AA")),
            ("Bearer 77u_eyJ9.e30.AB", Some("77u_eyJ9.e30.AA")),
            ("Bearer 77u_.e30.AB", Some("77u_.e30.AB")),
            ("Bearer ICAg.e30.AB", Some("ICAg.e30.AB")),
            ("Bearer MTIz.e30.AB", Some("MTIz.e30.AB")),
            ("Bearer !!!!.e30.AB", Some("!!!!.e30.AB")),
            ("Bearer eyA.AB", Some("eyA.AB")),
            ("Bearer v4.public.AB", Some("v4.public.AB")),
        ] {
            let mut buffer = Vec::from(*b"earlier");
            let found = credential(line.as_bytes(), &mut buffer);
            assert_eq!(found.map(String::from_utf8_lossy).as_deref(), expected, "{line}");
        }
    }
}

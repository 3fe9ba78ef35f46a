//! Signed and encrypted tokens of JSON (JWT: JWS and JWE in their compact forms), in one form for all texts that verify.
//!
//! A token is parts of base64url with dots between them, the first of which is a JSON object. Header and payload of a signed token
//! are signed as they are written, so that their texts are as they are. Nothing signs the text of its signature, nor of the parts of
//! an encrypted token behind the header: padding is left out, and the unused bits of the last character are cleared.
//!
//! An ECDSA signature is two numbers, *r* and *s*, and whoever has one can replace *s* by another number with which it verifies as
//! well. So of a long signature the first half counts alone: no two tokens of a key have header, payload and *r* in common, and who
//! does not have the token cannot guess *r*. Some verifiers also take the two numbers as DER, or with zeros before them. Half of any
//! other signature cannot be guessed either, and so no algorithm is looked up.

use super::authorization::{LENIENT, without_padding};
use alloc::vec::Vec;
use base64::Engine;
use base64::alphabet;
use base64::engine::GeneralPurpose;

const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, LENIENT);

/// In base64.
const BYTE_ORDER_MARK: &[u8] = b"77u_";

/// Shorter ones are no ECDSA signatures: those of 256 bits have 64 bytes, fewer only where both numbers begin with zeros that their
/// signer left out.
const HALVED_BYTES_MIN: usize = 56;

/// The tags of a sequence and of a number in DER, and of a length in a byte of its own.
const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const LONG_LENGTH: u8 = 0x81;

/// Rewrites what `out` has from `start` on, if it is a token. Returns false if upstreams read it differently, as its parts are not
/// base64; what was appended is then invalid. `buffer` is memory.
pub(in crate::rules) fn rewrite(start: usize, out: &mut Vec<u8>, buffer: &mut Vec<u8>) -> bool {
    let token = out.get(start..).unwrap_or_default();
    if !has_header(token) {
        return true;
    }
    buffer.clear();
    let written = match token.iter().filter(|byte| **byte == b'.').count() {
        2 => write(token, |part| part == 2, buffer),
        4 => write(token, |part| part > 0, buffer),
        _ => return true,
    };
    if written.is_some() {
        out.truncate(start);
        out.extend_from_slice(buffer);
    }
    written.is_some()
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

/// Writes a token in parts with dots between them. Nothing signs the text of the parts that are `free`, only what it decodes to.
fn write(token: &[u8], is_free: impl Fn(usize) -> bool, out: &mut Vec<u8>) -> Option<()> {
    let is_signed = is_free(2) && !is_free(1);
    for (number, part) in token.split(|byte| *byte == b'.').enumerate() {
        if number > 0 {
            out.push(b'.');
        }
        match is_free(number) {
            true if is_signed => write_signature(without_padding(part), out)?,
            true => write_canonical(without_padding(part), out)?,
            false => out.extend_from_slice(part),
        }
    }
    Some(())
}

/// Writes what identifies a signature; `None` if it is no base64url.
fn write_signature(text: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let signature = URL_SAFE.decode(text).ok()?;
    let number = first_number(&signature).unwrap_or(&signature);
    let start = out.len();
    out.resize(start.checked_add(base64::encoded_len(number.len(), false)?)?, 0);
    URL_SAFE.encode_slice(number, out.get_mut(start..)?).ok().map(|_| ())
}

/// The first of the two numbers of a signature, without zeros before it; `None` if it has no two.
fn first_number(signature: &[u8]) -> Option<&[u8]> {
    if signature.len() < HALVED_BYTES_MIN {
        return None;
    }
    let even = signature.len().is_multiple_of(2).then_some(signature.len() / 2);
    let mut number = match first_of_der(signature) {
        Some(number) => number,
        None => signature.get(..even?)?,
    };
    while let [0, rest @ ..] = number {
        number = rest;
    }
    Some(number)
}

/// The first number of a sequence of numbers in DER.
fn first_of_der(signature: &[u8]) -> Option<&[u8]> {
    let (length, numbers) = match signature {
        [SEQUENCE, LONG_LENGTH, length, numbers @ ..] | [SEQUENCE, length, numbers @ ..] => {
            (*length, numbers)
        }
        _ => return None,
    };
    match numbers {
        [INTEGER, first, rest @ ..] if numbers.len() == usize::from(length) => {
            rest.get(..usize::from(*first))
        }
        _ => None,
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::{String, ToString};
    use alloc::vec;
    use proptest::prelude::*;

    fn rewritten(token: &str) -> Option<String> {
        let mut out = [b"before", token.as_bytes()].concat();
        let is_one = rewrite(b"before".len(), &mut out, &mut Vec::from(*b"earlier"));
        is_one.then(|| String::from_utf8(out).unwrap().strip_prefix("before").unwrap().to_string())
    }

    #[test]
    fn a_token_has_one_form() {
        for (token, expected) in [
            ("eyA.e30.AB", Some("eyA.e30.AA")),
            ("eyA.e31.AAB=", Some("eyA.e31.AAA")),
            ("eyA.e30.", Some("eyA.e30.")),
            ("eyA.e30.A", None),
            ("eyA.e30.A+AA", None),
            ("eyA.AB.AB.AAAA.AB", Some("eyA.AA.AA.AAAA.AA")),
            // `{`, white space and `"`, in several orders, also behind a byte order mark.
            ("ewogICJhIjoxfQ.e30.AB", Some("ewogICJhIjoxfQ.e30.AA")),
            ("ewogICJhIjoxfQ.e30.AC=", Some("ewogICJhIjoxfQ.e30.AA")),
            ("IHsiYSI6MX0.e30.AB", Some("IHsiYSI6MX0.e30.AA")),
            ("CgkNIHt9.AB.AB.AAAA.AB", Some("CgkNIHt9.AA.AA.AAAA.AA")),
            ("77u_eyJ9.e30.AB", Some("77u_eyJ9.e30.AA")),
            ("77u_.e30.AB", Some("77u_.e30.AB")),
            ("ICAg.e30.AB", Some("ICAg.e30.AB")),
            ("MTIz.e30.AB", Some("MTIz.e30.AB")),
            ("!!!!.e30.AB", Some("!!!!.e30.AB")),
            ("eyA.AB", Some("eyA.AB")),
            ("v4.public.AB", Some("v4.public.AB")),
        ] {
            assert_eq!(rewritten(token).as_deref(), expected, "{token}");
        }
    }

    #[test]
    fn of_a_long_signature_the_first_number_counts() {
        let token = |signature: &[u8]| rewritten(&format!("eyA.e30.{}", URL_SAFE.encode(signature))).unwrap();
        let number = |length: usize| -> Vec<u8> { (1..).take(length).collect() };
        for length in [28, 32, 48, 57, 66, 128, 200] {
            let expected = format!("eyA.e30.{}", URL_SAFE.encode(number(length)));
            let raw =
                |zeros: usize| [vec![0; zeros], number(length), vec![0; zeros], vec![7; length]].concat();
            assert_eq!(token(&raw(0)), expected);
            assert_eq!(token(&raw(5)), expected);
            let byte = |length: usize| u8::try_from(length).ok();
            let der = |r: &[u8], s: &[u8]| -> Option<Vec<u8>> {
                let body = [&[INTEGER, byte(r.len())?], r, &[INTEGER, byte(s.len())?], s].concat();
                let long = if body.len() < 128 { &[][..] } else { &[LONG_LENGTH] };
                Some([&[SEQUENCE], long, &[byte(body.len())?], &body].concat())
            };
            for (r, s) in
                [(number(length), vec![7; length]), ([vec![0], number(length)].concat(), vec![9; 30])]
            {
                if let Some(signature) = der(&r, &s) {
                    assert_eq!(token(&signature), expected);
                }
            }
        }
        // Too short, odd, and one that only looks like DER.
        for signature in [number(54), number(57), [vec![SEQUENCE, 60, INTEGER, 3], number(61)].concat()] {
            assert_eq!(token(&signature), format!("eyA.e30.{}", URL_SAFE.encode(&signature)));
        }
        assert_eq!(token(&[0; 64]), "eyA.e30.");
    }

    proptest! {
        #[test]
        fn only_the_second_number_does_not_count(
            size in proptest::sample::select(vec![32_usize, 48, 66]),
            first in proptest::collection::vec(any::<u8>(), 66),
            second in proptest::collection::vec(any::<u8>(), 66),
            other in proptest::collection::vec(any::<u8>(), 66),
            changed in 0_usize..32,
        ) {
            let token = |payload: &str, r: &[u8], s: &[u8]| {
                rewritten(&format!("eyA.{payload}.{}", URL_SAFE.encode([&r[..size], &s[..size]].concat())))
            };
            let one = token("e30", &first, &second);
            prop_assert!(one.is_some());
            prop_assert_eq!(&one, &token("e30", &first, &other));
            prop_assert_ne!(&one, &token("e31", &first, &second));
            let mut forged = first.clone();
            forged[changed] ^= 1;
            prop_assert_ne!(&one, &token("e30", &forged, &second));
        }
    }
}

//! A request's headers, read in place from the bytes that Envoy returns in one call.
//!
//! ```text
//! count u32 · (name length u32 · value length u32)… · (name NUL value NUL)…
//! ```
//! Little-endian. One call for all headers costs as much as a call for one of them.
//! Properties come through [`Beyond`], as each costs a host call.

use crate::host::headers::{Beyond, HeaderValue, lines_of};
use weir_core::rules::{Lines, Request};

/// Headers as Envoy passes them.
pub type Raw = [u8];

/// Serialised headers. Reading ends at the first bytes that do not fit the format.
#[derive(Clone, Copy, Debug)]
pub struct Headers<'a, B> {
    lengths: &'a [[u8; 8]],
    texts: &'a [u8],
    beyond: B,
}

impl<'a, B: Beyond> Headers<'a, B> {
    /// Reads the number of headers in `bytes`, but no header yet.
    pub fn new(bytes: &'a [u8], beyond: B) -> Headers<'a, B> {
        let (count, rest) = bytes.split_first_chunk::<4>().unwrap_or((&[0; 4], &[]));
        let count = usize::try_from(u32::from_le_bytes(*count)).unwrap_or(0);
        let (lengths, texts) = rest.split_at_checked(count.saturating_mul(8)).unwrap_or_default();
        let (lengths, _) = lengths.as_chunks::<8>();
        Headers { lengths, texts, beyond }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.lengths.is_empty()
    }

    /// The first line of the header `name`.
    pub fn first(&self, name: &[u8]) -> Option<&'a [u8]> {
        self.lines(name).next()
    }

    /// The lines of the header `name`.
    pub fn lines<'n>(&self, name: &'n [u8]) -> impl Iterator<Item = &'a [u8]> + use<'a, 'n, B> {
        self.iter().filter(move |(of, _)| *of == name).map(|(_, value)| value)
    }

    fn iter(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a, B> {
        let mut rest = self.texts;
        self.lengths.iter().map_while(move |lengths| {
            let [a, b, c, d, e, f, g, h] = *lengths;
            let name_length = usize::try_from(u32::from_le_bytes([a, b, c, d])).ok()?;
            let value_length = usize::try_from(u32::from_le_bytes([e, f, g, h])).ok()?;
            let (name, after) = rest.split_at_checked(name_length)?;
            let (value, after) = after.get(1..)?.split_at_checked(value_length)?;
            rest = after.get(1..)?;
            Some((name, value))
        })
    }
}

impl<B: Beyond> Request for Headers<'_, B> {
    fn header(&self, name: &[u8]) -> Lines<'_> {
        lines_of(self.lines(name))
    }

    fn for_each_header(&self, name: &[u8], line: &mut dyn FnMut(&[u8])) {
        self.lines(name).for_each(line);
    }

    fn ends_with_headers(&self) -> bool {
        self.beyond.ends_with_headers()
    }

    fn property(&self, path: &[u8], out: &mut Vec<u8>) -> bool {
        self.beyond.property(path, out)
    }
}

/// Bytes of the usual headers of a denial, and more.
const SERIALISED_BYTES: usize = 256;

/// Serialises headers for a response or a call, in the same format.
pub fn serialise(headers: &[(impl AsRef<str>, HeaderValue)]) -> Vec<u8> {
    let number = |number: usize| u32::try_from(number).unwrap_or(0).to_le_bytes();
    let mut bytes = Vec::with_capacity(SERIALISED_BYTES);
    bytes.extend_from_slice(&number(headers.len()));
    for (name, value) in headers {
        bytes.extend_from_slice(&number(name.as_ref().len()));
        bytes.extend_from_slice(&number(value.with_text(str::len)));
    }
    for (name, value) in headers {
        bytes.extend_from_slice(name.as_ref().as_bytes());
        bytes.push(0);
        value.with_text(|text| bytes.extend_from_slice(text.as_bytes()));
        bytes.push(0);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::headers::Nothing;

    fn headers(pairs: &[(&str, &str)]) -> Vec<u8> {
        serialise(&pairs.iter().map(|(name, value)| (*name, (*value).to_owned().into())).collect::<Vec<_>>())
    }

    #[test]
    fn lines_are_found_in_order() {
        let bytes = headers(&[(":path", "/a"), ("x-a", ""), ("x-b", "1"), ("x-b", "2")]);
        let request = Headers::new(&bytes, Nothing);
        assert_eq!(request.header(b":path"), Lines::One(b"/a"));
        assert_eq!(request.header(b"x-a"), Lines::One(b""));
        assert_eq!(request.header(b"x-b"), Lines::Many);
        assert_eq!(request.header(b"x-c"), Lines::None);
        let mut lines = Vec::new();
        request.for_each_header(b"x-b", &mut |line| lines.push(line.to_vec()));
        assert_eq!(lines, [b"1", b"2"]);
    }

    #[test]
    fn numbers_are_serialised_as_text() {
        let numbers = [0, 7, 1_000, u64::MAX];
        let texts = numbers.map(|number| ("x-a", number.to_string().into()));
        assert_eq!(serialise(&numbers.map(|number| ("x-a", number.into()))), serialise(&texts));
        let bytes = serialise(&[("x-a", 42.into()), ("x-b", "text".into())]);
        let request = Headers::new(&bytes, Nothing);
        assert_eq!((request.first(b"x-a"), request.first(b"x-b")), (Some(&b"42"[..]), Some(&b"text"[..])));
    }

    #[test]
    fn damaged_bytes_end_the_headers() {
        let whole = headers(&[("a", "1"), ("b", "2")]);
        for end in 0..whole.len() {
            let request = Headers::new(&whole[..end], Nothing);
            assert!(matches!(request.header(b"b"), Lines::None), "cut at {end}");
        }
        let mut huge = whole.clone();
        huge[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Headers::new(&huge, Nothing).header(b"a"), Lines::None);
        let mut long = whole;
        long[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Headers::new(&long, Nothing).header(b"a"), Lines::None);
    }
}

//! What both edges have in common of headers: where a request's properties come from, and the value of a header that is sent.

use std::borrow::Cow;
use weir_core::rules::Lines;

/// What Envoy has of a request besides its headers.
pub trait Beyond {
    /// Appends the property at `path`; false if there is none.
    fn property(&self, path: &[u8], out: &mut Vec<u8>) -> bool;

    /// Whether nothing follows the request's headers. False if that is not known.
    fn ends_with_headers(&self) -> bool {
        false
    }
}

/// No properties: headers that are read by themselves.
#[derive(Clone, Copy, Debug)]
pub struct Nothing;

impl Beyond for Nothing {
    fn property(&self, _: &[u8], _: &mut Vec<u8>) -> bool {
        false
    }
}

/// Whether a header has no line, one or several.
pub fn lines_of<'a>(mut lines: impl Iterator<Item = &'a [u8]>) -> Lines<'a> {
    match (lines.next(), lines.next()) {
        (None, _) => Lines::None,
        (Some(line), None) => Lines::One(line),
        (Some(_), Some(_)) => Lines::Many,
    }
}

/// The value of a header that is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderValue {
    /// A number in decimal digits. They are written into the serialised headers, so that a response allocates no text for them.
    Number(u64),
    /// Any text.
    Text(Cow<'static, str>),
}

impl From<u64> for HeaderValue {
    fn from(number: u64) -> HeaderValue {
        HeaderValue::Number(number)
    }
}

impl From<String> for HeaderValue {
    fn from(text: String) -> HeaderValue {
        HeaderValue::Text(text.into())
    }
}

impl From<&'static str> for HeaderValue {
    fn from(text: &'static str) -> HeaderValue {
        HeaderValue::Text(text.into())
    }
}

impl HeaderValue {
    /// Passes the value's text to `read`.
    pub fn with_text<R>(&self, read: impl FnOnce(&str) -> R) -> R {
        match self {
            HeaderValue::Number(number) => read(itoa::Buffer::new().format(*number)),
            HeaderValue::Text(text) => read(text),
        }
    }
}

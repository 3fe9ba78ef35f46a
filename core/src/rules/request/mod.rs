//! The rules' access to a request: on demand, by name, without copying.
//!
//! Properties each need a host call. They are read only if a rule that applies needs them; the peer's address, the route
//! and the virtual host at most once for each request. [`Request`] is implemented outside the core.

pub(in crate::rules) mod authorization;
pub(in crate::rules) mod client_address;
pub(in crate::rules) mod cookie;
pub(in crate::rules) mod host;
pub(in crate::rules) mod names;
pub(in crate::rules) mod path;
pub(in crate::rules) mod property;
pub(in crate::rules) mod query;
pub(in crate::rules) mod sources;
pub(in crate::rules) mod token;

use alloc::vec::Vec;

/// The lines of one header in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lines<'a> {
    /// No such header.
    None,
    /// Exactly one line, the most frequent case. It is read in place.
    One(&'a [u8]),
    /// Two or more lines, to be read by [`Request::for_each_header`].
    Many,
}

/// A request. Values may be any bytes: not UTF-8, empty, or very long.
pub trait Request {
    /// The header `name`, given in lower case. `:method`, `:path` and `:authority` are headers too.
    fn header(&self, name: &[u8]) -> Lines<'_>;

    /// Calls `line` with every line of the header `name`, in the order of the request.
    fn for_each_header(&self, name: &[u8], line: &mut dyn FnMut(&[u8]));

    /// Whether nothing follows the headers. False if that is not known.
    fn ends_with_headers(&self) -> bool {
        false
    }

    /// Appends a property, by Envoy's path of it: names of attributes (`source`, `address`) with a NUL byte between
    /// them. Returns false if there is none.
    fn property(&self, path: &[u8], out: &mut Vec<u8>) -> bool;
}

/// The value without leading and trailing spaces and tabs. Envoy removes them from headers of HTTP/1 only; an upstream
/// removes them from all.
#[inline]
pub(in crate::rules) fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = value {
        value = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// Whether upstreams differ in whether something at an end of a trimmed value is a blank: white space of ASCII but for space and tab, which
/// forms of web frameworks remove, NUL, which PHP removes, and white space that is not ASCII. Python's servers take the bytes of headers for
/// Latin-1.
pub(in crate::rules) fn has_foreign_blank(value: &[u8]) -> bool {
    if value.first().is_none_or(u8::is_ascii_graphic) && value.last().is_none_or(u8::is_ascii_graphic) {
        return false;
    }
    let is_blank = |one: char| one.is_whitespace() || matches!(one, '\0' | '\u{1c}'..='\u{1f}' | '\u{feff}');
    let latin = |byte: Option<&u8>| byte.is_some_and(|byte| is_blank(char::from(*byte)));
    match core::str::from_utf8(value) {
        Ok(text) => text.starts_with(is_blank) || text.ends_with(is_blank),
        Err(_) => latin(value.first()) || latin(value.last()),
    }
}

/// The header's value: its lines joined by `,` as RFC 9110 (and Envoy's own matchers) do, each without leading and
/// trailing blanks.
pub(in crate::rules) fn joined_header<'a, R: Request + ?Sized>(
    request: &'a R,
    name: &[u8],
    buffer: &'a mut Vec<u8>,
) -> Option<&'a [u8]> {
    match request.header(name) {
        Lines::None => None,
        Lines::One(value) => Some(trim(value)),
        Lines::Many => {
            buffer.clear();
            let mut first = true;
            request.for_each_header(name, &mut |line| {
                if !first {
                    buffer.push(b',');
                }
                first = false;
                buffer.extend_from_slice(trim(line));
            });
            Some(buffer)
        }
    }
}

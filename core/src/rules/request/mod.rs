//! How the rules see a request: lazily, by name, without copying.
//!
//! The peer's address and dynamic metadata cost their owner a host call, so they are asked for only when a rule
//! that applies needs them, the address at most once a request. Implementations live outside the core.

pub(in crate::rules) mod client_address;
pub(in crate::rules) mod cookie;
pub(in crate::rules) mod host;
pub(in crate::rules) mod path;
pub(in crate::rules) mod query;

use alloc::string::String;
use alloc::vec::Vec;

/// The lines that a request has of one header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lines<'a> {
    /// No such header.
    None,
    /// Exactly one line, the common case: read in place.
    One(&'a [u8]),
    /// Two or more: read through [`Request::for_each_header`].
    Many,
}

/// A request. Values are any bytes: not UTF-8, empty, or very long.
pub trait Request {
    /// The header `name`, which is in lower case; `:method`, `:path` and `:authority` are headers too.
    fn header(&self, name: &[u8]) -> Lines<'_>;

    /// Calls `line` with every line of the header `name`, in the request's order.
    fn for_each_header(&self, name: &[u8], line: &mut dyn FnMut(&[u8]));

    /// Appends the peer's address, `1.2.3.4:567` or `[::1]:80`; nothing when it is not known.
    fn peer_address(&self, out: &mut Vec<u8>);

    /// Appends the dynamic metadata at `path`, whose first element is the filter's namespace
    /// (`envoy.filters.http.jwt_authn`); false when there is none.
    fn metadata(&self, path: &[String], out: &mut Vec<u8>) -> bool;
}

/// The value without the spaces and tabs around it. Envoy removes them from headers of HTTP/1 only; an upstream removes them
/// from all.
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

/// The header's value, its lines joined by `,` as RFC 9110 has it (and as Envoy's own matchers do), each without the blanks
/// around it.
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

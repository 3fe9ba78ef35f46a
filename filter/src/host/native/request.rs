//! A request's headers, read in place: Envoy returns the addresses of all of them in one call.

use super::abi::Pair;
use crate::host::headers::{Beyond, lines_of};
use weir_core::rules::{Lines, Request};

/// Headers as Envoy passes them.
pub type Raw = [Pair];

/// Headers of Envoy.
#[derive(Clone, Copy, Debug)]
pub struct Headers<'a, B> {
    all: &'a [Pair],
    beyond: B,
}

impl<'a, B: Beyond> Headers<'a, B> {
    /// Reads `all`, which [`calls`](super::calls) passes only while they are valid.
    pub fn new(all: &'a [Pair], beyond: B) -> Headers<'a, B> {
        Headers { all, beyond }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The first line of the header `name`.
    pub fn first(&self, name: &[u8]) -> Option<&'a [u8]> {
        self.lines(name).next()
    }

    /// The lines of the header `name`.
    pub fn lines<'n>(&self, name: &'n [u8]) -> impl Iterator<Item = &'a [u8]> + use<'a, 'n, B> {
        // SAFETY: a header is valid as long as the slice that holds it, which no setter of Envoy's is called beside.
        let pairs = self.all.iter().map(|pair| unsafe { (pair.name(), pair.value()) });
        pairs.filter(move |(of, _): &(&[u8], &[u8])| *of == name).map(|(_, value)| value)
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

//! What rules derive from a request, computed when the first rule needs it. The contents are valid for one request; the
//! memory is reused.

use super::client_address::Peer;
use super::path::Readings;
use super::property::{ROUTE, VIRTUAL_HOST};
use super::{Request, joined_header};
use alloc::vec::Vec;

/// Everything that is derived, and a buffer for values that are used at once.
#[derive(Debug)]
pub(in crate::rules) struct Sources {
    pub path: RequestPath,
    pub peer: Peer,
    pub route: Once,
    pub virtual_host: Once,
    pub buffer: Vec<u8>,
    /// Room for another value beside the buffer.
    pub value: Vec<u8>,
}

impl Default for Sources {
    fn default() -> Self {
        Sources {
            path: RequestPath::default(),
            peer: Peer::default(),
            route: Once::new(ROUTE),
            virtual_host: Once::new(VIRTUAL_HOST),
            buffer: Vec::new(),
            value: Vec::new(),
        }
    }
}

impl Sources {
    /// Begins a request.
    pub fn reset(&mut self) {
        self.path.ready = false;
        self.peer.reset();
        self.route.ready = false;
        self.virtual_host.ready = false;
    }
}

/// The path, as upstreams may read it.
#[derive(Debug, Default)]
pub(in crate::rules) struct RequestPath {
    ready: bool,
    readings: Readings,
}

impl RequestPath {
    pub fn of<R: Request + ?Sized>(&mut self, request: &R, buffer: &mut Vec<u8>) -> &Readings {
        if !self.ready {
            self.ready = true;
            self.readings.read(joined_header(request, b":path", buffer).unwrap_or_default());
        }
        &self.readings
    }
}

/// A property that is read at most once.
#[derive(Debug)]
pub(in crate::rules) struct Once {
    path: &'static [u8],
    ready: bool,
    bytes: Vec<u8>,
}

impl Once {
    fn new(path: &'static [u8]) -> Once {
        Once { path, ready: false, bytes: Vec::new() }
    }

    /// Its value; empty if there is none.
    pub fn of<R: Request + ?Sized>(&mut self, request: &R) -> &[u8] {
        if !self.ready {
            self.ready = true;
            self.bytes.clear();
            if !request.property(self.path, &mut self.bytes) {
                self.bytes.clear();
            }
        }
        &self.bytes
    }
}

//! The properties of the current request, through the edge that the module has.

use super::calls;
use super::headers::Beyond;

/// What Envoy has of the current request beside its headers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Envoy {
    /// Whether nothing follows the request's headers, if Envoy has just stated that.
    pub ends_with_headers: bool,
}

impl Beyond for Envoy {
    fn property(&self, path: &[u8], out: &mut Vec<u8>) -> bool {
        calls::property(path, out)
    }

    fn ends_with_headers(&self) -> bool {
        self.ends_with_headers
    }
}

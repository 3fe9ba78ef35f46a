//! A request for this module's unit tests.

use super::request::property::PEER_ADDRESS;
use super::request::{Lines, Request};
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::Cell;

#[derive(Debug, Default)]
pub(super) struct TestRequest {
    headers: Vec<(String, Vec<u8>)>,
    properties: Vec<(Vec<u8>, Vec<u8>)>,
    pub host_calls: Cell<usize>,
    ends_with_headers: bool,
}

impl TestRequest {
    pub fn get(path: &str) -> Self {
        Self::default().header(":method", "GET").header(":authority", "example.com").header(":path", path)
    }

    /// Without a body.
    pub fn whole(self) -> Self {
        TestRequest { ends_with_headers: true, ..self }
    }

    pub fn header(self, name: &str, value: &str) -> Self {
        self.raw_header(name, value.as_bytes())
    }

    pub fn raw_header(mut self, name: &str, value: &[u8]) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    pub fn peer(self, address: &str) -> Self {
        self.property(PEER_ADDRESS, address.as_bytes())
    }

    pub fn metadata(self, path: &[&str], value: &str) -> Self {
        let path = alloc::format!("metadata\0filter_metadata\0{}", path.join("\0"));
        self.property(path.as_bytes(), value.as_bytes())
    }

    pub fn property(mut self, path: &[u8], value: &[u8]) -> Self {
        self.properties.push((path.into(), value.into()));
        self
    }
}

impl Request for TestRequest {
    fn header(&self, name: &[u8]) -> Lines<'_> {
        let mut lines = self.headers.iter().filter(|(header, _)| header.as_bytes() == name);
        match (lines.next(), lines.next()) {
            (None, _) => Lines::None,
            (Some((_, value)), None) => Lines::One(value),
            _ => Lines::Many,
        }
    }

    fn for_each_header(&self, name: &[u8], line: &mut dyn FnMut(&[u8])) {
        self.headers
            .iter()
            .filter(|(header, _)| header.as_bytes() == name)
            .for_each(|(_, value)| line(value));
    }

    fn ends_with_headers(&self) -> bool {
        self.ends_with_headers
    }

    fn property(&self, path: &[u8], out: &mut Vec<u8>) -> bool {
        self.host_calls.set(self.host_calls.get() + 1);
        let found = self.properties.iter().find(|(key, _)| key == path);
        out.extend(found.iter().flat_map(|(_, value)| value));
        found.is_some()
    }
}

//! One connection that sends one request at a time.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// How long Envoy may take for a response.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The requests of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Requests {
    /// Number of keys, of which each request names one at random.
    pub keys: u64,
    /// Send the headers of a browser: 20 in all, of 1.5 KB.
    pub many_headers: bool,
}

/// Result of a slice of time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Run {
    pub requests: u64,
    /// Responses with status 429.
    pub denied: u64,
    pub p50_us: f64,
    pub p99_us: f64,
}

/// A connection to one Envoy.
pub struct Client {
    stream: TcpStream,
    /// The request before and after its key.
    parts: (String, String),
    keys: u64,
    random: u64,
    buffer: Vec<u8>,
}

impl Client {
    pub fn connect(target: SocketAddr, requests: Requests) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&target, TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let mut after = "\r\n".to_owned();
        if requests.many_headers {
            after.extend(browser_headers().map(|(name, value)| format!("{name}: {value}\r\n")));
        }
        let parts = (format!("GET / HTTP/1.1\r\nhost: {target}\r\nx-api-key: key-"), after + "\r\n");
        Ok(Self { stream, parts, keys: requests.keys, random: 1, buffer: Vec::new() })
    }

    /// Sends requests for this long.
    pub fn run(&mut self, length: Duration) -> Result<Run> {
        let (mut denied, mut latencies) = (0, Vec::new());
        let begin = Instant::now();
        let mut sent = begin;
        while sent.duration_since(begin) < length {
            denied += u64::from(self.request()? == 429);
            let received = Instant::now();
            latencies.push(received.duration_since(sent));
            sent = received;
        }
        latencies.sort_unstable();
        let part = |percent: usize| latencies.get(latencies.len() * percent / 100);
        let micros = |percent| part(percent).map_or(0.0, |latency| latency.as_secs_f64() * 1e6);
        Ok(Run { requests: latencies.len() as u64, denied, p50_us: micros(50), p99_us: micros(99) })
    }

    /// Sends one request; returns the status of its response.
    fn request(&mut self) -> Result<u16> {
        // Knuth's linear congruential generator (MMIX).
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.buffer.clear();
        let (before, after) = &self.parts;
        write!(self.buffer, "{before}{:07}{after}", (self.random >> 33) % self.keys)?;
        self.stream.write_all(&self.buffer)?;
        self.buffer.clear();
        loop {
            let length = self.buffer.len();
            self.buffer.resize(length + 4_096, 0);
            let read = self.stream.read(&mut self.buffer[length..]).context("reading a response")?;
            ensure!(read > 0, "Envoy closed the connection");
            self.buffer.truncate(length + read);
            if let Some(status) = complete(&self.buffer)? {
                return Ok(status);
            }
        }
    }
}

/// The status of a response, once all of it has arrived.
fn complete(bytes: &[u8]) -> Result<Option<u16>> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(head) = response.parse(bytes)? else { return Ok(None) };
    let length = response.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
    let length: usize = str::from_utf8(length.context("no content-length")?.value)?.parse()?;
    Ok((bytes.len() >= head + length).then_some(response.code).flatten())
}

/// The headers of a browser besides `:authority`, `:method`, `:path`, `:scheme`, `x-api-key` and what Envoy adds.
fn browser_headers() -> [(&'static str, String); 14] {
    let agent = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36";
    let accept = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8";
    let brands = r#""Chromium";v="140", "Not=A?Brand";v="24", "Google Chrome";v="140""#;
    let cookie =
        format!("session={}; consent={}; cart={}", "a1".repeat(64), "b2".repeat(128), "c3".repeat(96));
    [
        ("user-agent", agent.to_owned()),
        ("accept", accept.to_owned()),
        ("accept-language", "en-GB,en;q=0.9,de-DE;q=0.8,de;q=0.7".to_owned()),
        ("accept-encoding", "gzip, deflate, br, zstd".to_owned()),
        ("cache-control", "max-age=0".to_owned()),
        ("referer", "https://shop.example.com/catalogue/garden/furniture?page=4&sort=price".to_owned()),
        ("sec-ch-ua", brands.to_owned()),
        ("sec-ch-ua-mobile", "?0".to_owned()),
        ("sec-ch-ua-platform", "\"Linux\"".to_owned()),
        ("sec-fetch-dest", "document".to_owned()),
        ("sec-fetch-mode", "navigate".to_owned()),
        ("sec-fetch-site", "same-origin".to_owned()),
        ("upgrade-insecure-requests", "1".to_owned()),
        ("cookie", cookie),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_complete_with_its_body() {
        let text = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 3\r\n\r\nno\n";
        for length in 0..text.len() {
            assert_eq!(complete(&text[..length]).unwrap(), None, "{length}");
        }
        assert_eq!(complete(text).unwrap(), Some(429));
        assert!(complete(b"HTTP/1.1 200 OK\r\n\r\n").is_err(), "a response without a length");
    }

    #[test]
    fn a_browser_sends_a_kilobyte_and_a_half() {
        let bytes: usize = browser_headers().iter().map(|(name, value)| name.len() + value.len()).sum();
        assert!((1_200..1_600).contains(&bytes), "{bytes}");
    }
}

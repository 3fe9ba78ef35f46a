//! Runs wrk and reads what it prints. Its script makes all requests beforehand, so that choosing one is an index.

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use weir_envoy::binaries;

/// What one run of wrk saw.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Run {
    pub requests: u64,
    /// Answers that were neither 2xx nor 3xx.
    pub refused: u64,
    pub per_second: f64,
    pub p50_us: f64,
    pub p99_us: f64,
}

/// wrk with one thread, against one Envoy.
pub struct Wrk {
    program: PathBuf,
    script: PathBuf,
    connections: u32,
}

impl Wrk {
    /// Writes the script for so many identifiers into `folder`.
    pub fn new(folder: &Path, identifiers: u64, connections: u32) -> Result<Self> {
        let program = binaries::from_environment("WEIR_WRK")?;
        let script = folder.join("requests.lua");
        std::fs::write(&script, lua(identifiers)?)?;
        Ok(Self { program, script, connections })
    }

    pub fn run(&self, target: SocketAddr, seconds: u32) -> Result<Run> {
        let output = Command::new(&self.program)
            .args(["-t1", "--latency", &format!("-c{}", self.connections), &format!("-d{seconds}s"), "-s"])
            .arg(&self.script)
            .arg(format!("http://{target}/"))
            .output()
            .context("running wrk")?;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "wrk failed: {text}{}", String::from_utf8_lossy(&output.stderr));
        parse(&text).with_context(|| format!("reading wrk's output:\n{text}"))
    }
}

fn lua(identifiers: u64) -> Result<String> {
    let mut script = String::new();
    writeln!(script, "local requests, count, next = {{}}, {identifiers}, 0")?;
    script.push_str(
        r#"function init(args)
  for i = 1, count do
    requests[i] = wrk.format("GET", "/", { ["x-api-key"] = string.format("key-%07d", i) })
  end
end
function request()
  next = next % count + 1
  return requests[next]
end
"#,
    );
    Ok(script)
}

fn parse(text: &str) -> Result<Run> {
    let field = |start: &str| text.lines().find_map(|line| line.trim().strip_prefix(start)).map(str::trim);
    let total = text.lines().find_map(|line| line.trim().split_once(" requests in ")).context("no total")?;
    let refused = field("Non-2xx or 3xx responses:").map_or(Ok(0), str::parse)?;
    ensure!(field("Socket errors:").is_none(), "socket errors");
    Ok(Run {
        requests: total.0.parse()?,
        refused,
        per_second: field("Requests/sec:").context("no rate")?.parse()?,
        p50_us: microseconds(field("50%").context("no median")?)?,
        p99_us: microseconds(field("99%").context("no p99")?)?,
    })
}

fn microseconds(text: &str) -> Result<f64> {
    for (unit, factor) in [("us", 1.0), ("ms", 1e3), ("s", 1e6)] {
        if let Some(number) = text.strip_suffix(unit) {
            return Ok(number.parse::<f64>()? * factor);
        }
    }
    anyhow::bail!("no unit in {text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrks_output_is_read() {
        let text = "Running 1s test @ http://127.0.0.1:1/\n  1 threads and 32 connections\n  Thread Stats   Avg\n  \
            Latency Distribution\n     50%  703.00us\n     75%    1.00ms\n     90%    1.30ms\n     99%    2.24ms\n  \
            39104 requests in 1.10s, 5.48MB read\n  Non-2xx or 3xx responses: 12\nRequests/sec:  35570.61\n";
        let expected =
            Run { requests: 39104, refused: 12, per_second: 35570.61, p50_us: 703.0, p99_us: 2240.0 };
        assert_eq!(parse(text).unwrap(), expected);
        assert!(parse("").is_err());
        assert!(parse(&format!("{text}  Socket errors: connect 1, read 0")).is_err());
    }
}

//! The state of the rate-limit service's limits: where they come from, and whether the last change could be used.

use serde::{Deserialize, Serialize};

/// The state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitsStatus {
    /// Where they come from: `files`, `xds` or `none`.
    pub source: String,
    /// Number of domains in force; absent before the first configuration of an xDS server.
    pub domains: Option<u64>,
    /// The version that the xDS server gave them.
    pub version: Option<String>,
    /// Whether there is a connection to the xDS server; absent for files.
    pub connected: Option<bool>,
    /// Why limits of the configuration in force cannot be served, if there are such; one reason a line.
    pub unserved: Option<String>,
    /// Why the last change is not in force, if it is not.
    pub error: Option<String>,
    /// Why there was no stream to the xDS server last.
    pub stream_error: Option<String>,
}

impl LimitsStatus {
    /// The state at the start, with the number of domains if they have been read.
    pub fn of(source: &str, domains: Option<usize>) -> LimitsStatus {
        LimitsStatus {
            source: source.to_owned(),
            domains: domains.map(|domains| domains as u64),
            connected: (source == "xds").then_some(false),
            ..LimitsStatus::default()
        }
    }

    /// A change was read: now in force with so many domains, or refused.
    pub fn read(&mut self, domains: Option<usize>, version: Option<&str>, error: Option<&str>) {
        self.error = error.map(str::to_owned);
        if let Some(domains) = domains {
            self.domains = Some(domains as u64);
            self.version = version.map(str::to_owned);
        }
    }

    /// The connection to the xDS server was made, or lost.
    pub fn connected(&mut self, connected: bool) {
        self.connected = Some(connected);
        if connected {
            self.stream_error = None;
        }
    }

    /// There is no stream to the xDS server.
    pub fn stream_failed(&mut self, reason: &str) {
        self.stream_error = Some(reason.to_owned());
    }
}

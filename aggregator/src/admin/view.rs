//! The JSON of `/v1/keys`, and of a key in lists.

use serde::{Deserialize, Serialize};
use weir_core::control::effective_limit;
use weir_core::model::time::UnixMs;
use weir_core::model::window::MAX_COUNT;

/// All counts of an identifier.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Explanation {
    /// The region of the aggregator that explains.
    pub region: String,
    /// By the region's time.
    pub now_unix_ms: u64,
    /// The workspace.
    pub workspace: String,
    /// The namespace.
    pub namespace: String,
    /// The identifier as it is counted, as text.
    pub identifier: String,
    /// The identifier as it is counted, percent-encoded.
    pub counted: String,
    /// The text that names exactly this identifier in live control; absent if no text does.
    pub named: Option<String>,
    /// Live control for all of its windows.
    pub control: Control,
    /// By length; empty if the key has no counts. A window in which nothing was used is included if live control
    /// applies to it.
    pub windows: Vec<Window>,
    /// Exact counts of the identifier: those of the namespace's rules (logs and ledgers), and logs that this aggregator decided
    /// lately for its APIs.
    pub exact: Vec<Exact>,
    /// An explanation if there are no counts.
    pub unknown: Option<String>,
}

/// A key and its usage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TopKey {
    /// `sliding_window`, `sliding_log` or `ledger`.
    pub algorithm: String,
    /// The zone of a ledger.
    pub zone: Option<u32>,
    /// The workspace; empty for a ledger whose zone is not charged by one namespace alone.
    pub workspace: String,
    /// The namespace; empty like the workspace.
    pub namespace: String,
    /// The identifier as text.
    pub identifier: String,
    /// The identifier percent-encoded, for `/v1/keys?counted=…`.
    pub counted: String,
    /// The window in milliseconds.
    pub duration_ms: u64,
    /// The epoch, which resets raise.
    pub epoch: u32,
    /// Cells in a window.
    pub resolution: u16,
    /// What counts against the limit now.
    pub used: u64,
    /// The limit of live control, or else the lowest limit applied in the newest cell.
    pub limit: u64,
    /// The part of `used` that other regions used.
    pub global_others: u64,
    /// Use per second since the previous scan; absent if unknown.
    pub per_second: Option<f64>,
    /// Milliseconds until a cost of 1 passes, if nothing more is used: 0 if it passes now, absent if it never does.
    pub wait_ms: Option<u64>,
    /// The outcome of a request now if no rule were in shadow mode; only if it would be denied then.
    pub but_for_shadow: Option<ShadowDenial>,
    /// Requests on a log or a ledger that this aggregator denied lately. Absent for windows, which Envoys decide.
    pub denied: Option<u64>,
    /// Milliseconds since the use was read: a ledger is shown as of its last decision.
    pub age_ms: u64,
}

impl TopKey {
    /// The same key if all its rules are in shadow mode: a request passes.
    pub fn in_shadow(self) -> TopKey {
        let denial = ShadowDenial { wait_ms: self.wait_ms };
        match self.wait_ms {
            Some(0) => self,
            _ => TopKey { wait_ms: Some(0), but_for_shadow: Some(denial), ..self },
        }
    }
}

/// The use of a log or a ledger, read from its store.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Exact {
    /// The name of the rule; empty if none is reported by a filter.
    pub name: String,
    /// `sliding_log` or `ledger`.
    pub algorithm: String,
    /// The zone of a ledger.
    pub zone: Option<u32>,
    /// Whether the rule is in shadow mode: it never denies.
    pub shadow: bool,
    /// The length of the window in milliseconds; 0 if it is not known.
    pub window_ms: u64,
    /// What counts against the limit now; absent if it could not be read.
    pub used: Option<u64>,
    /// The limit of live control or of the rule; the rate of a ledger's zone.
    pub limit: Option<u64>,
    /// What is left of the limit.
    pub remaining: Option<u64>,
    /// Whether a cost of 1 would pass now; absent if it is not known.
    pub passes: Option<bool>,
    /// Milliseconds until a cost of 1 would pass if nothing more is used; absent if it never does.
    pub wait_ms: Option<u64>,
    /// The outcome without shadow mode, if the rule is in shadow mode and would deny.
    pub but_for_shadow: Option<ShadowDenial>,
    /// Requests that this aggregator denied lately; Envoys deny more by themselves.
    pub denied: u64,
    /// Why the use could not be read.
    pub trouble: Option<String>,
    /// Live control for this limit.
    pub control: Control,
}

/// One window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Window {
    /// The length of the window in milliseconds.
    pub duration_ms: u64,
    /// The epoch, which resets raise.
    pub epoch: u32,
    /// Cells in a window.
    pub resolution: u16,
    /// What counts against the limit now.
    pub used: u64,
    /// The part of `used` that other regions used.
    pub global_others: u64,
    /// What the Envoys and the API that are connected here have reserved for work whose cost is not known yet. It is no part of `used`.
    pub reserved: u64,
    /// Who has reserved it, highest first; the first 100.
    pub reservations: Vec<Reservation>,
    /// The limit of live control, or else the lowest limit applied in the newest cell; absent if none is known.
    pub limit: Option<u64>,
    /// What is left of the limit.
    pub remaining: Option<u64>,
    /// Whether a cost of 1 would pass now, by the counts of this aggregator; absent without a limit.
    pub passes: Option<bool>,
    /// Milliseconds until a cost of 1 would pass if nothing more is used; absent if it never does.
    pub wait_ms: Option<u64>,
    /// A reset has ended this epoch, so the counts no longer apply.
    pub outdated: bool,
    /// The outcome without shadow mode, if all rules that count here are in shadow mode and would deny. `passes` and
    /// `wait_ms` are the actual outcome.
    pub but_for_shadow: Option<ShadowDenial>,
    /// Live control for this window.
    pub control: Control,
    /// Rules that count here, as reported by filters.
    pub rules: Vec<Rule>,
    /// By sequence.
    pub cells: Vec<Cell>,
}

/// What a node has reserved of a key.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reservation {
    /// The node.
    pub node: String,
    /// What it has reserved.
    pub amount: u64,
    /// Milliseconds since that changed.
    pub age_ms: u64,
}

/// A denial that shadow mode prevents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ShadowDenial {
    /// Milliseconds until a cost of 1 would pass; absent if it never does.
    pub wait_ms: Option<u64>,
}

/// A rule that counts these keys.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rule {
    /// The name of the rule.
    pub name: String,
    /// Its limit before overrides.
    pub limit: u64,
    /// Whether the rule is in shadow mode: it never denies.
    pub shadow: bool,
}

/// One cell of a window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cell {
    /// The number of the cell.
    pub sequence: u64,
    /// The begin of the cell.
    pub start_unix_ms: u64,
    /// The end of the cell.
    pub end_unix_ms: u64,
    /// Whether it is the current cell.
    pub current: bool,
    /// The lowest limit applied in the cell.
    pub limit: Option<u64>,
    /// What this region used.
    pub regional_total: u64,
    /// What the other regions used.
    pub global_others: u64,
    /// The components of the other regions.
    pub regions: Vec<OtherPart>,
    /// The components of Envoys, highest first; the first 100.
    pub components: Vec<Part>,
    /// Number of components.
    pub components_all: u64,
}

/// An Envoy's component of a cell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Part {
    /// The node (process) that counted; `baseline` for use that no node accounts for.
    pub node: String,
    /// Whether the node is connected to this aggregator.
    pub here: bool,
    /// Its count.
    pub own: u64,
    /// Milliseconds since its count last grew.
    pub age_ms: u64,
}

/// Another region's component of a cell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OtherPart {
    /// The name of the region.
    pub region: String,
    /// Its count, as far as it has published it.
    pub count: u64,
    /// Milliseconds since this aggregator received the count.
    pub age_ms: u64,
}

/// Live control in force now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Control {
    /// Whether the key is denied, whatever it has used.
    pub banned: bool,
    /// When the ban ends; absent if it does not expire.
    pub banned_until_unix_ms: Option<u64>,
    /// Whether the key is exempt: neither decided nor counted.
    pub exempt: bool,
    /// The limit that replaces the rule's.
    pub limit: Option<u64>,
    /// The credit, which is added to the limit.
    pub credit: u64,
    /// The epoch since the last reset; 0 if there was none.
    pub epoch: u32,
    /// The entries that apply, as in `/v1/overrides`, where a key is explained. A ban that this aggregator's own APIs
    /// imposed has no entry.
    pub entries: Vec<Entry>,
}

/// The identity of an entry of live control.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Entry {
    /// `ban`, `exempt`, `limit`, `credit` or `reset`.
    pub kind: String,
    /// Its namespace; `*` for all.
    pub namespace: String,
    /// Its identifier or pattern.
    pub identifier: Option<String>,
    /// Its network.
    pub network: Option<String>,
    /// Its window, if it applies to one window.
    pub window_ms: Option<u64>,
    /// The revision of the change that made it.
    pub revision: u64,
    /// Who made it; absent if the database did not answer.
    pub author: Option<String>,
    /// Why; empty if no reason was given.
    pub reason: Option<String>,
}

impl Control {
    /// Milliseconds until a request passes that would after `unless`: at once if the key is exempt, not before a ban ends, and `None` if
    /// the ban does not end.
    pub fn wait_ms(&self, unless: Option<u64>, now: UnixMs) -> Option<u64> {
        match (self.banned, self.exempt) {
            (true, _) => {
                let ends_ms = self.banned_until_unix_ms.map(|until| until.saturating_sub(now.0));
                ends_ms.map(|ends_ms| ends_ms.max(unless.unwrap_or(0)))
            }
            (false, true) => Some(0),
            (false, false) => unless,
        }
    }

    /// The limit that results from live control, if it is known. `rules` are the limits of the rules that count the
    /// key; `applied` is the limit applied last.
    pub fn limit_over(&self, rules: &[u64], applied: Option<u64>) -> Option<u64> {
        let limit = match (self.limit, rules) {
            (Some(limit), _) => limit,
            // A limit other than the rule's is that of the rule's own override, or includes the credit.
            (None, [rule]) if applied.is_none_or(|applied| applied == *rule) => *rule,
            (None, _) => return None,
        };
        let is_controlled = self.limit.is_some() || self.credit > 0;
        is_controlled.then(|| effective_limit(limit, self.limit, self.credit, MAX_COUNT))
    }

    /// A description, one sentence for each part; `time` formats durations.
    pub fn sentences(&self, now_unix_ms: u64, time: impl Fn(u64) -> String) -> Vec<String> {
        let mut sentences = Vec::new();
        let by = |kind: &str| self.entries.iter().find(|entry| entry.kind == kind).map(Entry::named);
        let mut add = |what: String, kind: &str| sentences.push(what + &by(kind).unwrap_or_default());
        match self.banned_until_unix_ms {
            Some(until) => {
                add(format!("banned for another {}", time(until.saturating_sub(now_unix_ms))), "ban");
            }
            None if self.banned => add("banned permanently".to_owned(), "ban"),
            None => {}
        }
        if self.exempt {
            add("exempt: neither decided nor counted".to_owned(), "exempt");
        }
        if let Some(limit) = self.limit {
            add(format!("a limit of {limit} instead of the rule's"), "limit");
        }
        if self.credit > 0 {
            add(format!("a credit of {} beyond the limit", self.credit), "credit");
        }
        if self.epoch > 0 {
            add(format!("reset; counted in epoch {}", self.epoch), "reset");
        }
        sentences
    }
}

impl Entry {
    /// Identifies the entry, as in `overrides list` and `overrides audit`.
    fn named(&self) -> String {
        let plain = |text: &str| crate::telemetry::text::identifier(text.as_bytes());
        let target = match (&self.identifier, &self.network) {
            (Some(identifier), _) => format!("identifier {}", plain(identifier)),
            (None, Some(network)) => format!("network {network}"),
            (None, None) => String::new(),
        };
        let by = self.author.as_deref().map(|author| format!(", by {}", plain(author))).unwrap_or_default();
        let why = self.reason.as_deref().filter(|reason| !reason.is_empty());
        let why = why.map(|reason| format!(": {}", plain(reason))).unwrap_or_default();
        format!(" ({target}, namespace {}, revision {}{by}{why})", self.namespace, self.revision)
    }
}

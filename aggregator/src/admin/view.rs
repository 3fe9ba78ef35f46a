//! What `/v1/explain` and `/v1/keys` return, as JSON.

use crate::region::status::counters;
use serde::{Deserialize, Serialize};
use weir_core::control::credited;
use weir_core::model::key::KeyParts;
use weir_core::model::window::MAX_COUNT;

/// All that is known of an identifier.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Explanation {
    /// The region that explains.
    pub region: String,
    /// By the aggregator's clock.
    pub now_unix_ms: u64,
    /// Whose limits.
    pub workspace: String,
    /// Which family of limits.
    pub namespace: String,
    /// In the form in which it is counted, as far as that is text.
    pub identifier: String,
    /// The same percent-encoded.
    pub counted: String,
    /// What live control says of it, but for what it says of some windows alone.
    pub control: Control,
    /// By length; none if nothing is known of the key. What it has used nothing of is here where live control says something
    /// of it.
    pub windows: Vec<Window>,
    /// Rules of this namespace that are held exactly: what is used of their keys is not known here.
    pub exact: Vec<Exact>,
    /// What to tell where nothing is known.
    pub unknown: Option<String>,
}

/// A rule whose counts are not held here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Exact {
    /// Its name.
    pub name: String,
    /// `log` or `ledger`.
    pub algorithm: String,
    /// It never denies.
    pub shadow: bool,
}

/// One window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Window {
    /// Its length.
    pub duration_ms: u64,
    /// Raised by resets.
    pub epoch: u32,
    /// Cells per window.
    pub resolution: u16,
    /// What counts against the limit now.
    pub used: u64,
    /// What of that other regions used.
    pub global_others: u64,
    /// The limit that live control says, else the lowest that was applied in the newest cell; absent if none is known.
    pub limit: Option<u64>,
    /// What is left of it.
    pub remaining: Option<u64>,
    /// Whether a cost of 1 would pass now, as far as this aggregator knows; absent without a limit.
    pub passes: Option<bool>,
    /// Until it would, if nothing more is used; absent if it never does.
    pub wait_ms: Option<u64>,
    /// A reset has ended its epoch: it is counted elsewhere.
    pub outdated: bool,
    /// What would be if the rules that count here were not in shadow, where all of them are and would deny: `passes` and
    /// `wait_ms` are what is.
    pub but_for_shadow: Option<Judged>,
    /// What live control says of this window.
    pub control: Control,
    /// Rules that count here, as far as filters have told of them.
    pub rules: Vec<Rule>,
    /// By sequence.
    pub cells: Vec<Cell>,
    /// What each region has written of these cells, this one too. Regions write of keys past half their limits, every ten
    /// seconds.
    pub regions: Vec<Region>,
    /// Why that is not known.
    pub regions_unknown: Option<String>,
}

/// What would happen to a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Judged {
    /// Whether a cost of 1 would pass.
    pub passes: bool,
    /// Until it would; absent if it never does.
    pub wait_ms: Option<u64>,
}

/// A rule whose keys these are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rule {
    /// Its name.
    pub name: String,
    /// Its limit before overrides.
    pub limit: u64,
    /// It never denies.
    pub shadow: bool,
}

/// One cell of a window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cell {
    /// Which one.
    pub sequence: u64,
    /// When it began.
    pub start_unix_ms: u64,
    /// When it ends.
    pub end_unix_ms: u64,
    /// It is the one that is now.
    pub current: bool,
    /// The lowest limit applied in it.
    pub limit: Option<u64>,
    /// What this region used.
    pub regional_total: u64,
    /// What the others used.
    pub global_others: u64,
    /// Since that last grew; absent if it never did.
    pub global_others_age_ms: Option<u64>,
    /// Envoys that used some, the most first; the first 100.
    pub components: Vec<Part>,
    /// How many there are.
    pub components_all: u64,
}

/// An Envoy's share of a cell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Part {
    /// Its process; `baseline` for what nobody knows the origin of.
    pub origin: String,
    /// It is connected to this aggregator.
    pub here: bool,
    /// How much it used.
    pub own: u64,
    /// Since that last grew.
    pub age_ms: u64,
}

/// A region's share of a cell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Region {
    /// Its name.
    pub region: String,
    /// It is this one.
    pub own: bool,
    /// Which cell.
    pub sequence: u64,
    /// How much it used.
    pub count: u64,
    /// Since it wrote that, by its clock and ours.
    pub age_ms: u64,
}

/// What is in force now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Control {
    /// It is denied, whatever it has used.
    pub banned: bool,
    /// Until then; absent for ever.
    pub banned_until_unix_ms: Option<u64>,
    /// It is neither decided nor counted.
    pub exempt: bool,
    /// Its limit instead of the rule's.
    pub limit: Option<u64>,
    /// So much more than the limit.
    pub credit: u64,
    /// Where it is counted since its last reset; 0 if there was none.
    pub epoch: u32,
    /// The entries that say so, as `/v1/overrides` has them, where a key is explained; none for a ban that this program's own APIs made.
    pub entries: Vec<Entry>,
}

/// An entry of live control: by what it is found among all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Entry {
    /// `ban`, `exempt`, `limit`, `credit` or `reset`.
    pub kind: String,
    /// The namespace that it names; `*` for all.
    pub namespace: String,
    /// The identifier or pattern that it names.
    pub identifier: Option<String>,
    /// The network that it names.
    pub network: Option<String>,
    /// The window that it is for, if it is for one.
    pub window_ms: Option<u64>,
    /// Which change made it.
    pub revision: u64,
}

impl Control {
    /// The limit that follows from what is said, if it is known; `rules` are the limits of the rules that count the key, of
    /// which `applied` was the last.
    pub fn limit_over(&self, rules: &[u64], applied: Option<u64>) -> Option<u64> {
        let limit = match (self.limit, rules) {
            (Some(limit), _) => limit,
            // Another limit than the rule's is that of the rule's own override, or has the credit in it.
            (None, [rule]) if applied.is_none_or(|applied| applied == *rule) => *rule,
            (None, _) => return None,
        };
        let is_said = self.limit.is_some() || self.credit > 0;
        is_said.then(|| credited(limit, self.credit).min(MAX_COUNT))
    }

    /// What to tell of it, a sentence each; times by the caller's own words.
    pub fn sentences(&self, now_unix_ms: u64, time: impl Fn(u64) -> String) -> Vec<String> {
        let mut sentences = Vec::new();
        let by = |kind: &str| self.entries.iter().find(|entry| entry.kind == kind).map(Entry::named);
        let mut say = |what: String, kind: &str| sentences.push(what + &by(kind).unwrap_or_default());
        match self.banned_until_unix_ms {
            Some(until) => {
                say(format!("banned for {} more", time(until.saturating_sub(now_unix_ms))), "ban");
            }
            None if self.banned => say("banned, for ever".to_owned(), "ban"),
            None => {}
        }
        if self.exempt {
            say("exempt: neither decided nor counted".to_owned(), "exempt");
        }
        if let Some(limit) = self.limit {
            say(format!("a limit of {limit} instead of the rule's"), "limit");
        }
        if self.credit > 0 {
            say(format!("a credit of {} beyond the limit", self.credit), "credit");
        }
        if self.epoch > 0 {
            say(format!("reset; counted in epoch {}", self.epoch), "reset");
        }
        sentences
    }
}

impl Entry {
    /// By what it is found in `overrides list` and `overrides audit`, which tell who said it and why.
    fn named(&self) -> String {
        let whom = match (&self.identifier, &self.network) {
            (Some(identifier), _) => format!("identifier {}", super::text::identifier(identifier.as_bytes())),
            (None, Some(network)) => format!("network {network}"),
            (None, None) => String::new(),
        };
        format!(" ({whom}, namespace {}, revision {})", self.namespace, self.revision)
    }
}

/// Whether a rule counts a key.
pub fn counts(rule: &counters::Rule, key: &KeyParts<'_>) -> bool {
    rule.algorithm == "sliding_window"
        && rule.window_ms == key.duration_ms
        && rule.workspace.as_bytes() == key.workspace
        && rule.namespace.as_bytes() == key.namespace
}

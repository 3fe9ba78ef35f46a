//! The status that operators see: what rules decide, which Envoys are connected, the status of the region's other
//! aggregators, and the keys nearest to their limits.
//!
//! In reading order: [`counters`] (rates from the filters' counters), [`streams`] (connected Envoys), [`peers`] (the other
//! aggregators), [`limits`] (the rate-limit service's limits), [`top`] (a scan of all keys, at most once a second, shared by all
//! viewers).
//!
//! Requests wait for none of this, and its cost does not depend on the number of viewers.

pub mod counters;
pub mod limits;
pub mod peers;
pub mod streams;
pub mod top;

use counters::{Counters, Rule};
use limits::LimitsStatus;
use parking_lot::Mutex;
use peers::{FRESH_MS, Peers};
use std::collections::HashSet;
use streams::Streams;
use top::Scans;

/// All of it.
#[derive(Default)]
pub struct Status {
    /// What rules decide.
    pub counters: Mutex<Counters>,
    /// The connected streams.
    pub streams: Streams,
    /// The region's other aggregators.
    pub peers: Peers,
    /// The rate-limit service's limits.
    pub limits: Mutex<LimitsStatus>,
    /// The keys nearest to their limits.
    pub scan: Scans,
}

impl Status {
    /// The properties of all rules that the region's filters report, without their decisions: those of this aggregator's filters, then
    /// those that only others have.
    pub fn rules_of_region(&self) -> Vec<Rule> {
        let mut rules: Vec<Rule> = self.counters.lock().facts().collect();
        let peers = self.peers.all();
        let elsewhere: Vec<Rule> = {
            let name = |rule: &'_ Rule| (rule.workspace.clone(), rule.name.clone());
            let mut known: HashSet<(String, String)> = rules.iter().map(name).collect();
            let fresh = peers.iter().filter(|peer| peer.age_ms() <= FRESH_MS);
            let reported = fresh.flat_map(|peer| &peer.status.rules);
            reported.filter(|rule| known.insert(name(rule))).map(Rule::facts).collect()
        };
        rules.extend(elsewhere);
        rules
    }
}

//! What live control says of a key that is shown. A ban is no use of a limit, and a limit that is said applies to what comes,
//! not to what was counted; so without it an explanation would be wrong.
//!
//! Leaves to others: what is in force (`weir_core::control`), counts (`explain`). Networks are not looked at, as a key has no address.

use super::explain::{Window, counts};
use super::query::KeyQuery;
use super::text::text;
use crate::shared::Shared;
use crate::window::tallies::Rule;
use serde::{Deserialize, Serialize};
use weir_core::control::{Banned, Scratch, Subject};
use weir_core::key::KeyParts;
use weir_core::region::Explained;
use weir_core::region::top::{Ranked, Standing};
use weir_core::time::UnixMs;
use weir_core::window::MAX_COUNT;

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
}

/// What is said of an identifier: in windows of this length, or in all of them if that is 0.
pub fn said(shared: &Shared, asked: &KeyQuery, canonical: &[u8], window_ms: u64, now: UnixMs) -> Control {
    find(shared, (&asked.workspace, &asked.namespace), (&asked.identifier, canonical), window_ms, now)
}

/// The same of a key whose identifier is known as it is counted alone.
fn said_of(shared: &Shared, key: &KeyParts<'_>, now: UnixMs) -> Control {
    find(shared, (key.workspace, key.namespace), (key.identifier, key.identifier), key.duration_ms, now)
}

fn find(
    shared: &Shared,
    (workspace, namespace): (&[u8], &[u8]),
    (raw, canonical): (&[u8], &[u8]),
    window_ms: u64,
    now: UnixMs,
) -> Control {
    let (workspace, namespace) = (&*text(workspace), &*text(namespace));
    let subject = Subject { workspace, namespace, raw, canonical, window_ms, address: None, allowed: None };
    let found = shared.control.set().find(&subject, now, &mut Scratch::default());
    Control {
        banned: found.ban.is_some(),
        banned_until_unix_ms: match found.ban {
            Some(Banned::Until(at)) => Some(at.0),
            Some(Banned::ForEver) | None => None,
        },
        exempt: found.exempt,
        limit: found.limit,
        credit: found.credit,
        epoch: found.epoch,
    }
}

/// How keys stand under the limits that apply to them now.
pub struct Limits<'a> {
    shared: &'a Shared,
    rules: Vec<Rule>,
    now: UnixMs,
}

impl<'a> Limits<'a> {
    /// At this moment.
    pub fn new(shared: &'a Shared, now: UnixMs) -> Limits<'a> {
        Limits { shared, rules: shared.window.tallies.lock().rules(shared.moment().mono), now }
    }

    /// All rules that this aggregator's filters told of.
    pub fn all_rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Rules that count a key.
    pub fn rules(&self, key: &KeyParts<'_>) -> impl Iterator<Item = &Rule> {
        self.rules.iter().filter(move |rule| counts(rule, key))
    }

    /// How a key stands of which this is said.
    pub fn explained(&self, key: &Explained, said: &Control) -> Standing {
        let standing = key.standing(self.now);
        match self.changed(&key.key.parts(), said, standing.limit) {
            None => standing,
            changed => key.standing_under(changed, self.now),
        }
    }

    /// How a key stands that a walk has found.
    pub fn ranked(&self, found: &Ranked) -> Standing {
        let key = found.key.parts();
        let said = said_of(self.shared, &key, self.now);
        let Some(changed) = self.changed(&key, &said, found.standing.limit) else { return found.standing };
        let known = self.shared.explain(key.workspace, key.namespace, key.identifier);
        let known = known.iter().find(|known| known.key == found.key);
        known.map_or(found.standing, |known| known.standing_under(Some(changed), self.now))
    }

    /// The limit that applies from now on, if that is another than the one that was applied last.
    fn changed(&self, key: &KeyParts<'_>, said: &Control, applied: Option<u64>) -> Option<u64> {
        let rules: Vec<u64> = self.rules(key).map(|rule| rule.limit).collect();
        said.limit_over(&rules, applied).filter(|limit| Some(*limit) != applied)
    }
}

/// Corrects what would happen to a request by what is said of it.
pub fn judge(window: &mut Window, control: Control, now: UnixMs) {
    window.outdated = window.epoch != control.epoch;
    if window.outdated {
        (window.passes, window.wait_ms, window.remaining) = (None, None, None);
    } else if control.banned {
        let wait_ms = control.banned_until_unix_ms.map(|until| until.saturating_sub(now.0));
        (window.passes, window.wait_ms) =
            (Some(false), wait_ms.max(window.wait_ms.filter(|_| wait_ms.is_some())));
    } else if control.exempt {
        (window.passes, window.wait_ms) = (Some(true), Some(0));
    }
    window.control = control;
}

impl Control {
    /// The limit that follows from what is said, if it is known; `rules` are the limits of the rules that count the key, of
    /// which `applied` was the last.
    fn limit_over(&self, rules: &[u64], applied: Option<u64>) -> Option<u64> {
        let limit = match (self.limit, rules) {
            (Some(limit), _) => limit,
            // Another limit than the rule's is that of the rule's own override, or has the credit in it.
            (None, [rule]) if applied.is_none_or(|applied| applied == *rule) => *rule,
            (None, _) => return None,
        };
        let is_said = self.limit.is_some() || self.credit > 0;
        is_said.then(|| limit.saturating_add(self.credit).min(MAX_COUNT))
    }

    /// What to tell of it, a sentence each; times by the caller's own words.
    pub fn sentences(&self, now_unix_ms: u64, time: impl Fn(u64) -> String) -> Vec<String> {
        let mut sentences = Vec::new();
        match self.banned_until_unix_ms {
            Some(until) => {
                sentences.push(format!("banned for {} more", time(until.saturating_sub(now_unix_ms))))
            }
            None if self.banned => sentences.push("banned, for ever".to_owned()),
            None => {}
        }
        if self.exempt {
            sentences.push("exempt: neither decided nor counted".to_owned());
        }
        sentences.extend(self.limit.map(|limit| format!("a limit of {limit} instead of the rule's")));
        if self.credit > 0 {
            sentences.push(format!("a credit of {} beyond the limit", self.credit));
        }
        if self.epoch > 0 {
            sentences.push(format!("reset; counted in epoch {}", self.epoch));
        }
        sentences
    }
}

//! Proposed bans that wait in an aggregator until the database has them.
//!
//! Each becomes a live control, so that it holds in every region. The later end wins, and a ban by an operator is never
//! replaced. A flood of bans is bounded: in the number that wait, of which each workspace and namespace has a share, in
//! the number stored in a second, and in the number in force
//! ([`MAX_AUTOMATIC`](crate::control::change::MAX_AUTOMATIC), which workspaces share). Bans beyond these bounds hold
//! only in the Envoy that made them. Without a database all bans do.

use crate::control::change::{Change, Wish};
use crate::control::{ALL_NAMESPACES, Control, Effect, MAX_PATTERN_BYTES, Selector, Target};
use crate::model::key::{MAX_TEXT_BYTES, Namespace};
use crate::model::named::NamedMap;
use crate::model::time::UnixMs;
use crate::model::wire::Ban;
use crate::rules::MAX_BAN_MS;
use crate::rules::identifier::has_value;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// Most bans that wait to be stored.
pub const MAX_WAITING: usize = 1_024;
/// Most bans stored in one batch; with [`BETWEEN_MS`] 100 a second. A batch takes as many round trips to the database as
/// one ban.
pub const BATCH: usize = 25;
/// Least time between two batches, in which operators' changes can be stored.
pub const BETWEEN_MS: u64 = 250;
/// Timeout for storing a batch.
pub const WITHIN_MS: u64 = 5_000;
/// Longest ban: the longest that a rule can state, and a minute for a clock that is ahead.
const LONGEST_MS: u64 = MAX_BAN_MS + 60_000;

/// Proposed bans that are not stored yet, by the pattern of their identifiers. Workspaces and namespaces come in turn.
#[derive(Debug, Default)]
pub struct BanQueue {
    waiting: NamedMap<String, Proposal>,
}

/// Of two for one identifier, the one with the later end is the higher.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Proposal {
    until: UnixMs,
    since: UnixMs,
    level: u32,
    rule: String,
}

impl BanQueue {
    /// Queues the bans that a filter proposes. Returns how many were refused as invalid or beyond the bound.
    pub fn propose(&mut self, bans: &[Ban], now: UnixMs) -> usize {
        bans.iter().filter(|ban| self.put(ban, now).is_none()).count()
    }

    /// Takes the changes of the next batch.
    pub fn take(&mut self) -> Vec<Change> {
        let next = self.waiting.take_in_turn(BATCH).into_iter();
        next.map(|(of, pattern, proposal)| proposal.change(target(of, pattern))).collect()
    }

    /// Adds a proposal, or lets the later end win. `None` if it is invalid, or there is no place for it.
    fn put(&mut self, ban: &Ban, now: UnixMs) -> Option<()> {
        let (pattern, proposal) = read(ban, now)?;
        let namespace = Namespace { workspace: &*ban.workspace, name: &ban.namespace };
        let is_known = self.waiting.get(namespace, &*pattern).is_some();
        if !is_known && !self.waiting.held(namespace).has_place(MAX_WAITING) {
            return None;
        }
        self.waiting.raise(namespace, &*pattern, proposal);
        Some(())
    }
}

fn target(of: Namespace<Box<str>>, pattern: String) -> Target {
    let (workspace, scope) = (of.workspace.into(), of.name.into());
    Target { workspace, scope, selector: Selector::Identifier(pattern), window_ms: None }
}

impl Proposal {
    fn change(self, target: Target) -> Change {
        let level = self.level;
        Change {
            target,
            wish: Wish::Set(Effect::Ban, Some(self.until)),
            reason: format!("too many denials (level {level})"),
            author: format!("rule {}", self.rule),
            automatic: Some(self.since),
        }
    }
}

/// Validates a ban from a filter; `None` if it is invalid.
fn read(ban: &Ban, now: UnixMs) -> Option<(String, Proposal)> {
    let printable = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
    if ban.rule.is_empty() || ban.rule.len() > MAX_TEXT_BYTES || !printable(&ban.rule) {
        return None;
    }
    // A rule counts in one namespace; only an operator may ban in all of them.
    if ban.namespace == ALL_NAMESPACES {
        return None;
    }
    // All clients whose requests lack it share it.
    if !has_value(&ban.identifier) {
        return None;
    }
    let until = UnixMs(ban.until_ms.min(now.0.saturating_add(LONGEST_MS)));
    let pattern = pattern(&ban.identifier)?;
    let of = Namespace { workspace: ban.workspace.as_str().into(), name: ban.namespace.as_str().into() };
    let control = Control {
        target: target(of, pattern.clone()),
        effect: Effect::Ban,
        expires: Some(until),
        revision: 0,
    };
    let is_sound = control.is_in_force(now) && control.check().is_ok();
    // A time of 0 or in the future is replaced by now.
    let since = UnixMs(ban.since_ms).min(now);
    let since = if since.0 == 0 { now } else { since };
    is_sound.then_some((pattern, Proposal { until, since, level: ban.level, rule: ban.rule.clone() }))
}

/// The pattern that matches only this raw identifier.
fn pattern(raw: &[u8]) -> Option<String> {
    let text = core::str::from_utf8(raw).ok()?.replace('*', r"\*");
    (1..=MAX_PATTERN_BYTES).contains(&text.len()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const NOW: UnixMs = UnixMs(1_800_000_000_000);

    fn ban(identifier: &[u8], until_ms: u64) -> Ban {
        Ban {
            workspace: "w".into(),
            namespace: "n".into(),
            identifier: identifier.to_vec(),
            until_ms,
            level: 2,
            rule: "per-key".into(),
            since_ms: NOW.0 - 5,
        }
    }

    #[test]
    fn the_later_end_wins_and_what_is_no_ban_is_refused() {
        let mut proposals = BanQueue::default();
        let later = NOW.0 + 9_000;
        let refused = proposals.propose(
            &[
                ban(b"a*b", later),
                ban(b"a*b", NOW.0 + 1),
                ban(b"", later),
                ban(b"\xff", later),
                ban(b"over", NOW.0),
                ban(br"\-|\+", later),
                Ban { rule: String::new(), ..ban(b"c", later) },
                Ban { namespace: "two words".into(), ..ban(b"c", later) },
                Ban { namespace: "*".into(), ..ban(b"c", later) },
                Ban { namespace: "~n".into(), ..ban(b"c", later) },
                Ban { workspace: "*".into(), namespace: "*".into(), ..ban(b"*", later) },
            ],
            NOW,
        );
        let changes = proposals.take();
        assert_eq!((refused, changes.len()), (9, 1));
        assert_eq!(changes[0].target.selector, Selector::Identifier(r"a\*b".into()));
        assert_eq!(changes[0].wish, Wish::Set(Effect::Ban, Some(UnixMs(later))));
        assert_eq!(changes[0].author, "rule per-key");
        proposals.propose(&[ban(b"long", u64::MAX)], NOW);
        assert_eq!(proposals.take()[0].wish, Wish::Set(Effect::Ban, Some(UnixMs(NOW.0 + LONGEST_MS))));
    }

    #[test]
    fn the_start_of_a_ban_is_stored_and_never_in_the_future() {
        let mut proposals = BanQueue::default();
        for (since_ms, expected) in [(NOW.0 - 5, NOW.0 - 5), (NOW.0 + 5, NOW.0), (0, NOW.0)] {
            proposals.propose(&[Ban { since_ms, ..ban(b"a", NOW.0 + 9) }], NOW);
            assert_eq!(proposals.take()[0].automatic, Some(UnixMs(expected)), "{since_ms}");
        }
    }

    #[test]
    fn a_flood_waits_within_bounds() {
        let mut proposals = BanQueue::default();
        let flood: Vec<Ban> =
            (0..MAX_WAITING + 7).map(|i| ban(format!("i{i}").as_bytes(), NOW.0 + 9)).collect();
        let taken = MAX_WAITING * 9 / 16;
        assert_eq!(proposals.propose(&flood, NOW), flood.len() - taken);
        assert_eq!(proposals.propose(&flood[..3], NOW), 0, "those wait already");
        assert_eq!(proposals.take().len(), BATCH);
    }

    #[test]
    fn workspaces_and_their_namespaces_have_their_turns() {
        let mut proposals = BanQueue::default();
        let of = |workspace: &str, namespace: &str, count: usize| -> Vec<Ban> {
            let one = |number| ban(format!("i{number:04}").as_bytes(), NOW.0 + 9);
            let named = |one| Ban { workspace: workspace.into(), namespace: namespace.into(), ..one };
            (0..count).map(one).map(named).collect()
        };
        assert!(proposals.propose(&of("a", "a", MAX_WAITING), NOW) > 0, "a flood in the first workspace");
        assert_eq!(proposals.propose(&of("a", "b", 20), NOW), 0);
        assert_eq!(proposals.propose(&of("z", "z", 20), NOW), 0, "there are places for others");
        let count = |changes: &[Change], workspace: &str, namespace: &str| {
            let of = |target: &Target| target.workspace == workspace && target.scope == namespace;
            changes.iter().filter(|change| of(&change.target)).count()
        };
        let first = proposals.take();
        assert_eq!(first.len(), BATCH);
        assert!((12..=13).contains(&count(&first, "z", "z")), "half is another workspace's");
        assert!((6..=7).contains(&count(&first, "a", "b")), "and of a workspace half another namespace's");
        let second = proposals.take();
        assert_eq!(count(&first, "z", "z") + count(&second, "z", "z"), 20);
        let rest: usize =
            core::iter::from_fn(|| Some(proposals.take().len()).filter(|taken| *taken > 0)).sum();
        assert_eq!(rest + 2 * BATCH, MAX_WAITING * 9 / 16 + 40);
        assert_eq!(proposals.propose(&of("a", "a", 1), NOW), 0);
        assert_eq!(proposals.take().len(), 1);
    }
}

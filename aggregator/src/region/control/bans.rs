//! Bans that rules propose: so many denials in so long, as a filter counted them.
//!
//! Each becomes a live control, so that it holds in every region: the later end wins, and what a person said is never
//! replaced. A flood of them is bounded: so many wait, so many a second are stored, and so many are in force at a time
//! ([`MAX_AUTOMATIC`](crate::database::MAX_AUTOMATIC), of one workspace half of that); those beyond hold in the Envoy that made them. Without a database all
//! of them do.
//!
//! Leaves to others: when a rule bans (`filter`), storing (`database`).

use super::Live;
use crate::database::{Change, Changed, Wish};
use crate::region::global::Global;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::sleep;
use tracing::debug;
use weir_core::control::{ALL_NAMESPACES, Control, Effect, MAX_PATTERN_BYTES, Target, Who};
use weir_core::model::key::MAX_DURATION_MS;
use weir_core::model::time::UnixMs;
use weir_core::model::wire::Ban;

/// Most that wait to be stored.
const MAX_WAITING: usize = 1_024;
/// Most that are stored at once; with [`BETWEEN`] 100 a second. All of them take as many round trips to the database as one.
const BATCH: usize = 25;
/// Least time between two batches, in which people's changes come in between.
const BETWEEN: Duration = Duration::from_millis(250);
/// How long storing may take.
const WITHIN: Duration = Duration::from_secs(5);
/// Longest ban: what a rule can say, and a clock that is a little ahead.
const MAX_BAN_MS: u64 = MAX_DURATION_MS + 60_000;

/// What rules proposed and is not stored yet.
#[derive(Debug, Default)]
pub struct Proposals {
    waiting: Mutex<BTreeMap<Target, Proposal>>,
    woken: Notify,
}

#[derive(Clone, Debug)]
struct Proposal {
    since: UnixMs,
    until: UnixMs,
    level: u32,
    rule: String,
}

impl Proposals {
    /// Takes what a filter proposes; how many are no bans, or too many.
    pub fn propose(&self, bans: &[Ban], now: UnixMs) -> usize {
        let mut refused = 0;
        let mut waiting = self.waiting.lock();
        for ban in bans {
            match read(ban, now) {
                Some((target, proposal)) if waiting.contains_key(&target) || waiting.len() < MAX_WAITING => {
                    let held = waiting.entry(target).or_insert_with(|| proposal.clone());
                    if held.until < proposal.until {
                        *held = proposal;
                    }
                }
                _ => refused += 1,
            }
        }
        drop(waiting);
        self.woken.notify_one();
        refused
    }

    fn take(&self) -> Vec<Change> {
        let mut waiting = self.waiting.lock();
        let mut changes = Vec::new();
        while changes.len() < BATCH
            && let Some((target, proposal)) = waiting.pop_first()
        {
            changes.push(proposal.change(target));
        }
        changes
    }
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

/// What a filter says, as far as it can be believed.
fn read(ban: &Ban, now: UnixMs) -> Option<(Target, Proposal)> {
    let printable = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
    if ban.rule.is_empty() || ban.rule.len() > weir_core::model::key::MAX_TEXT_BYTES || !printable(&ban.rule)
    {
        return None;
    }
    // A rule counts in a namespace of its own; what holds in all of them is for people to say.
    if ban.namespace == ALL_NAMESPACES {
        return None;
    }
    let until = UnixMs(ban.until_ms.min(now.0.saturating_add(MAX_BAN_MS)));
    let target = Target {
        workspace: ban.workspace.clone(),
        scope: ban.namespace.clone(),
        who: Who::Identifier(pattern(&ban.identifier)?),
        window_ms: None,
    };
    let control = Control { target, effect: Effect::Ban, expires: Some(until), revision: 0 };
    let is_sound = control.is_in_force(now) && control.check().is_ok();
    // One that was made at no moment, or later than now, is as new as can be believed.
    let since = UnixMs(ban.since_ms).min(now);
    let since = if since.0 == 0 { now } else { since };
    is_sound.then_some((control.target, Proposal { since, until, level: ban.level, rule: ban.rule.clone() }))
}

/// The pattern that this raw identifier alone meets.
fn pattern(raw: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(raw).ok()?.replace('*', r"\*");
    (1..=MAX_PATTERN_BYTES).contains(&text.len()).then_some(text)
}

/// Stores proposals for as long as the program runs.
pub async fn store(live: Arc<Live>, global: Arc<Global>) {
    loop {
        live.bans.woken.notified().await;
        loop {
            let changes = live.bans.take();
            if changes.is_empty() {
                break;
            }
            keep(&live, &global, &changes).await;
            sleep(BETWEEN).await;
        }
    }
}

async fn keep(live: &Arc<Live>, global: &Arc<Global>, changes: &[Change]) {
    match live.change(global, changes, WITHIN).await {
        Ok(changed) => {
            let full = changed.iter().filter(|changed| matches!(changed, Changed::Full(_))).count();
            if full > 0 {
                live.hub.warn(
                    &format!("{full} bans by rules hold in their Envoy alone: there are too many"),
                    None,
                );
            }
            debug!(proposed = changes.len(), "stored bans by rules");
        }
        // Their Envoy holds them, and proposes them again.
        Err(error) => live.hub.warn(&format!("bans by rules could not be stored: {error}"), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let proposals = Proposals::default();
        let later = NOW.0 + 9_000;
        let refused = proposals.propose(
            &[
                ban(b"a*b", later),
                ban(b"a*b", NOW.0 + 1),
                ban(b"", later),
                ban(b"\xff", later),
                ban(b"over", NOW.0),
                Ban { rule: String::new(), ..ban(b"c", later) },
                Ban { namespace: "two words".into(), ..ban(b"c", later) },
                Ban { namespace: "*".into(), ..ban(b"c", later) },
                Ban { workspace: "*".into(), namespace: "*".into(), ..ban(b"*", later) },
            ],
            NOW,
        );
        let changes = proposals.take();
        assert_eq!((refused, changes.len()), (7, 1));
        assert_eq!(changes[0].target.who, Who::Identifier(r"a\*b".into()));
        assert_eq!(changes[0].wish, Wish::Set(Effect::Ban, Some(UnixMs(later))));
        assert_eq!(changes[0].author, "rule per-key");
        proposals.propose(&[ban(b"long", u64::MAX)], NOW);
        assert_eq!(proposals.take()[0].wish, Wish::Set(Effect::Ban, Some(UnixMs(NOW.0 + MAX_BAN_MS))));
    }

    #[test]
    fn when_a_ban_was_made_is_told_and_never_later_than_now() {
        let proposals = Proposals::default();
        for (since_ms, expected) in [(NOW.0 - 5, NOW.0 - 5), (NOW.0 + 5, NOW.0), (0, NOW.0)] {
            proposals.propose(&[Ban { since_ms, ..ban(b"a", NOW.0 + 9) }], NOW);
            assert_eq!(proposals.take()[0].automatic, Some(UnixMs(expected)), "{since_ms}");
        }
    }

    #[test]
    fn a_flood_waits_within_bounds() {
        let proposals = Proposals::default();
        let flood: Vec<Ban> =
            (0..MAX_WAITING + 7).map(|i| ban(format!("i{i}").as_bytes(), NOW.0 + 9)).collect();
        assert_eq!(proposals.propose(&flood, NOW), 7);
        assert_eq!(proposals.propose(&flood[..3], NOW), 0, "those wait already");
        assert_eq!(proposals.take().len(), BATCH);
    }
}

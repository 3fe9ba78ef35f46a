//! The keys of logs and ledgers that this aggregator decided lately, with the last decision of each, for operators.
//!
//! The logs are in Redis or in memory, the ledgers in the database; neither can be listed cheaply. The use of a log that is
//! shown is read again; that of a ledger is as of its last decision, and of its age.

use super::stores::Stores;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use weir_core::model::exact::{Charge, ChargeResult, ExactKey, ExactRequestId, Verdict};
use weir_core::model::generations::Generations;
use weir_core::region::log::{EntryId, LogCharge, LogDecision};
use weir_core::region::top::{KeyUsage, MAX_TOP, Match};

/// Most keys of each generation.
const MAX_KEYS: usize = 8_192;
/// Least time between two readings of the logs that are shown.
const INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of one reading.
const WITHIN: Duration = Duration::from_millis(200);

/// The use of an exact key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExactUsage {
    /// The key.
    pub key: ExactKey,
    /// Its use.
    pub usage: KeyUsage,
    /// The window in milliseconds.
    pub window_ms: u64,
    /// Requests that this aggregator denied since it last began to keep this key. Envoys deny more by themselves.
    pub denied: u64,
    /// Milliseconds since its use was read.
    pub age_ms: u64,
    /// How it matches the text that is searched.
    pub matches: Match,
}

/// What rules state of a key.
#[derive(Clone, Copy, Debug, Default)]
pub struct RuleFacts<'a> {
    /// Of a bucket: the namespace of the rules that charge its zone; empty if it is not known.
    pub namespace: &'a [u8],
    /// Whether all rules that count it are in shadow mode, so that it is never denied.
    pub shadow: bool,
}

/// The exact keys nearest their limits, and numbers of those decided lately.
#[derive(Clone, Debug, Default)]
pub struct Nearest {
    /// In descending order of the used share, of a search the best matches first; at most [`MAX_TOP`]. Without a text, keys that are never
    /// denied are left out.
    pub keys: Vec<ExactUsage>,
    /// Number of keys.
    pub limited: u64,
    /// Number of keys past half a limit by which they may be denied.
    pub past_half: u64,
    /// Number of keys over a limit by which they may be denied.
    pub over: u64,
}

/// What was decided lately.
pub(super) struct Recent {
    seen: Mutex<Generations<ExactKey, Seen>>,
    nearest: tokio::sync::Mutex<Option<(Instant, Arc<Nearest>)>>,
}

/// The last decision on a key.
#[derive(Clone, Copy)]
struct Seen {
    limit: u64,
    used: u64,
    window_ms: u64,
    /// Until a cost of 1 passes; `None` for never.
    wait_ms: Option<u64>,
    denied: u64,
    at: Instant,
}

impl Default for Recent {
    fn default() -> Recent {
        Recent { seen: Mutex::new(Generations::new(MAX_KEYS)), nearest: tokio::sync::Mutex::default() }
    }
}

impl Seen {
    fn of(result: &ChargeResult, denied: u64, at: Instant) -> Option<Seen> {
        let ChargeResult { limit, remaining, reset_ms, window_ms, .. } = *result;
        let wait_ms = match result.verdict {
            // A denial of a higher cost shows nothing about a cost of 1.
            Verdict::Denied { .. } | Verdict::Allowed if remaining > 0 => Some(0),
            Verdict::Denied { .. } | Verdict::Allowed => (limit > 0).then_some(reset_ms),
            Verdict::Undecided | Verdict::Untried => return None,
        };
        let denied = denied.saturating_add(u64::from(result.is_denied()));
        Some(Seen { limit, used: limit.saturating_sub(remaining), window_ms, wait_ms, denied, at })
    }

    /// The use now, if anything may still count.
    fn shown(&self, key: &ExactKey, now: Instant) -> Option<ExactUsage> {
        let age_ms = millis(now.saturating_duration_since(self.at));
        let wait_ms = self.wait_ms.map(|wait| wait.saturating_sub(age_ms));
        let usage = usage(self.used, self.limit, wait_ms);
        let (window_ms, denied) = (self.window_ms, self.denied);
        let matches = Match::Whole;
        (age_ms < window_ms).then(|| ExactUsage {
            key: key.clone(),
            usage,
            window_ms,
            denied,
            age_ms,
            matches,
        })
    }
}

impl Recent {
    /// Notes the decisions on charges.
    pub(super) fn note(&self, charges: &[Charge], results: &[ChargeResult]) {
        let now = Instant::now();
        let mut seen = self.seen.lock();
        for (charge, result) in charges.iter().zip(results) {
            let denied = seen.get(&charge.key).map_or(0, |before| before.denied);
            if let Some(decided) = Seen::of(result, denied, now) {
                seen.insert(charge.key.clone(), decided);
            }
        }
    }

    /// The last decision on a key, if it may still count.
    pub(super) fn last(&self, key: &ExactKey) -> Option<ExactUsage> {
        self.seen.lock().get(key)?.shown(key, Instant::now())
    }

    /// The keys with this identifier, as of their last decisions.
    pub(super) fn of_identifier(&self, identifier: &[u8]) -> Vec<ExactUsage> {
        let now = Instant::now();
        let seen = self.seen.lock();
        let named = seen.iter().filter(|(key, _)| key.identifier() == identifier);
        let mut found: Vec<_> = named.filter_map(|(key, seen)| seen.shown(key, now)).collect();
        found.sort_by(|one, other| one.key.cmp(&other.key));
        found.truncate(MAX_TOP);
        found
    }

    /// The keys nearest their limits that match `text`. Without a text all viewers share one reading a second.
    pub(super) async fn nearest<'a>(
        &self,
        text: &[u8],
        stores: &Stores,
        ruled: impl Fn(&ExactKey) -> RuleFacts<'a>,
    ) -> Arc<Nearest> {
        if !text.is_empty() {
            let mut nearest = self.rank(text, ruled);
            read_again(&mut nearest, stores).await;
            return Arc::new(nearest);
        }
        let mut last = self.nearest.lock().await;
        if let Some((at, nearest)) = &*last
            && at.elapsed() < INTERVAL
        {
            return nearest.clone();
        }
        let mut nearest = self.rank(text, ruled);
        read_again(&mut nearest, stores).await;
        let nearest = Arc::new(nearest);
        *last = Some((Instant::now(), nearest.clone()));
        nearest
    }

    fn rank<'a>(&self, text: &[u8], ruled: impl Fn(&ExactKey) -> RuleFacts<'a>) -> Nearest {
        let now = Instant::now();
        let mut nearest = Nearest::default();
        for (key, seen) in self.seen.lock().iter() {
            let RuleFacts { namespace, shadow } = ruled(key);
            let namespace = key.own().map_or(namespace, |own| own.parts().namespace);
            let Some(matches) = Match::of(text, key.identifier(), namespace) else { continue };
            let Some(shown) = seen.shown(key, now) else { continue };
            let usage = shown.usage;
            nearest.limited += 1;
            nearest.past_half +=
                u64::from(!shadow && usage.limit.is_some_and(|limit| usage.used > limit / 2));
            nearest.over += u64::from(!shadow && usage.is_over());
            if !shadow || !text.is_empty() {
                nearest.keys.push(ExactUsage { matches, ..shown });
            }
        }
        sort(&mut nearest.keys);
        nearest.keys.truncate(MAX_TOP);
        nearest
    }
}

/// The best matches first, then the nearest to their limits.
fn sort(keys: &mut [ExactUsage]) {
    keys.sort_by(|one, other| {
        let order = one.matches.cmp(&other.matches).then_with(|| other.usage.cmp_share(&one.usage));
        order.then_with(|| one.key.cmp(&other.key))
    });
}

/// Reads the use of the logs among the keys. What is not answered stays as of its last decision.
async fn read_again(nearest: &mut Nearest, stores: &Stores) {
    let queries = nearest.keys.iter().filter_map(|one| query(&one.key, one.usage.limit?)).collect();
    let results = stores.read(queries, WITHIN).await;
    let of_logs = nearest.keys.iter_mut().filter(|one| one.key.own().is_some());
    for (one, result) in of_logs.zip(results) {
        if let (Ok(decided), Some(limit)) = (result, one.usage.limit) {
            (one.usage, one.age_ms) = (usage_of(&decided, limit), 0);
        }
    }
    nearest.keys.retain(|one| one.usage.used > 0);
    sort(&mut nearest.keys);
}

/// A query of a log, which charges nothing.
pub(super) fn query(key: &ExactKey, most: u64) -> Option<LogCharge> {
    let id = EntryId { request: ExactRequestId([0; 16]), place: 0 };
    LogCharge::of(&Charge { key: key.clone(), most, cost: 0 }, id)
}

/// The use of a log by the answer to a query.
pub(super) fn usage_of(decided: &LogDecision, limit: u64) -> KeyUsage {
    let wait_ms = match decided.used < limit {
        true => Some(0),
        false => (limit > 0).then(|| decided.reset_us.div_ceil(1_000)),
    };
    usage(decided.used, limit, wait_ms)
}

/// The use of a key that is not counted in cells.
pub(super) fn usage(used: u64, limit: u64, wait_ms: Option<u64>) -> KeyUsage {
    KeyUsage { used, global_others: 0, limit: Some(limit), wait_ms, sequence: 0, current: used }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(bucket: &[u8]) -> Charge {
        Charge { key: ExactKey::Ledger { zone: 3, bucket: bucket.into() }, most: 0, cost: 1 }
    }

    fn result(verdict: Verdict, used: u64, limit: u64) -> ChargeResult {
        let remaining = limit - used;
        ChargeResult { verdict, limit, remaining, reset_ms: 5_000, window_ms: 60_000, transaction: None }
    }

    #[tokio::test(start_paused = true)]
    async fn keys_are_ranked_by_their_last_decision_and_leave_after_their_window() {
        let (recent, stores) = (Recent::default(), Stores::new(None, None));
        let denied = Verdict::Denied { retry_after_ms: Some(5_000) };
        let note =
            |bucket: &[u8], verdict, used| recent.note(&[ledger(bucket)], &[result(verdict, used, 10)]);
        note(b"low", Verdict::Allowed, 1);
        note(b"full", Verdict::Allowed, 10);
        note(b"full", denied, 10);
        note(b"full", denied, 10);
        note(b"other", Verdict::Undecided, 0);
        let enforced = |_: &ExactKey| RuleFacts::default();
        let nearest = recent.nearest(b"", &stores, enforced).await;
        let shown: Vec<_> = nearest.keys.iter().map(|one| (one.key.identifier(), one.denied)).collect();
        assert_eq!(shown, [(b"full".as_slice(), 2), (b"low", 0)]);
        assert_eq!((nearest.limited, nearest.past_half, nearest.over), (2, 1, 1));
        assert_eq!(nearest.keys[0].usage.wait_ms, Some(5_000));
        tokio::time::advance(Duration::from_secs(2)).await;
        let found = recent.nearest(b"FUL", &stores, enforced).await;
        assert_eq!(
            (found.keys.len(), found.keys[0].age_ms, found.keys[0].usage.wait_ms),
            (1, 2_000, Some(3_000))
        );
        assert_eq!(recent.of_identifier(b"low").len(), 1);
        tokio::time::advance(Duration::from_secs(58)).await;
        assert_eq!(recent.nearest(b"", &stores, enforced).await.keys, []);
    }

    #[test]
    fn keys_in_shadow_mode_are_no_denials_and_are_found_by_their_namespace() {
        let recent = Recent::default();
        let denied = Verdict::Denied { retry_after_ms: Some(5_000) };
        for bucket in [b"one".as_slice(), b"two", b"alone"] {
            recent.note(&[ledger(bucket)], &[result(denied, 10, 10)]);
        }
        let ruled = |key: &ExactKey| RuleFacts { namespace: b"cards", shadow: key.identifier() != b"two" };
        let of = |text: &[u8]| {
            let found = recent.rank(text, ruled);
            let names: Vec<_> = found.keys.iter().map(|one| one.key.identifier().to_vec()).collect();
            (names, found.past_half, found.over, found.limited)
        };
        assert_eq!(of(b""), (vec![b"two".to_vec()], 1, 1, 3));
        assert_eq!(of(b"ONE"), (vec![b"one".to_vec(), b"alone".to_vec()], 0, 0, 2));
        assert_eq!(of(b"ard").0.len(), 3);
    }

    #[test]
    fn the_number_of_keys_is_bounded() {
        let recent = Recent::default();
        for number in 0..3 * MAX_KEYS as u64 {
            recent.note(&[ledger(&number.to_be_bytes())], &[result(Verdict::Allowed, 1, 2)]);
        }
        assert_eq!(recent.rank(b"", |_| RuleFacts::default()).limited, 2 * MAX_KEYS as u64);
    }
}

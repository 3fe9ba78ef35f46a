//! The buckets of one stream, and what is to be sent about them.
//!
//! What is to be sent is a set of buckets, not a queue of messages: a bucket whose assignment changes twice before its Envoy reads is sent once,
//! with the later one.

use super::action::{Action, abandon};
use super::bucket::{Bucket, Target};
use super::wire::QuotaResponse;
use crate::api::embedded::CountedKey;
use crate::auth::Caller;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use tokio::sync::Notify;
use weir_core::model::time::MonoMs;
use weir_core::quota::REPORT_MS;

/// Most actions of one response.
const MAX_ACTIONS: usize = 256;
/// A bucket without requests for this long is abandoned: its Envoy removes it, and what was reserved for it is free.
const IDLE_MS: u64 = 60_000;
/// Most buckets that wait to be abandoned because there was no room for them.
const MAX_ABANDONED: usize = 1_024;
/// Most refused buckets whose reports are still charged.
const MAX_REFUSED: usize = 1_024;
/// An assignment is sent again when it would expire before the next but one report.
const RENEW_MS: u64 = REPORT_MS + 2_000;

/// A bucket of a stream.
#[derive(Debug)]
pub struct Subscription {
    pub bucket: Arc<Bucket>,
    pub target: Target,
    /// The key that it counts on, and its share there; none if it has no limit.
    pub counted: Option<(Arc<CountedKey>, u64)>,
    /// When it last had requests.
    pub active: MonoMs,
    /// What its Envoy is to do; none before the first report was processed.
    action: Option<Action>,
    /// A former bucket of tokens is to be removed first.
    anew: bool,
    /// When the assignment that was sent last expires.
    valid_until: MonoMs,
}

/// All buckets of a stream.
#[derive(Debug)]
pub struct Subscriptions {
    pub domain: String,
    pub caller: Arc<Caller>,
    numbers: HashMap<Arc<Bucket>, u64>,
    all: BTreeMap<u64, Subscription>,
    next: u64,
    to_send: BTreeSet<u64>,
    abandoned: Vec<Arc<Bucket>>,
    /// Where the buckets counted that a new configuration has refused. Their Envoy may spend and report what it had.
    refused: HashMap<Arc<Bucket>, (Arc<CountedKey>, u64)>,
    /// Notified when there is something to send.
    wake: Arc<Notify>,
}

impl Subscription {
    pub fn new(bucket: Bucket, target: Target, now: MonoMs) -> Subscription {
        Subscription {
            bucket: Arc::new(bucket),
            target,
            counted: None,
            active: now,
            action: None,
            anew: false,
            valid_until: now,
        }
    }
}

impl Subscriptions {
    pub fn new(domain: String, caller: Arc<Caller>) -> Subscriptions {
        Subscriptions {
            domain,
            caller,
            numbers: HashMap::new(),
            all: BTreeMap::new(),
            next: 0,
            to_send: BTreeSet::new(),
            abandoned: Vec::new(),
            refused: HashMap::new(),
            wake: Arc::default(),
        }
    }

    /// The stream's caller as a number, by which proxies share the room of a limit.
    pub fn owner(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.caller.name.hash(&mut hasher);
        hasher.finish()
    }

    pub fn wake(&self) -> Arc<Notify> {
        self.wake.clone()
    }

    /// The number of buckets.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// The number of a bucket.
    pub fn number(&self, bucket: &Bucket) -> Option<u64> {
        self.numbers.get(bucket).copied()
    }

    /// The numbers of all buckets.
    pub fn numbers(&self) -> Vec<u64> {
        self.all.keys().copied().collect()
    }

    pub fn get(&mut self, number: u64) -> Option<&mut Subscription> {
        self.all.get_mut(&number)
    }

    /// Adds a bucket; returns its number.
    pub fn add(&mut self, subscription: Subscription) -> u64 {
        let number = self.next;
        self.next += 1;
        self.numbers.insert(subscription.bucket.clone(), number);
        self.all.insert(number, subscription);
        number
    }

    /// Removes a bucket.
    pub fn remove(&mut self, number: u64) -> Option<Subscription> {
        let removed = self.all.remove(&number)?;
        self.numbers.remove(&removed.bucket);
        self.to_send.remove(&number);
        Some(removed)
    }

    /// Notes where a bucket counted that was removed as it is refused now. Without room its reports are not charged.
    pub fn refuse(&mut self, removed: &Subscription) {
        if let Some(counted) = removed.counted.clone().filter(|_| self.refused.len() < MAX_REFUSED) {
            self.refused.insert(removed.bucket.clone(), counted);
        }
    }

    /// Where a bucket counted before it was refused.
    pub fn refused(&self, bucket: &Bucket) -> Option<(Arc<CountedKey>, u64)> {
        self.refused.get(bucket).cloned()
    }

    /// Drops those whose assignments have expired.
    pub fn retain_refused(&mut self, holds: impl Fn(&CountedKey) -> bool) {
        self.refused.retain(|_, (key, _)| holds(key));
    }

    /// Removes all buckets.
    pub fn take_all(&mut self) -> impl Iterator<Item = Subscription> + use<> {
        self.numbers.clear();
        self.to_send.clear();
        std::mem::take(&mut self.all).into_values()
    }

    /// Sends that the bucket is to be removed.
    pub fn abandon(&mut self, bucket: Arc<Bucket>) {
        if self.abandoned.len() < MAX_ABANDONED {
            self.abandoned.push(bucket);
            self.wake.notify_one();
        }
    }

    /// Removes the buckets that have been idle, and sends that they are to be removed.
    pub fn abandon_idle(&mut self, now: MonoMs) -> Vec<Subscription> {
        let is_idle =
            |(number, one): (&u64, &Subscription)| (now.since(one.active) >= IDLE_MS).then_some(*number);
        let idle: Vec<u64> = self.all.iter().filter_map(is_idle).collect();
        let idle: Vec<Subscription> = idle.into_iter().filter_map(|number| self.remove(number)).collect();
        idle.iter().for_each(|subscription| self.abandon(subscription.bucket.clone()));
        idle
    }

    /// Sends the assignments of buckets that no division decides again before they expire.
    pub fn renew_allowed(&mut self, now: MonoMs) {
        let is_undivided = |one: &Subscription| one.counted.is_none() || one.target.is_shadow();
        let allowed = self.all.iter().filter(|(_, one)| is_undivided(one)).map(|(number, _)| *number);
        for number in allowed.collect::<Vec<_>>() {
            self.assign(number, Action::Allow, false, now);
        }
    }

    /// Sets what a bucket's Envoy is to do, and sends it if that has changed or its assignment expires soon. `changed` is whether the division
    /// has allotted something; the same number of tokens may have been allotted once more.
    pub fn assign(&mut self, number: u64, action: Action, changed: bool, now: MonoMs) {
        let Some(subscription) = self.all.get_mut(&number) else { return };
        let is_same = subscription.action.is_some_and(|former| former.is_like(&action));
        if is_same && !changed && now.after(RENEW_MS) < subscription.valid_until {
            return;
        }
        if changed || !is_same {
            subscription.anew |= action.begins_anew(subscription.action.as_ref());
        }
        subscription.action = Some(action);
        self.to_send.insert(number);
        self.wake.notify_one();
    }

    /// Sends a bucket's assignment again.
    pub fn repeat(&mut self, number: u64) {
        if self.all.get(&number).is_some_and(|subscription| subscription.action.is_some()) {
            self.to_send.insert(number);
            self.wake.notify_one();
        }
    }

    /// The next response; `sent` receives the label of each assignment.
    pub fn next_response(
        &mut self,
        now: MonoMs,
        mut sent: impl FnMut(&'static str),
    ) -> Option<QuotaResponse> {
        let mut actions = Vec::new();
        let first = self.abandoned.len().min(MAX_ACTIONS - 2);
        for bucket in self.abandoned.drain(..first) {
            actions.push(abandon(&bucket));
            sent("abandon");
        }
        // An action may be written as two.
        while actions.len() + 1 < MAX_ACTIONS
            && let Some(number) = self.to_send.pop_first()
        {
            let Some(subscription) = self.all.get_mut(&number) else { continue };
            let Some(action) = subscription.action else { continue };
            let anew = std::mem::take(&mut subscription.anew);
            action.write(&subscription.bucket, anew, &mut actions);
            subscription.valid_until = now.after(action.valid_ms());
            sent(action.label());
        }
        (!actions.is_empty()).then_some(QuotaResponse { bucket_action: actions })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::rlqs::wire::{self, BucketAction, Strategy};

    fn bucket(value: &str) -> Bucket {
        let entry = ("k".to_owned(), value.as_bytes().to_vec());
        Bucket::new(Some(wire::BucketId { bucket: [entry].into() })).unwrap()
    }

    fn subscriptions(buckets: usize) -> Subscriptions {
        let mut all = Subscriptions::new("d".into(), Arc::new(Caller::without_credential(false)));
        for number in 0..buckets {
            let new = Subscription::new(bucket(&number.to_string()), Target::Unlimited, MonoMs(0));
            assert_eq!(all.add(new), number as u64);
        }
        all
    }

    /// Each action in short: `deny`, the size of a bucket of tokens, `allow`, `gone`.
    fn sent(all: &mut Subscriptions, now: u64) -> Vec<String> {
        let read = |action: &BucketAction| match &action.bucket_action {
            Some(wire::Action::AbandonAction(_)) => "gone".to_owned(),
            Some(wire::Action::QuotaAssignmentAction(assignment)) => {
                match assignment.rate_limit_strategy.unwrap().strategy {
                    Some(Strategy::BlanketRule(1)) => "deny".to_owned(),
                    Some(Strategy::TokenBucket(bucket)) => bucket.max_tokens.to_string(),
                    _ => "allow".to_owned(),
                }
            }
            None => panic!("no action"),
        };
        let response = all.next_response(MonoMs(now), |_| {});
        response.iter().flat_map(|response| &response.bucket_action).map(read).collect()
    }

    #[test]
    fn an_assignment_is_sent_when_it_changes_and_before_it_expires() {
        let mut all = subscriptions(1);
        let assign = |all: &mut Subscriptions, action, changed, now| {
            all.assign(0, action, changed, MonoMs(now));
            sent(all, now)
        };
        assert_eq!(assign(&mut all, Action::Tokens(5), true, 1_000), ["deny", "5"]);
        assert!(assign(&mut all, Action::Tokens(5), false, 2_000).is_empty());
        assert_eq!(assign(&mut all, Action::Tokens(5), true, 3_000), ["deny", "5"], "as many once more");
        assert_eq!(
            assign(&mut all, Action::Tokens(5), false, 11_000),
            ["5"],
            "before it expires; the tokens stay"
        );
        assert_eq!(assign(&mut all, Action::Deny(Some(40_000)), true, 12_000), ["deny"]);
        assert!(assign(&mut all, Action::Deny(Some(20_000)), false, 32_000).is_empty());
        assert_eq!(assign(&mut all, Action::Deny(Some(9_000)), false, 46_000), ["deny"]);
        let rate = |tokens, seconds| Action::Rate { tokens, seconds };
        assert_eq!(assign(&mut all, rate(30, 1), true, 47_000), ["30"]);
        assert_eq!(assign(&mut all, rate(10, 1), true, 48_000), ["10"]);
        assert_eq!(
            assign(&mut all, rate(10, 3), true, 49_000),
            ["deny", "4"],
            "Envoy compares only the tokens"
        );
        all.assign(0, Action::Deny(None), true, MonoMs(50_000));
        assert_eq!(assign(&mut all, Action::Tokens(7), true, 50_000), ["deny", "7"], "the last of both");
        all.repeat(0);
        assert_eq!(sent(&mut all, 51_000), ["7"]);
    }

    #[test]
    fn idle_buckets_are_abandoned() {
        let mut all = subscriptions(3);
        all.get(1).unwrap().active = MonoMs(10_000);
        assert!(all.abandon_idle(MonoMs(IDLE_MS - 1)).is_empty());
        assert_eq!(all.abandon_idle(MonoMs(IDLE_MS)).len(), 2);
        all.renew_allowed(MonoMs(IDLE_MS));
        assert_eq!(
            (sent(&mut all, IDLE_MS), all.count()),
            (vec!["gone".into(), "gone".into(), "allow".into()], 1)
        );
        assert_eq!((all.number(&bucket("0")), all.number(&bucket("1"))), (None, Some(1)));
    }

    #[test]
    fn responses_are_bounded() {
        let mut all = subscriptions(3 * MAX_ACTIONS);
        all.numbers().into_iter().for_each(|number| all.assign(number, Action::Tokens(1), true, MonoMs(1)));
        let mut sizes = Vec::new();
        while let Some(response) = all.next_response(MonoMs(1), |_| {}) {
            sizes.push(response.bucket_action.len());
        }
        assert_eq!((sizes.iter().max(), sizes.iter().sum()), (Some(&MAX_ACTIONS), 6 * MAX_ACTIONS));
        for number in 0..2 * MAX_ABANDONED {
            all.abandon(Arc::new(bucket(&number.to_string())));
        }
        assert_eq!(all.abandoned.len(), MAX_ABANDONED);
    }
}

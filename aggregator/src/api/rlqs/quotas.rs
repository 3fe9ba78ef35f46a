//! All buckets of all streams: what their Envoys report is charged, and what is left is divided among them.
//!
//! One lock holds it all. A message is processed in parts, and between two parts other streams get their turn.

use super::action::Action;
use super::bucket::{BadBucket, Bucket, Target};
use super::subscriptions::{Subscription, Subscriptions};
use super::wire::{QuotaResponse, Usage};
use crate::api::embedded::{CountedKey, EmbeddedLimiter, Failure, LimitCheck, Standing};
use crate::api::permission::forbidden;
use crate::api::rls::Current;
use crate::api::rls::config::Limits;
use crate::api::rls::naming::naming_of;
use crate::auth::Caller;
use crate::region::services::Services;
use crate::region::status::peers::FRESH_MS;
use crate::telemetry::metrics::{Api, ApiResult};
use futures_util::future::join_all;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::{MissedTickBehavior, interval};
use weir_core::model::room::most_of_part;
use weir_core::model::time::MonoMs;
use weir_core::model::window::Position;
use weir_core::quota::{Division, Report, Room, Share};

/// Most buckets of one stream; further ones are abandoned.
pub const MAX_BUCKETS_OF_STREAM: usize = 8_192;
/// Most buckets of all streams.
const MAX_BUCKETS: usize = 65_536;
/// Most requests of one report that are counted, far above what an Envoy passes in five seconds.
const MOST_REQUESTS: u64 = 1 << 40;
/// Time between two divisions.
const DIVIDE_EVERY: Duration = Duration::from_secs(1);
/// Buckets that are processed while the lock is held.
const PART: usize = 256;
/// How long the region's counts of a new bucket are waited for. Meanwhile its Envoy does without an assignment, so nothing waits for them; what
/// is assigned without them ignores what others have used.
const PATIENCE: Duration = Duration::from_secs(5);

/// All buckets of all streams.
pub struct Quotas {
    services: Arc<Services>,
    embedded: Arc<EmbeddedLimiter>,
    limits: Current,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    counted: HashMap<Arc<CountedKey>, Counted>,
    streams: HashMap<u64, Subscriptions>,
    last_stream: u64,
    last_share: u64,
    buckets: usize,
    /// The configuration by which buckets have their targets.
    limits: Arc<Limits>,
    /// Aggregators of the region with such streams, this one included.
    aggregators: u64,
}

/// The division of one key, and the buckets that count on it.
struct Counted {
    check: LimitCheck,
    division: Division,
    /// The bucket of each share.
    buckets: BTreeMap<u64, BucketPlace>,
    /// Buckets in shadow mode have no share.
    shadows: usize,
}

/// A bucket: its stream, and its number in it.
#[derive(Clone, Copy, Debug)]
struct BucketPlace {
    stream: u64,
    number: u64,
}

/// Why a bucket is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Refused {
    #[error("{0}")]
    Bad(#[from] BadBucket),
    #[error("there are too many buckets")]
    Full,
    #[error("the token {0:?} may not count in the namespace {1:?}")]
    Forbidden(String, String),
}

impl Quotas {
    /// No buckets yet. The limits are those of the rate-limit service.
    pub fn new(services: Arc<Services>, embedded: Arc<EmbeddedLimiter>, limits: Current) -> Arc<Quotas> {
        let current = limits.borrow().clone().unwrap_or_default();
        let state = Mutex::new(State { limits: current, aggregators: 1, ..State::default() });
        Arc::new(Quotas { services, embedded, limits, state })
    }

    /// The region.
    pub fn services(&self) -> &Arc<Services> {
        &self.services
    }

    /// Whether `caller` may use the limits of a domain. A domain without limits is open to every caller.
    pub fn admits(&self, caller: &Caller, domain: &str) -> bool {
        let limits = self.limits.borrow().clone().unwrap_or_default();
        limits.domain(domain).is_none_or(|domain| caller.workspace(Some(&domain.workspace)).is_some())
    }

    /// Whether there are limits; not before the first response of an xDS server.
    pub fn has_limits(&self) -> bool {
        self.limits.borrow().is_some()
    }

    /// Whether the domain is configured.
    pub fn has_domain(&self, domain: &str) -> bool {
        self.limits.borrow().as_ref().is_some_and(|limits| limits.domain(domain).is_some())
    }

    /// Adds a stream; returns its number, and what is notified when there is something to send.
    pub fn open(&self, domain: String, caller: Arc<Caller>) -> (u64, Arc<Notify>) {
        let mut state = self.state.lock();
        state.last_stream += 1;
        let (stream, subscriptions) = (state.last_stream, Subscriptions::new(domain, caller));
        let wake = subscriptions.wake();
        state.streams.insert(stream, subscriptions);
        self.services.metrics.quota.quota_streams.inc();
        (stream, wake)
    }

    /// Removes a stream, `ended` by its Envoy or lost. What a lost one may still spend stays reserved until its assignments expire, and counts as
    /// spent then.
    pub fn close(&self, stream: u64, ended: bool) {
        let now = self.services.moment().mono;
        let mut state = self.state.lock();
        let Some(mut subscriptions) = state.streams.remove(&stream) else { return };
        for subscription in subscriptions.take_all() {
            state.leave(&subscription, |division, share| match ended {
                true => division.end(share, now),
                false => division.leave(share, now),
            });
        }
        self.services.metrics.quota.quota_streams.dec();
        self.count_buckets(&state);
    }

    /// Takes the reports of a message.
    pub async fn take(&self, stream: u64, usages: Vec<Usage>) {
        let mut usages = usages.into_iter().peekable();
        while usages.peek().is_some() {
            let new = self.take_known(stream, usages.by_ref().take(PART));
            if !new.is_empty() {
                self.take_new(stream, new).await;
            }
            yield_now().await;
        }
    }

    /// The next response to a stream.
    pub fn next_response(&self, stream: u64) -> Option<QuotaResponse> {
        let now = self.services.moment().mono;
        let sent = |label| self.services.metrics.quota.assigned(label);
        self.state.lock().streams.get_mut(&stream)?.next_response(now, sent)
    }

    /// Divides all limits once a second, until the program ends.
    pub async fn run(self: Arc<Self>) {
        let mut ticks = interval(DIVIDE_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.divide_all().await;
        }
    }

    /// Takes reports of buckets that the stream has; returns the others.
    fn take_known(&self, stream: u64, usages: impl Iterator<Item = Usage>) -> Vec<(Bucket, Report)> {
        let now = self.services.moment().mono;
        let mut new = Vec::new();
        let mut state = self.state.lock();
        for usage in usages {
            let report = report(&usage);
            match Bucket::new(usage.bucket_id) {
                Err(bad) => self.refuse(&bad.into()),
                Ok(bucket) => match state.streams.get(&stream).and_then(|all| all.number(&bucket)) {
                    Some(number) => self.report(&mut state, BucketPlace { stream, number }, report, now),
                    None => new.push((bucket, report)),
                },
            }
        }
        new
    }

    /// Takes the first reports of buckets.
    async fn take_new(&self, stream: u64, new: Vec<(Bucket, Report)>) {
        let mut targets = Vec::with_capacity(new.len());
        let limits = {
            let mut state = self.state.lock();
            self.take_limits(&mut state);
            for (bucket, report) in new {
                let Some(subscriptions) = state.streams.get(&stream) else { return };
                match self.target(&state.limits, subscriptions, &bucket) {
                    Ok(target) => targets.push((bucket, report, target)),
                    Err(refused) => {
                        self.refuse(&refused);
                        self.charge_refused(&mut state, stream, &bucket, report);
                    }
                }
            }
            state.limits.clone()
        };
        // So that the region's counts of these keys arrive, and further ones are pushed.
        let read = targets.iter().filter_map(|(_, _, target)| match target {
            Target::Limited { check, .. } => Some([LimitCheck { cost: 0, ..check.clone() }]),
            Target::Unlimited => None,
        });
        let read: Vec<_> = read.collect();
        join_all(read.iter().map(|check| self.embedded.decide(check, Failure::Allow, PATIENCE))).await;
        let now = self.services.moment().mono;
        let mut state = self.state.lock();
        let mut held = state.buckets_of_caller(stream);
        for (bucket, report, target) in targets {
            let Some(subscriptions) = state.streams.get(&stream) else { return };
            let known = subscriptions.number(&bucket);
            let is_within_part = held < most_of_part(MAX_BUCKETS.saturating_sub(state.buckets));
            let has_room = subscriptions.count() < MAX_BUCKETS_OF_STREAM && is_within_part;
            held += usize::from(known.is_none() && has_room);
            let number =
                known.or_else(|| has_room.then(|| state.enter(stream, bucket.clone(), target, now))?);
            match number {
                Some(number) => self.report(&mut state, BucketPlace { stream, number }, report, now),
                None => {
                    self.refuse(&Refused::Full);
                    let subscriptions = state.streams.get_mut(&stream);
                    subscriptions.into_iter().for_each(|all| all.abandon(Arc::new(bucket.clone())));
                }
            }
        }
        if !Arc::ptr_eq(&state.limits, &limits) {
            // They have changed meanwhile.
            self.retarget(&mut state, stream, now);
        }
        self.count_buckets(&state);
    }

    /// The limit of a bucket, if its caller may count there.
    fn target(
        &self,
        limits: &Limits,
        subscriptions: &Subscriptions,
        bucket: &Bucket,
    ) -> Result<Target, Refused> {
        let target = bucket.target(limits, &subscriptions.domain)?;
        if let Target::Limited { check, .. } = &target {
            let caller = &subscriptions.caller;
            let is_admitted = caller.workspace(Some(&check.workspace)).is_some()
                && forbidden(caller, check, naming_of(&check.namespace)).is_none();
            if !is_admitted {
                let namespace = String::from_utf8_lossy(&check.namespace).into_owned();
                return Err(Refused::Forbidden(caller.name.clone(), namespace));
            }
        }
        Ok(target)
    }

    fn refuse(&self, refused: &Refused) {
        self.services.metrics.quota.reported("refused");
        self.services.warn(&format!("refused a bucket of the rate-limit quota service: {refused}"), None);
    }

    /// Charges a report, and divides what is left.
    fn report(&self, state: &mut State, bucket: BucketPlace, report: Report, now: MonoMs) {
        let BucketPlace { stream, number } = bucket;
        let State { streams, counted, aggregators, .. } = state;
        let Some(subscriptions) = streams.get_mut(&stream) else { return };
        let Some(subscription) = subscriptions.get(number) else { return };
        let metrics = &self.services.metrics;
        metrics.api_decided_by(Api::Rlqs, ApiResult::Allowed, report.allowed);
        metrics.api_decided_by(Api::Rlqs, ApiResult::Denied, report.denied);
        if report.allowed > 0 || report.denied > 0 {
            subscription.active = now;
        }
        let Some((key, share)) = subscription.counted.clone() else {
            metrics.quota.reported("unlimited");
            subscriptions.assign(number, Action::Allow, false, now);
            return;
        };
        metrics.quota.reported("counted");
        let is_shadow = subscription.target.is_shadow();
        let Some(counted) = counted.get_mut(&key) else { return };
        match is_shadow {
            true => counted.division.owe(report),
            false => counted.division.report(share, report, now),
        }
        self.pay(counted, false);
        if is_shadow {
            subscriptions.assign(number, Action::Allow, false, now);
        } else {
            self.assign_one(subscriptions, counted, number, share, *aggregators, now);
        }
        if report.within_ms == 0 {
            // The first report of a bucket. If it is known here, its Envoy has abandoned it meanwhile.
            subscriptions.repeat(number);
        }
    }

    /// Charges what a bucket has spent of its last assignment that a new configuration refuses.
    fn charge_refused(&self, state: &mut State, stream: u64, bucket: &Bucket, report: Report) {
        let now = self.services.moment().mono;
        let counted = state.streams.get(&stream).and_then(|all| all.refused(bucket));
        let Some((key, share)) = counted else { return };
        let Some(counted) = state.counted.get_mut(&key) else { return };
        self.services.metrics.api_decided_by(Api::Rlqs, ApiResult::Allowed, report.allowed);
        counted.division.report(share, report, now);
        self.pay(counted, false);
    }

    fn assign_one(
        &self,
        subscriptions: &mut Subscriptions,
        counted: &mut Counted,
        number: u64,
        share: u64,
        aggregators: u64,
        now: MonoMs,
    ) {
        match self.embedded.standing(&counted.check) {
            None => {}
            Some(Standing::Exempt) => subscriptions.assign(number, Action::Allow, false, now),
            Some(Standing::Banned(ms)) => subscriptions.assign(number, Action::Deny(ms), false, now),
            Some(Standing::Counted(room, wait_ms)) => {
                let changed = counted.division.divide_for(share, &part_of(room, aggregators), now).is_some();
                let action = Action::of(counted.division.allotment(share), wait_ms);
                subscriptions.assign(number, action, changed, now);
            }
        }
    }

    /// Charges what is due.
    fn pay(&self, counted: &mut Counted, second: bool) {
        let due = counted.division.due(second);
        if due > 0 && self.embedded.charge_spent(&LimitCheck { cost: due, ..counted.check.clone() }) {
            let at = Position::at(self.services.now(), counted.check.duration_ms);
            counted.division.charged(due, &at);
        }
    }

    async fn divide_all(&self) {
        self.count_aggregators();
        self.take_limits(&mut self.state.lock());
        let keys: Vec<_> = self.state.lock().counted.keys().cloned().collect();
        for part in keys.chunks(PART) {
            self.divide_part(part);
            yield_now().await;
        }
        let streams: Vec<u64> = self.state.lock().streams.keys().copied().collect();
        for stream in streams {
            self.keep(stream);
            yield_now().await;
        }
    }

    fn divide_part(&self, keys: &[Arc<CountedKey>]) {
        let now = self.services.moment().mono;
        let mut state = self.state.lock();
        keys.iter().for_each(|key| self.divide(&mut state, key, now));
    }

    /// Divides one limit.
    fn divide(&self, state: &mut State, key: &Arc<CountedKey>, now: MonoMs) {
        let State { streams, counted: all, aggregators, .. } = state;
        let Some(counted) = all.get_mut(key) else { return };
        self.pay(counted, true);
        let standing = self.embedded.standing(&counted.check);
        let mut assign = |BucketPlace { stream, number }, action, changed| {
            if let Some(subscriptions) = streams.get_mut(&stream) {
                subscriptions.assign(number, action, changed, now);
            }
        };
        let decided = match standing {
            Some(Standing::Counted(room, wait_ms)) => {
                let changed = counted.division.divide(&part_of(room, *aggregators), now);
                let changed: HashMap<u64, _> = changed.into_iter().collect();
                for (share, bucket) in &counted.buckets {
                    let action = Action::of(counted.division.allotment(*share), wait_ms);
                    assign(*bucket, action, changed.contains_key(share));
                }
                None
            }
            Some(Standing::Exempt) => Some(Action::Allow),
            Some(Standing::Banned(ms)) => Some(Action::Deny(ms)),
            None => None,
        };
        if let Some(action) = decided {
            counted.buckets.values().for_each(|bucket| assign(*bucket, action, false));
        }
        counted.division.expire(now);
        if counted.buckets.is_empty() && counted.shadows == 0 && counted.division.is_over() {
            all.remove(key);
        }
    }

    /// Abandons idle buckets of a stream, and sends assignments without a limit again before they expire.
    fn keep(&self, stream: u64) {
        let now = self.services.moment().mono;
        let mut state = self.state.lock();
        let State { streams, counted, .. } = &mut *state;
        let Some(subscriptions) = streams.get_mut(&stream) else { return };
        subscriptions.retain_refused(|key| counted.contains_key(key));
        let idle = subscriptions.abandon_idle(now);
        subscriptions.renew_allowed(now);
        idle.iter().for_each(|subscription| state.leave(subscription, Division::remove));
        self.count_buckets(&state);
    }

    fn count_aggregators(&self) {
        let peers = self.services.status.peers.all();
        let shares = |peer: &&crate::region::status::peers::Peer| {
            peer.status.quota_streams > 0 && peer.age_ms() < FRESH_MS
        };
        let others = peers.iter().filter(shares).count() as u64;
        self.state.lock().aggregators = others.saturating_add(1);
    }

    /// Takes a changed configuration.
    fn take_limits(&self, state: &mut State) {
        let limits = self.limits.borrow().clone();
        let Some(limits) = limits.filter(|limits| !Arc::ptr_eq(&state.limits, limits)) else { return };
        let now = self.services.moment().mono;
        state.limits = limits;
        let streams: Vec<u64> = state.streams.keys().copied().collect();
        for stream in streams {
            self.retarget(state, stream, now);
        }
        self.count_buckets(state);
    }

    /// Gives the buckets of a stream whose limits have changed their new ones. Those that are refused now get no further assignment.
    fn retarget(&self, state: &mut State, stream: u64, now: MonoMs) {
        let limits = state.limits.clone();
        let Some(subscriptions) = state.streams.get_mut(&stream) else { return };
        let mut changed = Vec::new();
        for number in subscriptions.numbers() {
            let Some(bucket) = subscriptions.get(number).map(|one| one.bucket.clone()) else { continue };
            let target = self.target(&limits, subscriptions, &bucket);
            if subscriptions.get(number).is_some_and(|one| target.as_ref() != Ok(&one.target)) {
                changed.push((number, target));
            }
        }
        for (number, target) in changed {
            let moved = target.and_then(|target| match state.change(stream, number, target, now) {
                true => Ok(()),
                false => Err(Refused::Full),
            });
            if let Err(refused) = moved {
                self.refuse(&refused);
                let subscriptions = state.streams.get_mut(&stream);
                let removed =
                    subscriptions.and_then(|all| all.remove(number).inspect(|removed| all.refuse(removed)));
                if let Some(removed) = removed {
                    // Its Envoy may spend what it has until that expires.
                    state.leave(&removed, |division, share| division.leave(share, now));
                }
            }
        }
    }

    fn count_buckets(&self, state: &State) {
        self.services.metrics.quota.quota_buckets.set(i64::try_from(state.buckets).unwrap_or(i64::MAX));
    }
}

impl State {
    /// The buckets of all streams of a stream's caller, which share a part of the room.
    fn buckets_of_caller(&self, stream: u64) -> usize {
        let Some(caller) = self.streams.get(&stream).map(|stream| &stream.caller.name) else { return 0 };
        let same = self.streams.values().filter(|stream| stream.caller.name == *caller);
        same.map(Subscriptions::count).sum()
    }

    /// Adds a bucket to a stream; `None` if its limit is shared by too many.
    fn enter(&mut self, stream: u64, bucket: Bucket, target: Target, now: MonoMs) -> Option<u64> {
        let subscription = Subscription::new(bucket, target, now);
        let number = self.streams.get_mut(&stream)?.add(subscription);
        if !self.join(stream, number, None, now) {
            self.streams.get_mut(&stream)?.remove(number);
            return None;
        }
        self.buckets += 1;
        Some(number)
    }

    /// Gives a bucket another target. Its next report is charged to that, so what is reserved for the bucket moves along. False if the limit
    /// is shared by too many.
    fn change(&mut self, stream: u64, number: u64, target: Target, now: MonoMs) -> bool {
        let Some(subscription) = self.streams.get_mut(&stream).and_then(|all| all.get(number)) else {
            return true;
        };
        subscription.target = target;
        let counted = subscription.counted.take();
        let held = self.part(counted.as_ref(), Division::remove).flatten();
        let joined = self.join(stream, number, held.clone(), now);
        if let (false, Some(counted), Some(held)) = (joined, counted, held) {
            // The former limit keeps what its Envoy may still spend.
            self.put_back(BucketPlace { stream, number }, counted, held);
        }
        joined
    }

    fn put_back(&mut self, bucket: BucketPlace, (key, share): (Arc<CountedKey>, u64), held: Share) {
        let BucketPlace { stream, number } = bucket;
        let Some(counted) = self.counted.get_mut(&key) else { return };
        let Some(subscription) = self.streams.get_mut(&stream).and_then(|all| all.get(number)) else {
            return;
        };
        counted.division.put_back(share, held);
        counted.buckets.insert(share, BucketPlace { stream, number });
        subscription.counted = Some((key, share));
    }

    /// Lets a bucket count on the limit of its target, with the share `held` that it had before. False if the limit is shared by too many.
    fn join(&mut self, stream: u64, number: u64, held: Option<Share>, now: MonoMs) -> bool {
        let Some(subscriptions) = self.streams.get_mut(&stream) else { return true };
        let owner = subscriptions.owner();
        let Some(subscription) = subscriptions.get(number) else { return true };
        let Target::Limited { check, shadow } = &subscription.target else { return true };
        let key = Arc::new(check.counted_key());
        let counted = self.counted.entry(key.clone()).or_insert_with(|| Counted {
            check: check.clone(),
            division: Division::new(check.duration_ms),
            buckets: BTreeMap::new(),
            shadows: 0,
        });
        // The limit of the configuration may have changed.
        counted.check.limit = check.limit;
        self.last_share += 1;
        let share = self.last_share;
        if *shadow {
            counted.shadows += 1;
        } else {
            let joined = match held {
                Some(held) => counted.division.accept(share, held, now),
                None => counted.division.join(share, owner, now),
            };
            if !joined {
                return false;
            }
            counted.buckets.insert(share, BucketPlace { stream, number });
        }
        subscription.counted = Some((key, share));
        true
    }

    /// Notes that a bucket was removed from its stream; `end` ends its share.
    fn leave<R>(&mut self, subscription: &Subscription, end: impl FnOnce(&mut Division, u64) -> R) {
        self.buckets = self.buckets.saturating_sub(1);
        self.part(subscription.counted.as_ref(), end);
    }

    /// Ends what a bucket has in the limit on which it counted; `end` ends its share.
    fn part<R>(
        &mut self,
        counted: Option<&(Arc<CountedKey>, u64)>,
        end: impl FnOnce(&mut Division, u64) -> R,
    ) -> Option<R> {
        let (key, share) = counted?;
        let counted = self.counted.get_mut(key)?;
        if counted.buckets.remove(share).is_some() {
            return Some(end(&mut counted.division, *share));
        }
        counted.shadows = counted.shadows.saturating_sub(1);
        None
    }
}

/// Each of several aggregators divides an equal part of what is left, since they do not see what the others have reserved.
fn part_of(room: Room, aggregators: u64) -> Room {
    Room { left: room.left.div_ceil(aggregators.max(1)), ..room }
}

fn report(usage: &Usage) -> Report {
    let within = usage.time_elapsed.map_or(0, |elapsed| u64::try_from(elapsed.seconds).unwrap_or(0));
    let bounded = |requests: u64| requests.min(MOST_REQUESTS);
    Report {
        allowed: bounded(usage.num_requests_allowed),
        denied: bounded(usage.num_requests_denied),
        within_ms: within.saturating_mul(1_000),
    }
}

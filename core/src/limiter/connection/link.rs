//! State of a worker's stream to the aggregator: when to open it, whether the peer is alive, whether to send queries.
//!
//! Only answered pings show that the peer is alive, as it may be frozen behind an open connection. After three queries without an answer
//! no query is sent until a later ping was answered.

use super::pace::IDLE_PING_MS;
use super::registry::{Clock, UNKNOWN_NODES};
use crate::limiter::output::CloseReason;
use crate::model::time::{MonoMs, UnixMs};
use crate::model::wire;

/// Time between pings.
pub const PING_MS: u64 = 50;
/// A subscription is alive while its last answered ping is younger than this: two missed pings and a tick of jitter.
pub const FRESH_MS: u64 = 200;
/// An opened stream that is not accepted within this time is given up.
const WELCOME_MS: u64 = 2_000;
/// Unanswered pings after which they are sent less often, so that none pile up before a frozen peer.
const MAX_UNANSWERED: u32 = 4;
const RARE_PING_MS: u64 = 1_000;
/// A peer that has not answered a ping within this time gets no exact requests.
const LIVE_MS: u64 = 1_000;
const FIRST_RETRY_MS: u64 = 50;
const MAX_RETRY_MS: u64 = 1_000;
/// A peer that answers pings but does not acknowledge a report within this time is given up. It is twice the time of a report that waits
/// for a store which hangs.
const UNACKED_MS: u64 = 5_000;
/// Time after the opening of a stream in which its number of nodes may be too low: the aggregator may have just started, and aggregators
/// exchange that number every second.
pub(super) const SETTLING_MS: u64 = 1_500;
/// Consecutive timeouts that open the circuit breaker.
const BREAKER_TIMEOUTS: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Down { retry_at: MonoMs },
    Opening { since: MonoMs },
    Up,
}

#[derive(Debug)]
pub(super) struct Link {
    state: State,
    seed: u64,
    failures: u32,
    pinged: MonoMs,
    unanswered: u32,
    /// A time before which all pings were answered, if there are others.
    answered_before: Option<MonoMs>,
    echo: MonoMs,
    /// Time of the last frame of the peer; zero while the stream is closed.
    last_seen: MonoMs,
    /// Live nodes of the region, as received last.
    nodes: u32,
    /// The same, as received last on a settled stream.
    settled_nodes: Option<u32>,
    welcomed: MonoMs,
    timeouts: u32,
    /// The circuit breaker is open until a ping sent after this is answered.
    open_since: Option<MonoMs>,
    offset: Option<Offset>,
}

/// The aggregator's clock relative to the process' monotonic clock.
#[derive(Clone, Copy, Debug)]
struct Offset {
    unix_minus_mono: u64,
    round_trip_ms: u64,
}

impl Link {
    pub(super) fn new(seed: u64) -> Link {
        Link {
            state: State::Down { retry_at: MonoMs(0) },
            seed,
            failures: 0,
            pinged: MonoMs(0),
            unanswered: 0,
            answered_before: None,
            echo: MonoMs(0),
            last_seen: MonoMs(0),
            nodes: 1,
            settled_nodes: None,
            welcomed: MonoMs(0),
            timeouts: 0,
            open_since: None,
            offset: None,
        }
    }

    pub(super) fn should_open(&self, now: MonoMs) -> bool {
        matches!(self.state, State::Down { retry_at } if retry_at <= now)
    }

    pub(super) fn opening(&mut self, now: MonoMs) {
        self.state = State::Opening { since: now };
    }

    /// Whether to give the stream up, by the time since when an acknowledgement is overdue. Only if a later ping was answered: otherwise
    /// the peer is slow as a whole, or this worker was not running.
    pub(super) fn should_give_up(&self, owed_since: Option<MonoMs>, now: MonoMs) -> Option<CloseReason> {
        match self.state {
            State::Opening { since } => (now.since(since) > WELCOME_MS).then_some(CloseReason::Unanswered),
            State::Up => owed_since
                .is_some_and(|since| self.echo.since(since) > UNACKED_MS)
                .then_some(CloseReason::Unacknowledged),
            State::Down { .. } => None,
        }
    }

    pub(super) fn on_welcome(&mut self, now: MonoMs) {
        self.state = State::Up;
        (self.last_seen, self.welcomed) = (now, now);
        self.failures = 0;
        (self.unanswered, self.answered_before) = (0, None);
        (self.pinged, self.echo) = (MonoMs(0), MonoMs(0));
        self.timeouts = 0;
        self.open_since = None;
    }

    /// Notes that the stream ended or could not be opened.
    pub(super) fn closed(&mut self, now: MonoMs) {
        self.failures = self.failures.saturating_add(1);
        self.state = State::Down { retry_at: now.after(self.backoff_ms()) };
        (self.echo, self.last_seen) = (MonoMs(0), MonoMs(0));
    }

    /// Notes that this worker ended the stream, as it was idle. No attempt has failed, so requests wait for the next stream as for the
    /// first, and the number of nodes is unknown until it settles.
    pub(super) fn left(&mut self) {
        *self = Link::new(self.seed);
    }

    /// Notes that the stream ended without a failure, and that another one is opened at once: requests wait for it, and the number of nodes
    /// stays known.
    pub(super) fn moved(&mut self) {
        self.failures = 0;
        self.state = State::Down { retry_at: MonoMs(0) };
    }

    pub(super) fn is_up(&self) -> bool {
        self.state == State::Up
    }

    pub(super) fn is_closed(&self) -> bool {
        matches!(self.state, State::Down { .. })
    }

    /// Whether queries can be sent.
    pub(super) fn is_usable(&self) -> bool {
        (self.is_up() || self.is_first()) && self.open_since.is_none()
    }

    /// Whether no attempt to open a stream has failed since the start, or since this worker left its region. Queries wait for the first
    /// stream, as the counts of others are missing or old.
    pub(super) fn is_first(&self) -> bool {
        !self.is_up() && self.failures == 0
    }

    pub(super) fn echo(&self) -> MonoMs {
        self.echo
    }

    /// Time of the last frame of the peer; zero while the stream is closed.
    pub(super) fn last_seen(&self) -> MonoMs {
        self.last_seen
    }

    /// Live nodes of the region, this one included. The number from a stream that has not settled may only raise it, and the first stream's
    /// is not used until it settles: otherwise nodes that start together would each take the whole slack.
    pub(super) fn nodes(&self, now: MonoMs) -> u32 {
        match self.settled_nodes {
            _ if self.has_settled(now) => self.nodes,
            Some(before) => self.nodes.max(before),
            None if self.is_up() => UNKNOWN_NODES,
            None => self.nodes,
        }
    }

    /// Uses another worker's number of nodes if this worker's stream has none yet.
    pub(super) fn suppose_nodes(&mut self, nodes: u32) {
        self.settled_nodes.get_or_insert(nodes);
    }

    pub(super) fn has_settled(&self, now: MonoMs) -> bool {
        self.is_up() && now.since(self.welcomed) >= SETTLING_MS
    }

    /// The aggregator's clock by the last answered ping; `None` until this stream has one.
    pub(super) fn clock(&self) -> Option<Clock> {
        let offset = self.offset.filter(|_| self.echo != MonoMs(0))?;
        Some(Clock { offset_ms: offset.unix_minus_mono, measured: self.echo })
    }

    /// Whether no ping has waited for its answer for long.
    pub(super) fn is_live(&self, now: MonoMs) -> bool {
        self.answered_before.is_none_or(|sent| now.since(sent) <= LIVE_MS)
    }

    /// Lets the next ping be sent at once.
    pub(super) fn ping_at_once(&mut self) {
        self.pinged = MonoMs(0);
    }

    /// The ping to send now, if one is due.
    pub(super) fn next_ping(&mut self, is_idle: bool, now: MonoMs) -> Option<wire::Ping> {
        let pause = match is_idle {
            true => IDLE_PING_MS,
            false if self.unanswered >= MAX_UNANSWERED => RARE_PING_MS,
            false => PING_MS,
        };
        // A tick that is a little early sends the ping as well, otherwise every second ping would be late.
        if !self.is_up() || now.since(self.pinged) + PING_MS / 5 < pause {
            return None;
        }
        self.pinged = now;
        self.unanswered = self.unanswered.saturating_add(1);
        self.answered_before.get_or_insert(now);
        Some(wire::Ping { sent_ms: now.0 })
    }

    pub(super) fn on_pong(&mut self, pong: &wire::Pong, now: MonoMs) {
        let sent = MonoMs(pong.sent_ms);
        if sent > now || sent < self.echo {
            return;
        }
        (self.echo, self.last_seen) = (sent, self.last_seen.max(sent));
        self.unanswered = 0;
        self.answered_before = (sent < self.pinged).then_some(sent);
        self.nodes = pong.live_nodes.max(1);
        if self.has_settled(now) {
            self.settled_nodes = Some(self.nodes);
        }
        self.measure(UnixMs(pong.unix_ms), now.since(sent), now);
        if self.open_since.is_some_and(|since| sent >= since) {
            self.open_since = None;
            self.timeouts = 0;
        }
    }

    pub(super) fn on_answer(&mut self) {
        self.timeouts = 0;
    }

    pub(super) fn timed_out(&mut self, now: MonoMs) {
        self.timeouts = self.timeouts.saturating_add(1);
        if self.timeouts >= BREAKER_TIMEOUTS {
            self.open_since.get_or_insert(now);
        }
    }

    /// Updates the offset by a measurement, but only as far as its round trip leaves certain.
    fn measure(&mut self, unix: UnixMs, round_trip_ms: u64, now: MonoMs) {
        let measured = unix.0.saturating_add(round_trip_ms / 2).saturating_sub(now.0);
        let difference = self.offset.map(|offset| offset.unix_minus_mono.abs_diff(measured));
        let certain = difference.is_none_or(|difference| difference > round_trip_ms / 2 + 2);
        if certain || self.offset.is_some_and(|offset| round_trip_ms < offset.round_trip_ms) {
            self.offset = Some(Offset { unix_minus_mono: measured, round_trip_ms });
        }
    }

    /// Backoff from 50 ms to 1 s, doubling, with a pseudo-random factor between a half and 1.
    fn backoff_ms(&self) -> u64 {
        let doublings = self.failures.saturating_sub(1).min(5);
        let most = (FIRST_RETRY_MS << doublings).min(MAX_RETRY_MS);
        let mixed = (self.seed ^ u64::from(self.failures)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        most / 2 + mixed.checked_rem(most / 2 + 1).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pong(sent_ms: u64, unix_ms: u64) -> wire::Pong {
        wire::Pong { sent_ms, unix_ms, live_nodes: 2 }
    }

    #[test]
    fn retries_are_jittered_and_capped() {
        for seed in 0..50 {
            let mut link = Link::new(seed);
            for failures in 1..12u32 {
                link.closed(MonoMs(0));
                let most = (50 << (failures - 1).min(6)).min(1_000);
                let wait = link.backoff_ms();
                assert!((most / 2..=most).contains(&wait), "{failures} failures: {wait} of {most}");
            }
        }
    }

    #[test]
    fn the_number_of_nodes_is_used_only_after_a_stream_has_settled() {
        let mut link = Link::new(1);
        assert_eq!(link.nodes(MonoMs(5)), 1, "without a stream only this node is counted");
        link.on_welcome(MonoMs(10));
        link.on_pong(&pong(20, 0), MonoMs(21));
        assert_eq!(link.nodes(MonoMs(21)), UNKNOWN_NODES);
        let settled = 10 + SETTLING_MS;
        assert_eq!(link.nodes(MonoMs(settled)), 2);
        link.on_pong(&pong(settled, 0), MonoMs(settled));
        link.closed(MonoMs(settled));
        link.on_welcome(MonoMs(settled + 50));
        link.on_pong(&wire::Pong { live_nodes: 1, ..pong(settled + 60, 0) }, MonoMs(settled + 60));
        assert_eq!(
            link.nodes(MonoMs(settled + 60)),
            2,
            "the new aggregator has not received frames of the other node yet"
        );
        link.on_pong(&wire::Pong { live_nodes: 3, ..pong(settled + 70, 0) }, MonoMs(settled + 70));
        assert_eq!(link.nodes(MonoMs(settled + 70)), 3);
    }

    #[test]
    fn three_timeouts_open_the_circuit_breaker_until_a_later_ping_returns() {
        let mut link = Link::new(1);
        link.on_welcome(MonoMs(1));
        link.timed_out(MonoMs(100));
        link.timed_out(MonoMs(150));
        link.on_answer();
        for at in [200, 250, 300] {
            assert!(link.is_usable());
            link.timed_out(MonoMs(at));
        }
        assert!(!link.is_usable());
        link.on_pong(&pong(299, 0), MonoMs(310));
        assert!(!link.is_usable(), "the ping was sent before the circuit breaker opened");
        link.on_pong(&pong(300, 0), MonoMs(320));
        assert!(link.is_usable());
    }

    #[test]
    fn requests_wait_for_the_first_stream_until_it_fails() {
        let mut link = Link::new(1);
        assert!(link.is_usable() && link.is_first());
        link.opening(MonoMs(1));
        assert!(link.is_usable());
        link.closed(MonoMs(20));
        assert!(!link.is_usable());
        link.opening(MonoMs(80));
        assert!(!link.is_usable(), "requests do not wait for the second stream");
        link.on_welcome(MonoMs(90));
        assert!(link.is_usable() && !link.is_first());
        link.left();
        assert!(link.is_usable() && link.should_open(MonoMs(100)), "the worker was idle");
        link.on_welcome(MonoMs(110));
        link.closed(MonoMs(120));
        link.moved();
        assert!(link.is_usable() && link.should_open(MonoMs(120)), "no stream has failed");
        let mut link = Link::new(1);
        link.opening(MonoMs(1));
        (50..53).for_each(|at| link.timed_out(MonoMs(at)));
        assert!(!link.is_usable(), "waiting requests have timed out");
        link.on_welcome(MonoMs(90));
        assert!(link.is_usable());
    }

    #[test]
    fn an_aggregator_that_does_not_respond_is_pinged_rarely() {
        let mut link = Link::new(1);
        link.on_welcome(MonoMs(1));
        let pings = (1..=100).filter(|tick| link.next_ping(false, MonoMs(tick * 50)).is_some()).count();
        assert!((4..=10).contains(&pings), "{pings} pings in 5 s");
    }

    #[test]
    fn an_idle_worker_pings_once_a_second_and_at_once_when_it_wakes() {
        let mut link = Link::new(1);
        link.on_welcome(MonoMs(1));
        let answered = |link: &mut Link, is_idle, at| {
            let ping = link.next_ping(is_idle, MonoMs(at));
            ping.iter().for_each(|ping| link.on_pong(&pong(ping.sent_ms, 0), MonoMs(at + 1)));
            ping.is_some()
        };
        let idle = (1..=40).filter(|tick| answered(&mut link, true, tick * 250)).count();
        assert_eq!(idle, 10, "pings in 10 s");
        link.ping_at_once();
        assert!(answered(&mut link, false, 10_001));
        assert!(!answered(&mut link, false, 10_020));
        let usual = (1..=20).filter(|tick| answered(&mut link, false, 10_020 + tick * 50)).count();
        assert_eq!(usual, 20, "pings in a second");
    }

    #[test]
    fn a_peer_is_live_until_a_ping_is_unanswered_for_a_second() {
        let mut link = Link::new(1);
        link.on_welcome(MonoMs(1));
        assert!(link.is_live(MonoMs(900)), "none was sent");
        link.next_ping(true, MonoMs(1_000));
        link.on_pong(&pong(1_000, 0), MonoMs(1_001));
        assert!(link.is_live(MonoMs(2_400)), "an idle worker has sent no other");
        link.next_ping(false, MonoMs(2_400));
        link.next_ping(false, MonoMs(2_450));
        assert!(link.is_live(MonoMs(3_400)) && !link.is_live(MonoMs(3_401)));
        link.on_pong(&pong(2_400, 0), MonoMs(3_402));
        assert!(!link.is_live(MonoMs(3_402)), "the other one is not answered");
        link.on_pong(&pong(2_450, 0), MonoMs(3_403));
        assert!(link.is_live(MonoMs(3_403)));
    }

    fn offset_ms(link: &Link) -> Option<u64> {
        link.clock().map(|clock| clock.offset_ms)
    }

    #[test]
    fn the_offset_follows_the_aggregator_and_ignores_slow_pongs() {
        let mut link = Link::new(1);
        link.on_welcome(MonoMs(1));
        link.on_pong(&pong(1_000, 501_001), MonoMs(1_002));
        assert_eq!(offset_ms(&link), Some(500_000));
        link.on_pong(&pong(2_000, 502_001), MonoMs(2_400));
        assert_eq!(offset_ms(&link), Some(500_000), "the offset is within the uncertainty of a slow pong");
        link.on_pong(&pong(3_000, 403_001), MonoMs(3_002));
        assert_eq!(offset_ms(&link), Some(400_000), "the aggregator's clock was set");
    }
}

//! The embedded limiter: decides the checks of API calls, windows as a node of its own, logs and ledgers by exact requests.
//!
//! To its region it is a node like any Envoy. It runs the filter's own `Limiter` over a table of its own, has its own
//! node id, and exchanges frames with the region over a stream that stays within the program. Slack, grants, strict
//! mode, new windows and eviction therefore work as in a filter, and a limit is shared with the filters that count the
//! same key. It joins its region with the first check, which waits for that, and leaves after an idle time, because each
//! connected node reduces what the others may spend without a query.
//!
//! In reading order: `check` (a check, and its validation), `controlled` (live control applied to a call), `engine`
//! (the limiter behind its lock), `link` (its stream), `windows` (the limiter's outcomes as decisions), `given_back` (use that callers give
//! back), here all limits of a call together, `afterwards` (use that proxies report), and `reserve` (costs that are reserved first and
//! settled later, with `reservations` as its table).

mod afterwards;
mod check;
mod controlled;
mod engine;
mod given_back;
mod link;
mod reservations;
mod reserve;
mod windows;

pub use afterwards::Standing;
pub use check::{Answer, CountedKey, Failure, LimitCheck, LimitCheckError};
pub use reservations::{
    Booking, KEPT_MS, MAX_RESERVATIONS, MAX_RESERVED_CHECKS, ReservationName, ReserveError, Reserved,
    SettleError,
};

use crate::region::services::Services;
use crate::region::stream_error::node_of;
use crate::telemetry::spans::{self, around};
use controlled::{Controlled, Counted};
use engine::Engine;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{Instrument, error};
use weir_core::model::exact::{Charge, ChargeResult, ExactRequestId};
use weir_core::model::key::NodeId;
use weir_core::replication::exact::mixed::{MixedRequest, Step, WindowsResult};
use windows::Windows;

/// Most checks of one call: those of the rate-limit service have up to 64 descriptors of four limits each.
pub const MAX_LIMIT_CHECKS: usize = 256;
/// First pause before a check is repeated whose budget others have reserved for a moment; the pause doubles each time.
const RESERVED_PAUSE: Duration = Duration::from_millis(2);
/// Longest such pause.
const LONGEST_RESERVED_PAUSE: Duration = Duration::from_millis(32);
/// Start of the monotonic clock; its zero means "never".
const FIRST_MS: u64 = 60_000;

/// The embedded limiter of this program, shared by all APIs.
pub struct EmbeddedLimiter {
    api: Arc<EmbeddedApi>,
}

/// The state that the embedded limiter's tasks share.
struct EmbeddedApi {
    services: Arc<Services>,
    node: NodeId,
    engine: Mutex<Engine>,
    /// Notified when there is something to send.
    wake: Notify,
    started: Instant,
    /// Idle time after which the limiter leaves its region.
    leave_ms: u64,
    /// Identifies the exact requests of this limiter.
    sender: u64,
    exact_requests: AtomicU64,
}

impl EmbeddedLimiter {
    /// Starts the embedded limiter; its tasks are added to `tasks`. It leaves its region after `leave_ms` without a check.
    pub fn start(services: Arc<Services>, leave_ms: u64, tasks: &mut JoinSet<()>) -> Arc<EmbeddedLimiter> {
        let started = Instant::now();
        let engine = Engine::new(services.now());
        let api = Arc::new(EmbeddedApi {
            services,
            node: node_of(engine.node()),
            engine: Mutex::new(engine),
            wake: Notify::new(),
            started,
            leave_ms,
            sender: rand::random(),
            exact_requests: AtomicU64::new(0),
        });
        tasks.spawn(link::run(api.clone()));
        Arc::new(EmbeddedLimiter { api })
    }

    /// Decides all checks of one call together, within the given time: all pass and are charged, or none is charged.
    ///
    /// Before live control was read once, nothing is decided, since it may have banned an identifier: the call waits for that within its time.
    ///
    /// A check that is [`weir_core::model::exact::Verdict::Undecided`] does not pass. If nothing denies, `failure` states
    /// whether the caller continues nevertheless; if it does, the decided checks stay charged. Windows are always decided,
    /// from local counts if the region does not answer in time. If a check is invalid (see [`LimitCheck::validate`]) or there
    /// are more than [`MAX_LIMIT_CHECKS`], nothing is decided.
    ///
    /// Checks with the same key of a window or of a log count as one: the sum of their costs against the lowest of their
    /// limits.
    pub async fn decide(&self, checks: &[LimitCheck], failure: Failure, within: Duration) -> Answer {
        if checks.len() > MAX_LIMIT_CHECKS || checks.iter().any(|check| check.validate().is_err()) {
            return Answer::undecided(checks.len());
        }
        if checks.is_empty() {
            return Answer { allowed: true, results: Vec::new() };
        }
        let (services, deadline) = (&self.api.services, Instant::now() + within);
        if !services.control.is_read_by(deadline).await {
            return Answer::undecided(checks.len());
        }
        let book = services.control.book();
        let controls = book.controls();
        if controls.is_empty() {
            return self
                .decide_the_rest(checks, &vec![Counted::default(); checks.len()], failure, deadline)
                .await;
        }
        let controlled = Controlled::of(checks, controls, services.now());
        if let Some(answer) = controlled.answer() {
            return answer;
        }
        let answer = self.decide_the_rest(&controlled.checks, &controlled.counted, failure, deadline).await;
        controlled.complete(answer)
    }

    async fn decide_the_rest(
        &self,
        checks: &[LimitCheck],
        counted: &[Counted],
        failure: Failure,
        deadline: Instant,
    ) -> Answer {
        if !self.api.services.serves() {
            return Answer::undecided(checks.len());
        }
        let (windows, exact) = match split(checks, counted) {
            Ok(parts) => parts,
            Err(_) => return Answer::undecided(checks.len()),
        };
        if exact.is_empty() {
            let (allowed, decided) = self.api.decide_windows(&windows, deadline).await;
            let mut results = vec![ChargeResult::UNDECIDED; checks.len()];
            windows.put(decided, &mut results);
            return Answer { allowed, results };
        }
        // In a task of its own: if the caller disconnects, refunds still have to be made.
        let (api, above) = (self.api.clone(), spans::current());
        let deciding =
            async move { around(above.as_ref(), api.decide_all(&windows, exact, failure, deadline)).await };
        let decided = tokio::spawn(deciding.in_current_span()).await;
        decided.unwrap_or_else(|error| {
            error!(%error, "deciding a call failed");
            Answer::undecided(checks.len())
        })
    }

    /// Reports what was spent last, during the shutdown. Call it before the last replay.
    pub fn stop(&self) {
        let frames = self.api.engine.lock().final_frames(self.api.now());
        for frame in frames {
            // An error means that the region takes no more counts, and they are lost.
            let _ = self.api.services.take(self.api.node, frame);
        }
    }

    /// Bytes of the window table, whose size is fixed; for tests and capacity planning.
    pub fn held_bytes(&self) -> usize {
        self.api.engine.lock().held_bytes()
    }
}

/// The exact checks of a call; `places` are their positions in the call.
struct Exactly {
    charges: Vec<Charge>,
    places: Vec<usize>,
    /// Decisions for all checks of the call if they are not tried, in order, with limits and windows.
    untried: Vec<ChargeResult>,
}

impl Exactly {
    fn is_empty(&self) -> bool {
        self.charges.is_empty()
    }
}

fn split(checks: &[LimitCheck], counted: &[Counted]) -> Result<(Windows, Exactly), LimitCheckError> {
    let mut windows = Windows::default();
    let mut exact = Exactly { charges: Vec::new(), places: Vec::new(), untried: Vec::new() };
    for (place, (check, counted)) in checks.iter().zip(counted).enumerate() {
        match check.charge(counted.epoch)? {
            None => windows.add(check, *counted, place)?,
            Some(charge) => {
                exact.charges.push(charge);
                exact.places.push(place);
            }
        }
    }
    if !exact.is_empty() {
        exact.untried = checks.iter().map(LimitCheck::untried).collect();
    }
    Ok((windows, exact))
}

impl EmbeddedApi {
    /// Decides windows and exact limits together, in the order of [`MixedRequest`].
    async fn decide_all(
        &self,
        windows: &Windows,
        exact: Exactly,
        failure: Failure,
        deadline: Instant,
    ) -> Answer {
        let Exactly { charges, places, untried: mut results } = exact;
        let id = ExactRequestId::of(self.sender, self.exact_requests.fetch_add(1, Ordering::Relaxed));
        let (exact, within) = (&self.services.exact, deadline.saturating_duration_since(Instant::now()));
        let mut request = MixedRequest::new(exact.request(id, &charges, within), failure == Failure::Deny);
        let mut decided = None;
        loop {
            match exact.step(&mut request) {
                Step::Peek => {
                    decided = self.peek(windows).err();
                    request.peeked(decided.is_some());
                }
                Step::Exact => exact.run(request.request(), &charges).await,
                Step::Charge => {
                    let (allowed, ruled) = self.decide_windows(windows, deadline).await;
                    request.charged(match allowed {
                        true => WindowsResult::Allowed,
                        false if ruled.iter().any(ChargeResult::is_denied) => WindowsResult::Denied,
                        false => WindowsResult::Undecided,
                    });
                    decided = Some(ruled);
                }
                Step::Over => break,
            }
        }
        windows.put(decided.unwrap_or_else(|| self.untried(windows)), &mut results);
        let ruled = request.results().unwrap_or_default();
        places.iter().zip(ruled).for_each(|(place, result)| results[*place] = result);
        Answer { allowed: request.is_allowed(), results }
    }
}

//! Decides what comes through an API: windows as an origin of its own, the rest exactly.
//!
//! The API is to its region what an Envoy is: it runs the filter's own `Limiter` over a table of its own, has an origin
//! id of its own, and speaks with the region on a stream, which only happens not to leave the program. So slack, grants,
//! strictness, rollover and eviction are what they are in a filter, and a limit is shared with the filters of the same
//! key. An API that nobody uses is no origin: it joins its region with the first question and leaves when none has come
//! for a while, as each live origin narrows what the others may spend without asking.
//!
//! In reading order: `question` (what is asked, and what cannot be), `controlled` (what operators say of it), `engine` (the limiter behind its lock), `link` (its
//! stream), `windows` (a limiter's outcome as rulings), and here: all limits of a call together.
//!
//! Leaves to others: how questions come and answers go (`http`, `rls`), exact limits (`exact`).

mod controlled;
mod engine;
mod link;
mod question;
mod windows;

pub use question::{Answer, Failure, Question, QuestionError};

use crate::region::exact::overturned;
use crate::region::services::Services;
use crate::region::stream_error::origin_of;
use crate::telemetry::spans::{self, around};
use controlled::Controlled;
use engine::Engine;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tracing::{Instrument, error};
use weir_core::limiter::MAX_CHECKS;
use weir_core::model::exact::{Charge, ChargeResult, ExactRequestId, all_allowed};
use weir_core::model::key::OriginId;
use windows::Windows;

/// Most questions of one call.
pub const MAX_QUESTIONS: usize = MAX_CHECKS;
/// Budget that others hold for a moment is looked for again after this long, at first; each time after twice as long.
const RESERVED_PAUSE: Duration = Duration::from_millis(2);
/// And at last.
const LONGEST_RESERVED_PAUSE: Duration = Duration::from_millis(32);
/// The monotonic clock begins here, as its zero says "never".
const FIRST_MS: u64 = 60_000;

/// What decides for all APIs of this program.
pub struct EmbeddedLimiter {
    api: Arc<Api>,
}

/// What the embedded's tasks share.
struct Api {
    services: Arc<Services>,
    origin: OriginId,
    engine: Mutex<Engine>,
    /// Woken when there is something to send.
    wake: Notify,
    /// The API has joined its region, or has tried to.
    awake: watch::Sender<bool>,
    started: Instant,
    /// Tells the questions about exact limits apart.
    sender: u64,
    asked: AtomicU64,
}

impl EmbeddedLimiter {
    /// Begins to decide; what goes on beside is added to `tasks`.
    pub fn start(services: Arc<Services>, tasks: &mut JoinSet<()>) -> Arc<EmbeddedLimiter> {
        let started = Instant::now();
        let engine = Engine::new(services.now());
        let api = Arc::new(Api {
            services,
            origin: origin_of(engine.origin()),
            engine: Mutex::new(engine),
            wake: Notify::new(),
            awake: watch::Sender::new(false),
            started,
            sender: rand::random(),
            asked: AtomicU64::new(0),
        });
        tasks.spawn(link::run(api.clone()));
        Arc::new(EmbeddedLimiter { api })
    }

    /// Decides all questions of one call together, within the time given: all pass and are charged, or none is.
    /// A ruling that is [`weir_core::model::exact::Verdict::Undecided`] does not pass; whether the caller goes on where nothing
    /// denies is its own choice, `failure`: if it does, what was decided is charged nevertheless. Windows are always
    /// decided, by what is known here where the region does not answer in time. Where the questions cannot be asked (see
    /// [`Question::check`]; more than [`MAX_QUESTIONS`]) nothing is decided.
    ///
    /// Questions about one window or one log, to the last letter of its key, are one: the sum of their costs against the
    /// lowest of their limits.
    pub async fn decide(&self, questions: &[Question], failure: Failure, within: Duration) -> Answer {
        if questions.len() > MAX_QUESTIONS || questions.iter().any(|question| question.check().is_err()) {
            return Answer::undecided(questions.len());
        }
        if questions.is_empty() {
            return Answer { allowed: true, results: Vec::new() };
        }
        let services = &self.api.services;
        let controls = services.control.set();
        if controls.is_empty() {
            return self.decide_the_rest(questions, &vec![0; questions.len()], failure, within).await;
        }
        let controlled = Controlled::of(questions, &controls, services.now());
        if let Some(answer) = controlled.answer() {
            return answer;
        }
        let answer = self.decide_the_rest(&controlled.questions, &controlled.epochs, failure, within).await;
        controlled.complete(answer)
    }

    async fn decide_the_rest(
        &self,
        questions: &[Question],
        epochs: &[u32],
        failure: Failure,
        within: Duration,
    ) -> Answer {
        let deadline = Instant::now() + within;
        self.api.join_region(deadline).await;
        let (windows, exact) = match split(questions, epochs) {
            Ok(parts) => parts,
            Err(_) => return Answer::undecided(questions.len()),
        };
        if exact.is_empty() {
            let (allowed, decided) = self.api.decide_windows(&windows, deadline).await;
            let mut results = vec![ChargeResult::UNDECIDED; questions.len()];
            windows.put(decided, &mut results);
            return Answer { allowed, results };
        }
        // Not to be cut short where the caller goes away: what was charged and must not be is to be taken back.
        let (api, above) = (self.api.clone(), spans::current());
        let deciding =
            async move { around(above.as_ref(), api.decide_all(&windows, exact, failure, deadline)).await };
        let decided = tokio::spawn(deciding.in_current_span()).await;
        decided.unwrap_or_else(|error| {
            error!(%error, "a decision failed");
            Answer::undecided(questions.len())
        })
    }

    /// Says last what was spent, when no more is asked. To be called before the last round of replays.
    pub fn stop(&self) {
        let frames = self.api.engine.lock().last_words(self.api.now());
        for frame in frames {
            // Refused is only what nobody could be told any more.
            let _ = self.api.services.take(self.api.origin, frame);
        }
    }

    /// Bytes that the table of windows takes, its bounds being fixed; for tests and whoever sizes a machine.
    pub fn held_bytes(&self) -> usize {
        self.api.engine.lock().held_bytes()
    }
}

/// A call's questions, by how they are decided; places say where each ruling belongs.
struct Exactly {
    charges: Vec<Charge>,
    places: Vec<usize>,
    /// The limits and windows of all questions, in order, for rulings on what was not tried.
    untried: Vec<ChargeResult>,
}

impl Exactly {
    fn is_empty(&self) -> bool {
        self.charges.is_empty()
    }
}

fn split(questions: &[Question], epochs: &[u32]) -> Result<(Windows, Exactly), QuestionError> {
    let mut windows = Windows::default();
    let mut exact = Exactly { charges: Vec::new(), places: Vec::new(), untried: Vec::new() };
    for (place, (question, epoch)) in questions.iter().zip(epochs).enumerate() {
        match question.charge(*epoch)? {
            None => windows.add(question, *epoch, place)?,
            Some(charge) => {
                exact.charges.push(charge);
                exact.places.push(place);
            }
        }
    }
    if !exact.is_empty() {
        exact.untried = questions.iter().map(Question::untried).collect();
    }
    Ok((windows, exact))
}

/// Puts rulings where they belong among those of the whole call.
fn put(results: &[ChargeResult], places: &[usize], all: &mut [ChargeResult]) {
    places.iter().zip(results).for_each(|(place, result)| all[*place] = *result);
}

impl Api {
    /// Windows and exact limits together. What costs no round trip is looked at first; windows are charged last, as
    /// they alone cannot be given back.
    async fn decide_all(
        &self,
        windows: &Windows,
        exact: Exactly,
        failure: Failure,
        deadline: Instant,
    ) -> Answer {
        let Exactly { charges, places, untried: mut results } = exact;
        if let Err(denied) = self.peek(windows) {
            windows.put(denied, &mut results);
            return Answer { allowed: false, results };
        }
        let id = ExactRequestId::of(self.sender, self.asked.fetch_add(1, Ordering::Relaxed));
        let within = deadline.saturating_duration_since(Instant::now());
        let ruled = self.services.exact.decide(id, &charges, within).await;
        put(&ruled, &places, &mut results);
        let passed = ruled.len() == charges.len() && all_allowed(&ruled);
        if ruled.iter().any(ChargeResult::is_denied) {
            // What passed has been taken back already.
            windows.put(self.untried(windows), &mut results);
            return Answer { allowed: false, results };
        }
        let (allowed, decided) = match passed || failure == Failure::Allow {
            true => self.decide_windows(windows, deadline).await,
            false => (false, self.untried(windows)),
        };
        let goes_on = match failure {
            Failure::Allow => !decided.iter().any(ChargeResult::is_denied),
            Failure::Deny => allowed,
        };
        windows.put(decided, &mut results);
        if !goes_on {
            put(&overturned(&charges, &ruled), &places, &mut results);
            self.refund(id, charges, ruled);
        }
        Answer { allowed: allowed && passed, results }
    }

    /// Takes back what a question was charged; the caller need not wait for it.
    fn refund(&self, id: ExactRequestId, charges: Vec<Charge>, results: Vec<ChargeResult>) {
        let services = self.services.clone();
        tokio::spawn(async move {
            services.exact.refund(id, &charges, &results).await;
        });
    }

    /// Waits until the region has been joined, if nothing was asked lately. One that cannot be joined is not waited for
    /// again and again.
    async fn join_region(&self, deadline: Instant) {
        if *self.awake.borrow() {
            return;
        }
        self.wake.notify_one();
        let mut awake = self.awake.subscribe();
        // Late or never: then the table alone decides.
        let _ = timeout_at(deadline, awake.wait_for(|awake| *awake)).await;
    }
}

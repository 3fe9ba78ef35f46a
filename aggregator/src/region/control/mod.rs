//! Live control: each change by an operator reaches every filter of the region, and changes of other regions are read.
//!
//! ```text
//! HTTP PUT ─ change ─ database ─ read ─ book ─ push ─ each subscriber's stream
//!               └ message to the region's other aggregators ─ read ─ …
//!                 once a second, in every region              ─ read ─ …
//! ```
//!
//! While the database is unavailable, the controls in memory stay in force. An aggregator that has not read the database
//! since it started sends no controls, so filters keep those that they have.

pub mod access;
pub mod bans;
pub mod details;
pub mod push;
mod turns;

use crate::database::{DatabaseError, NewsPage};
use crate::region::global::Global;
use crate::region::hub::Hub;
use crate::region::machine::Machine;
use crate::region::regional::{self, Regional};
use crate::telemetry::metrics::Operation;
use crate::telemetry::throttle::Throttle;
use parking_lot::RwLock;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;
use tokio::time::{timeout, timeout_at};
use tracing::{Instrument, info, warn};
use weir_core::control::Control;
use weir_core::control::book::{Book, News};
use weir_core::control::change::{Change, ChangeOutcome};
use weir_core::control::news::UnfinishedNews;
use weir_core::model::time::UnixMs;
use weir_core::model::wire::ControlsKnown;
use weir_core::replication::global::controls::{Read, Reader};
use weir_core::replication::limits::LiveLimits;
use weir_core::replication::{Event, Next};

/// How long a change waits until this aggregator has read it back; otherwise the next interval reads it.
const READ_BACK: Duration = Duration::from_secs(1);

/// Live control of the region, as this aggregator has read it.
pub struct Live {
    hub: Arc<Hub>,
    regional: Option<Arc<Regional>>,
    /// There is a database that has it.
    is_stored: bool,
    book: RwLock<Arc<Book>>,
    /// Increases with each reading that brought changes; the first one always does.
    versions: watch::Sender<u64>,
    /// Applies the limits to the keys that the region holds.
    limits: parking_lot::Mutex<LiveLimits>,
    /// Serialises the readings, so that an older result cannot replace a newer one. What a reading that failed has read is kept for the next.
    turn: Mutex<UnfinishedNews>,
    /// Operators' turns to call the database.
    turns: turns::Turns,
    /// Limits the rate of warnings that the database does not answer operators.
    warnings: Throttle,
    /// Bans proposed by rules.
    pub bans: bans::Proposals,
    /// Authors and reasons of the controls in force, for operators.
    pub details: details::Details,
}

impl Live {
    /// Without any control in force. Changes are announced to the region's other aggregators through `regional`. If it `is_stored` in a
    /// database, nothing is known before the first reading.
    pub fn new(hub: Arc<Hub>, regional: Option<Arc<Regional>>, is_stored: bool) -> Live {
        Live {
            hub,
            regional,
            is_stored,
            book: RwLock::new(Arc::new(Book::new())),
            versions: watch::Sender::new(0),
            limits: parking_lot::Mutex::default(),
            turn: Mutex::default(),
            turns: turns::Turns::default(),
            warnings: Throttle::new(access::BETWEEN_WARNINGS),
            bans: bans::Proposals::default(),
            details: details::Details::default(),
        }
    }

    /// The controls read so far.
    pub fn book(&self) -> Arc<Book> {
        self.book.read().clone()
    }

    /// Whether live control was read once. What was not read may have banned a caller, so nothing that it could deny passes before.
    /// Without a database there is none.
    pub fn is_read(&self) -> bool {
        !self.is_stored || *self.versions.borrow() > 0
    }

    /// Waits until live control was read once; false if it was not by `deadline`.
    pub async fn is_read_by(&self, deadline: tokio::time::Instant) -> bool {
        if self.is_read() {
            return true;
        }
        let mut versions = self.versions.subscribe();
        timeout_at(deadline, versions.wait_for(|version| *version > 0)).await.is_ok_and(|read| read.is_ok())
    }

    /// Notifies of changes of [`Live::book`].
    pub fn versions(&self) -> watch::Receiver<u64> {
        self.versions.subscribe()
    }

    /// Takes a filter's revision. A revision above the database's shows that the database was set back.
    pub fn acknowledged(&self, known: ControlsKnown, now: UnixMs) {
        if self.book().is_news(known, now) {
            Arc::make_mut(&mut self.book.write()).acknowledged(known, now);
        }
    }

    fn take(&self, news: News) {
        let News { edition, since, ref entries, bad, .. } = news;
        if bad > 0 {
            self.hub.metrics.program.bad_rows.inc_by(bad);
            self.hub.warn(&format!("skipped {bad} live controls in the database that cannot be read"), None);
        }
        let now = self.hub.now();
        let changed: Vec<Control> = entries.iter().map(|entry| entry.control.clone()).collect();
        let mut book = self.book.write();
        let (before, is_known_loss) = (book.edition(), book.has_lost());
        let is_new = Arc::make_mut(&mut book).take(news, now);
        if book.has_lost() {
            if !is_known_loss {
                self.hub.metrics.control_lost();
            }
            warn!(
                "the database has lost live controls, or was set back and changed again; all are read anew"
            );
        }
        if !is_new {
            return;
        }
        let in_force = book.in_force(now);
        drop(book);
        let mut limits = self.limits.lock();
        match since {
            // Controls that are missing now are not named.
            0 => limits.all_changed(),
            _ => changed.iter().for_each(|control| limits.changed(control)),
        }
        drop(limits);
        self.hub.state(|state, _| state.notify(Event::Limits));
        match before {
            Some(before) if before.incarnation == edition.incarnation => {}
            Some(_) => {
                if !is_known_loss {
                    self.hub.metrics.control_lost();
                }
                warn!(
                    in_force,
                    "the database was emptied or set back; its live controls replace the former ones"
                )
            }
            None => info!(in_force, "live controls read from the database"),
        }
        self.hub.metrics.program.controls.set(i64::try_from(in_force).unwrap_or(i64::MAX));
        self.versions.send_modify(|version| *version += 1);
    }

    /// Applies the limits to the keys that the region holds, until the program ends.
    async fn apply_limits(&self) {
        loop {
            let next = {
                let mut limits = self.limits.lock();
                // Read under the lock, as `take` announces a change after it has stored it: an older book would hide the
                // change's end until another change.
                limits.next(&mut &*self.hub, self.book().controls())
            };
            self.hub.idle(next).await;
        }
    }

    /// Reads the database once.
    pub async fn read_once(self: &Arc<Live>, global: &Arc<Global>) {
        let (live, global) = (self.clone(), global.clone());
        self.hub.drive(&mut ReadTask { live, global, reader: Reader::once() }).await;
    }

    /// Reads the changes since the last reading. If it `compares`, it also finds rows that are missing though nothing has changed.
    async fn read(&self, global: &Global, compares: bool, within: Duration) -> Result<(), DatabaseError> {
        let mut so_far = self.turn.lock().await;
        let began = Instant::now();
        let read = loop {
            let (left, book) = (within.saturating_sub(began.elapsed()), self.book());
            let page = global.database.control_news(&book, &mut so_far, compares, self.hub.now(), left).await;
            drop(book);
            match page {
                Ok(NewsPage::Part) => {}
                Ok(NewsPage::Nothing) => break Ok(()),
                Ok(NewsPage::All(news)) => {
                    self.take(news);
                    if !self.book().has_lost() {
                        break Ok(());
                    }
                }
                Err(error) => break Err(error),
            }
        };
        self.hub.metrics.operation(Operation::ReadControls, began.elapsed());
        if let Err(error) = &read {
            self.hub.metrics.operation_failed(Operation::ReadControls, error.reason());
        }
        read
    }

    /// Changes live control, all of `changes` or none, and announces the change to the region's peers at once.
    pub async fn change(
        self: &Arc<Live>,
        global: &Arc<Global>,
        changes: &[Change],
        within: Duration,
    ) -> Result<Vec<ChangeOutcome>, DatabaseError> {
        let book = self.book();
        let changed = global.database.change_controls(changes, &book, self.hub.now(), within).await?;
        drop(book);
        if changed.iter().any(|changed| matches!(changed, ChangeOutcome::Done(..))) {
            // In a task of its own, so that the announcement completes if the caller disconnects.
            let (live, global) = (self.clone(), global.clone());
            let announced = tokio::spawn(async move { live.announce(&global).await }.in_current_span());
            let _ = timeout(READ_BACK, announced).await;
        }
        Ok(changed)
    }

    async fn announce(&self, global: &Global) {
        if let Some(regional) = &self.regional {
            regional::broadcast_controls(&self.hub, regional).await;
        }
        let within = Duration::from_millis(global.schedule.global_timeout_ms);
        if let Err(error) = self.read(global, false, within).await {
            self.hub.warn(&format!("could not read back a change of live control: {error}"), None);
        }
    }
}

/// Starts reading from the database, and storing the bans that rules propose.
pub fn start(live: &Arc<Live>, global: &Arc<Global>, tasks: &mut JoinSet<()>) {
    tasks.spawn(bans::store(live.clone(), global.clone()));
    let applying = live.clone();
    tasks.spawn(async move { applying.apply_limits().await });
    let reader = Reader::new(global.schedule, live.hub.moment().mono, rand::random());
    live.hub.start(ReadTask { live: live.clone(), global: global.clone(), reader }, tasks);
}

/// Reads the database.
struct ReadTask {
    live: Arc<Live>,
    global: Arc<Global>,
    reader: Reader,
}

impl Machine for ReadTask {
    type Call = Read;

    fn next(&mut self, mut hub: &Hub) -> Next<Read> {
        self.reader.next(&mut hub, rand::random())
    }

    async fn call(&mut self, hub: &Arc<Hub>, Read { within_ms, compares }: Read) {
        let read = self.live.read(&self.global, compares, Duration::from_millis(within_ms)).await;
        self.reader.read(read.is_ok());
        if let Err(error) = read {
            hub.warn(&format!("could not read live controls from the database: {error}"), None);
        }
    }
}

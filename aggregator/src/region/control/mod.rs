//! Live control at work: what operators say reaches every filter of the region, and is heard from the others.
//!
//! ```text
//! HTTP PUT ─ change ─ database ─ read ─ book ─ tell ─ each subscriber's stream
//!               └ a word to the region's other aggregators ─ read ─ …
//!                 every import's beat, in every region     ─ read ─ …
//! ```
//!
//! What is held stays while the database is away. An aggregator that has not read it yet tells nobody anything, so filters
//! keep what they have.
//!
//! Leaves to others: what is told to whom and when a reading is due (`weir_core::control::book`,
//! `weir_core::replication::globe::controls`), statements (`database`), who may change what (`doors`).

pub mod bans;
pub mod tell;

use crate::database::{Change, Changed, DatabaseError, News};
use crate::region::global::Global;
use crate::region::regional;
use crate::region::shared::Shared;
use crate::telemetry::metrics::Operation;
use parking_lot::RwLock;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, watch};
use tokio::time::timeout;
use tracing::{Instrument, info, warn};
use weir_core::control::Controls;
use weir_core::control::book::Book;
use weir_core::model::time::UnixMs;
use weir_core::model::wire::ControlsKnown;
use weir_core::replication::Next;
use weir_core::replication::globe::controls::Reader;

/// How long a change waits until this aggregator has read it; the next beat does it otherwise.
const READ_BACK: Duration = Duration::from_secs(1);

/// What this aggregator knows of live control.
#[derive(Debug)]
pub struct Live {
    book: RwLock<Arc<Book>>,
    /// The same, to be asked by doors.
    set: RwLock<Arc<Controls>>,
    /// Counts readings that brought something.
    versions: watch::Sender<u64>,
    /// One reading after the other, so that an older one does not come last.
    turn: Mutex<()>,
    /// Bans that rules proposed.
    pub bans: bans::Proposals,
}

impl Default for Live {
    fn default() -> Live {
        let book = RwLock::new(Arc::new(Book::new()));
        Live {
            book,
            set: RwLock::default(),
            versions: watch::Sender::new(0),
            turn: Mutex::new(()),
            bans: bans::Proposals::default(),
        }
    }
}

impl Live {
    /// What is known now.
    pub fn book(&self) -> Arc<Book> {
        self.book.read().clone()
    }

    /// The same, to be asked.
    pub fn set(&self) -> Arc<Controls> {
        self.set.read().clone()
    }

    /// Sees changes of [`Live::book`].
    pub fn versions(&self) -> watch::Receiver<u64> {
        self.versions.subscribe()
    }

    /// A filter says what it knows. More than the database may say shows that the database went back.
    pub fn heard(&self, known: ControlsKnown, now: UnixMs) {
        if self.book().is_news(known, now) {
            Arc::make_mut(&mut self.book.write()).heard(known, now);
        }
    }

    fn take(&self, news: News, shared: &Shared) {
        let News { edition, since, entries, bad } = news;
        if bad > 0 {
            shared.metrics.bad_rows.inc_by(bad);
            shared.warn(&format!("{bad} live controls in the database cannot be read and are skipped"), None);
        }
        let now = shared.now();
        let mut book = self.book.write();
        let before = book.edition();
        if !Arc::make_mut(&mut book).take(edition, since, entries, now) {
            return;
        }
        let in_force = book.in_force(now);
        let mut set = Controls::clone(&self.set.read());
        if let Some(frame) = book.frame_since(Some(set.known()), now) {
            set.apply(&frame);
            set.forget(now);
            *self.set.write() = Arc::new(set);
        }
        drop(book);
        match before {
            Some(before) if before.life == edition.life => {}
            Some(_) => {
                warn!(in_force, "the database was wiped or set back: its live controls replace those before")
            }
            None => info!(in_force, "live controls are known"),
        }
        shared.metrics.controls.set(i64::try_from(in_force).unwrap_or(i64::MAX));
        self.versions.send_modify(|version| *version += 1);
    }
}

/// Reads for as long as the program runs.
pub async fn run(shared: Arc<Shared>, global: Arc<Global>) {
    let reader = Reader::new(global.cadence, shared.moment().mono, rand::random());
    drive(&shared, &global, reader).await;
}

/// Reads for as long as the machine does.
pub async fn drive(shared: &Shared, global: &Global, mut reader: Reader) {
    loop {
        match reader.next(&mut &*shared, rand::random()) {
            Next::Call(call) => {
                if let Err(error) = read(shared, global, Duration::from_millis(call.within_ms)).await {
                    shared.warn(&format!("live controls could not be read: {error}"), None);
                }
            }
            Next::Over => return,
            idle => drop(shared.idle(idle).await),
        }
    }
}

/// Reads what is not known yet.
async fn read(shared: &Shared, global: &Global, within: Duration) -> Result<(), DatabaseError> {
    let _turn = shared.control.turn.lock().await;
    let began = Instant::now();
    let book = shared.control.book();
    let news = global.database.control_news(&book, shared.now(), within).await;
    shared.metrics.operation(Operation::ReadControls, began.elapsed());
    match news {
        Ok(None) => Ok(()),
        Ok(Some(news)) => {
            drop(book);
            shared.control.take(news, shared);
            Ok(())
        }
        Err(error) => {
            shared.metrics.operation_failed(Operation::ReadControls, error.reason());
            Err(error)
        }
    }
}

/// Changes what is said, all of it or nothing, and sees to it that the region hears of it at once.
pub async fn change(
    shared: &Arc<Shared>,
    global: &Arc<Global>,
    changes: &[Change],
    within: Duration,
) -> Result<Vec<Changed>, DatabaseError> {
    let book = shared.control.book();
    let changed = global.database.change_controls(changes, &book, shared.now(), within).await?;
    drop(book);
    if changed.iter().any(|changed| matches!(changed, Changed::Done(..))) {
        // Not to be cut short where the caller goes away.
        let (shared, global) = (shared.clone(), global.clone());
        let told = tokio::spawn(async move { tell_region(&shared, &global).await }.in_current_span());
        let _ = timeout(READ_BACK, told).await;
    }
    Ok(changed)
}

async fn tell_region(shared: &Shared, global: &Global) {
    if let Some(regional) = &shared.regional {
        regional::tell_of_controls(shared, regional).await;
    }
    if let Err(error) = read(shared, global, Duration::from_millis(global.cadence.global_timeout_ms)).await {
        shared.warn(&format!("a change of live control could not be read back: {error}"), None);
    }
}

//! Who set the controls in force, why and since when, and the audit, for operators.
//!
//! No filter needs it, so the book does not have it: it is read from the database when an operator looks, and only what is newer
//! than the last reading. All viewers share one reading.

use crate::controls::{AuditEntry, AuditFilter, ControlFilter, MAX_PAGE};
use crate::database::DatabaseError;
use crate::region::global::Global;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};
use weir_core::control::MAX_CONTROLS;
use weir_core::control::book::Book;
use weir_core::control::change::StoredControl;
use weir_core::model::time::UnixMs;

/// Timeout of one reading.
const WITHIN: Duration = Duration::from_secs(2);
/// Least time between a reading that failed and the next one.
const BETWEEN_FAILURES: Duration = Duration::from_secs(2);

/// The controls in force with their authors and reasons, by revision.
pub type ByRevision = HashMap<u64, StoredControl>;

/// What was read so far, and the turn to read the audit: operators have at most two calls at a time, as the region's
/// publishing and importing share the same four connections.
#[derive(Default)]
pub struct Details {
    last: Mutex<Known>,
    audits: Mutex<()>,
}

/// Why the audit was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unread {
    /// There is no database.
    #[error("no database is set (--database-url), so there is no live control")]
    NoDatabase,
    /// It fails, or another operator's query takes too long.
    #[error("the database does not answer; try again later")]
    Unavailable,
}

#[derive(Default)]
struct Known {
    incarnation: u64,
    /// Everything up to this revision was read.
    revision: u64,
    of: Arc<ByRevision>,
    failed: Option<Instant>,
}

impl Details {
    /// The controls of `book` as the database has them. Without an answer, those that were read before, and false.
    pub async fn of(&self, book: &Book, global: &Global, now: UnixMs) -> (Arc<ByRevision>, bool) {
        let mut known = self.last.lock().await;
        let Some(edition) = book.edition() else { return (Arc::default(), false) };
        if known.incarnation == edition.incarnation && known.revision >= edition.revision {
            return (known.of.clone(), true);
        }
        if known.failed.is_some_and(|at| at.elapsed() < BETWEEN_FAILURES) {
            return (known.of.clone(), false);
        }
        if known.incarnation != edition.incarnation {
            *known = Known { incarnation: edition.incarnation, ..Known::default() };
        }
        match read(global, known.revision, now).await {
            Ok(newer) => {
                let mut of = ByRevision::clone(&known.of);
                of.extend(newer.into_iter().map(|stored| (stored.control.revision, stored)));
                let wanted =
                    |revision: &u64| book.of_revision(*revision).is_some() || *revision > edition.revision;
                of.retain(|revision, _| wanted(revision));
                (known.of, known.revision, known.failed) = (Arc::new(of), edition.revision, None);
                (known.of.clone(), true)
            }
            Err(_) => {
                known.failed = Some(Instant::now());
                (known.of.clone(), false)
            }
        }
    }

    /// The changes that a filter selects, newest first.
    pub async fn audit(&self, global: &Global, filter: &AuditFilter) -> Result<Vec<AuditEntry>, Unread> {
        let deadline = Instant::now() + WITHIN;
        let turn = timeout_at(deadline, self.audits.lock()).await.map_err(|_| Unread::Unavailable)?;
        let within = deadline.saturating_duration_since(Instant::now());
        let found = global.database.control_audit(filter, within).await;
        drop(turn);
        found.map_err(|_| Unread::Unavailable)
    }
}

/// All controls in force with a revision above `after`, page by page.
async fn read(global: &Global, after: u64, now: UnixMs) -> Result<Vec<StoredControl>, DatabaseError> {
    let deadline = Instant::now() + WITHIN;
    let mut filter = ControlFilter { after, limit: MAX_PAGE, ..ControlFilter::default() };
    let mut found: Vec<StoredControl> = Vec::new();
    loop {
        let within = deadline.saturating_duration_since(Instant::now());
        let page = global.database.controls(&filter, now, within).await?;
        let is_last = page.len() < usize::try_from(MAX_PAGE).unwrap_or(usize::MAX);
        filter.after = page.last().map_or(filter.after, |last| last.control.revision);
        found.extend(page);
        if is_last || found.len() > MAX_CONTROLS {
            return Ok(found);
        }
    }
}

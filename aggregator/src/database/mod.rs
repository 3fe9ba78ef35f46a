//! The global store: what each region has used of each cell, and the ledger, in MySQL, MariaDB or SQLite.
//!
//! Of counts, one row for each cell and region, raised by max, so that any write may be repeated, late or out of order.
//! Of the ledger, one row for each attempt. In reading order:
//!
//! 1. [`DatabaseOptions`] (`options`): which database, and as which region.
//! 2. `publish`, `import`: this region's rows out, the others' sums in. `rows` says how a key becomes columns.
//! 3. `ledger`, `zones`, `history`: attempts decided and recorded, against which limits, and what was recorded.
//! 4. `controls`: live control, its audit, and what is newer than is known.
//! 5. `marker`, `lease`, `cleanup`, `migrate`: whether the table was wiped, who serves a region, what is over, the
//!    tables themselves.
//! 6. `status`: what people who look want to know.
//! 7. `retry`, `ledger_connections`, `pool`, `connection`: until when (and, for the ledger, whether at all), over which connection,
//!    and the two kinds of database behind one type.
//! 8. [`mysql`], [`sqlite`]: the statements themselves, and how a session is set up for them.
//!
//! Every call ends within the time that it is given. A connection on which a call ran out of time is closed, never used
//! again: what it may still answer belongs to nobody.
//!
//! Leaves to others: when to publish and import, and what is worth it (`weir_core::region`); metrics.

mod cleanup;
pub mod connection;
mod controls;
mod counts;
mod error;
mod ledger;
mod migrate;
mod options;

pub use cleanup::Deleted;
pub use connection::statements::CHUNK_ROWS;
pub use controls::{
    Action, AuditFilter, Audited, Bound, Change, Changed, ControlFilter, MAX_AUTHOR_BYTES, MAX_AUTOMATIC,
    MAX_AUTOMATIC_OF_WORKSPACE, MAX_OF_WORKSPACE, MAX_PAGE, MAX_REASON_BYTES, News, PlaceFilter,
    StoredControl, Tidied, Wish, said,
};
pub use counts::import::{Imported, MAX_IMPORT_CELLS};
pub use counts::lease::Lease;
pub use counts::publish::Published;
pub use counts::rows::{decode_identifier, encode_identifier};
pub use counts::status::{REGION_ROWS, Share, Wrote};
pub use error::{DatabaseError, Reason};
pub use ledger::history::{MAX_HISTORY_ROWS, Outcome, Transaction};
pub use ledger::zones::{MAX_RATE, MAX_WINDOW, Remains, Zone, ZoneChange, ZoneError};
pub use ledger::{Attempt, MAX_BUCKET_BYTES, Velocity};
pub use migrate::Migrated;
pub use options::{DatabaseOptions, MAX_REGION_BYTES, OptionsError, Unverified};

use connection::ledger_connections::LedgerConnections;
use connection::pool::Pool;
use connection::purpose::Purpose;
use connection::retry::{self, Execute};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The table of counts.
const COUNTS: &str = "ratelimit_window_counts";

/// A global store, opened as one region. Cheap to clone; all clones share their connections.
#[derive(Clone)]
pub struct Database {
    inner: Arc<Inner>,
}

struct Inner {
    region: String,
    primary: Pool,
    /// Where imports read; the primary if there is no other.
    replica: Option<Pool>,
    ledger: LedgerConnections,
}

impl Database {
    /// Checks the options. Connects only when something is asked, so it does not fail because a server is away.
    pub fn open(options: &DatabaseOptions) -> Result<Database, OptionsError> {
        let (primary, replica) = options.targets()?;
        let inner = Inner {
            region: options.region.clone(),
            ledger: LedgerConnections::new(Pool::new(primary.clone(), options::URL, Purpose::Ledger)),
            primary: Pool::new(primary, options::URL, Purpose::Counts),
            replica: replica.map(|replica| Pool::new(replica, options::READ_URL, Purpose::Counts)),
        };
        Ok(Database { inner: Arc::new(inner) })
    }

    /// The region whose rows this one writes.
    pub fn region(&self) -> &str {
        &self.inner.region
    }

    /// Whether the tables are there, on the replica too. What to do if not is in the error.
    pub async fn check_schema(&self, within: Duration) -> Result<(), DatabaseError> {
        let deadline = Instant::now() + within;
        for pool in [Some(&self.inner.primary), self.inner.replica.as_ref()].into_iter().flatten() {
            for statement in pool.statements().check_schema {
                retry::until(deadline, pool, Execute(statement, &[])).await?;
            }
        }
        Ok(())
    }

    /// Whether imports read from another place than publications go to.
    pub fn has_replica(&self) -> bool {
        self.inner.replica.is_some()
    }

    fn primary(&self) -> &Pool {
        &self.inner.primary
    }

    fn replica(&self) -> &Pool {
        self.inner.replica.as_ref().unwrap_or(&self.inner.primary)
    }

    fn ledger(&self) -> &LedgerConnections {
        &self.inner.ledger
    }

    fn region_bytes(&self) -> &[u8] {
        self.inner.region.as_bytes()
    }
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Inner { region, primary, replica, .. } = &*self.inner;
        f.debug_struct("Database")
            .field("region", region)
            .field("primary", primary)
            .field("replica", replica)
            .finish_non_exhaustive()
    }
}

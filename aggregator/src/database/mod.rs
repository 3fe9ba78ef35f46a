//! The global store in MySQL, MariaDB or SQLite: each region's count of each cell, the ledger, and live control.
//!
//! Counts have one row for each cell and region. A write raises the row to a maximum, so any write may be repeated,
//! late or out of order. The ledger has one row for each attempt. In reading order:
//!
//! 1. [`DatabaseOptions`] (`options`): the database and the region.
//! 2. `exchange`: a packet, which writes this process' rows and reads what others have raised. `import`: reading all
//!    rows of the other regions, or of this region. `rows` converts keys to columns.
//! 3. `ledger`, `zones`, `history`: decisions on attempts, the zones' limits, and the recorded attempts.
//! 4. `controls`: live control, its audit, and newer controls.
//! 5. `lease`, `cleanup`, `migrate`: the region lease, deletion, the tables.
//! 6. `connection`: deadlines and retries, the ledger's circuit breaker, pools of connections.
//! 7. [`dialect`]: the kinds of database, each with its SQL, its connection, its errors and its migrations.
//!
//! Every call ends within the time that it is given. If a call runs out of time, its connection is closed and never
//! reused, because a late answer would belong to another call.

mod cleanup;
mod connection;
mod controls;
mod counts;
pub mod dialect;
mod error;
mod ledger;
mod migrate;
mod options;

pub use cleanup::DeletedRows;
pub use controls::{NEWS_ROWS, NewsPage, Tidied};
pub use counts::exchange::PacketResult;
pub use counts::import::ImportedPage;
pub use counts::lease::Lease;
pub use counts::rows::{decode_identifier, encode_identifier};
pub use dialect::{MAX_BUCKET_BYTES, MigrationReport, Velocity};
pub use error::{DatabaseError, Reason};
pub use ledger::history::{BucketUse, MAX_HISTORY_ROWS, Outcome, Transaction};
pub use ledger::zones::{MAX_RATE, MAX_WINDOW, Remains, Zone, ZoneChange, ZoneError};
pub use options::{DatabaseOptions, MAX_REGION_BYTES, OptionsError, Unverified};

use connection::ledger_connections::LedgerConnections;
use connection::pool::Pool;
use connection::retry::{self, Execute};
use dialect::Purpose;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The table of counts.
const COUNTS: &str = "ratelimit_window_counts";

/// A global store, opened for one region. Cheap to clone; all clones share their connections.
#[derive(Clone)]
pub struct Database {
    inner: Arc<Inner>,
}

struct Inner {
    region: String,
    primary: Pool,
    /// The pool for imports; `None` if imports read the primary.
    replica: Option<Pool>,
    ledger: LedgerConnections,
}

impl Database {
    /// Checks the options. It does not connect, so it does not fail if the server is unavailable.
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

    /// The region whose rows this store writes.
    pub fn region(&self) -> &str {
        &self.inner.region
    }

    /// Checks that the tables exist, on the replica too. The error states how to create them.
    pub async fn check_schema(&self, within: Duration) -> Result<(), DatabaseError> {
        let deadline = Instant::now() + within;
        for pool in [Some(&self.inner.primary), self.inner.replica.as_ref()].into_iter().flatten() {
            retry::until(deadline, pool, Execute(pool.statements().check_schema, &[])).await?;
        }
        Ok(())
    }

    /// Whether imports read a replica.
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

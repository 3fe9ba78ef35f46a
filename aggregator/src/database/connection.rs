//! One connection, to either kind of database, with the few things that statements need: parameters, rows, numbers.
//!
//! Leaves to others: which statements (`mysql`, `sqlite`), how many connections (`pool`), deadlines (`retry`).

use super::error::DatabaseError;
use super::pool::Purpose;
use super::rows::push_hex;
use super::{mysql, sqlite};
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlRow};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteRow};
use sqlx::{AssertSqlSafe, Connection as _, Row as _};
use std::fmt;
use tokio_stream::StreamExt;

/// Where to connect, and how.
#[derive(Clone)]
pub(super) enum Target {
    MySql(Box<MySqlConnectOptions>),
    Sqlite(Box<SqliteConnectOptions>),
}

/// The statements of one kind of database; the same parameters in the same order for both.
#[derive(Debug)]
pub struct Statements {
    /// What the semantic conventions of OpenTelemetry call this kind of database.
    pub system: &'static str,
    /// Fails where a table or a column is missing.
    pub check_schema: &'static [&'static str],
    /// Begin of the bulk upsert; rows follow.
    pub upsert_begin: &'static str,
    /// End of the bulk upsert.
    pub upsert_end: &'static str,
    /// Most rows in one upsert.
    pub upsert_rows: usize,
    /// What other regions used: now, region, most cells.
    pub import: &'static str,
    /// What this region had published: now, region, most cells.
    pub own: &'static str,
    /// Every region's share of a key: workspace, namespace, identifier, window, oldest cell, most rows.
    pub shares: &'static str,
    /// Every region that has written, when it did last and how many rows it has among those that live longest: now, how
    /// many of these.
    pub regions: &'static str,
    /// The sentinel's number: region.
    pub sentinel_read: &'static str,
    /// Leaves a sentinel where there is none: region, number.
    pub sentinel_make: &'static str,
    /// Takes or renews a lease if nobody else has it: region, holder, milliseconds.
    pub lease_take: &'static str,
    /// Who has the lease and for how long: region.
    pub lease_read: &'static str,
    /// Gives a lease back: region, holder.
    pub lease_release: &'static str,
    /// Deletes some of what expired before: cutoff, most rows.
    pub cleanup: &'static str,
    /// Withdraws an attempt that was allowed: transaction, zone, bucket.
    pub withdraw: &'static str,
    /// An attempt: transaction.
    pub transaction: &'static str,
    /// A bucket's attempts, the newest first: zone, bucket, transaction that all are before, most rows.
    pub transactions: &'static str,
    /// All zones.
    pub zones: &'static str,
    /// A zone: zone.
    pub zone: &'static str,
    /// Makes a zone or changes it: zone, description, rate, window, whether to change the description (1) or not (0).
    pub zone_set: &'static str,
    /// The window of a zone in seconds: zone.
    pub zone_window: &'static str,
    /// Deletes a zone: zone.
    pub zone_delete: &'static str,
    /// How many attempts in a zone are recorded: zone, number to count to.
    pub zone_attempts: &'static str,
    /// The next zone in which attempts are recorded: the lowest number that it may have.
    pub recorded_zone: &'static str,
    /// Deletes some of a zone's oldest attempts: zone, seconds that they are older than, most rows.
    pub cleanup_attempts: &'static str,
    /// Deletes some of the bucket locks that were not used lately, where there are any: days, most rows.
    pub cleanup_locks: Option<&'static str>,
    /// The edition of live control, locked until the transaction ends.
    pub control_edition_lock: &'static str,
    /// Makes one where there is none: life, lowest revision.
    pub control_edition_make: &'static str,
    /// Deletes some of the oldest changes of live control: moment before which they were made, most rows.
    pub control_audit_cleanup: &'static str,
}

impl Statements {
    /// [`Statements::check_schema`], the same for both.
    pub const CHECK_SCHEMA: &'static [&'static str] = &[
        "SELECT pk, workspace_id, namespace, identifier, duration_ms, sequence, region, count, expires_at, updated_at
         FROM ratelimit_window_counts LIMIT 0",
        "SELECT region, holder, expires_at FROM weir_region_leases LIMIT 0",
        "SELECT id, description, rate, `window` FROM zone_master LIMIT 0",
        "SELECT id, zone_id, bucket_key, blocked, created_at, cost, region FROM zone_txn LIMIT 0",
        "SELECT workspace, scope, identifier, network, window_ms, slot, kind, amount, expires_at, reason, author, automatic,
                deleted, revision, created_at, updated_at FROM weir_controls LIMIT 0",
        "SELECT id, life, revision, floor FROM weir_control_edition LIMIT 0",
        "SELECT id, created_at, author, automatic, region, action, was, is_now FROM weir_control_audit LIMIT 0",
    ];
    /// [`Statements::shares`], the same for both.
    pub const SHARES: &'static str = "
SELECT region, sequence, count, updated_at FROM ratelimit_window_counts
WHERE workspace_id = ? AND namespace = ? AND identifier = ? AND duration_ms = ? AND sequence >= ?
ORDER BY sequence, region
LIMIT ?";
    /// [`Statements::upsert_begin`], the same for both.
    pub const UPSERT_BEGIN: &'static str = "
INSERT INTO ratelimit_window_counts
    (workspace_id, namespace, identifier, duration_ms, sequence, region, count, expires_at, updated_at)
VALUES ";
}

/// A parameter.
#[derive(Clone, Copy, Debug)]
pub(super) enum Arg<'a> {
    Bytes(&'a [u8]),
    Int(u64),
}

/// An open connection.
pub(super) enum Connection {
    MySql(Box<MySqlConnection>),
    Sqlite(Box<SqliteConnection>),
}

/// A row of an answer.
pub(super) enum Row<'a> {
    MySql(&'a MySqlRow),
    Sqlite(&'a SqliteRow),
}

impl Target {
    pub async fn connect(&self, purpose: Purpose) -> Result<Connection, DatabaseError> {
        Ok(match self {
            Target::MySql(options) => Connection::MySql(Box::new(mysql::connect(options, purpose).await?)),
            Target::Sqlite(options) => Connection::Sqlite(Box::new(sqlite::connect(options, purpose).await?)),
        })
    }

    pub fn statements(&self) -> &'static Statements {
        match self {
            Target::MySql(_) => &mysql::STATEMENTS,
            Target::Sqlite(_) => &sqlite::STATEMENTS,
        }
    }
}

/// No user and no password.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::MySql(options) => {
                let database = options.get_database().unwrap_or_default();
                write!(f, "mysql://{}:{}/{database}", options.get_host(), options.get_port())
            }
            Target::Sqlite(options) => write!(f, "sqlite://{}", options.get_filename().display()),
        }
    }
}

/// The same thing done to either kind of connection.
macro_rules! either {
    ($self:expr, $connection:ident => $body:expr) => {
        match $self {
            Connection::MySql($connection) => {
                let $connection = $connection.as_mut();
                $body
            }
            Connection::Sqlite($connection) => {
                let $connection = $connection.as_mut();
                $body
            }
        }
    };
}

/// A prepared statement with its parameters. SQLite's numbers are signed, and so is all that is sent to it; what would
/// not fit is refused before (`rows`).
macro_rules! prepared {
    ($statement:expr, $args:expr) => {
        $args.iter().fold(sqlx::query($statement), |query, arg| match arg {
            Arg::Bytes(bytes) => query.bind(*bytes),
            Arg::Int(number) => query.bind(number.cast_signed()),
        })
    };
}

/// Appends parameters as SQL text, for statements that hold their values themselves.
pub(super) fn push_args(args: &[Arg<'_>], sql: &mut String) {
    for (place, arg) in args.iter().enumerate() {
        if place > 0 {
            sql.push(',');
        }
        match arg {
            Arg::Bytes(bytes) => push_hex(bytes, sql),
            Arg::Int(number) => sql.push_str(&number.to_string()),
        }
    }
}

impl Connection {
    pub fn is_mysql(&self) -> bool {
        matches!(self, Connection::MySql(_))
    }

    pub fn statements(&self) -> &'static Statements {
        match self {
            Connection::MySql(_) => &mysql::STATEMENTS,
            Connection::Sqlite(_) => &sqlite::STATEMENTS,
        }
    }

    /// Runs a statement; the number of rows that it changed.
    pub async fn execute(&mut self, statement: &'static str, args: &[Arg<'_>]) -> Result<u64, DatabaseError> {
        Ok(either!(self, connection => prepared!(statement, args).execute(connection).await?.rows_affected()))
    }

    /// Runs a statement that holds its values itself. Preparing tens of thousands of parameters costs more than the
    /// text, as the server describes each of them first; and every number of rows would be one more statement to keep.
    pub async fn execute_text(&mut self, statement: String) -> Result<u64, DatabaseError> {
        let statement = AssertSqlSafe(statement);
        Ok(either!(self, connection => sqlx::raw_sql(statement).execute(connection).await?.rows_affected()))
    }

    /// Hands every row of an answer to `take`.
    pub async fn each(
        &mut self,
        statement: &'static str,
        args: &[Arg<'_>],
        mut take: impl FnMut(&Row<'_>),
    ) -> Result<(), DatabaseError> {
        match self {
            Connection::MySql(connection) => {
                let mut rows = prepared!(statement, args).fetch(connection.as_mut());
                while let Some(row) = rows.next().await {
                    take(&Row::MySql(&row?));
                }
            }
            Connection::Sqlite(connection) => {
                let mut rows = prepared!(statement, args).fetch(connection.as_mut());
                while let Some(row) = rows.next().await {
                    take(&Row::Sqlite(&row?));
                }
            }
        }
        Ok(())
    }

    /// The same with a statement that holds its values itself.
    pub async fn each_text(
        &mut self,
        statement: String,
        mut take: impl FnMut(&Row<'_>),
    ) -> Result<(), DatabaseError> {
        let statement = AssertSqlSafe(statement);
        match self {
            Connection::MySql(connection) => {
                let mut rows = sqlx::raw_sql(statement).fetch(connection.as_mut());
                while let Some(row) = rows.next().await {
                    take(&Row::MySql(&row?));
                }
            }
            Connection::Sqlite(connection) => {
                let mut rows = sqlx::raw_sql(statement).fetch(connection.as_mut());
                while let Some(row) = rows.next().await {
                    take(&Row::Sqlite(&row?));
                }
            }
        }
        Ok(())
    }

    pub async fn ping(&mut self) -> Result<(), DatabaseError> {
        either!(self, connection => connection.ping().await).map_err(DatabaseError::from)
    }
}

impl Row<'_> {
    /// A text column; `None` if it holds anything else.
    pub fn bytes(&self, column: usize) -> Option<&[u8]> {
        match self {
            Row::MySql(row) => row.try_get(column).ok(),
            Row::Sqlite(row) => row.try_get(column).ok(),
        }
    }

    /// A number; `None` if it is negative, or none at all.
    pub fn number(&self, column: usize) -> Option<u64> {
        match self {
            Row::MySql(row) => row.try_get::<u64, _>(column).ok().or_else(|| {
                let signed: i64 = row.try_get(column).ok()?;
                signed.try_into().ok()
            }),
            // SQLite takes nothing at all for 0, unless asked.
            Row::Sqlite(row) => row.try_get::<Option<i64>, _>(column).ok()??.try_into().ok(),
        }
    }
}

//! One connection, to either kind of database, with the few things that statements need: parameters, rows, numbers.
//!
//! Leaves to others: which statements (`mysql`, `sqlite`), how many connections (`pool`), deadlines (`retry`).

use super::error::DatabaseError;
use super::{mysql, sqlite};
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlRow};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteRow};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection as _, Row as _};
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
    pub async fn connect(&self) -> Result<Connection, DatabaseError> {
        Ok(match self {
            Target::MySql(options) => Connection::MySql(Box::new(mysql::connect(options).await?)),
            Target::Sqlite(options) => Connection::Sqlite(Box::new(options.connect().await?)),
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

impl Connection {
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

    /// A number; `None` if it is negative or none at all.
    pub fn number(&self, column: usize) -> Option<u64> {
        match self {
            Row::MySql(row) => row.try_get::<u64, _>(column).ok().or_else(|| {
                let signed: i64 = row.try_get(column).ok()?;
                signed.try_into().ok()
            }),
            Row::Sqlite(row) => row.try_get::<i64, _>(column).ok()?.try_into().ok(),
        }
    }
}

//! One connection to MySQL, MariaDB or SQLite behind one type, with parameters, rows and numbers.

pub(in crate::database) mod ledger_connections;
pub mod mysql;
pub(in crate::database) mod pool;
pub(in crate::database) mod purpose;
pub(in crate::database) mod retry;
pub mod sqlite;
pub(in crate::database) mod statements;
mod turns;

use self::purpose::Purpose;
use self::statements::{Statements, push_hex};
use crate::database::error::DatabaseError;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlRow};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteRow};
use sqlx::{AssertSqlSafe, Connection as _, Row as _};
use std::fmt;
use tokio_stream::StreamExt;

/// Address and connect options.
#[derive(Clone)]
pub(in crate::database) enum Target {
    MySql(Box<MySqlConnectOptions>),
    Sqlite(Box<SqliteConnectOptions>),
}

/// A statement parameter.
#[derive(Clone, Copy, Debug)]
pub(in crate::database) enum Arg<'a> {
    Bytes(&'a [u8]),
    Int(u64),
}

pub(in crate::database) enum Connection {
    MySql(Box<MySqlConnection>),
    Sqlite(Box<SqliteConnection>),
}

/// A result row.
pub(in crate::database) enum Row<'a> {
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

/// Shows neither user nor password.
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

/// Runs the same expression on either kind of connection.
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

/// A prepared statement with its parameters. SQLite's integers are signed, so all numbers are sent as signed. `rows`
/// rejects larger values beforehand.
macro_rules! prepared {
    ($statement:expr, $args:expr) => {
        $args.iter().fold(sqlx::query($statement), |query, arg| match arg {
            Arg::Bytes(bytes) => query.bind(*bytes),
            Arg::Int(number) => query.bind(number.cast_signed()),
        })
    };
}

/// Appends parameters as SQL text, for statements that contain their values as literals.
pub(in crate::database) fn push_args(args: &[Arg<'_>], sql: &mut String) {
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

/// Appends a statement with its parameters as literals.
pub(in crate::database) fn push_statement(statement: &str, args: &[Arg<'_>], sql: &mut String) {
    let mut args = args.iter();
    for (place, part) in statement.split('?').enumerate() {
        if place > 0 {
            push_args(args.next().map(std::slice::from_ref).unwrap_or_default(), sql);
        }
        sql.push_str(part);
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

    /// Executes a statement and returns the number of rows that it changed.
    pub async fn execute(&mut self, statement: &'static str, args: &[Arg<'_>]) -> Result<u64, DatabaseError> {
        Ok(either!(self, connection => prepared!(statement, args).execute(connection).await?.rows_affected()))
    }

    /// Executes statements that contain their values as literals.
    pub async fn execute_text(&mut self, statement: String) -> Result<u64, DatabaseError> {
        let statement = AssertSqlSafe(statement);
        Ok(either!(self, connection => sqlx::raw_sql(statement).execute(connection).await?.rows_affected()))
    }

    /// Calls `take` with every result row.
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

    /// Like [`Connection::each`], with statements that contain their values as literals. Preparing thousands of
    /// parameters costs more than parsing the text, because the server describes each parameter first. Each number of
    /// rows would also need its own prepared statement.
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
    /// A text column; `None` if the column has another type.
    pub fn bytes(&self, column: usize) -> Option<&[u8]> {
        match self {
            Row::MySql(row) => row.try_get(column).ok(),
            Row::Sqlite(row) => row.try_get(column).ok(),
        }
    }

    /// A number column; `None` if it is negative, NULL or of another type.
    pub fn number(&self, column: usize) -> Option<u64> {
        match self {
            Row::MySql(row) => row.try_get::<u64, _>(column).ok().or_else(|| {
                let signed: i64 = row.try_get(column).ok()?;
                signed.try_into().ok()
            }),
            // For SQLite, sqlx decodes NULL as 0 unless the type is an `Option`.
            Row::Sqlite(row) => row.try_get::<Option<i64>, _>(column).ok()??.try_into().ok(),
        }
    }
}

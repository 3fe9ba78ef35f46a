//! Connections: one of any kind behind one type, pools of them, deadlines and retries.

pub(in crate::database) mod ledger_connections;
pub(in crate::database) mod pool;
pub(in crate::database) mod retry;
mod turns;

pub(in crate::database) use crate::database::dialect::{Arg, Row};

use crate::database::dialect::{self, Link, Migrated, Purpose, Server, Statements, Velocity};
use crate::database::error::DatabaseError;
use weir_core::replication::exact::plan::LedgerCharge;

/// A connection to a database of any kind.
pub(in crate::database) struct Connection(Box<dyn Link>);

impl Connection {
    pub async fn open(server: &dyn Server, purpose: Purpose) -> Result<Connection, DatabaseError> {
        server.connect(purpose).await.map(Connection)
    }

    pub fn statements(&self) -> &'static Statements {
        self.0.statements()
    }

    /// Executes a statement and returns the number of rows that it changed.
    pub async fn execute(&mut self, statement: &'static str, args: &[Arg<'_>]) -> Result<u64, DatabaseError> {
        self.0.execute(statement, args).await
    }

    /// Executes statements that contain their values as literals.
    pub async fn execute_text(&mut self, text: String) -> Result<u64, DatabaseError> {
        self.0.execute_text(text).await
    }

    /// Calls `take` with every result row.
    pub async fn each(
        &mut self,
        statement: &'static str,
        args: &[Arg<'_>],
        mut take: impl FnMut(&Row<'_>) + Send,
    ) -> Result<(), DatabaseError> {
        self.0.each(statement, args, &mut take).await
    }

    /// Like [`Connection::each`], with statements that contain their values as literals. Preparing thousands of
    /// parameters costs more than parsing the text, because the server describes each parameter first. Each number of
    /// rows would also need its own prepared statement.
    pub async fn each_text(
        &mut self,
        text: String,
        mut take: impl FnMut(&Row<'_>) + Send,
    ) -> Result<(), DatabaseError> {
        self.0.each_text(text, &mut take).await
    }

    /// The first `N` numbers of the first row.
    pub async fn first<const N: usize>(
        &mut self,
        statement: &'static str,
        args: &[Arg<'_>],
    ) -> Result<[Option<u64>; N], DatabaseError> {
        dialect::first(&mut *self.0, statement, args).await
    }

    /// Decides an attempt of the ledger and records it.
    pub async fn check_velocity(
        &mut self,
        charge: &LedgerCharge,
        region: &[u8],
    ) -> Result<Velocity, DatabaseError> {
        self.0.check_velocity(charge, region).await
    }

    /// Applies the missing migrations. This changes the session's settings, so the connection is not reused.
    pub async fn migrate(&mut self) -> Result<Migrated, DatabaseError> {
        self.0.migrate().await
    }

    pub async fn ping(&mut self) -> Result<(), DatabaseError> {
        self.0.ping().await
    }
}

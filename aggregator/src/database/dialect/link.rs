//! What each kind of database implements: its address ([`Server`]), a connection ([`Link`]), and the rows of a result.

use super::arg::Arg;
use super::migrations::MigrationReport;
use super::purpose::Purpose;
use super::statements::Statements;
use super::velocity::Velocity;
use crate::database::error::DatabaseError;
use std::fmt;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use weir_core::replication::exact::plan::LedgerCharge;

/// A kind of database, as URLs name it.
pub(super) struct Kind {
    /// The schemes of its URLs.
    pub schemes: &'static [&'static str],
    /// Reads a URL, and opens nothing.
    pub server: fn(&str) -> Result<Arc<dyn Server>, UrlError>,
}

/// What is wrong with a URL. The texts quote nothing of it, as it contains a password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::database) enum UrlError {
    /// No kind of database has its scheme.
    Scheme,
    /// It cannot be read.
    Malformed(String),
    /// It names a server but no database.
    NoDatabase,
    /// It names a database in memory.
    InMemory,
}

/// The future of a call on a connection.
pub(in crate::database) type Call<'a, T> =
    Pin<Box<dyn Future<Output = Result<T, DatabaseError>> + Send + 'a>>;

/// Which file an address names, however it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::database) struct FileId {
    /// The device that has it.
    pub device: u64,
    /// Its number there; no other file has it while the file is open.
    pub inode: u64,
}

/// The future of [`Server::file`].
pub(in crate::database) type Named<'a> = Pin<Box<dyn Future<Output = Option<FileId>> + Send + 'a>>;

/// Takes the rows of a result.
pub(in crate::database) type Take<'a> = &'a mut (dyn FnMut(&Row<'_>) + Send);

/// A row of a result.
pub(in crate::database) type Row<'a> = dyn Columns + 'a;

/// Address and connect options. Its `Debug` output shows neither user nor password.
pub(in crate::database) trait Server: fmt::Debug + Send + Sync {
    /// The statements of its kind.
    fn statements(&self) -> &'static Statements;

    /// Opens a connection.
    fn connect(&self, purpose: Purpose) -> Call<'_, Box<dyn Link>>;

    /// Makes an empty database if there is none and this kind can; called before migrations.
    fn create(&self) -> Call<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    /// The file that the address names now; `None` if it names none. A connection goes on with the file that it has opened, also after that
    /// was deleted or replaced.
    fn file(&self) -> Named<'_> {
        Box::pin(async { None })
    }

    /// Number of connections that the ledger uses.
    fn ledger_connections(&self) -> usize;

    /// The folder of a database that is a file.
    fn folder(&self) -> Option<&Path> {
        None
    }

    /// Why another machine's certificate is not verified, and what to do.
    fn unverified(&self) -> Option<String> {
        None
    }
}

/// One connection.
pub(in crate::database) trait Link: Send {
    /// The statements of its kind.
    fn statements(&self) -> &'static Statements;

    /// Executes a statement and returns the number of rows that it changed.
    fn execute<'a>(&'a mut self, statement: &'static str, args: &'a [Arg<'a>]) -> Call<'a, u64>;

    /// Executes statements that contain their values as literals.
    fn execute_text(&mut self, text: String) -> Call<'_, u64>;

    /// Calls `take` with every row of a result.
    fn each<'a>(&'a mut self, statement: &'static str, args: &'a [Arg<'a>], take: Take<'a>) -> Call<'a, ()>;

    /// Like `each`, with statements that contain their values as literals. Preparing thousands of parameters costs more than parsing the
    /// text, because the server describes each parameter first. Each number of rows would also need its own prepared statement.
    fn each_text<'a>(&'a mut self, text: String, take: Take<'a>) -> Call<'a, ()>;

    /// Waits for an answer to nothing.
    fn ping(&mut self) -> Call<'_, ()>;

    /// Decides an attempt and records it, in one transaction that takes its time under the lock of the bucket.
    fn check_velocity<'a>(&'a mut self, charge: &'a LedgerCharge, region: &'a [u8]) -> Call<'a, Velocity>;

    /// Applies the missing migrations. The session's settings are changed.
    fn migrate(&mut self) -> Call<'_, MigrationReport>;
}

/// The columns of a row, by their places.
pub(in crate::database) trait Columns {
    /// A text column; `None` if the column has another type.
    fn bytes(&self, column: usize) -> Option<&[u8]>;

    /// A number column; `None` if it is negative, NULL or of another type.
    fn number(&self, column: usize) -> Option<u64>;
}

impl dyn Link + '_ {
    /// The first `N` numbers of the first row.
    pub async fn first<const N: usize>(
        &mut self,
        statement: &'static str,
        args: &[Arg<'_>],
    ) -> Result<[Option<u64>; N], DatabaseError> {
        let mut numbers = [None; N];
        let mut take = |row: &Row<'_>| numbers = std::array::from_fn(|column| row.number(column));
        self.each(statement, args, &mut take).await?;
        Ok(numbers)
    }
}

//! The kinds of database, each in a folder of its own: its SQL, its connection, its errors, its ledger, its migrations.
//!
//! A further kind is a folder that implements [`Server`] and [`Link`] with [`Statements`] of its own, a row of [`KINDS`], and a folder of
//! `migrations`. No other part of the program distinguishes kinds.

mod arg;
mod common;
mod link;
mod migrations;
pub mod mysql;
mod purpose;
pub mod sqlite;
pub(in crate::database) mod statements;
mod through_sqlx;
mod velocity;

pub(in crate::database) use arg::Arg;
pub(in crate::database) use link::{FileId, Link, Row, Server, UrlError};
pub use migrations::MigrationReport;
pub(in crate::database) use purpose::{MAX_IDLE, Purpose};
pub(in crate::database) use statements::{
    ControlStatements, Statements, push_args, push_hex, push_statement,
};
pub use velocity::{MAX_BUCKET_BYTES, Velocity};

use link::Kind;
use std::sync::Arc;

/// All kinds of database.
const KINDS: [Kind; 2] = [mysql::KIND, sqlite::KIND];

/// The server that a URL names.
pub(in crate::database) fn server(scheme: &str, url: &str) -> Result<Arc<dyn Server>, UrlError> {
    let kind = KINDS.iter().find(|kind| kind.schemes.contains(&scheme)).ok_or(UrlError::Scheme)?;
    (kind.server)(url)
}

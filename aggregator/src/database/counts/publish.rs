//! This region's rows, written in bulk: sorted, in chunks, each one statement that raises counts and lowers none.
//!
//! Leaves to others: which rows are worth it and which are stored already (`weir_core::region`), second tries
//! (`retry`).

use super::rows;
use crate::database::connection::Connection;
use crate::database::connection::retry::{self, Work};
use crate::database::{COUNTS, Database, DatabaseError, Reason};
use crate::telemetry::spans;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;
use weir_core::model::time::UnixMs;
use weir_core::region::exchange::Publication;

/// Bytes of a row as text, as a first guess.
const ROW_BYTES: usize = 180;

/// What became of a publication.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// Rows that are stored now, whether they changed anything or not.
    pub rows: u64,
    /// Rows that no database could hold, left out.
    pub skipped: u64,
    /// What was wrong with one of them.
    pub skipped_example: Option<String>,
    /// Chunks that are not stored; their rows are to be said again.
    pub chunks_failed: u64,
    /// Failed chunks by reason. One that was not tried any more counts under what stopped the one before.
    pub errors: BTreeMap<&'static str, u64>,
    /// The last of those errors.
    pub last_error: Option<DatabaseError>,
}

impl Database {
    /// Stores counts, each raised and never lowered. Hands every chunk that is stored to `stored`. A chunk that fails
    /// keeps no other from being stored; once the database is away or the time is over, the rest is not tried.
    pub async fn publish(
        &self,
        publications: &[Publication],
        now: UnixMs,
        within: Duration,
        mut stored: impl FnMut(&[Publication]),
    ) -> Published {
        let deadline = Instant::now() + within;
        let mut published = Published::default();
        let rows = storable(publications, &mut published);
        let mut hopeless = None;
        for chunk in rows.chunks(self.primary().statements().upsert_rows) {
            let result = match &hopeless {
                None => self.store(chunk, now, deadline).await,
                Some(error) => Err(DatabaseError::clone(error)),
            };
            match result {
                Ok(()) => {
                    published.rows += chunk.len() as u64;
                    stored(chunk);
                }
                Err(error) => {
                    published.chunks_failed += 1;
                    *published.errors.entry(error.reason()).or_default() += 1;
                    hopeless = Some(error.clone()).filter(is_hopeless);
                    published.last_error = Some(error);
                }
            }
        }
        published
    }

    async fn store(
        &self,
        chunk: &[Publication],
        now: UnixMs,
        deadline: Instant,
    ) -> Result<(), DatabaseError> {
        let statements = self.primary().statements();
        let mut sql = String::with_capacity(chunk.len() * ROW_BYTES);
        sql.push_str(statements.upsert_begin);
        for (place, row) in chunk.iter().enumerate() {
            if place > 0 {
                sql.push(',');
            }
            rows::push_row(row, self.region_bytes(), now.0, &mut sql);
        }
        sql.push_str(statements.upsert_end);
        let call = spans::statement(statements.system, "INSERT", COUNTS, chunk.len());
        let result = retry::until(deadline, self.primary(), Upsert(sql)).await;
        spans::failed(call, result.as_ref().err().map(DatabaseError::reason));
        result
    }
}

/// One chunk as a statement.
struct Upsert(String);

impl Work for Upsert {
    type Output = ();

    async fn run(&mut self, connection: &mut Connection) -> Result<(), DatabaseError> {
        connection.execute_text(self.0.clone()).await.map(drop)
    }
}

/// The rows that can be stored, in the order of the unique key.
fn storable(publications: &[Publication], published: &mut Published) -> Vec<Publication> {
    let mut kept = Vec::with_capacity(publications.len());
    for row in publications {
        match rows::unstorable(row) {
            None => kept.push(row.clone()),
            Some(reason) => {
                published.skipped += 1;
                published.skipped_example.get_or_insert_with(|| describe(row, reason));
            }
        }
    }
    kept.sort_by_cached_key(rows::index_order);
    kept
}

fn describe(row: &Publication, reason: &str) -> String {
    let Publication { sequence, count, expires, .. } = row;
    let namespace = row.key.parts().namespace.escape_ascii();
    format!("namespace \"{namespace}\", sequence {sequence}, count {count}, expires {}: {reason}", expires.0)
}

fn is_hopeless(error: &DatabaseError) -> bool {
    matches!(error.kind(), Reason::Timeout | Reason::Unavailable | Reason::Refused | Reason::Schema)
}

//! Publishes this region's rows in bulk: sorted and split into chunks. One statement for each chunk raises counts and
//! never lowers them.

use super::rows::{self, Storable};
use crate::database::connection::Connection;
use crate::database::connection::retry::{self, Work};
use crate::database::{COUNTS, Database, DatabaseError, Reason};
use crate::telemetry::spans;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;
use weir_core::model::time::UnixMs;
use weir_core::region::exchange::Publication;

/// First guess of the bytes of a row as text.
const ROW_BYTES: usize = 180;

/// The result of a publication.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// Number of rows that are stored now, whether or not they changed.
    pub rows: u64,
    /// Number of rows that no database could store.
    pub skipped: u64,
    /// A description of one skipped row.
    pub skipped_example: Option<String>,
    /// Number of chunks that are not stored; their rows must be published again.
    pub chunks_failed: u64,
    /// Failed chunks by reason. A chunk that was not tried counts under the reason that stopped the one before.
    pub errors: BTreeMap<&'static str, u64>,
    /// The last of these errors.
    pub last_error: Option<DatabaseError>,
}

impl Database {
    /// Stores counts, which only grow, and calls `stored` with every stored chunk. A failed chunk does not affect the
    /// others. If the database is unavailable or the time is over, the remaining chunks are not tried.
    pub async fn publish(
        &self,
        publications: &[Publication],
        now: UnixMs,
        within: Duration,
        mut stored: impl FnMut(&[Publication]),
    ) -> Published {
        let deadline = Instant::now() + within;
        let Storable { rows, skipped, example: skipped_example } = rows::storable(publications);
        let mut published = Published { skipped, skipped_example, ..Published::default() };
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

/// One chunk as an SQL statement.
struct Upsert(String);

impl Work for Upsert {
    type Output = ();

    async fn run(&mut self, connection: &mut Connection) -> Result<(), DatabaseError> {
        connection.execute_text(self.0.clone()).await.map(drop)
    }
}

fn is_hopeless(error: &DatabaseError) -> bool {
    matches!(error.kind(), Reason::Timeout | Reason::Unavailable | Reason::Refused | Reason::Schema)
}

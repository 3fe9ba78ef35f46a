//! Reads the counts page by page: those of the other regions, or those of this region.
//!
//! A page is a part of `expires_at_idx`, which ends with the row's number in both kinds of database. So no expired row is read, and a page
//! costs the same wherever it begins. The rows of the regions that were not asked for are part of a page too, or a page could examine the
//! whole table. The markers of writers are no cells.

use super::rows::{self, Cells};
use crate::database::connection::pool::Pool;
use crate::database::connection::retry::{self, Work};
use crate::database::connection::{Arg, Connection, Row};
use crate::database::{COUNTS, Database, DatabaseError};
use crate::telemetry::spans;
use std::time::Duration;
use tokio::time::Instant;
use weir_core::model::time::UnixMs;
use weir_core::region::exchange::{Page, PageEnd};
use weir_core::replication::global::paging::ReadPage;

/// A page of the counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportedPage {
    /// The cells that were asked for, and where the page ended.
    pub page: Page,
    /// Number of rows that were skipped because Weir does not write such rows.
    pub bad: u64,
    /// A description of one skipped row.
    pub bad_example: Option<String>,
}

impl Database {
    /// A page of the other regions' counts.
    pub async fn import(&self, page: &ReadPage) -> Result<ImportedPage, DatabaseError> {
        self.read(self.replica(), page, false).await
    }

    /// A page of this region's counts.
    pub async fn own(&self, page: &ReadPage) -> Result<ImportedPage, DatabaseError> {
        self.read(self.primary(), page, true).await
    }

    async fn read(&self, pool: &Pool, page: &ReadPage, own: bool) -> Result<ImportedPage, DatabaseError> {
        let number = |number: u64| Arg::Int(number.min(rows::MAX_NUMBER));
        let ReadPage { after, rows, within_ms } = page;
        let expires = number(after.expires.0);
        let args = [expires, expires, number(after.row), number(*rows as u64)];
        let reading = ReadRows { args, most: *rows, region: self.region_bytes(), own };
        let call = spans::statement(pool.statements().system, "SELECT", COUNTS, 1);
        let deadline = Instant::now() + Duration::from_millis(*within_ms);
        let result = retry::until(deadline, pool, reading).await;
        spans::failed(call, result.as_ref().err().map(DatabaseError::reason));
        result
    }
}

struct ReadRows<'a> {
    args: [Arg<'a>; 4],
    most: usize,
    region: &'a [u8],
    /// Whether the rows of `region` are wanted, or those of the others.
    own: bool,
}

impl Work for ReadRows<'_> {
    type Output = ImportedPage;

    async fn run(&mut self, connection: &mut Connection) -> Result<ImportedPage, DatabaseError> {
        let (mut cells, mut taken, mut last) = (Cells::default(), 0, None);
        let statement = connection.statements().page;
        connection
            .each(statement, &self.args, &mut |row| {
                taken += 1;
                last = place(row);
                let is_own = row.bytes(rows::REGION) == Some(self.region);
                let is_marker = row.number(rows::DURATION) == Some(0);
                if is_own == self.own && !is_marker {
                    cells.take(row);
                }
            })
            .await?;
        let Cells { regions, bad, bad_example } = cells;
        // Fewer rows than were asked for are the last ones.
        let end = last.filter(|_| taken >= self.most);
        Ok(ImportedPage { page: Page { regions: rows::by_region(regions), end }, bad, bad_example })
    }
}

impl ImportedPage {
    /// Number of cells of all regions.
    pub fn cells(&self) -> usize {
        self.page.regions.iter().map(|region| region.cells.len()).sum()
    }
}

fn place(row: &Row<'_>) -> Option<PageEnd> {
    Some(PageEnd { expires: UnixMs(row.number(rows::EXPIRES)?), row: row.number(rows::PLACE)? })
}

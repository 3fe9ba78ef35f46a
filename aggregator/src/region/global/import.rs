//! Imports the other regions' counts from the database.

use super::calls::{Global, count, failure};
use crate::database::DatabaseError;
use crate::region::hub::Hub;
use crate::region::machine::Machine;
use crate::telemetry::metrics::Operation;
use crate::telemetry::spans::{Round, around};
use std::sync::Arc;
use std::time::Instant;
use tracing::{debug, warn};
use weir_core::replication::Next;
use weir_core::replication::global::import::Importer;
use weir_core::replication::global::paging::ReadPage;

/// Imports for as long as the program runs.
pub(super) struct ImportTask {
    global: Arc<Global>,
    importer: Importer,
    round: Round,
    /// The pages that were read without a pause.
    going: Option<Going>,
}

struct Going {
    began: Instant,
    /// Cells read.
    cells: u64,
    bad: u64,
    bad_example: Option<String>,
    /// What all imports before this one did.
    before: CellCounts,
}

/// Cells of other regions.
struct CellCounts {
    merged: u64,
    refused: u64,
    /// Left out for want of room.
    without_room: u64,
}

/// Before the program serves: imports all, within a bound.
pub(super) async fn before_serving(hub: &Arc<Hub>, global: &Arc<Global>) -> ImportTask {
    let now = hub.moment().mono;
    let importer = Importer::before_serving(global.schedule, now, rand::random());
    let round = Round::new("import");
    let mut import = ImportTask { global: global.clone(), importer, round, going: None };
    hub.drive_until(&mut import, |import, hub| import.importer.may_serve(hub.moment().mono)).await;
    if hub.state(|state, _| state.figures.imported_at.is_none()) {
        warn!(
            "not all counts of other regions could be read in time; serving without the rest, which is read meanwhile"
        );
    }
    import
}

impl Machine for ImportTask {
    type Call = ReadPage;

    fn next(&mut self, mut hub: &Hub) -> Next<ReadPage> {
        self.importer.next(&mut hub, rand::random())
    }

    async fn call(&mut self, hub: &Arc<Hub>, page: ReadPage) {
        self.read(hub, page).await;
    }

    fn idle(&mut self, hub: &Hub, next: &Next<ReadPage>) {
        if *next == Next::Yield {
            return;
        }
        self.round.end();
        if let Some(going) = self.going.take() {
            going.conclude(hub);
        }
    }
}

impl ImportTask {
    /// The program serves.
    pub(super) fn serve(&mut self) {
        self.importer.serve();
    }

    async fn read(&mut self, hub: &Hub, page: ReadPage) {
        let global = &self.global;
        let (began, before, span) = (Instant::now(), CellCounts::of(hub), self.round.call(&hub.telemetry));
        let result = around(span.as_ref(), global.database.import(&page)).await;
        let cells = result.as_ref().map_or(0, |imported| imported.cells() as u64);
        self.round.called(cells, result.as_ref().err().map(DatabaseError::reason));
        count(hub, global, Operation::Import, began, &result);
        let going = self.going.get_or_insert(Going { began, cells: 0, bad: 0, bad_example: None, before });
        match result {
            Ok(imported) => {
                going.cells += cells;
                going.bad += imported.bad;
                going.bad_example = going.bad_example.take().or(imported.bad_example);
                self.importer.imported(&mut &*hub, Ok(imported.page));
            }
            Err(error) => {
                hub.metrics.import_failed(error.reason());
                hub.warn(&format!("could not import from the database: {error}"), None);
                self.importer.imported(&mut &*hub, Err(failure(&error)));
            }
        }
    }
}

impl Going {
    fn conclude(self, hub: &Hub) {
        let Going { began, cells, bad, bad_example, before } = self;
        let all = CellCounts::of(hub);
        let bad = bad + all.refused.saturating_sub(before.refused);
        let full = all.without_room.saturating_sub(before.without_room);
        if full > 0 {
            hub.warn(
                &format!("no room for {full} cells that other regions have used: --max-keys is reached"),
                None,
            );
        }
        if bad > 0 {
            hub.metrics.program.bad_rows.inc_by(bad);
            let example = bad_example.unwrap_or_default();
            hub.warn(&format!("skipped {bad} invalid rows of the database: {example}"), None);
        }
        hub.metrics.convergence.global_rows_last_poll.set(i64::try_from(cells).unwrap_or(i64::MAX));
        debug!(applied = all.merged.saturating_sub(before.merged), "imported");
        hub.metrics.import_seconds.observe(began.elapsed().as_secs_f64());
    }
}

impl CellCounts {
    /// Those of all imports until now.
    fn of(hub: &Hub) -> CellCounts {
        hub.state(|state, _| CellCounts {
            merged: state.figures.imports_merged,
            refused: state.figures.imports_refused,
            without_room: state.figures.without_room.regions,
        })
    }
}

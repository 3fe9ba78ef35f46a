//! Calls of aggregators to stores, as plain data: who calls which store, with which request, and the reply.

use super::network::StreamId;
use weir_core::model::exact::{Charge, ChargeResult, ExactRequestId};
use weir_core::model::key::{Key, OriginId};
use weir_core::region::HotCell;
use weir_core::region::exchange::{LowerBound, Merge, Merged, Publication, Stored};
use weir_core::region::log::{Decided, LogCharge};
use weir_core::replication::Failure;
use weir_core::replication::globe::lease::Holder;
use weir_core::replication::regional::queries::Queries;
use weir_core::replication::regional::watch::Incarnations;

/// A store, by where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// A region's Redis.
    Redis(usize),
    /// What all regions share.
    Database,
}

/// What a store is asked.
#[derive(Clone, Debug)]
pub enum Request {
    /// Raise cells.
    Merge(Vec<Merge>),
    /// Raise cells to a floor.
    Raise(Vec<LowerBound>),
    /// Name cells in the hot index.
    NameHot(Vec<HotCell>),
    /// Which cells does a shard of the index name?
    Shard(usize),
    /// What is held of these?
    Cells(Vec<(Key, u64)>),
    /// These are alive; who else?
    Origins(Vec<OriginId>),
    /// Tell all who listen.
    Publish(Vec<u8>),
    /// Which life is it? A look of `reader`, which gives the marker the id `fresh` if it has none, or still `renewed`.
    Incarnations { fresh: u128, reader: [u8; 16], renewed: Option<u128> },
    /// Which life has the table?
    TableIncarnation,
    /// Raise rows of a region.
    Write(Vec<Publication>),
    /// The sum of all other regions.
    Import,
    /// What the region itself has published.
    Own,
    /// Who may serve the region?
    Lease([u8; 16]),
    /// Whoever has it gives it up.
    Release([u8; 16]),
    /// Charge exact logs, unless this moment is over.
    ChargeLogs(Vec<LogCharge>, u64),
    /// Take charges of logs back.
    RefundLogs(Vec<LogCharge>),
    /// Record an attempt.
    ChargeLedger(Trial),
    /// Let an attempt of a bucket no longer count.
    RefundLedger(ExactRequestId, Box<[u8]>),
}

/// What it says.
#[derive(Clone, Debug)]
pub enum Reply {
    /// To each cell.
    Merged(Vec<Result<Merged, Failure>>),
    /// It is done.
    Done(Result<(), Failure>),
    /// Cells that are named.
    Named(Result<Vec<(Key, u64)>, Failure>),
    /// Who is alive.
    Alive(Result<Vec<OriginId>, Failure>),
    /// Markers.
    Incarnations(Result<Incarnations, Failure>),
    /// The table's life.
    TableIncarnation(Result<u64, Failure>),
    /// Rows.
    Rows(Result<Vec<Stored>, Failure>),
    /// Who has the lease.
    Holder(Result<Holder, Failure>),
    /// By each log.
    Decided(Vec<Result<Decided, Failure>>),
    /// By the ledger.
    Ruled(Result<ChargeResult, Failure>),
}

/// Who waits for an answer.
#[derive(Debug)]
pub enum Caller {
    /// A machine, by its number in the aggregator.
    Machine(usize),
    /// The questions of a frame, and the stream that it came on.
    Queries(Box<Queries>, StreamId),
    /// A question about exact limits.
    Exact(Box<Asking>),
    /// Whoever takes something back.
    PendingRefund(Box<PendingRefund>),
    /// Nobody.
    Nobody,
}

/// A question under way.
#[derive(Debug)]
pub struct Asking {
    pub stream: StreamId,
    pub id: u64,
    pub name: ExactRequestId,
    pub charges: Vec<Charge>,
    pub results: Vec<Option<ChargeResult>>,
    pub deadline_us: u64,
}

/// Something that is to be taken back.
#[derive(Clone, Debug)]
pub struct PendingRefund {
    pub what: Request,
    pub due_us: u64,
    pub until_us: u64,
}

/// An attempt on the ledger.
#[derive(Clone, Debug)]
pub struct Trial {
    pub name: ExactRequestId,
    pub zone: u32,
    pub bucket: Box<[u8]>,
    pub cost: u64,
    pub until_us: u64,
}

/// One attempt that a ledger let pass.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    pub name: ExactRequestId,
    pub at_us: u64,
    pub cost: u64,
}

impl Request {
    /// How many commands or statements it is.
    pub fn size(&self) -> u64 {
        let cells = match self {
            Request::Merge(merges) => merges.len(),
            Request::Raise(lower_bounds) => lower_bounds.len(),
            Request::NameHot(cells) => cells.len(),
            Request::Cells(cells) => cells.len(),
            // Rows are written many at once.
            Request::Write(rows) => rows.len().div_ceil(500),
            Request::ChargeLogs(charges, _) | Request::RefundLogs(charges) => charges.len(),
            _ => 1,
        };
        cells as u64
    }

    /// The answer where there is none.
    pub fn failed(&self, failure: Failure) -> Reply {
        let each = |cells: usize| Reply::Merged(vec![Err(failure); cells]);
        match self {
            Request::Merge(merges) => each(merges.len()),
            Request::Raise(lower_bounds) => each(lower_bounds.len()),
            Request::Cells(cells) => each(cells.len()),
            Request::NameHot(_)
            | Request::Publish(_)
            | Request::Write(_)
            | Request::Release(_)
            | Request::RefundLogs(_)
            | Request::RefundLedger(..) => Reply::Done(Err(failure)),
            Request::ChargeLogs(charges, _) => Reply::Decided(vec![Err(failure); charges.len()]),
            Request::ChargeLedger(_) => Reply::Ruled(Err(failure)),
            Request::Shard(_) => Reply::Named(Err(failure)),
            Request::Origins(_) => Reply::Alive(Err(failure)),
            Request::Incarnations { .. } => Reply::Incarnations(Err(failure)),
            Request::TableIncarnation => Reply::TableIncarnation(Err(failure)),
            Request::Import | Request::Own => Reply::Rows(Err(failure)),
            Request::Lease(_) => Reply::Holder(Err(failure)),
        }
    }
}

//! The data of calls to stores: stores, requests, replies, and callers.

use super::network::StreamId;
use weir_core::model::exact::{Charge, ChargeResult, ExactRequestId};
use weir_core::model::key::{Key, NodeId};
use weir_core::region::HotCell;
use weir_core::region::exchange::{LowerBound, Merge, Merged, Page};
use weir_core::replication::Failure;
use weir_core::replication::exact::ledger::Tries;
use weir_core::replication::exact::mixed::MixedRequest;
use weir_core::replication::exact::refunding::Refunding;
use weir_core::replication::exact::{self, Machine};
use weir_core::replication::global::lease::Holder;
use weir_core::replication::global::packet::{Feed, Packet};
use weir_core::replication::global::paging::ReadPage;
use weir_core::replication::members::Member;
use weir_core::replication::regional::clock::TimeProposal;
use weir_core::replication::regional::marker::{Incarnations, Look};
use weir_core::replication::regional::queries::Queries;
use weir_core::replication::regional::receipts::Receipt;

/// A store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// A region's Redis.
    Redis(usize),
    /// The database that all regions share.
    Database,
}

/// A request to a store.
#[derive(Clone, Debug)]
pub enum Request {
    /// Merge cells.
    Merge(Vec<Merge>),
    /// Raise cells to lower bounds.
    Raise(Vec<LowerBound>),
    /// Add cells to the hot index.
    NameHot(Vec<HotCell>),
    /// Read a shard of the hot index.
    Shard(usize),
    /// Read cells.
    Cells(Vec<(Key, u64)>),
    /// Refresh these nodes, list all live ones, and agree on the region's time.
    Nodes(Member, Vec<NodeId>, TimeProposal),
    /// Publish a message to all subscribers.
    Publish(Vec<u8>),
    /// Read the marker.
    Look(Look),
    /// A pipeline of writes: record the first step of its receipt in the marker. Redis then executes [`Request::Writes`] and
    /// [`Request::Receipt`], and others' requests between them.
    Guarded(Guarded),
    /// The writes of a pipeline.
    Writes(Guarded),
    /// The last step of a pipeline whose writes were replied to: record the last step of its receipt.
    Receipt(Guarded, Box<Reply>),
    /// Exchange a packet: raise rows of a region, and read new rows of others. The database executes [`Request::Write`] and
    /// [`Request::Feed`].
    Packet(Packet),
    /// The first statement of a packet, unless it only reads: raise its marker and rows.
    Write(Packet),
    /// The last statement of a packet: read new rows of others.
    Feed(Packet),
    /// Read a page of the rows of all other regions.
    Import(ReadPage),
    /// Read a page of what the region itself has published.
    Own(ReadPage),
    /// Take or renew the region lease.
    Lease([u8; 16], Option<u64>),
    /// Release the region lease.
    Release([u8; 16]),
    /// A call of an exact request or of a refund.
    Exact(ExactCall),
}

/// A request that writes, and its receipt.
#[derive(Clone, Debug)]
pub struct Guarded {
    pub request: Box<Request>,
    /// The aggregator.
    pub reader: [u8; 16],
    pub receipt: Receipt,
}

/// What Redis lists as alive.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Nodes.
    pub nodes: Vec<NodeId>,
    /// Aggregators.
    pub aggregators: Vec<Member>,
    /// The region's time in microseconds.
    pub region_us: u64,
}

/// A reply of a store.
#[derive(Clone, Debug)]
pub enum Reply {
    /// The cells after the operation.
    Merged(Vec<Result<Merged, Failure>>),
    /// Success or failure.
    Done(Result<(), Failure>),
    /// The reply to a request with a receipt, and whether the marker has the receipt.
    Guarded(Box<Reply>, bool),
    /// Cells of a shard.
    Named(Result<Vec<(Key, u64)>, Failure>),
    /// What is alive, and the region's time.
    Alive(Result<Listed, Failure>),
    /// The incarnations that the markers show.
    Incarnations(Result<Incarnations, Failure>),
    /// What a packet has read.
    Fed(Result<Feed, Failure>),
    /// A page of the region's own rows, or of those of other regions.
    Page(Result<Page, Failure>),
    /// The holder of the region lease.
    Holder(Result<Holder, Failure>),
    /// The reply to a call of an exact request or of a refund; the failure, if the store has not answered.
    Exact(exact::Reply, Option<Failure>),
}

/// The caller that waits for a reply.
#[derive(Debug)]
pub enum Caller {
    /// A machine, by its number in the aggregator.
    Machine(usize),
    /// The queries of a frame, and the stream of the frame.
    Queries(Box<Queries>, StreamId),
    /// An exact request, or a refund.
    Exact(Box<ExactWork>),
    /// No caller.
    None,
}

/// An exact request or a refund in progress.
#[derive(Debug)]
pub enum ExactWork {
    /// A worker waits for its response.
    Request(Box<PendingExact>),
    /// A call of the API waits.
    Call(Box<PendingCall>),
    /// No request waits.
    Refund(Refunding),
}

/// An exact request in progress.
#[derive(Debug)]
pub struct PendingExact {
    pub stream: StreamId,
    pub id: u64,
    pub charges: Vec<Charge>,
    pub request: exact::request::Request,
}

/// A call of the API in progress.
#[derive(Debug)]
pub struct PendingCall {
    pub id: ExactRequestId,
    /// The charge of each rule.
    pub charges: Vec<(usize, Charge)>,
    pub identifier: u64,
    pub request: MixedRequest,
}

/// A call of an exact request or of a refund.
#[derive(Clone, Debug)]
pub struct ExactCall {
    pub what: exact::Call,
    /// The request; `None` for a refund.
    pub of: Option<ExactRequestId>,
    /// The store makes no charge after this time, in microseconds of virtual time.
    pub until_us: u64,
    /// The tries, if a ledger is called.
    pub tries: Option<Tries>,
}

impl ExactWork {
    /// The machine.
    pub fn machine(&mut self) -> &mut dyn Machine {
        match self {
            ExactWork::Request(pending) => &mut pending.request,
            ExactWork::Call(pending) => pending.request.request(),
            ExactWork::Refund(refunding) => refunding,
        }
    }
}

impl ExactCall {
    /// Whether a log is called, and not a ledger.
    pub fn is_of_logs(&self) -> bool {
        matches!(self.what, exact::Call::ChargeLogs(_) | exact::Call::RefundLogs(_))
    }

    /// The reply if the store has not answered.
    pub fn failed(&self, failure: Failure) -> exact::Reply {
        match &self.what {
            exact::Call::ChargeLogs(charges) => exact::Reply::LogsCharged(vec![Err(failure); charges.len()]),
            exact::Call::RefundLogs(charges) => exact::Reply::LogsRefunded(vec![Err(failure); charges.len()]),
            exact::Call::ChargeLedger(_) => exact::Reply::LedgerCharged(ChargeResult::UNDECIDED),
            exact::Call::RefundLedger(_) => exact::Reply::LedgerRefunded(None),
        }
    }
}

impl Request {
    /// Whether it writes to Redis what is written again after a loss.
    pub fn is_guarded(&self) -> bool {
        matches!(self, Request::Merge(_) | Request::Raise(_) | Request::NameHot(_))
    }

    /// The number of commands or statements.
    pub fn size(&self) -> u64 {
        let cells = match self {
            Request::Merge(merges) => merges.len(),
            Request::Raise(lower_bounds) => lower_bounds.len(),
            Request::NameHot(cells) => cells.len(),
            Request::Guarded(guarded) => return guarded.request.size() + 2,
            Request::Cells(cells) => cells.len(),
            // The feed, and the upsert.
            Request::Packet(packet) => 1 + usize::from(packet.version.is_some()),
            Request::Exact(ExactCall { what: exact::Call::ChargeLogs(logs), .. })
            | Request::Exact(ExactCall { what: exact::Call::RefundLogs(logs), .. }) => logs.len(),
            _ => 1,
        };
        cells as u64
    }

    /// The number of rows that it writes to the database.
    pub fn rows(&self) -> u64 {
        match self {
            Request::Packet(packet) => packet.rows.len() as u64,
            _ => 0,
        }
    }

    /// The reply for a call that failed.
    pub fn failed(&self, failure: Failure) -> Reply {
        let each = |cells: usize| Reply::Merged(vec![Err(failure); cells]);
        match self {
            Request::Merge(merges) => each(merges.len()),
            Request::Raise(lower_bounds) => each(lower_bounds.len()),
            Request::Cells(cells) => each(cells.len()),
            Request::Guarded(guarded) | Request::Writes(guarded) | Request::Receipt(guarded, _) => {
                guarded.request.failed(failure)
            }
            Request::NameHot(_) | Request::Publish(_) | Request::Release(_) => Reply::Done(Err(failure)),
            Request::Exact(call) => Reply::Exact(call.failed(failure), Some(failure)),
            Request::Shard(_) => Reply::Named(Err(failure)),
            Request::Nodes(..) => Reply::Alive(Err(failure)),
            Request::Look(_) => Reply::Incarnations(Err(failure)),
            Request::Packet(_) | Request::Write(..) | Request::Feed(..) => Reply::Fed(Err(failure)),
            Request::Import(_) | Request::Own(_) => Reply::Page(Err(failure)),
            Request::Lease(..) => Reply::Holder(Err(failure)),
        }
    }
}

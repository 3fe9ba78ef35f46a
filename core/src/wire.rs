//! The frames between a filter and an aggregator: the only types here that are serialised.
//!
//! One bidirectional gRPC stream for each worker, `/weir.v1.Region/Follow`, carries [`FilterFrame`]s up and
//! [`RegionFrame`]s down. All counts are absolute components, so a frame may be lost, repeated or late. The first
//! frame of a stream holds a [`Hello`]; what an unknown version says is refused with a [`Refusal`].
//!
//! Leaves to others: checking what is in a frame (`region`, `limiter`) and carrying it (`filter`, `aggregator`).

use alloc::string::String;
use alloc::vec::Vec;

/// Version of the frames, as said in [`Hello`] and [`Welcome`].
pub const PROTOCOL_VERSION: u32 = 1;
/// gRPC service name.
pub const SERVICE: &str = "weir.v1.Region";
/// gRPC method name.
pub const METHOD: &str = "Follow";
/// Most cells in one frame, so that neither side stalls over it.
pub const MAX_FRAME_CELLS: usize = 256;
/// Largest frame in bytes that a well-behaved peer sends.
pub const MAX_FRAME_BYTES: usize = 256 * 1024;

/// From a filter's worker to the aggregator.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FilterFrame {
    /// In the first frame, and again when the worker becomes or ceases to be its process' subscriber.
    #[prost(message, optional, tag = "1")]
    pub hello: Option<Hello>,
    /// What this process has spent; acknowledged once stored.
    #[prost(message, optional, tag = "2")]
    pub report: Option<Report>,
    /// Questions that requests wait for.
    #[prost(message, repeated, tag = "3")]
    pub consults: Vec<Consult>,
    /// Echoed at once.
    #[prost(message, optional, tag = "4")]
    pub ping: Option<Ping>,
    /// Questions about limits that are held exactly; at most [`MAX_FRAME_CELLS`].
    #[prost(message, repeated, tag = "5")]
    pub asks: Vec<Ask>,
    /// Questions whose charges are to be undone, as their requests did not pass after all; at most [`MAX_FRAME_CELLS`].
    #[prost(message, repeated, tag = "6")]
    pub withdrawals: Vec<Withdrawal>,
}

/// Who speaks.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Hello {
    /// [`PROTOCOL_VERSION`].
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// The process: 16 bytes, see [`crate::key::OriginId`].
    #[prost(bytes = "vec", tag = "2")]
    pub origin: Vec<u8>,
    /// The worker within it.
    #[prost(uint64, tag = "3")]
    pub worker: u64,
    /// Shared secret, where the aggregator asks for one.
    #[prost(string, tag = "4")]
    pub token: String,
    /// Whether this worker takes the pushes for its process.
    #[prost(bool, tag = "5")]
    pub subscriber: bool,
}

/// A batch of counts.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Report {
    /// Returned in the [`Ack`]; grows with each report of a stream.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// At most [`MAX_FRAME_CELLS`].
    #[prost(message, repeated, tag = "2")]
    pub counts: Vec<Count>,
}

/// One component of one cell: what this process has spent in it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Count {
    /// Canonical key bytes, see [`crate::key`].
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// Which cell.
    #[prost(uint64, tag = "2")]
    pub sequence: u64,
    /// Absolute, or with `unbased` only what was added to an unknown base.
    #[prost(uint64, tag = "3")]
    pub own: u64,
    /// The limit that the filter applied; tells which cells are hot.
    #[prost(uint64, tag = "4")]
    pub limit: u64,
    /// The process forgot this cell and asks for its component: stored is nothing, the [`Ack`] brings the base.
    #[prost(bool, tag = "5")]
    pub unbased: bool,
    /// What the process was last told that the others of its region used; 0 if it does not repeat that. Evidence for
    /// a region that has lost everything, and nothing else: it is never added to any component.
    #[prost(uint64, tag = "6")]
    pub region_others: u64,
}

/// May `cost` more pass? The proposal is absolute (`own + cost`), so it may be repeated.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Consult {
    /// Returned in the [`Answer`].
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Canonical key bytes.
    #[prost(bytes = "vec", tag = "2")]
    pub key: Vec<u8>,
    /// Which cell.
    #[prost(uint64, tag = "3")]
    pub sequence: u64,
    /// Spent for certain; merged even if the answer is no.
    #[prost(uint64, tag = "4")]
    pub own: u64,
    /// Asked for on top; 0 only asks for the view.
    #[prost(uint64, tag = "5")]
    pub cost: u64,
    /// The limit to hold it against.
    #[prost(uint64, tag = "6")]
    pub limit: u64,
    /// How long the asker waits for the answer, in milliseconds; 0 if it does not say.
    #[prost(uint32, tag = "7")]
    pub timeout_ms: u32,
}

/// Are you there?
#[derive(Clone, PartialEq, prost::Message)]
pub struct Ping {
    /// Returned in the [`Pong`]; the sender's monotonic clock in milliseconds.
    #[prost(uint64, tag = "1")]
    pub sent_ms: u64,
}

/// From the aggregator to a filter's worker.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RegionFrame {
    /// Answers the first [`Hello`].
    #[prost(message, optional, tag = "1")]
    pub welcome: Option<Welcome>,
    /// A report is stored.
    #[prost(message, optional, tag = "2")]
    pub ack: Option<Ack>,
    /// Answers to consults.
    #[prost(message, repeated, tag = "3")]
    pub answers: Vec<Answer>,
    /// What the others used; to subscribers only.
    #[prost(message, optional, tag = "4")]
    pub push: Option<Push>,
    /// Answers a ping.
    #[prost(message, optional, tag = "5")]
    pub pong: Option<Pong>,
    /// Why this stream ends.
    #[prost(message, optional, tag = "6")]
    pub refusal: Option<Refusal>,
    /// Answers to [`FilterFrame::asks`].
    #[prost(message, repeated, tag = "7")]
    pub rulings: Vec<Rulings>,
}

/// The stream is accepted.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Welcome {
    /// [`PROTOCOL_VERSION`].
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Name of the region.
    #[prost(string, tag = "2")]
    pub region: String,
}

/// A report is stored, so its cells need not be sent again on this stream.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Ack {
    /// The report's id.
    #[prost(uint64, tag = "1")]
    pub report_id: u64,
    /// For each count that came without a base: what the region holds of it.
    #[prost(message, repeated, tag = "2")]
    pub bases: Vec<View>,
    /// Places in the report of the counts that are not stored (bad key, implausible value or sequence, region full).
    #[prost(uint32, repeated, tag = "3")]
    pub refused: Vec<u32>,
}

/// All that the region knows of one cell, as one process sees it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct View {
    /// Canonical key bytes; empty in an [`Answer`], whose consult named it.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// Which cell.
    #[prost(uint64, tag = "2")]
    pub sequence: u64,
    /// The process' own component, as the region holds it.
    #[prost(uint64, tag = "3")]
    pub own: u64,
    /// Sum of the components of the other processes of the region.
    #[prost(uint64, tag = "4")]
    pub region_others: u64,
    /// Sum of the other regions.
    #[prost(uint64, tag = "5")]
    pub global_others: u64,
}

/// The region's word on a [`Consult`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct Answer {
    /// The consult's id.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Whether the region has taken up `own + cost`.
    #[prost(bool, tag = "2")]
    pub granted: bool,
    /// The cell asked about; missing if the region cannot judge it (region full, implausible sequence).
    #[prost(message, optional, tag = "3")]
    pub current: Option<View>,
    /// The cell before it.
    #[prost(message, optional, tag = "4")]
    pub previous: Option<View>,
    /// Those before that which a window of the key still touches, newest first; at most
    /// [`crate::window::MAX_CELLS`] − 2, none for most keys.
    #[prost(message, repeated, tag = "5")]
    pub older: Vec<View>,
}

/// Cells that changed, or all that matter after a subscription.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Push {
    /// At most [`MAX_FRAME_CELLS`].
    #[prost(message, repeated, tag = "1")]
    pub views: Vec<View>,
    /// With this frame the subscriber has been told everything: the snapshot is complete.
    #[prost(bool, tag = "2")]
    pub complete: bool,
}

/// Here I am.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Pong {
    /// From the [`Ping`].
    #[prost(uint64, tag = "1")]
    pub sent_ms: u64,
    /// The aggregator's clock.
    #[prost(uint64, tag = "2")]
    pub unix_ms: u64,
    /// Processes of the region that are alive, the asker included.
    #[prost(uint32, tag = "3")]
    pub live_origins: u32,
}

/// The stream is not accepted.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Refusal {
    /// For an operator's eyes.
    #[prost(string, tag = "1")]
    pub reason: String,
}

/// May all of these pass? See [`crate::exact`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct Ask {
    /// Returned in the [`Rulings`]; never used again by the same worker.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// At most [`crate::exact::MAX_CHARGES`].
    #[prost(message, repeated, tag = "2")]
    pub charges: Vec<Charge>,
    /// How long the asker waits for the answer, in milliseconds.
    #[prost(uint32, tag = "3")]
    pub timeout_ms: u32,
}

/// One limit to be charged to: either a log or a ledger.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Charge {
    /// A sliding log.
    #[prost(message, optional, tag = "1")]
    pub log: Option<LogLimit>,
    /// A zone of the ledger.
    #[prost(message, optional, tag = "2")]
    pub ledger: Option<LedgerLimit>,
    /// What is used; 0 only asks.
    #[prost(uint64, tag = "3")]
    pub cost: u64,
}

/// A sliding log.
#[derive(Clone, PartialEq, prost::Message)]
pub struct LogLimit {
    /// Canonical key bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// Most that may be used in any window of the key's duration.
    #[prost(uint64, tag = "2")]
    pub most: u64,
}

/// A zone of the ledger, which knows rate and window.
#[derive(Clone, PartialEq, prost::Message)]
pub struct LedgerLimit {
    /// The zone's number.
    #[prost(uint32, tag = "1")]
    pub zone: u32,
    /// Whose attempts are counted together.
    #[prost(bytes = "vec", tag = "2")]
    pub bucket: Vec<u8>,
}

/// The aggregator's word on an [`Ask`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct Rulings {
    /// The question's id.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// One for each charge, in order; missing ones are undecided.
    #[prost(message, repeated, tag = "2")]
    pub rulings: Vec<Ruling>,
}

/// What became of one charge; see [`crate::exact::Ruling`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct Ruling {
    /// 0 undecided, 1 untried, 2 allowed, 3 denied.
    #[prost(uint32, tag = "1")]
    pub verdict: u32,
    /// The limit that was applied.
    #[prost(uint64, tag = "2")]
    pub limit: u64,
    /// What could still be used.
    #[prost(uint64, tag = "3")]
    pub remaining: u64,
    /// Milliseconds until the oldest use leaves the window.
    #[prost(uint64, tag = "4")]
    pub reset_ms: u64,
    /// The window in milliseconds.
    #[prost(uint64, tag = "5")]
    pub window_ms: u64,
    /// The ledger's number; 0 if there is none.
    #[prost(uint64, tag = "6")]
    pub transaction: u64,
    /// Of a denial: milliseconds until the same cost could pass.
    #[prost(uint64, tag = "7")]
    pub retry_after_ms: u64,
    /// Of a denial: the cost exceeds the limit.
    #[prost(bool, tag = "8")]
    pub never: bool,
}

/// The charges of an [`Ask`] that was allowed are to be undone. May be repeated.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Withdrawal {
    /// The question.
    #[prost(message, optional, tag = "1")]
    pub ask: Option<Ask>,
    /// What was ruled, as far as it is known: the ledger's numbers matter.
    #[prost(message, repeated, tag = "2")]
    pub rulings: Vec<Ruling>,
}

/// Between the aggregators of one region: cells that changed, as the region's store holds them now.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Changes {
    /// Which aggregator says it: 16 bytes, so that it can leave out its own.
    #[prost(bytes = "vec", tag = "1")]
    pub sender: Vec<u8>,
    /// At most [`MAX_FRAME_CELLS`].
    #[prost(message, repeated, tag = "2")]
    pub cells: Vec<Change>,
    /// The sender's Envoys changed: who counts as alive is to be asked anew.
    #[prost(bool, tag = "3")]
    pub origins_changed: bool,
}

/// Some components of one cell.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Change {
    /// Canonical key bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// Which cell.
    #[prost(uint64, tag = "2")]
    pub sequence: u64,
    /// Lowest limit known to apply; the highest number if unknown.
    #[prost(uint64, tag = "3")]
    pub limit: u64,
    /// Those of the sender's own Envoys.
    #[prost(message, repeated, tag = "4")]
    pub parts: Vec<Part>,
}

/// One origin's count.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Part {
    /// Whose: 16 bytes; all zero for what nobody knows the origin of.
    #[prost(bytes = "vec", tag = "1")]
    pub origin: Vec<u8>,
    /// Absolute.
    #[prost(uint64, tag = "2")]
    pub own: u64,
}

//! The frames between a filter and an aggregator: the only types here that are serialised.
//!
//! Each worker has one bidirectional gRPC stream, `/weir.v1.Region/Follow`, with [`FilterFrame`]s up and [`RegionFrame`]s down. All counts
//! are absolute components, so a frame may be lost, repeated or late. The first frame of a stream has a [`Hello`]; a stream of an unknown
//! version ends with a [`StreamError`]. Receivers validate all contents. `wire.proto` describes the same for clients in other languages.
//!
//! | field | from | handled by |
//! |---|---|---|
//! | `hello`, `ping` | each worker | `region::stream` of the aggregator |
//! | `report` | each worker | `RegionState::take` |
//! | `queries` (queries) | each worker | `Queries`, or `Region::query` without Redis |
//! | `exact_requests`, `refunds` | each worker | `Exact` of the aggregator |
//! | `counters` | each worker | `Seat::received` |
//! | `controls_known`, `bans` | the subscriber; each worker | `Book`, `Bans` |
//! | `welcome`, `pong`, `answers`, `results`, `ack` | the aggregator of the stream | `Limiter::on_frame` of that worker |
//! | `push` | the same, to subscribers | `Limiter::on_frame` |
//! | `controls` | the same, to subscribers | `Keeper::on_frame` |

use super::outcome::{Outcomes, RuleOutcome, outcome_table};
use alloc::string::String;
use alloc::vec::Vec;

/// Version of the frames, in [`Hello`] and [`Welcome`].
pub const PROTOCOL_VERSION: u32 = 1;
/// gRPC service name.
pub const SERVICE: &str = "weir.v1.Region";
/// gRPC method name.
pub const METHOD: &str = "Follow";
/// Most cells in one frame, so that neither side is blocked by it.
pub const MAX_FRAME_CELLS: usize = 256;
/// Most rules whose counters a frame has, which is as many as a configuration may have.
pub const MAX_FRAME_COUNTERS: usize = 1_024;
/// Most live controls in one frame.
pub const MAX_FRAME_CONTROLS: usize = 128;
/// Largest frame in bytes.
pub const MAX_FRAME_BYTES: usize = 256 * 1024;

/// From a filter's worker to the aggregator.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FilterFrame {
    /// In the first frame, and again when the worker becomes or ceases to be its process' subscriber.
    #[prost(message, optional, tag = "1")]
    pub hello: Option<Hello>,
    /// Counts of this process; acknowledged once stored.
    #[prost(message, optional, tag = "2")]
    pub report: Option<Report>,
    /// Queries that requests wait for.
    #[prost(message, repeated, tag = "3")]
    pub queries: Vec<Query>,
    /// Answered at once.
    #[prost(message, optional, tag = "4")]
    pub ping: Option<Ping>,
    /// Exact requests; at most [`MAX_FRAME_CELLS`].
    #[prost(message, repeated, tag = "5")]
    pub exact_requests: Vec<ExactRequest>,
    /// Exact requests whose charges are to be refunded, as their requests did not pass; at most [`MAX_FRAME_CELLS`].
    #[prost(message, repeated, tag = "6")]
    pub refunds: Vec<Refund>,
    /// The live controls that the process has; from its subscriber, on a new stream and after each change.
    #[prost(message, optional, tag = "7")]
    pub controls_known: Option<ControlsKnown>,
    /// Bans that rules of this process propose to the region; at most [`MAX_FRAME_CONTROLS`].
    #[prost(message, repeated, tag = "8")]
    pub bans: Vec<Ban>,
    /// Counts of this worker's decisions, of at most [`MAX_FRAME_COUNTERS`] rules; absolute, so that they may be lost or repeated.
    #[prost(message, optional, tag = "9")]
    pub counters: Option<Counters>,
}

/// The sender. Its token, if the aggregator requires one, is in the call's metadata (`authorization: Bearer`), so that it is checked before
/// a frame is decoded.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Hello {
    /// [`PROTOCOL_VERSION`].
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// The node: 16 bytes, see [`crate::model::key::NodeId`].
    #[prost(bytes = "vec", tag = "2")]
    pub node: Vec<u8>,
    /// The worker within it.
    #[prost(uint64, tag = "3")]
    pub worker: u64,
    /// Whether this worker is its process' subscriber.
    #[prost(bool, tag = "4")]
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
    /// Canonical key bytes, see [`crate::model::key`].
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// The cell.
    #[prost(uint64, tag = "2")]
    pub sequence: u64,
    /// Absolute; with `without_baseline` only what was added to an unknown baseline.
    #[prost(uint64, tag = "3")]
    pub own: u64,
    /// The limit that the filter applied; it determines which cells are hot.
    #[prost(uint64, tag = "4")]
    pub limit: u64,
    /// The process evicted this cell and requests its component. The count is not stored; the [`Ack`] contains the baseline.
    #[prost(bool, tag = "5")]
    pub without_baseline: bool,
    /// The others' count as the process received it last; 0 if it is not repeated. It is evidence for a region that has lost everything, and
    /// is never added to a component.
    #[prost(uint64, tag = "6")]
    pub region_others: u64,
    /// When the filter last applied the limit, in Unix milliseconds; 0 if the row repeats an earlier one, whose limit may be outdated.
    #[prost(uint64, tag = "7")]
    pub applied_ms: u64,
    /// The limit without live control, if live control sets `limit`.
    #[prost(uint64, optional, tag = "8")]
    pub configured: Option<u64>,
}

/// A query whether `cost` more may pass. The proposal is absolute (`own + cost`), so it may be repeated.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Query {
    /// Returned in the [`Answer`].
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Canonical key bytes.
    #[prost(bytes = "vec", tag = "2")]
    pub key: Vec<u8>,
    /// Which cell.
    #[prost(uint64, tag = "3")]
    pub sequence: u64,
    /// Spent already; merged even if the query is refused. Without `without_baseline` it is all that the process has spent in the cell.
    #[prost(uint64, tag = "4")]
    pub own: u64,
    /// The cost to be granted; 0 requests the counts only.
    #[prost(uint64, tag = "5")]
    pub cost: u64,
    /// The limit.
    #[prost(uint64, tag = "6")]
    pub limit: u64,
    /// How long the sender waits for the answer, in milliseconds; 0: not stated.
    #[prost(uint32, tag = "7")]
    pub timeout_ms: u32,
    /// Trace contexts of the requests that wait for it: at most [`crate::model::trace::MAX_TRACES`], a recorded one first.
    #[prost(message, repeated, tag = "8")]
    pub traces: Vec<Trace>,
    /// The process evicted its count of a cell of the window, and requests what the region has of it.
    #[prost(bool, tag = "9")]
    pub without_baseline: bool,
    /// The limit without live control, if live control sets `limit`.
    #[prost(uint64, optional, tag = "10")]
    pub configured: Option<u64>,
    /// When the limit was applied, in Unix milliseconds; 0: not stated, then as the query arrives.
    #[prost(uint64, tag = "11")]
    pub applied_ms: u64,
}

/// The trace context of a request; it affects no decision. See [`crate::model::trace`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Trace {
    /// W3C trace context: 16 bytes; empty if there is none.
    #[prost(bytes = "vec", tag = "1")]
    pub trace_id: Vec<u8>,
    /// 8 bytes; empty if there is none.
    #[prost(bytes = "vec", tag = "2")]
    pub span_id: Vec<u8>,
    /// One byte; its lowest bit: the trace is recorded.
    #[prost(uint32, tag = "3")]
    pub flags: u32,
    /// Envoy's `x-request-id`; empty if there is none.
    #[prost(string, tag = "4")]
    pub request_id: String,
}

/// Probes the aggregator, which answers with a [`Pong`].
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
    /// Answers to queries.
    #[prost(message, repeated, tag = "3")]
    pub answers: Vec<Answer>,
    /// Others' counts; to subscribers only.
    #[prost(message, optional, tag = "4")]
    pub push: Option<Push>,
    /// Answers a ping.
    #[prost(message, optional, tag = "5")]
    pub pong: Option<Pong>,
    /// Why this stream ends.
    #[prost(message, optional, tag = "6")]
    pub error: Option<StreamError>,
    /// Answers to [`FilterFrame::exact_requests`].
    #[prost(message, repeated, tag = "7")]
    pub results: Vec<ExactResponse>,
    /// Live controls that the process lacks; to subscribers only.
    #[prost(message, optional, tag = "8")]
    pub controls: Option<Controls>,
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
    /// For each count without a baseline: what the region has of it.
    #[prost(message, repeated, tag = "2")]
    pub baselines: Vec<Snapshot>,
    /// Places in the report of the counts that are not stored (bad key, implausible value or sequence, region full).
    #[prost(uint32, repeated, tag = "3")]
    pub refused: Vec<u32>,
}

/// The region's counts of one cell, from the view of one process.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Snapshot {
    /// Canonical key bytes; empty in an [`Answer`], whose query names the key.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// Which cell.
    #[prost(uint64, tag = "2")]
    pub sequence: u64,
    /// The process' own component in the region.
    #[prost(uint64, tag = "3")]
    pub own: u64,
    /// Sum of the components of the other processes of the region.
    #[prost(uint64, tag = "4")]
    pub region_others: u64,
    /// Sum of the other regions.
    #[prost(uint64, tag = "5")]
    pub global_others: u64,
}

/// The answer to a [`Query`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct Answer {
    /// The query's id.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Whether the region has accepted `own + cost`.
    #[prost(bool, tag = "2")]
    pub granted: bool,
    /// The queried cell; missing if the region cannot decide (region full, implausible sequence).
    #[prost(message, optional, tag = "3")]
    pub current: Option<Snapshot>,
    /// The cell before it.
    #[prost(message, optional, tag = "4")]
    pub previous: Option<Snapshot>,
    /// The cells of the window before that, newest first; at most
    /// [`crate::model::window::MAX_CELLS`] − 2, none for most keys.
    #[prost(message, repeated, tag = "5")]
    pub older: Vec<Snapshot>,
}

/// Cells that changed, or all that matter after a subscription.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Push {
    /// At most [`MAX_FRAME_CELLS`].
    #[prost(message, repeated, tag = "1")]
    pub snapshots: Vec<Snapshot>,
    /// The snapshot is complete with this frame.
    #[prost(bool, tag = "2")]
    pub complete: bool,
}

/// The answer to a [`Ping`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct Pong {
    /// From the [`Ping`].
    #[prost(uint64, tag = "1")]
    pub sent_ms: u64,
    /// The region's time.
    #[prost(uint64, tag = "2")]
    pub unix_ms: u64,
    /// Live nodes of the region, the receiver included.
    #[prost(uint32, tag = "3")]
    pub live_nodes: u32,
}

/// The stream is not accepted.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StreamError {
    /// The reason, for operators.
    #[prost(string, tag = "1")]
    pub reason: String,
}

/// An exact request: either all charges are made or none. See [`crate::model::exact`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct ExactRequest {
    /// Returned in the [`ExactResponse`]; never used again by the same worker.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// At most [`crate::model::exact::MAX_CHARGES`].
    #[prost(message, repeated, tag = "2")]
    pub charges: Vec<Charge>,
    /// How long the sender waits for the response, in milliseconds.
    #[prost(uint32, tag = "3")]
    pub timeout_ms: u32,
    /// The trace context of the request that waits for it.
    #[prost(message, optional, tag = "4")]
    pub trace: Option<Trace>,
}

/// One charge, to a log or a ledger.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Charge {
    /// A sliding log.
    #[prost(message, optional, tag = "1")]
    pub log: Option<LogLimit>,
    /// A zone of the ledger.
    #[prost(message, optional, tag = "2")]
    pub ledger: Option<LedgerLimit>,
    /// The cost; 0 only checks.
    #[prost(uint64, tag = "3")]
    pub cost: u64,
}

/// A limit that counts each use by itself, in a sliding log.
#[derive(Clone, PartialEq, prost::Message)]
pub struct LogLimit {
    /// Canonical key bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// Most that may be used in any window of the key's duration.
    #[prost(uint64, tag = "2")]
    pub most: u64,
}

/// A zone of the ledger, which defines rate and window.
#[derive(Clone, PartialEq, prost::Message)]
pub struct LedgerLimit {
    /// The zone's number.
    #[prost(uint32, tag = "1")]
    pub zone: u32,
    /// The identifier whose attempts are counted.
    #[prost(bytes = "vec", tag = "2")]
    pub bucket: Vec<u8>,
}

/// The response to an [`ExactRequest`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct ExactResponse {
    /// The request's id.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// One for each charge, in order; missing ones are undecided.
    #[prost(message, repeated, tag = "2")]
    pub results: Vec<ChargeResult>,
}

/// Result of one charge; see [`crate::model::exact::ChargeResult`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct ChargeResult {
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

/// The charges of an [`ExactRequest`] are to be refunded. May be repeated.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Refund {
    /// The exact request.
    #[prost(message, optional, tag = "1")]
    pub request: Option<ExactRequest>,
    /// The results that were received; the ledger's numbers are needed.
    #[prost(message, repeated, tag = "2")]
    pub results: Vec<ChargeResult>,
}

/// A broadcast among the aggregators of one region: changed cells, as the region's store has them.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Changes {
    /// The sending aggregator: 16 bytes, by which it skips its own broadcasts.
    #[prost(bytes = "vec", tag = "1")]
    pub sender: Vec<u8>,
    /// At most [`MAX_FRAME_CELLS`].
    #[prost(message, repeated, tag = "2")]
    pub cells: Vec<Change>,
    /// The sender's Envoys changed: the list of live nodes is to be read again.
    #[prost(bool, tag = "3")]
    pub nodes_changed: bool,
    /// Live controls changed: the database is to be read.
    #[prost(bool, tag = "4")]
    pub controls_changed: bool,
    /// The incarnation of the region's store that has the cells: an id of each of its servers' markers, 0 where none was read.
    #[prost(fixed64, repeated, tag = "5")]
    pub store_ids: Vec<u64>,
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
    /// Lowest limit that applies; the highest number if unknown.
    #[prost(uint64, tag = "3")]
    pub limit: u64,
    /// The components of the sender's own Envoys.
    #[prost(message, repeated, tag = "4")]
    pub parts: Vec<Part>,
    /// The limit that was applied last to the key.
    #[prost(uint64, tag = "5")]
    pub newest_limit: u64,
    /// When it was applied, in Unix milliseconds; 0 if unknown.
    #[prost(uint64, tag = "6")]
    pub applied_ms: u64,
    /// The key's limit without live control; missing if unknown.
    #[prost(uint64, optional, tag = "7")]
    pub configured: Option<u64>,
}

/// One node's component.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Part {
    /// The node: 16 bytes; all zero for a baseline.
    #[prost(bytes = "vec", tag = "1")]
    pub node: Vec<u8>,
    /// Absolute.
    #[prost(uint64, tag = "2")]
    pub own: u64,
}

/// The revision up to which a process has all live controls.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct ControlsKnown {
    /// The incarnation's digest; 0 if none.
    #[prost(uint64, tag = "1")]
    pub incarnation: u64,
    /// The revision.
    #[prost(uint64, tag = "2")]
    pub revision: u64,
    /// The proof that was received with it, see [`Controls::proof`].
    #[prost(uint64, tag = "3")]
    pub proof: u64,
    /// The stamp that was received with it, see [`Controls::stamp`].
    #[prost(uint64, tag = "4")]
    pub stamp: u64,
}

/// Live controls, in the order of their revisions.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Controls {
    /// Digest of the database's incarnation. Another incarnation has other revisions, and replaces the controls of the former.
    #[prost(uint64, tag = "1")]
    pub incarnation: u64,
    /// At most [`MAX_FRAME_CONTROLS`].
    #[prost(message, repeated, tag = "2")]
    pub entries: Vec<Control>,
    /// With this frame the process has all controls up to this revision; 0 in frames before the last. Revisions begin at 1, so that an empty
    /// set has one too.
    #[prost(uint64, tag = "3")]
    pub complete_through: u64,
    /// The first frame of a set from scratch, which replaces the process' controls once it is complete.
    #[prost(bool, tag = "4")]
    pub from_scratch: bool,
    /// The highest revision in the frame before, or the one that the process had; 0 from scratch. A process that has not all up to it has
    /// missed a frame: it applies the entries, but its set is not complete.
    #[prost(uint64, tag = "5")]
    pub after: u64,
    /// The sender's clock in Unix milliseconds, by which controls that expired long ago are dropped; 0: not stated.
    #[prost(uint64, tag = "6")]
    pub now_ms: u64,
    /// In each frame of a set from scratch: the revision of the set. Frames of different revisions do not make a complete set, as deletions
    /// are not listed. 0 in frames of changes.
    #[prost(uint64, tag = "7")]
    pub as_of: u64,
    /// With `complete_through`: proves to an aggregator that the process received that revision. Making it requires to read the database.
    #[prost(uint64, tag = "8")]
    pub proof: u64,
    /// With `complete_through`: the random number of the change that had this revision. A database that was set back may use a revision
    /// again; the stamp shows which of the two a process has.
    #[prost(uint64, tag = "9")]
    pub stamp: u64,
}

/// One live control; see [`crate::control::Control`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct Control {
    /// Grows with each change in the database.
    #[prost(uint64, tag = "1")]
    pub revision: u64,
    /// The workspace.
    #[prost(string, tag = "2")]
    pub workspace: String,
    /// The namespace, `*` for all; of a shadow switch the rule's name.
    #[prost(string, tag = "3")]
    pub scope: String,
    /// An identifier or a pattern, as in a rule's overrides; empty if the target is not an identifier.
    #[prost(string, tag = "4")]
    pub identifier: String,
    /// A network such as `203.0.113.0/24`; empty if the target is not a network.
    #[prost(string, tag = "5")]
    pub network: String,
    /// Only windows of this length in milliseconds; 0 for all.
    #[prost(uint64, tag = "6")]
    pub window_ms: u64,
    /// 1 limit, 2 exemption, 3 ban, 4 credit, 5 reset, 6 shadow switch.
    #[prost(uint32, tag = "7")]
    pub kind: u32,
    /// The limit, the credit, or 1 for a shadow switch that is on.
    #[prost(uint64, tag = "8")]
    pub amount: u64,
    /// Unix milliseconds of its end; 0: none.
    #[prost(uint64, tag = "9")]
    pub expires_ms: u64,
    /// A deletion of the control of this target and kind.
    #[prost(bool, tag = "10")]
    pub deleted: bool,
}

/// A ban that a rule proposes.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Ban {
    /// The workspace.
    #[prost(string, tag = "1")]
    pub workspace: String,
    /// The namespace.
    #[prost(string, tag = "2")]
    pub namespace: String,
    /// The raw identifier, not a pattern.
    #[prost(bytes = "vec", tag = "3")]
    pub identifier: Vec<u8>,
    /// Unix milliseconds until which it is denied.
    #[prost(uint64, tag = "4")]
    pub until_ms: u64,
    /// Number of consecutive bans, from 1.
    #[prost(uint32, tag = "5")]
    pub level: u32,
    /// The rule's name.
    #[prost(string, tag = "6")]
    pub rule: String,
    /// Unix milliseconds at which the rule made it, so that a later change by an operator has precedence; 0: the time of receipt.
    #[prost(uint64, tag = "7")]
    pub since_ms: u64,
}

/// Counts of one worker's decisions.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Counters {
    /// One for each rule.
    #[prost(message, repeated, tag = "1")]
    pub rules: Vec<RuleCounters>,
    /// The configuration's workspace.
    #[prost(string, tag = "2")]
    pub workspace: String,
}

macro_rules! rule_counters {
    ($($(#[$meaning:meta])* $variant:ident $name:ident $label:literal $tag:literal $group:ident;)*) => {
        /// Counts of one rule's decisions since the worker loaded it.
        #[derive(Clone, PartialEq, prost::Message)]
        pub struct RuleCounters {
            /// Its name.
            #[prost(string, tag = "1")]
            pub name: String,
            /// Its namespace.
            #[prost(string, tag = "2")]
            pub namespace: String,
            /// `sliding_window`, `sliding_log` or `ledger`.
            #[prost(string, tag = "3")]
            pub algorithm: String,
            /// Its limit, before overrides.
            #[prost(uint64, tag = "4")]
            pub limit: u64,
            /// Its window in milliseconds.
            #[prost(uint64, tag = "5")]
            pub window_ms: u64,
            /// Whether it is in shadow mode, by configuration or live control.
            #[prost(bool, tag = "6")]
            pub shadow: bool,
            $($(#[$meaning])* #[prost(uint64, tag = $tag)] pub $name: u64,)*
            /// The zone of a ledger; 0 for others.
            #[prost(uint32, tag = "13")]
            pub zone: u32,
            /// Of how many parts its identifiers are; 0 where they are digests.
            #[prost(uint32, tag = "14")]
            pub identifier_parts: u32,
        }

        impl RuleCounters {
            /// The counts by outcome.
            pub const fn outcomes(&self) -> Outcomes<u64> {
                Outcomes { $($name: self.$name,)* }
            }

            /// The count of an outcome.
            pub const fn count_mut(&mut self, outcome: RuleOutcome) -> &mut u64 {
                match outcome {
                    $(RuleOutcome::$variant => &mut self.$name,)*
                }
            }
        }
    };
}
outcome_table!(rule_counters);

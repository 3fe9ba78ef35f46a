//! The frames between a filter and an aggregator: the only types here that are serialised.
//!
//! Each worker has one bidirectional gRPC stream, `/weir.v1.Region/Follow`, with [`FilterFrame`]s up and [`RegionFrame`]s down. All counts
//! are absolute components, so a frame may be lost, repeated or late. The first frame of a stream has a [`Hello`]; a stream of an unknown
//! version ends with a [`StreamError`]. Receivers validate all contents. The messages are made from `wire.proto`, as those of clients in other
//! languages are, and what aggregators send to each other from `changes.proto`.
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

pub use messages::*;

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

#[allow(clippy::all)]
mod messages {
    include!(concat!(env!("OUT_DIR"), "/weir.v1.rs"));
}

macro_rules! rule_counters {
    ($($(#[$meaning:meta])* $variant:ident $name:ident $label:literal $group:ident;)*) => {
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

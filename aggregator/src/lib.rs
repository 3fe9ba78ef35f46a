//! The regional aggregator: merges what the Envoys of a region report and tells each what the others used.
//!
//! In reading order:
//!
//! 1. [`serve`]: both listeners, from the first bind to a graceful end.
//! 2. [`grpc`]: `/weir.v1.Region/Follow` as a tonic service; every call becomes a stream.
//! 3. [`stream`]: one stream's life: hello, frames in, replies out, and why it ends ([`refusal`]).
//! 4. [`outgoing`]: the bounded queue behind each stream, and what happens to a reader that does not read.
//! 5. [`shared`]: the desk behind its lock, and who waits for its bells.
//! 6. [`push`]: what changed, to those who subscribe.
//! 7. [`regional`]: what several aggregators of one region share, in a [`store`].
//! 8. [`global`]: what the regions tell each other, through a [`database`].
//! 9. [`exact`]: limits that are held exactly: logs, ledgers.
//! 10. [`doors`]: HTTP for applications, the rate-limit service for any Envoy.
//! 11. [`auth`]: tokens and client certificates, and what their holders may do.
//! 12. [`listen`], [`tls`]: connections and certificates of all doors; [`hosts`]: the names they may be called by;
//!     [`follow`]: files that change.
//! 13. [`control`]: live control, from the database to every filter.
//! 14. [`window`]: what there is to see; [`admin`]: health, readiness, [`metrics`], the page; [`terminal`]: the same as text, asked for by [`exchange`].
//! 15. [`telemetry`]: spans, for those who ask for them; [`request_log`]: request ids in the log.
//! 16. [`check_config`]: the filter's configuration, parsed by the filter's own parser.
//!
//! What it leaves to others: all that is decided is `weir_core::aggregator`, every rule of counting `weir_core::region`,
//! every frame `weir_core::wire`. Nothing but [`clock`] reads the wall clock.
#![forbid(unsafe_code)]

pub mod admin;
pub mod auth;
pub mod check_config;
pub mod clock;
pub mod control;
pub mod database;
pub mod descriptors;
pub mod doors;
pub mod exact;
pub mod exchange;
pub mod follow;
pub mod global;
pub mod grpc;
pub mod hosts;
pub mod listen;
pub mod metrics;
pub mod outgoing;
pub mod push;
pub mod refusal;
pub mod regional;
pub mod request_log;
pub mod serve;
pub mod shared;
pub mod store;
pub mod stream;
pub mod telemetry;
pub mod terminal;
pub mod throttle;
pub mod tls;
pub mod window;

//! Apis for those who have no filter: applications over HTTP, any Envoy over the rate-limit service's gRPC.
//!
//! Leaves to others: streams of filters (`grpc`, `stream`).

pub mod authentication;
pub mod embedded;
pub mod http;
pub mod rls;
pub mod ruled;
pub mod settings;

pub use embedded::{Answer, EmbeddedLimiter, Failure, MAX_QUESTIONS, Question, QuestionError};
pub use settings::{ApiSettings, Insecure};

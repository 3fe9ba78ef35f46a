//! Doors for those who have no filter: applications over HTTP, any Envoy over the rate-limit service's gRPC.
//!
//! Leaves to others: streams of filters (`grpc`, `stream`).

pub mod decider;
pub mod entrance;
pub mod http;
pub mod rls;
pub mod ruled;
pub mod settings;

pub use decider::{Answer, Decider, Failure, MAX_QUESTIONS, Question, QuestionError};
pub use settings::{DoorSettings, Insecure};

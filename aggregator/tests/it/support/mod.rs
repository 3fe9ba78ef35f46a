//! What the tests share: servers, clients, databases, documents.

pub mod database;
pub mod http;
pub mod redis;
pub mod rlqs;
pub mod rls;
pub mod schema;
pub mod server;
pub mod terminal;
pub mod tls;
pub mod tracing;

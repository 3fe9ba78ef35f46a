//! Connections: pools of them, deadlines and retries.

pub(in crate::database) mod ledger_connections;
pub(in crate::database) mod pool;
pub(in crate::database) mod retry;
mod turns;

pub(in crate::database) use crate::database::dialect::{Arg, Row};

/// A connection to a database of any kind.
pub(in crate::database) type Connection = dyn crate::database::dialect::Link;

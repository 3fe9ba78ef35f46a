//! Where a connection leads.

use super::sentinel::Sentinels;
use redis::Client;
use std::sync::Arc;

/// A server, or what names it.
#[derive(Clone)]
pub(super) enum Target {
    /// A server at an address or a name.
    Server(Arc<Client>),
    /// The primary that Sentinels name.
    Primary(Arc<Sentinels>),
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Target::Server(client) => write!(f, "{}", client.get_connection_info().addr()),
            Target::Primary(_) => f.write_str("the primary that Sentinels name"),
        }
    }
}

impl Target {
    /// The server of the next connection.
    pub(super) async fn find(&self) -> redis::RedisResult<Client> {
        match self {
            Target::Server(client) => Ok(Client::clone(client)),
            Target::Primary(sentinels) => sentinels.primary().await,
        }
    }
}

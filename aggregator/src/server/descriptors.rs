//! The limit of open files and sockets.

use crate::admin;
use crate::api::http;
use crate::region::slots;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tracing::warn;

/// Descriptors for stores, databases, files and the runtime.
const OTHERS: usize = 256;
/// Descriptors in use when every listener is full.
pub const WANTED: usize = slots::MAX_STREAMS + http::MAX_CONNECTIONS + admin::MAX_CONNECTIONS + OTHERS;

/// Raises the soft limit of open files to the hard one, and warns if that is too low for full listeners. Service managers keep
/// the soft limit low for programs that use select(2).
pub fn raise_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(_, hard)| {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
        Ok(hard)
    });
    match raised {
        Ok(limit) if usize::try_from(limit).is_ok_and(|limit| limit < WANTED) => {
            warn!(
                limit,
                wanted = WANTED,
                "the limit of open files is too low for full listeners, so connections may have to wait; raise ulimit -Hn"
            );
        }
        Ok(_) => {}
        Err(error) => warn!(%error, "could not raise the limit of open files"),
    }
}

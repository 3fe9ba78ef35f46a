//! How many files and sockets the program may hold open.
//!
//! Leaves to others: how many connections each API takes (`listen`).

use crate::admin;
use crate::api::http;
use crate::region::slots;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tracing::warn;

/// For stores, databases, files, and what the runtime has.
const OTHERS: usize = 256;
/// What is open where every API is full.
pub const WANTED: usize = slots::MAX_STREAMS + http::MAX_CONNECTIONS + admin::MAX_CONNECTIONS + OTHERS;

/// Raises the soft limit of open files to the hard one, as service managers keep the soft one low for programs that cannot
/// count further than select(2), and warns where that is still too low for full APIs.
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
                "few files may be open: connections may be kept waiting (ulimit -Hn)"
            );
        }
        Ok(_) => {}
        Err(error) => warn!(%error, "the limit of open files cannot be raised"),
    }
}

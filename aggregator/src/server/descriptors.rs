//! The limit of open files and sockets, and the part of it that each listener may use.
//!
//! Without a part of its own, a listener whose clients keep connections open would leave none to the others: to `/readyz`, and to the
//! streams of new Envoys.

use crate::admin;
use crate::api::http;
use crate::region::slots;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// Descriptors for stores, databases, files and the runtime.
const OTHERS: usize = 256;
/// Descriptors in use when every listener is full.
const WANTED: usize = slots::MAX_STREAMS + http::MAX_CONNECTIONS + admin::MAX_CONNECTIONS + OTHERS;
/// Least connections of the admin listener: probes and Prometheus.
const LEAST_ADMIN: usize = 8;

/// Most connections of each listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connections {
    /// Filters, and callers of the rate-limit service.
    pub grpc: usize,
    /// Applications.
    pub http: usize,
    /// Operators, probes and Prometheus.
    pub admin: usize,
}

impl Connections {
    /// Those for which this process may open descriptors.
    pub fn of_process() -> Connections {
        Connections::within(in_usize(getrlimit(Resource::Nofile).current))
    }

    /// Those for which `limit` descriptors are enough. Filters have what is left by the others.
    fn within(limit: usize) -> Connections {
        let left = limit - OTHERS.min(limit / 2);
        let admin = admin::MAX_CONNECTIONS.min((left / 8).max(LEAST_ADMIN));
        let left = left.saturating_sub(admin).max(2);
        let http = http::MAX_CONNECTIONS.min((left / 4).max(1));
        Connections { grpc: slots::MAX_STREAMS.min(left - http), http, admin }
    }
}

/// Raises the soft limit of open files to the hard one, and warns if that is too low for full listeners. Service managers keep
/// the soft limit low for programs that use select(2).
pub fn raise_limit() {
    let hard = getrlimit(Resource::Nofile).maximum;
    let limit = in_usize(hard);
    match setrlimit(Resource::Nofile, Rlimit { current: hard, maximum: hard }) {
        Ok(()) if limit < WANTED => {
            let Connections { grpc, http, admin } = Connections::of_process();
            warn!(
                limit,
                wanted = WANTED,
                grpc,
                http,
                admin,
                "the limit of open files is too low for full listeners, so each has fewer connections; raise ulimit -Hn"
            );
        }
        Ok(()) => {}
        Err(error) => warn!(%error, "could not raise the limit of open files"),
    }
}

fn in_usize(limit: Option<u64>) -> usize {
    limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_listener_has_a_part() {
        let full = Connections {
            grpc: slots::MAX_STREAMS,
            http: http::MAX_CONNECTIONS,
            admin: admin::MAX_CONNECTIONS,
        };
        assert_eq!([WANTED, usize::MAX].map(Connections::within), [full; 2]);
        assert_eq!(Connections::within(1_024), Connections { grpc: 504, http: 168, admin: 96 });
        for limit in 32..WANTED {
            let Connections { grpc, http, admin } = Connections::within(limit);
            assert!(grpc + http + admin + OTHERS.min(limit / 2) <= limit, "{limit}");
            assert!(admin >= LEAST_ADMIN && http > 0 && grpc > http, "{limit}");
        }
    }
}

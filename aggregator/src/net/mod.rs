//! Connections and files: listeners, TLS, the names that a listener may be called by, files that change.

pub mod follow;
pub mod hosts;
pub mod listen;
pub mod percent;
pub mod shutdown;
pub mod tls;

//! Connections and files: listeners, TLS, the host names of a listener, watched files.

pub mod follow;
pub mod hosts;
pub mod listen;
pub mod percent;
pub mod shutdown;
pub mod tls;

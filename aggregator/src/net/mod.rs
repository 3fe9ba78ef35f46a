//! Connections and files: listeners, TLS, HTTP/1.1, the host names of a listener, watched files.

pub mod calls;
pub mod follow;
pub mod hosts;
pub mod listen;
pub mod method;
pub mod percent;
pub mod serve;
pub mod shutdown;
pub mod tls;

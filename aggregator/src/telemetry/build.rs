//! What this program was built from, as the build script found it.

/// The workspace's version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The commit, with `-dirty` if the sources differed from it; `unknown` in a build without optimisation, or without git.
pub const REVISION: &str = env!("WEIR_REVISION");
/// The version of the compiler.
pub const RUST_VERSION: &str = env!("WEIR_RUST_VERSION");
/// All of it, for `--version`.
pub const SUMMARY: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (commit ",
    env!("WEIR_REVISION"),
    ", Rust ",
    env!("WEIR_RUST_VERSION"),
    ")"
);

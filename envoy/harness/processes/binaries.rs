//! Where the programs are that scenarios start. The scripts in `envoy/tools` find, install and build them, and pass
//! their paths in the environment; nothing is searched for here.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

/// Envoy itself.
pub fn envoy() -> Result<PathBuf> {
    from_environment("ENVOY_BIN")
}

/// The built `weir-aggregator`.
pub fn aggregator() -> Result<PathBuf> {
    from_environment("WEIR_AGGREGATOR_BIN")
}

/// The built and stripped filter.
pub fn filter() -> Result<PathBuf> {
    from_environment("WEIR_FILTER_WASM")
}

/// The playground's page, among all that belongs to it.
pub fn playground() -> Result<PathBuf> {
    from_environment("WEIR_PLAYGROUND")
}

/// The library that gives a process another wall clock.
pub fn clock_shim() -> Result<PathBuf> {
    from_environment("WEIR_CLOCK_SHIM")
}

/// The file that an environment variable names, which must exist.
pub fn from_environment(name: &str) -> Result<PathBuf> {
    let path = std::env::var_os(name).with_context(|| {
        format!("{name} is not set: run ./justw test, which builds everything and sets it")
    })?;
    let path = PathBuf::from(path);
    ensure!(path.is_file(), "{name} names {}, which is not there: run ./justw test", path.display());
    Ok(path)
}

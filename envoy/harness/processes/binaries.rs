//! Paths of the programs that scenarios start. The scripts in `envoy/tools` find, install or build the programs and
//! pass their paths in the environment; this module does not search for them.

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

/// The built filter of the kind that the variable `WEIR_FILTER` names: `native`, or without it WASM.
pub fn filter() -> Result<PathBuf> {
    if is_native() { native_filter() } else { wasm_filter() }
}

/// Whether tests are to run with the native filter.
pub fn is_native() -> bool {
    std::env::var_os("WEIR_FILTER").is_some_and(|kind| kind == "native")
}

/// The built and stripped filter of WASM.
pub fn wasm_filter() -> Result<PathBuf> {
    from_environment("WEIR_FILTER_WASM")
}

/// The built native filter.
pub fn native_filter() -> Result<PathBuf> {
    from_environment("WEIR_FILTER_SO")
}

/// The playground's page; its other files are in the same folder.
pub fn playground() -> Result<PathBuf> {
    from_environment("WEIR_PLAYGROUND")
}

/// The library that gives a process another wall clock.
pub fn clock_shim() -> Result<PathBuf> {
    from_environment("WEIR_CLOCK_SHIM")
}

/// The path in an environment variable; the file must exist.
pub fn from_environment(name: &str) -> Result<PathBuf> {
    let path = std::env::var_os(name).with_context(|| {
        format!("{name} is not set: run ./justw test, which builds everything and sets it")
    })?;
    let path = PathBuf::from(path);
    ensure!(path.is_file(), "{name} names {}, which is not there: run ./justw test", path.display());
    Ok(path)
}

//! `weir-wasm IN OUT`: prepares a compiled filter for Envoy and prints the exports that it kept. `strip` does the work.

mod strip;

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;
use strip::{Callbacks, strip};

/// Rewrite a filter's exports for Envoy, check its imports, and drop its debugging sections.
#[derive(Parser)]
struct Options {
    /// The module as cargo built it.
    input: PathBuf,
    /// Where to write the module for Envoy.
    output: PathBuf,
    /// Keep these callbacks (comma-separated) instead of those exported as `weir_<name>`.
    #[arg(long, value_delimiter = ',', conflicts_with = "without_responses")]
    keep: Vec<String>,
    /// Leave out the callback for response headers.
    #[arg(long)]
    without_responses: bool,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let callbacks = match options.keep.is_empty() {
        true if options.without_responses => Callbacks::WithoutResponses,
        true => Callbacks::Prefixed,
        false => Callbacks::Named(options.keep.into_iter().collect::<BTreeSet<_>>()),
    };
    let input =
        std::fs::read(&options.input).with_context(|| format!("reading {}", options.input.display()))?;
    let stripped =
        strip(&input, &callbacks).with_context(|| format!("preparing {}", options.input.display()))?;
    // By rename, so that an Envoy that watches the file never reads a partial one.
    let partial = options.output.with_extension("wasm.partial");
    std::fs::write(&partial, &stripped.module)
        .and_then(|()| std::fs::rename(&partial, &options.output))
        .with_context(|| format!("writing {}", options.output.display()))?;
    println!(
        "{}: {} KiB (was {} KiB), exports {}",
        options.output.display(),
        stripped.module.len() / 1024,
        input.len() / 1024,
        stripped.exports.join(" ")
    );
    Ok(())
}

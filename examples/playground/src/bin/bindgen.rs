//! `weir-bindgen MODULE FOLDER`: makes of the compiled playground what a browser loads, by wasm-bindgen's own library.
//!
//! Leaves to others: compiling it, and the page (`envoy/tools/run/playground.sh`).

use anyhow::{Context, Result, bail};
use wasm_bindgen_cli_support::Bindgen;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [module, folder] = &arguments[..] else { bail!("usage: weir-bindgen MODULE FOLDER") };
    let mut bindgen = Bindgen::new();
    bindgen.input_path(module).typescript(false).remove_name_section(true).remove_producers_section(true);
    bindgen.web(true)?.generate(folder).with_context(|| format!("making {folder} of {module}"))
}

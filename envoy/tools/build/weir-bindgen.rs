//! `weir-bindgen MODULE FOLDER`: generates from the compiled playground the files that a browser loads, using
//! wasm-bindgen's library. `envoy/tools/run/playground.sh` runs it.

use anyhow::{Context, Result, bail};
use wasm_bindgen_cli_support::Bindgen;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [module, folder] = &arguments[..] else { bail!("usage: weir-bindgen MODULE FOLDER") };
    let mut bindgen = Bindgen::new();
    bindgen.input_path(module).typescript(false).remove_name_section(true).remove_producers_section(true);
    bindgen.web(true)?.generate(folder).with_context(|| format!("generating {folder} from {module}"))
}

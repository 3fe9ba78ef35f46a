//! Makes the messages of `src/model/*.proto` in Rust, for `model::wire`.

use std::error::Error;

const FOLDER: &str = "src/model";
/// The stream between filters and aggregators, and what aggregators send to each other.
const FILES: [&str; 2] = ["wire.proto", "changes.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    for file in FILES {
        println!("cargo::rerun-if-changed={FOLDER}/{file}");
    }
    let described = protox::compile(FILES, [FOLDER])?;
    Ok(prost_build::Config::new().compile_fds(described)?)
}

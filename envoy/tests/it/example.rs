//! Envoy accepts the configuration for users (`deploy/envoy.yaml`) with the filter.

use std::path::Path;

use weir_envoy::{binaries, validate_file};

#[test]
fn envoy_accepts_the_example() {
    let filter = binaries::filter().unwrap();
    let example =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/envoy.yaml")).unwrap();
    let placeholder = "target/weir-filter.wasm";
    assert_eq!(example.matches(placeholder).count(), 1);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("envoy.yaml");
    std::fs::write(&file, example.replace(placeholder, filter.to_str().unwrap())).unwrap();
    validate_file(&file).unwrap();
}

//! What the program states of its build, the commit and the compiler, for `--version` and `weir_build_info`; and the descriptions of its
//! gRPC services, which the reflection service serves; and the messages of Envoy's services in Rust.
//!
//! The commit is `WEIR_REVISION`, where a build without git sets it, or else git's. Builds without optimisation, those of
//! developers and tests, have none: each commit would compile the crate again.

use prost::Message;
use prost_types::field_descriptor_proto::Type;
use prost_types::{DescriptorProto, FileDescriptorSet};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Digits of a commit that are shown.
const REVISION_DIGITS: usize = 12;
const UNKNOWN: &str = "unknown";
/// What the program is made of, from this folder. A change of any of it compiles the program again in any case.
const SOURCES: [&str; 13] = [
    "src",
    "proto",
    "Cargo.toml",
    "API.md",
    "METRICS.md",
    "OPERATIONS.md",
    "OVERRIDES.md",
    "README.md",
    "../core/README.md",
    "../core/src",
    "../migrations",
    "../Cargo.toml",
    "../Cargo.lock",
];

/// Where descriptions of gRPC services are, and the files of those that the aggregator has.
const DESCRIPTIONS: [&str; 2] = ["proto", "../core/src/model"];
/// The package of the service whose messages core has.
const OF_CORE: &str = "weir.v1";
/// Values of descriptors. A header's value need not be UTF-8, and must not end a call or a stream, so they are read as bytes.
const VALUES: [&str; 2] = ["Entry", "BucketEntry"];
const SERVICES: [&str; 3] =
    ["wire.proto", "envoy/service/ratelimit/v3/rls.proto", "envoy/service/rate_limit_quota/v3/rlqs.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    // The macro that embeds migrations only sees those it has seen.
    println!("cargo::rerun-if-changed=../migrations");
    println!("cargo::rerun-if-env-changed=WEIR_REVISION");
    println!("cargo::rustc-env=WEIR_REVISION={}", revision());
    let rust = output(&variable("RUSTC"), &["--version"]);
    let version = rust.as_deref().and_then(|line| line.split(' ').nth(1));
    println!("cargo::rustc-env=WEIR_RUST_VERSION={}", version.unwrap_or(UNKNOWN));
    describe_services()
}

fn describe_services() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    println!("cargo::rerun-if-changed=../core/src/model/wire.proto");
    let mut compiler = protox::Compiler::new(DESCRIPTIONS)?;
    compiler.include_imports(true).include_source_info(false).open_files(SERVICES)?;
    let file = PathBuf::from(variable("OUT_DIR")).join("services.binpb");
    std::fs::write(file, compiler.file_descriptor_set().encode_to_vec())?;
    let mut messages = protox::compile(SERVICES, DESCRIPTIONS)?;
    read_values_as_bytes(&mut messages);
    let mut config = prost_build::Config::new();
    config.btree_map(["."]).type_attribute("BucketId", "#[derive(Eq, Hash)]").include_file("envoy.rs");
    Ok(config.compile_fds(messages)?)
}

fn read_values_as_bytes(messages: &mut FileDescriptorSet) {
    messages.file.retain(|file| file.package() != OF_CORE);
    let outer = messages.file.iter_mut().flat_map(|file| &mut file.message_type);
    let inner = outer.flat_map(|message| &mut message.nested_type);
    for message in inner.filter(|message| VALUES.contains(&message.name())) {
        let DescriptorProto { field, .. } = message;
        field
            .iter_mut()
            .filter(|field| field.name() == "value")
            .for_each(|value| value.set_type(Type::Bytes));
    }
}

fn revision() -> String {
    let given = variable("WEIR_REVISION");
    if !given.is_empty() {
        return given.chars().take(REVISION_DIGITS).collect();
    }
    if variable("PROFILE") != "release" {
        return UNKNOWN.to_owned();
    }
    from_git().unwrap_or_else(|| UNKNOWN.to_owned())
}

/// The commit, with `-dirty` if the sources differ from it. Runs again when either changes.
fn from_git() -> Option<String> {
    for source in SOURCES {
        println!("cargo::rerun-if-changed={source}");
    }
    // A commit is added to the log of HEAD, and another branch changes HEAD. A path that does not exist would always count as changed.
    for path in ["HEAD", "logs/HEAD"] {
        let path = output("git", &["rev-parse", "--git-path", path])?;
        if Path::new(&path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    let digits = format!("--short={REVISION_DIGITS}");
    let commit = output("git", &["rev-parse", &digits, "HEAD"])?;
    let status = [&["--no-optional-locks", "status", "--porcelain", "--"], &SOURCES[..]].concat();
    let dirty = if output("git", &status)?.is_empty() { "" } else { "-dirty" };
    Some(commit + dirty)
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

/// What a program prints, if it succeeds.
fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

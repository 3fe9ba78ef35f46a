//! `weir-fuzz --target=NAME [libFuzzer's options] [FOLDER...]`: calls one target with what libFuzzer derives from the inputs in the folders.
//! libFuzzer parses the arguments and leaves out those that begin with two hyphens.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use weir_fuzz::{TARGETS, Target, target};

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::args().find_map(|argument| argument.strip_prefix("--target=").map(str::to_owned));
    name.as_deref().and_then(target).unwrap_or_else(|| {
        let known: Vec<_> = TARGETS.iter().map(|(known, _)| *known).collect();
        eprintln!(
            "weir-fuzz: --target={} is not a target; use one of: {}",
            name.unwrap_or_default(),
            known.join(" ")
        );
        std::process::exit(1)
    })
});

fuzz_target!(init: { LazyLock::force(&TARGET); }, |data: &[u8]| TARGET(data));

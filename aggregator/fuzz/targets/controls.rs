//! See the function of this name in `weir_fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::run("controls", data));

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stoker_fuzz::run("reference", data));

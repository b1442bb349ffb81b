//! One fuzzer for each parser; the name of the program says which.
#![no_main]

#[path = "../parsers.rs"]
mod parsers;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| parsers::run(env!("CARGO_BIN_NAME"), bytes));

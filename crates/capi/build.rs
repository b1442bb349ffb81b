//! Gives `liborcheck.so` its soname, so that programs bind to the ABI's major number and not to
//! one build of the library.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,liborcheck.so.1");
    println!("cargo:rerun-if-changed=build.rs");
}

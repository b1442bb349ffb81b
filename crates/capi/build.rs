//! Gives `liborcheck.so` its soname, so that programs bind to the ABI's major number and not to one
//! build of the library; and keeps it mapped after `dlclose`, because its threads may still run.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,liborcheck.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}

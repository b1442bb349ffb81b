//! Provides randomness for run ids, keys and nonces, straight from the kernel.
//!
//! Invariants
//! 1. There is no substitute: if the kernel has no randomness to give, the process stops rather
//!    than use a predictable key.
//!
//! Not here: seeded generators for tests (they bring their own).

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// `N` bytes from the kernel's generator.
///
/// # Panics
/// If the kernel refuses, which getrandom(2) does not do for requests of up to 256 bytes on any
/// kernel that Orcheck runs on.
#[must_use]
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0u8; N];
    let mut filled = 0;
    while filled < N {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(count) if count > 0 => filled += count,
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => panic!("getrandom failed: {errno}"),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differs_from_call_to_call() {
        assert_ne!(random_bytes::<32>(), random_bytes::<32>());
        assert_eq!(random_bytes::<0>(), [0u8; 0]);
    }
}

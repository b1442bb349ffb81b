//! Runs a program as on Linux 4.18: `old_kernel PROGRAM [ARGUMENT…]`. What that kernel does not
//! know answers as it did there. A runner for cargo: `tools/old-kernel.sh` repeats the tests under
//! it.
// It replaces itself by a program, and speaks on the terminal.
#![allow(clippy::print_stderr)]

use orcheck_testing::kernel::Kernel;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    let Some(program) = words.next() else {
        eprintln!("usage: old_kernel PROGRAM [ARGUMENT...]");
        return ExitCode::from(2);
    };
    if let Err(errno) = Kernel::linux_4_18().apply() {
        eprintln!("old_kernel: this kernel grants no system call filters (errno {errno})");
        return ExitCode::from(2);
    }
    let error = Command::new(&program).args(words).exec();
    eprintln!("old_kernel: {}: {error}", program.display());
    ExitCode::from(127)
}

#!/usr/bin/env bash
# Runs the tests of the copy kernels as an Arm program (AArch64), in an emulator where the machine is another one.
#
# The emulator says whether the NEON kernel is right, not whether it is fast. Needs a Rust target, a cross compiler
# and an emulator, which it installs where it may.
set -euo pipefail
cd "$(dirname "$0")/.."
target=aarch64-unknown-linux-gnu

left_out=()
if [[ $(uname -m) != aarch64 ]]; then
    # It starts itself again, which an emulator of one process cannot do.
    left_out=(--skip the_environment_chooses_the_kernel)
    tools/install-deps.sh arm
    rustup target list --installed | grep -qx "$target" || rustup target add "$target"
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
    export CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -cpu max -L /usr/aarch64-linux-gnu"
fi
"${CARGO:-cargo}" test --locked -p orcheck-pool --target "$target" --test copy -- "${left_out[@]}"
exec "${CARGO:-cargo}" test --locked -p orcheck-net --target "$target" --lib polyval

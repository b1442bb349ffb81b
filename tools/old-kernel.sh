#!/usr/bin/env bash
# Runs tests as on Linux 4.18, the oldest kernel that Orcheck runs on: every later system call, flag and request
# answers as it did there. Arguments are those of `cargo test`; without any, everything below the command line.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
"$cargo" build --quiet --locked --workspace --example old_kernel
target=${CARGO_TARGET_DIR:-target}
host=$(rustc -vV | sed -n 's/^host: //p')
variable=CARGO_TARGET_$(tr 'a-z-' 'A-Z_' <<<"$host")_RUNNER
(($#)) || set -- -p orcheck-io -p orcheck-engine -p orcheck-client --no-fail-fast
exec env "$variable=$(cd "$target" && pwd)/debug/examples/old_kernel" "$cargo" test --locked "$@"

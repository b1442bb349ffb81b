#!/usr/bin/env bash
# The threads of the pool, the gates and the engine under chosen schedules (crates/io/src/sync.rs).
# Everything that they wait for each other with is replaced in this build; it has a target
# directory of its own.
#
#   tools/schedules.sh [TEST]   only the tests whose name contains TEST
#   ORCHECK_TRIALS   schedules of each test      ORCHECK_SEED   the same schedules again
set -euo pipefail
cd "$(dirname "$0")/.."
export RUSTFLAGS="${RUSTFLAGS:-} --cfg orcheck_shuttle"
target=${CARGO_TARGET_DIR:-target}/schedules
exec "${CARGO:-cargo}" test --target-dir "$target" --locked -p orcheck-dst --test schedules -- \
    --nocapture "$@"

#!/usr/bin/env bash
# The threads of the pool, the gates and the engine under chosen schedules (crates/io/src/sync.rs).
# Everything that they wait for each other with is replaced in this build of our crates; what they
# depend on is that of all other tests.
#
#   tools/schedules.sh [TEST]   only the tests whose name contains TEST
#   ORCHECK_TRIALS   schedules of each test      ORCHECK_SEED   the same schedules again
set -euo pipefail
cd "$(dirname "$0")/.."
export RUSTC_WORKSPACE_WRAPPER=$PWD/tools/schedules-rustc.sh
# All of the workspace, so that dependencies are asked for the same features as elsewhere.
exec "${CARGO:-cargo}" test --workspace --locked --test schedules -- --nocapture "$@"

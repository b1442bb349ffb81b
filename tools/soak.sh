#!/usr/bin/env bash
# The tests again, with many more random cases. Optimised, because it is the number of trials
# that finds something.
#
#   ORCHECK_TRIALS   kill and fault trials of each campaign (default 20000)
#   PROPTEST_CASES   random cases of each property (default 20000)
set -euo pipefail
cd "$(dirname "$0")/.."
export ORCHECK_TRIALS=${ORCHECK_TRIALS:-20000} PROPTEST_CASES=${PROPTEST_CASES:-20000}
echo "soak: $ORCHECK_TRIALS trials, $PROPTEST_CASES cases of each property"
tools/old-kernel.sh
"${CARGO:-cargo}" test --release --workspace --locked --no-fail-fast
# From outside, at the installed library: every call of the save killed and failed, and more power cuts and damage.
exec python3 bench/torture/torture.py orcheck --must-hold orcheck --minutes 60

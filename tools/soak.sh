#!/usr/bin/env bash
# The tests again, with many more random cases. Optimised, because it is the number of trials
# that finds something.
#
#   ORCHECK_TRIALS   kill and fault trials of each campaign (default 20000)
#   PROPTEST_CASES   random cases of each property (default 20000)
#   ORCHECK_FUZZ_S   seconds of fuzzing of each parser (default 600)
set -euo pipefail
cd "$(dirname "$0")/.."
export ORCHECK_TRIALS=${ORCHECK_TRIALS:-20000} PROPTEST_CASES=${PROPTEST_CASES:-20000}
echo "soak: $ORCHECK_TRIALS trials, $PROPTEST_CASES cases of each property"
failed=0
tools/old-kernel.sh || failed=1
"${CARGO:-cargo}" test --release --workspace --locked --no-fail-fast || failed=1
tools/schedules.sh || failed=1
ORCHECK_FUZZ_S=${ORCHECK_FUZZ_S:-600} tools/fuzz.sh || failed=1
# From outside, at the installed library: every call of the save killed and failed, and more power cuts and damage.
python3 bench/torture/torture.py orcheck --must-hold orcheck --minutes 60 || failed=1
exit $failed

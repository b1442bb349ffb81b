#!/usr/bin/env bash
# Coverage-guided fuzzing of every parser with libFuzzer, on a stable compiler.
#
#   tools/fuzz.sh [PARSER...]    all of them without arguments; names are those in fuzz/Cargo.toml
#   ORCHECK_FUZZ_S               seconds a parser (default 60)
#
# What was found new is kept in build/fuzz/; crashing inputs are named in the output. Put them into
# fuzz/corpus/PARSER/ together with the fix: `make check` replays everything there.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${ORCHECK_FUZZ_S:-60}
cargo=${CARGO:-cargo}
work=$PWD/build/fuzz
mkdir -p "$work"

# What `cargo fuzz --sanitizer none` sets, as far as a stable compiler takes it. The sanitizers need
# a nightly one; debug assertions and overflow checks are on.
coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4"
coverage+=" -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table"
coverage+=" -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 --cfg fuzzing"
target=$(rustc -vV | awk '/^host:/ { print $2 }')
export RUSTFLAGS="${RUSTFLAGS:-} $coverage"
# --target: the build scripts of dependencies must not be instrumented.
"$cargo" build --manifest-path fuzz/Cargo.toml --release --locked --target "$target" --target-dir "$work/target"

mapfile -t all < <(awk -F'"' '/^\[\[bin/ { bin = 1 } bin && /^name/ { print $2; bin = 0 }' fuzz/Cargo.toml)
(($#)) || set -- "${all[@]}"
failed=()
for parser in "$@"; do
    mkdir -p "$work/corpus/$parser" "$work/found/$parser"
    log=$work/$parser.log
    # -malloc_limit_mb: no single allocation from an unchecked length; -timeout: no endless loop.
    if "$work/target/$target/release/$parser" "$work/corpus/$parser" "fuzz/corpus/$parser" \
        -max_total_time="$seconds" -max_len=65536 -timeout=10 -rss_limit_mb=1024 -malloc_limit_mb=64 \
        -artifact_prefix="$work/found/$parser/" -print_final_stats=1 >"$log" 2>&1; then
        awk -v parser="$parser" '/number_of_executed_units/ { runs = $2 } / cov: / { for (i = 1; i < NF; i++) if ($i == "cov:") cov = $(i + 1) }
            END { printf "%-20s %12d runs, %6d edges\n", parser, runs, cov }' "$log"
    else
        failed+=("$parser")
        tail -n 30 "$log"
        echo "$parser: FAILED, the whole log is $log"
    fi
done
((${#failed[@]})) && printf 'failed: %s\n' "${failed[*]}"
printf '%d passed, %d failed\n' $(($# - ${#failed[@]})) "${#failed[@]}"
((${#failed[@]} == 0))

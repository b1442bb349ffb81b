#!/usr/bin/env bash
# Coverage-guided fuzzing of every parser with libFuzzer, on a stable compiler.
#
#   tools/fuzz.sh [PARSER...]    all of them without arguments; names are those in fuzz/Cargo.toml
#   ORCHECK_FUZZ_S               seconds a parser (default 60); as many parsers at once as processors
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

fuzz() { # parser
    local log=$work/$1.log
    mkdir -p "$work/corpus/$1" "$work/found/$1"
    # -malloc_limit_mb: no single allocation from an unchecked length; -timeout: no endless loop.
    if "$work/target/$target/release/$1" "$work/corpus/$1" "fuzz/corpus/$1" \
        -max_total_time="$seconds" -max_len=65536 -timeout=10 -rss_limit_mb=1024 -malloc_limit_mb=64 \
        -artifact_prefix="$work/found/$1/" -print_final_stats=1 >"$log" 2>&1; then
        awk -v parser="$1" '/number_of_executed_units/ { runs = $2 } / cov: / { for (i = 1; i < NF; i++) if ($i == "cov:") cov = $(i + 1) }
            END { printf "%-20s %12d runs, %6d edges\n", parser, runs, cov }' "$log"
    else
        tail -n 30 "$log"
        echo "$1: FAILED, the whole log is $log"
        return 1
    fi
}
failed=()
ended() { # waits for one of them
    wait -n -p which || failed+=("${running[$which]}")
    unset "running[$which]"
}
declare -A running=()
for parser in "$@"; do
    ((${#running[@]} < $(nproc))) || ended
    fuzz "$parser" &
    running[$!]=$parser
done
while ((${#running[@]})); do ended; done
((${#failed[@]})) && printf 'failed: %s\n' "${failed[*]}"
printf '%d passed, %d failed\n' $(($# - ${#failed[@]})) "${#failed[@]}"
((${#failed[@]} == 0))

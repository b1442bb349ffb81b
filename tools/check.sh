#!/usr/bin/env bash
# Runs every check and ends with one line: 'N passed, 0 failed'.
#
# usage: tools/check.sh [fast]
#   fast: formatting, lints, unit tests and the rules of the tree; nothing that runs whole jobs
#
# A step counts as the number of tests it reports ('test result: ok. N passed; M failed' or a
# last line 'N passed, M failed'), or as one. All steps run even if one fails; the logs stay in
# build/check/.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
. tools/open-files.sh
. tools/mpi-env.sh

# Where nobody has built anything yet, what makes a second build faster only makes the first one slower.
[[ -d target/debug/incremental ]] || export CARGO_INCREMENTAL=${CARGO_INCREMENTAL:-0}

cargo=${CARGO:-cargo}
prefix=${PREFIX:-$PWD/build/prefix}
logs=build/check
mkdir -p "$logs"
passed=0
failed=0
broken=()
reasons=
declare -A beside

begin() { # name, command... ; runs while other steps do, until `end` counts it; with after=NAME once that step is over
    local name=$1
    shift
    printf '%q ' "$@" >"$logs/$name.command"
    rm -f "$logs/$name.rc" # of the last time: a step that is killed writes none
    {
        [[ ${after:-} ]] && tail --pid="${beside[$after]}" -f /dev/null
        unset after # which is none of the command's business
        date +%s >"$logs/$name.begun"
        TIMEFORMAT='%U %S'
        { time "$@" >"$logs/$name.log" 2>&1 </dev/null; } 2>"$logs/$name.cpu"
        local rc=$?
        date +%s >"$logs/$name.ended"
        echo $rc >"$logs/$name.rc"
    } &
    beside[$name]=$!
}

end() { # name
    local name=$1 log=$logs/$1.log rc ok=0 bad=0
    printf '== %s\n' "$name"
    wait "${beside[$name]}"
    rc=$(<"$logs/$name.rc") || rc=1
    read -r ok bad < <(awk '
        /^test result:/ { ok += $4; bad += $6; cargo = 1 }
        /^[0-9]+ passed, [0-9]+ failed/ { last_ok = $1; last_bad = $3 }
        END { if (cargo) print ok + 0, bad + 0; else print last_ok + 0, last_bad + 0 }' "$log")
    # A step without counts is one test, unless it said that it could not do its work.
    ((ok + bad)) || { ((rc == 0)) && grep -q SKIPPED "$log"; } || ok=1
    if ((rc != 0)); then
        ((bad)) || { bad=1; ok=$((ok > 1 ? ok : 0)); }
        broken+=("$name")
        sed 's/^/   | /' "$log" | tail -n 80
        # Which test it was, and why, stands far above the end of a long log: kept for the last lines.
        reasons+=$(printf '\n%s: ' "$name" && grep -hE -A 4 '^test .*FAILED|panicked at|^FAIL|^error(\[|:)' "$log" |
            grep -vE '^--$|^stack backtrace|^ +[0-9]+: |^ +at /|^(running|test .* ok)|^$' | cut -c -300 | head -n 40)
        printf '   failed (exit %d), the whole log is %s; again: %s\n' "$rc" "$log" "$(<"$logs/$name.command")"
    fi
    # A test that could not do its work says so; nobody should have to search the logs for it.
    grep -h 'SKIPPED' "$log" | sort -u | sed 's/^/   /'
    passed=$((passed + ok))
    failed=$((failed + bad))
    printf '   %d passed, %d failed, %d s, %.0f s of processors\n' "$ok" "$bad" \
        "$(($(<"$logs/$name.ended") - $(<"$logs/$name.begun")))" "$(awk '{ print $1 + $2 }' "$logs/$name.cpu")"
}

step() { # name, command...
    begin "$@"
    end "$1"
}

verdict() { # the last lines, and the exit status
    ((failed)) && printf '%s\n\nfailed: %s\n' "$reasons" "${broken[*]}"
    printf '%d passed, %d failed\n' "$passed" "$failed"
    ((failed == 0 && ${#broken[@]} == 0))
}

step format "$cargo" fmt --all --check
step vectors python3 crates/net/tests/vectors/recompute.py
step python tools/check-python.sh
if [[ ${1:-} == fast ]]; then
    step lint "$cargo" clippy --workspace --all-targets --locked -- -D warnings
    step units "$cargo" test --workspace --locked --no-fail-fast --lib --bins
    step tidy "$cargo" test --locked --no-fail-fast -p orcheck-tidy
    verdict
    exit
fi
# Whether the fuzzers could be built: their own list of dependencies follows the one of the workspace.
step fuzzers "$cargo" metadata --manifest-path fuzz/Cargo.toml --locked --format-version 1 --quiet
step build-tests tools/run-tests.sh
# Whole jobs wait for disks and deadlines more than they compute: they run beside everything else.
begin faults tools/run-tests.sh faults
begin programs tools/run-tests.sh agent served session
# Compilers would push these tests past their deadlines, so they start afterwards, when a CPU is free.
after=faults begin build tools/install-prefix.sh "$prefix"
after=build begin lint "$cargo" clippy --workspace --all-targets --locked -- -D warnings
after=lint begin doc env RUSTDOCFLAGS='-D warnings' "$cargo" doc --workspace --no-deps --document-private-items --locked
step test tools/run-tests.sh --but faults agent served session
end programs
step old-kernel tools/old-kernel.sh orcheck-pool/pool orcheck-io/disk orcheck-pool/uring orcheck-jobs/session -- \
    --skip triggers:: --skip overrun:: --skip mistakes::
step schedules tools/schedules.sh
end build
step capi env PREFIX="$prefix" bash crates/capi/tests/run.sh
step first-hour python3 tools/first-hour.py
step examples make -C examples validate ORCHECK_PREFIX="$prefix" OUT="$PWD/build/examples"
step benches env PREFIX="$prefix" PYTHONPATH=bench python3 -m orcbench.selftest
# Killed jobs wait for deadlines, and so do the machines of the testbed: side by side.
begin torture env PREFIX="$prefix" PYTHONPATH=bench python3 -m testbed.torture.selftest
step hosts env PREFIX="$prefix" LBM="$PWD/build/examples/lbm" python3 -m testbed.cluster.selftest
step moosefs env PREFIX="$prefix" LBM="$PWD/build/examples/lbm" python3 -m testbed.cluster.moosetest
step disks python3 -m testbed.cluster.disktest
end torture
end faults
end lint
end doc
if command -v cargo-deny >/dev/null; then
    step licences "$cargo" deny --offline check licenses bans sources
fi

verdict

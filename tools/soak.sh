#!/usr/bin/env bash
# The tests again, with many more random cases; optimised, because it is the number of trials that finds something.
#
# usage: tools/soak.sh [STAGE...]     all of them without arguments; each can be run by itself, on another day
#
#   kills      runs killed from outside at random moments and before every step, on each file system
#   power      states of the model of a disk after a loss of power, damage to metadata and data
#   blocks     images of ext4, xfs and btrfs cut between two writes of a block device
#   faults     every other test of whole jobs, and all tests as on Linux 4.18
#   told       10,000 jobs with a fault each: what was reported of checkpoints against what is restartable
#   nodes      agents, strangers at their doors, nodes that are cut off or lost
#   servers    a staging server killed at each of its steps, its disk failing, 10,000 checkpoints under random kills;
#              its operations against a reference file system, with quotas
#   mount      random calls in a mount against the file system beneath, and the mount killed at random moments
#   models     properties of protocol, formats, pool and capture; orders of threads
#   jobs       simulated jobs of up to 64 nodes, with faults at any moment of the protocols
#   survival   real jobs on 16 and 32 nodes, some of which are lost with their disks, against the formula
#   fuzz       every parser, guided by coverage, as many at once as there are processors
#   torture    from outside, at the installed library: every call of a save killed and failed
#
#   ORCHECK_SOAK   trials in percent of the full number (default 100)
#   ORCHECK_SEED   the same random choices again
#
# Ends with one line for each stage: what was tried, how many a second, and the verdicts that must not occur.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
. tools/open-files.sh
cargo=${CARGO:-cargo}
percent=${ORCHECK_SOAK:-100}
logs=build/soak
mkdir -p "$logs"
summary=()
failed=0

some() { # full number -> this run's
    echo $(($1 * percent / 100 > 0 ? $1 * percent / 100 : 1))
}

tests() { # package, target, filters...
    local package=$1 target=$2
    shift 2
    "$cargo" test --release --locked -p "$package" --test "$target" -- "$@"
}

stage_kills() { # 4 x ORCHECK_TRIALS random ones
    ORCHECK_TRIALS=$(some 25000) tests orcheck-jobs faults kill_random:: paced:: kill_steps:: kernels::killed
}
stage_power() { # about 46 states for each trial, where there are this many
    ORCHECK_TRIALS=$(some 25000) tests orcheck-jobs power
}
stage_blocks() { # images of each; mounting btrfs takes three times as long
    local bad=0
    ORCHECK_TRIALS=$(some 24000) tests orcheck-dst blocks ext4 xfs || bad=1
    ORCHECK_TRIALS=$(some 2000) tests orcheck-dst blocks btrfs || bad=1
    return $bad
}
stage_faults() {
    local bad=0
    ORCHECK_TRIALS=$(some 1000) tests orcheck-jobs faults alone:: bound:: damage:: directory:: errors:: flips:: kernels::every hardship:: \
        leftover:: losses:: namespace:: outside:: processes:: reads:: rivals:: scenarios:: signals:: zombie:: || bad=1
    ORCHECK_TRIALS=$(some 1000) tests orcheck-capi callers || bad=1
    ORCHECK_TRIALS=$(some 5000) tests orcheck-cli cli a_copy_that_is_killed --nocapture || bad=1
    tools/old-kernel.sh || bad=1
    return $bad
}
stage_told() {
    ORCHECK_TRIALS=$(some 10400) tests orcheck-jobs faults reported::
}
stage_nodes() {
    local bad=0
    ORCHECK_TRIALS=$(some 400) tests orcheck-jobs faults agents:: partition:: strangers:: survival:: || bad=1
    return $bad
}
stage_servers() { # the random kills: 50 checkpoints each; the model: 80 operations each
    local bad=0
    ORCHECK_TRIALS=$(some 200) tests orcheck-jobs faults servers:: || bad=1
    ORCHECK_TRIALS=$(some 20000) tests orcheck-staging model --nocapture || bad=1
    return $bad
}
stage_mount() { # 102,000 calls, and 30 kills, for each trial
    ORCHECK_TRIALS=$(some 60) tests orcheck-mount mount same:: at_random_moments --nocapture
}
stage_models() {
    local bad=0
    export PROPTEST_CASES ORCHECK_TRIALS
    PROPTEST_CASES=$(some 20000) ORCHECK_TRIALS=$(some 20000)
    "$cargo" test --release --locked --no-fail-fast -p orcheck-format -p orcheck-io -p orcheck-pool -p orcheck-net -p orcheck-placement -p orcheck-interval -p orcheck-planner -p orcheck-staging -p orcheck-engine || bad=1
    tests orcheck-jobs session || bad=1
    # Of each of 23 kinds.
    ORCHECK_TRIALS=$(some 10000) tests orcheck-engine forgery --nocapture || bad=1
    # Whole jobs: a 200th of each kind of forgery, a 50th of each sort of misread job; the session's are among its tests above.
    ORCHECK_TRIALS=$(some 10000) tests orcheck-jobs served forged:: misread:: --nocapture || bad=1
    ORCHECK_TRIALS=$(some 4000) tests orcheck-jobs agent forged:: misread:: --nocapture || bad=1
    tests orcheck-dst fuzz || bad=1
    tools/schedules.sh || bad=1
    return $bad
}
stage_jobs() {
    ORCHECK_TRIALS=$(some 100000) tests orcheck-dst jobs --nocapture
}
stage_survival() { # at each of three points
    ORCHECK_TRIALS=$(some 400) tests orcheck-jobs faults survival::
}
stage_fuzz() {
    ORCHECK_FUZZ_S=$(some 600) tools/fuzz.sh
}
stage_torture() {
    tools/install-prefix.sh build/prefix && tools/install-deps.sh torture &&
        PYTHONPATH=bench python3 -m testbed.torture orcheck orcheck-incremental --must-hold orcheck --minutes "$(some 20)"
}

(($#)) || set -- kills power blocks faults told nodes servers mount models jobs survival fuzz torture
for stage in "$@"; do
    declare -F "stage_$stage" >/dev/null || { echo "soak: there is no stage '$stage'; see the head of $0" >&2; exit 2; }
done
for stage in "$@"; do
    log=$logs/$stage.log
    echo "== $stage (log: $log)"
    begun=$SECONDS
    "stage_$stage" >"$log" 2>&1 </dev/null
    rc=$?
    took=$((SECONDS - begun))
    # Rows of tables of verdicts: name, trials, idle, then the eight classes; the last five are bad or lost work.
    counts=$(awk -v took="$took" '
        /^  .* [0-9]+ +[0-9]+ +[0-9]+ +[0-9]+ +[0-9]+ +[0-9]+ +[0-9]+ +[0-9]+ +[0-9]+ +[0-9]+$/ {
            trials += $(NF - 9); lost += $(NF - 4); hard += $(NF - 3); wrong += $(NF - 2); hang += $(NF - 1); leak += $NF }
        /^test result:/ { passed += $4; broken += $6 }
        /^[0-9]+ passed, [0-9]+ failed/ { passed += $1; broken += $3 }
        END {
            if (trials) printf "%d trials, %.0f a second; LOST_WORK %d, HARD_FAIL %d, SILENT_WRONG %d, HANG %d, LEAK %d; ",
                trials, trials / (took ? took : 1), lost, hard, wrong, hang, leak
            printf "%d tests passed, %d failed", passed, broken }' "$log")
    ((rc == 0)) && word=ok || { word="FAILED (exit $rc)" failed=1; tail -n 40 "$log"; }
    summary+=("$(printf '%-8s %-16s %6d s  %s' "$stage" "$word" "$took" "$counts")")
    echo "${summary[-1]}"
done
printf '\n%s\n' "${summary[@]}"
exit $failed

#!/usr/bin/env bash
# Runs tests as on Linux 4.18, the oldest kernel that Orcheck runs on: every later system call, flag and request
# answers as it did there. The tests are those of `cargo test --workspace`, so that nothing is built twice.
#
# usage: tools/old-kernel.sh [PACKAGE/TEST...] [-- ARGUMENTS OF THE TESTS]
#   e.g. orcheck-jobs/session; without any: all of orcheck-io, -pool, -net, -engine and -jobs
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
wanted=()
while (($#)) && [[ $1 != -- ]]; do
    wanted+=("$1")
    shift
done
(($#)) && shift

built=$("$cargo" test --workspace --locked --no-run --message-format=json-render-diagnostics)
# One line for each: package/target, the directory in which cargo runs it, the executable.
mapfile -t tests < <(python3 -c '
import json, os, sys
for line in sys.stdin:
    made = json.loads(line)
    if made["reason"] != "compiler-artifact" or not made["executable"]:
        continue
    kind, home = made["target"]["kind"][0], os.path.dirname(made["manifest_path"])
    if made["profile"]["test"] or kind == "example" and made["target"]["name"] == "old_kernel":
        package = "orcheck-" + os.path.basename(home)
        print(package + "/" + made["target"]["name"], home, made["executable"], sep="\t")' <<<"$built" | sort)
runner=
for line in "${tests[@]}"; do
    IFS=$'\t' read -r name _ executable <<<"$line"
    [[ $name == orcheck-testing/old_kernel ]] && runner=$executable
done
[[ $runner ]] || { echo "old-kernel: cargo made no example old_kernel" >&2; exit 1; }

known() { # name: whether it was asked for
    local one
    ((${#wanted[@]})) || [[ $1 != orcheck-@(io|pool|net|engine|jobs)/* ]] || return 0
    for one in "${wanted[@]}"; do
        [[ $1 == "$one" ]] && return 0
    done
    return 1
}
ran=0
bad=0
for line in "${tests[@]}"; do
    IFS=$'\t' read -r name home executable <<<"$line"
    [[ $executable == "$runner" ]] || ! known "$name" && continue
    echo "== $name"
    (cd "$home" && "$runner" "$executable" "$@") || bad=1
    ran=$((ran + 1))
done
for one in "${wanted[@]}"; do
    printf '%s\n' "${tests[@]}" | grep -q "^$one"$'\t' || { echo "old-kernel: there is no test $one" >&2; exit 2; }
done
((ran)) || exit 2
exit $bad

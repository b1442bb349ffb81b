#!/usr/bin/env bash
# Builds the tests of the whole workspace, and runs those of some targets, one after the other.
#
# usage: tools/run-tests.sh [--but] [TARGET...]    without arguments: builds, and runs nothing
#   TARGET: the name of a file or folder below tests/; --but: all except these, with those in src/
#
# `cargo test --test TARGET` would first build much of the workspace again: what procedural macros
# are made of depends on what else is built with them.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

built=$("${CARGO:-cargo}" test --workspace --locked --no-run --message-format=json-render-diagnostics) || exit
mapfile -t tests < <(python3 -c '
import json, os, sys
others, *wanted = sys.argv[1:]
for line in sys.stdin:
    built = json.loads(line)
    if built.get("executable") and built["profile"]["test"]:
        target = built["target"]
        named = "test" in target["kind"] and target["name"] in wanted
        if named != (others == "--but"):
            print(os.path.dirname(built["manifest_path"]), built["executable"], sep="\t")
' "$([[ ${1:-} == --but ]] && echo --but || echo --only)" "$@" <<<"$built")
failed=0
for test in "${tests[@]}"; do
    printf '     Running %s\n' "${test#*$'\t'}"
    (cd "${test%$'\t'*}" && "${test#*$'\t'}") || failed=1
done
exit "$failed"

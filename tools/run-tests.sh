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
chosen=$(python3 -c '
import json, os, sys
wanted = set(sys.argv[1:]) - {"--but"}
but = "--but" in sys.argv
unknown = set(wanted)
for line in sys.stdin:
    built = json.loads(line)
    if built.get("executable") and built["profile"]["test"]:
        target = built["target"]
        named = "test" in target["kind"] and target["name"] in wanted
        if named:
            unknown.discard(target["name"])
        if named != but:
            print(os.path.dirname(built["manifest_path"]), built["executable"], sep="\t")
if unknown:
    sys.exit("no tests of this name: " + " ".join(unknown) + ". Next: name files or folders below tests/")
' "$@" <<<"$built") || exit
mapfile -t tests <<<"$chosen"
failed=0
for test in "${tests[@]}"; do
    [[ $test ]] || continue # nothing was asked for
    printf '     Running %s\n' "${test#*$'\t'}"
    (cd "${test%$'\t'*}" && "${test#*$'\t'}") || failed=1
done
exit "$failed"

#!/usr/bin/env bash
# Runs one benchmark of bench/.
#
# usage: tools/bench.sh NAME
# A benchmark is an executable bench/NAME (any language). It prints a table, writes
# bench/results/NAME.json and draws a plot beside it.
set -euo pipefail
name=${1:?usage: $0 NAME}
cd "$(dirname "$0")/.."
. tools/mpi-env.sh
if [[ ! -x bench/$name || -d bench/$name ]]; then
    echo "there is no benchmark '$name'. Next: choose one of:" >&2
    find bench -maxdepth 1 -type f -perm -u+x -printf '    make bench-%f\n' 2>/dev/null | sort >&2
    exit 2
fi
mkdir -p bench/results
exec "bench/$name"

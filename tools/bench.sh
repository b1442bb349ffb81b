#!/usr/bin/env bash
# Runs one benchmark of bench/orcbench/, or lists them.
#
# usage: tools/bench.sh [NAME [OPTION...]]      (NAME --help: its options)
# A benchmark prints a table, writes bench/results/NAME.json and draws a plot beside it.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/mpi-env.sh
mkdir -p bench/results
PYTHONPATH=$PWD/bench${PYTHONPATH:+:$PYTHONPATH} exec python3 -m orcbench "$@"

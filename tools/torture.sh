#!/usr/bin/env bash
# Tortures Orcheck and whatever other formats can be had here: table, bench/results/torture.json.
#
# usage: tools/torture.sh [option of testbed.torture ...]
#   TORTURE_INSTALL=1   install torch too (gigabytes) for torch.save and DCP
#   TORTURE_PYTHON=...  use this interpreter and its modules, install nothing
#   ORCHECK_TRIALS, ORCHECK_SEED: see testbed/torture/README.md
set -euo pipefail
cd "$(dirname "$0")/.."
prefix=${PREFIX:-$PWD/build/prefix}
python=${TORTURE_PYTHON:-}
if [[ -z $python ]]; then
    here=build/torture-python
    python=$here/bin/python
    if [[ ! -x $python ]]; then
        rm -rf "$here"
        python3 -m venv "$here"
    fi
    # What cannot be installed is left out and named in the table; the others are tested all the same.
    wanted=(-r testbed/torture/requirements.txt)
    [[ -z ${TORTURE_INSTALL:-} ]] || wanted+=(torch)
    if ! "$python" -m pip install --quiet "${wanted[@]}"; then
        echo "WARNING: not all formats could be installed. Next: see what pip said above, or set TORTURE_PYTHON" >&2
    fi
fi
PYTHONPATH=bench exec python3 -m testbed.torture --python "$python" --prefix "$prefix" --must-hold orcheck "$@"

#!/usr/bin/env bash
# The main job on one screen; see demo.py.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tools/mpi-env.sh
source "$here/mpi-env.sh"
exec python3 "$here/demo.py"

#!/bin/sh
# Changes a byte in the newest container of a job: damage.sh JOB. The test script says where jobs are.
set -eu
dir=$ORC_TEST_DIR/$1
newest=$(ls "$dir"/*.orc | tail -n 1)
at=$(($(stat -c %s "$newest") / 4))
byte=$(od -An -tu1 -j "$at" -N 1 "$newest" | tr -d ' ')
printf "\\$(printf %03o $(((byte + 1) % 256)))" | dd of="$newest" bs=1 seek="$at" conv=notrunc status=none

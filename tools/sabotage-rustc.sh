#!/usr/bin/env bash
# The compiler with the switches of crates/format/src/sabotage.rs in; see tools/sabotage.py.
exec "$@" --cfg orcheck_sabotage

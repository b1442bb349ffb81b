#!/usr/bin/env bash
# The compiler with `crates/io/src/sync.rs` as tools/schedules.sh needs it.
exec "$@" --cfg orcheck_shuttle

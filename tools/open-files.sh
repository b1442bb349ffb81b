# Sourced. Jobs of many ranks run in one process in some tests: 1,024 open files, as usual, are too few, and so are 8,192.
[ "$(ulimit -Sn)" = unlimited ] || [ "$(ulimit -Sn)" -ge 65536 ] ||
    ulimit -Sn 65536 2>/dev/null || ulimit -Sn "$(ulimit -Hn)"

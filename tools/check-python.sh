#!/usr/bin/env bash
# Lints, formatting (ruff.toml) and types (mypy.ini) of all Python files. Ends with 'N passed, M failed'.
#
# usage: tools/check-python.sh
# `tools/install-deps.sh check` installs ruff and mypy below build/; without it those in PATH are taken.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
PATH=$PWD/build/python-tools/bin:$PATH
for tool in ruff mypy; do
    if ! "$tool" --version >/dev/null 2>&1; then
        echo "SKIPPED: the Python files: $tool is missing. Next: tools/install-deps.sh check"
        echo "0 passed, 0 failed"
        exit 0
    fi
done

mapfile -t files < <(git ls-files --cached --others --exclude-standard '*.py' |
    while read -r file; do [[ ! -e $file ]] || echo "$file"; done)
if ((${#files[@]} == 0)); then
    echo "SKIPPED: the Python files: this is not a git checkout"
    echo "0 passed, 0 failed"
    exit 0
fi
passed=0 failed=0
run() {
    echo "\$ $1 $2 (${#files[@]} files)"
    if "$@" "${files[@]}"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}
run ruff check
run ruff format --check
run mypy --strict
echo "$passed passed, $failed failed"
((failed == 0))

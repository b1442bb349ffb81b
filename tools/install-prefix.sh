#!/usr/bin/env bash
# Builds for production and installs under a prefix. Running it again replaces what changed.
#
# usage: tools/install-prefix.sh PREFIX
#
# Layout:
#   bin/orcheck
#   lib/, include/                 the library, its headers, pkg-config and CMake files
#   share/orcheck/fortran/         the module, compiled by the program's own compilers
#   share/man/man1/                and shell completions where each shell looks for them
set -euo pipefail
prefix=${1:?usage: $0 PREFIX}
cd "$(dirname "$0")/.."

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
target=${CARGO_TARGET_DIR:-target}/release

"${CARGO:-cargo}" build --release --locked -p orcheck-cli -p orcheck-capi
mkdir -p "$prefix"
prefix=$(cd "$prefix" && pwd)

put() { # mode, from, to: replaced by a rename, so that a running program keeps its own copy
    mkdir -p "$(dirname "$3")"
    if ! cmp -s "$2" "$3"; then
        install -m "$1" "$2" "$3.new"
        mv -f "$3.new" "$3"
    fi
}
put 755 "$target/orcheck" "$prefix/bin/orcheck"
# The library, its headers, pkg-config and CMake files.
sh crates/capi/packaging/install.sh "$prefix" "$target"

mkdir -p "$prefix/share/man/man1"
"$prefix/bin/orcheck" man --force "$prefix/share/man/man1" >/dev/null
for shell in bash:bash-completion/completions/orcheck zsh:zsh/site-functions/_orcheck \
    fish:fish/vendor_completions.d/orcheck.fish; do
    to=$prefix/share/${shell#*:}
    mkdir -p "$(dirname "$to")"
    "$prefix/bin/orcheck" completions "${shell%%:*}" >"$to"
done

for licence in LICENSE-APACHE LICENSE-MIT; do
    put 644 "$licence" "$prefix/share/doc/orcheck/$licence"
done
echo "orcheck $version is in $prefix"

#!/usr/bin/env bash
# Builds for production and installs under a prefix. Running it again replaces what changed.
#
# usage: tools/install-prefix.sh PREFIX
#
# Layout:
#   bin/orcheck
#   lib/liborcheck.so.VERSION, .so.1 (soname), .so, liborcheck.a
#   lib/pkgconfig/orcheck.pc, lib/cmake/orcheck/
#   include/orcheck.h, orcheck_mpi.h, orcheck.hpp, orcheck.f90 and orcheck_fortran.c (compiled
#                                  by the program's own compilers)
#   share/man/man1/                and shell completions where each shell looks for them
set -euo pipefail
prefix=${1:?usage: $0 PREFIX}
cd "$(dirname "$0")/.."

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
major=1 # of the C interface: the soname that crates/capi/build.rs sets
target=${CARGO_TARGET_DIR:-target}/release

"${CARGO:-cargo}" build --release --locked --workspace
mkdir -p "$prefix"
prefix=$(cd "$prefix" && pwd)

put() { # mode, from, to: replaced by a rename, so that a running program keeps its own copy
    mkdir -p "$(dirname "$3")"
    if ! cmp -s "$2" "$3"; then
        install -m "$1" "$2" "$3.new"
        mv -f "$3.new" "$3"
    fi
}
filled() { # template, to: placeholders @PREFIX@ and @VERSION@
    mkdir -p "$(dirname "$2")"
    sed -e "s|@PREFIX@|$prefix|g" -e "s|@VERSION@|$version|g" "$1" >"$2.new"
    mv -f "$2.new" "$2"
}

put 755 "$target/orcheck" "$prefix/bin/orcheck"
put 755 "$target/liborcheck.so" "$prefix/lib/liborcheck.so.$version"
ln -sfn "liborcheck.so.$version" "$prefix/lib/liborcheck.so.$major"
ln -sfn "liborcheck.so.$major" "$prefix/lib/liborcheck.so"
put 644 "$target/liborcheck.a" "$prefix/lib/liborcheck.a"
for header in orcheck.h orcheck_mpi.h orcheck.hpp; do
    put 644 "crates/capi/include/$header" "$prefix/include/$header"
done
for source in orcheck.f90 orcheck_fortran.c; do
    put 644 "crates/capi/fortran/$source" "$prefix/include/$source"
done
filled crates/capi/packaging/orcheck.pc.in "$prefix/lib/pkgconfig/orcheck.pc"
filled crates/capi/packaging/OrcheckConfig.cmake.in "$prefix/lib/cmake/orcheck/OrcheckConfig.cmake"

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

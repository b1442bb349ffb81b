#!/bin/sh
# Installs the library for programs to build against:
#
#   install.sh PREFIX BUILD_DIR      for example: install.sh build/prefix target/release
#
# PREFIX/include (headers), PREFIX/lib (library, pkg-config, CMake), PREFIX/share/orcheck/fortran.
# The installed tree may be moved. Running it again replaces what it installed.
set -eu
[ $# -eq 2 ] || { echo "usage: $0 PREFIX BUILD_DIR" >&2; exit 2; }
prefix=$1
build=$2
here=$(cd "$(dirname "$0")" && pwd)
capi=$here/..
version=$(sed -n 's/^version *= *"\(.*\)"/\1/p' "$capi/../../Cargo.toml" | head -n 1)
[ -n "$version" ] || { echo "$0: no version in Cargo.toml" >&2; exit 1; }
for file in liborcheck.so liborcheck.a; do
  [ -f "$build/$file" ] || {
    echo "$0: $build/$file is missing; run cargo build --release -p orcheck-capi" >&2
    exit 1
  }
done

mkdir -p "$prefix/include" "$prefix/lib/pkgconfig" "$prefix/lib/cmake/Orcheck" \
  "$prefix/share/orcheck/fortran"
# A running program may have the old library mapped: replace the file, do not write into it.
put() {
  cp "$1" "$2.new"
  mv -f "$2.new" "$2"
}
put "$build/liborcheck.so" "$prefix/lib/liborcheck.so.1"
ln -sf liborcheck.so.1 "$prefix/lib/liborcheck.so"
put "$build/liborcheck.a" "$prefix/lib/liborcheck.a"
for header in orcheck.h orcheck_mpi.h orcheck.hpp; do
  put "$capi/include/$header" "$prefix/include/$header"
done
for source in orcheck.f90 orcheck_fortran.c; do
  put "$capi/fortran/$source" "$prefix/share/orcheck/fortran/$source"
done
# Where the loader looks anyway a program needs no path to the library; elsewhere it would not start without one.
case $(cd "$prefix" && pwd) in
  / | */usr) rpath= ;;
  *) rpath=' -Wl,-rpath,${libdir}' ;;
esac
fill() {
  sed "s/@VERSION@/$version/g;s|@RPATH@|$rpath|g" "$here/$1.in" > "$2/$1.new"
  mv -f "$2/$1.new" "$2/$1"
}
fill orcheck.pc "$prefix/lib/pkgconfig"
fill OrcheckConfig.cmake "$prefix/lib/cmake/Orcheck"
fill OrcheckConfigVersion.cmake "$prefix/lib/cmake/Orcheck"

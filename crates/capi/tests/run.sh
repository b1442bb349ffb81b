#!/bin/bash
# Compiles the test programs against an installed prefix, as a user would, and runs them:
#
#   PREFIX=build/prefix tests/run.sh
#
# CC, CXX, FC: compilers for what has no MPI. Open MPI and MPICH are both used; one that is missing is
# a failure unless ORCHECK_TEST_MPI names the ones to use ("openmpi", "mpich" or both). Everything is
# in a temporary directory that is removed again; KEEP=1 keeps it. Last line: 'N passed, M failed'.
set -u
: "${PREFIX:?set PREFIX to the directory that packaging/install.sh has filled}"
PREFIX=$(cd "$PREFIX" && pwd) || exit 2
HERE=$(cd "$(dirname "$0")" && pwd)
CC=${CC:-cc}
CXX=${CXX:-c++}
FC=${FC:-gfortran}
MPIS=${ORCHECK_TEST_MPI:-openmpi mpich}
WORK=$(mktemp -d "${TMPDIR:-/tmp}/orcheck-capi.XXXXXX") || exit 2
if [ -z "${KEEP:-}" ]; then trap 'rm -rf "$WORK"' EXIT; else echo "kept: $WORK"; fi
export PREFIX HERE WORK CC CXX FC
passed=0
failed=0

# One test: its name, then a command. A test that takes longer than a minute has failed.
check() {
  local name=$1 log="$WORK/log"
  shift
  if timeout -k 5 60 bash -c '"$@"' check "$@" > "$log" 2>&1 < /dev/null; then
    passed=$((passed + 1))
    echo "ok    $name"
  else
    echo "FAIL  $name (status $?): $*"
    sed 's/^/      /' "$log" | tail -n 40
    failed=$((failed + 1))
  fi
}

# A fresh directory for the checkpoints of the next program.
number=0
fresh() {
  number=$((number + 1))
  mkdir -p "$WORK/data$number"
  export ORC_TEST_DIR="$WORK/data$number"
  export ORC_TEST_OPTIONS="global = [\"$WORK/data$number\"]
pool = \"${1:-64MiB}\"
chunk = \"${2:-4MiB}\"
timeout_s = 30"
}

# The programs run with the library found through LD_LIBRARY_PATH, and without a core file.
export LD_LIBRARY_PATH="$PREFIX/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
ulimit -c 0
# No option or checkpoint directory of the user's may get into the tests.
for variable in $(compgen -e | grep '^ORCHECK_'); do unset "$variable"; done
WARN="-Wall -Wextra -Werror -O1 -g"
FLAGS="-I$PREFIX/include -I$HERE/c -L$PREFIX/lib"

launcher() { # LAUNCH=(command and arguments that start $2 ranks with MPI $1)
  case $1 in
    openmpi)
      export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
      export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_btl=self,vader,tcp
      export OMPI_MCA_btl_vader_single_copy_mechanism=none PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
      LAUNCH=("mpirun.openmpi" --oversubscribe --bind-to none -n "$2") ;;
    mpich) LAUNCH=("$(command -v mpirun.mpich || command -v mpiexec.mpich || command -v mpiexec.hydra)" -n "$2") ;;
  esac
}

# --- What the library exports and needs -------------------------------------------------------
only_orc() {
  ! nm -D --defined-only "$PREFIX/lib/liborcheck.so" | awk '{print $3}' | grep -v '^orc_'
}
header_is_implemented() {
  local wanted
  wanted=$(grep -o '\borc_[a-z_]*(' "$PREFIX/include/orcheck.h" | tr -d '(' | sort -u)
  for name in $(grep -E '^[a-z].*\borc_[a-z_]+\(' "$PREFIX/include/orcheck.h" | grep -o 'orc_[a-z_]*(' | tr -d '('); do
    echo "$wanted" | grep -qx "$name" || return 1
    nm -D --defined-only "$PREFIX/lib/liborcheck.so" | grep -q " T $name\$" || { echo "missing: $name"; return 1; }
  done
}
# orc_refuse is for bindings, orc_route_file does what orc_route does.
cpp_is_complete() {
  local missing
  missing=$(grep -E '^[a-z].*\borc_[a-z_]+\(' "$PREFIX/include/orcheck.h" | grep -o '\borc_[a-z_]*(' | sed 's/_v($/(/' |
    grep -vE '^orc_(refuse|route)\($' | while read -r call; do grep -qF "$call" "$PREFIX/include/orcheck.hpp" || echo "$call"; done)
  [ -z "$missing" ] || { echo "not in orcheck.hpp: $missing"; return 1; }
}
no_mpi() {
  ! nm -D "$PREFIX/lib/liborcheck.so" | grep -iE ' (P?MPI_|mpi_|ompi_)' &&
    ! readelf -d "$PREFIX/lib/liborcheck.so" | grep -i 'NEEDED.*\(mpi\|gfortran\|stdc++\)'
}
soname() { readelf -d "$PREFIX/lib/liborcheck.so" | grep -q 'SONAME.*\[liborcheck.so.1\]'; }
export -f only_orc header_is_implemented cpp_is_complete no_mpi soname
check "exports only orc_*" only_orc
check "the header's functions are there" header_is_implemented
check "orcheck.hpp has every call" cpp_is_complete
check "no MPI, C++ or Fortran in the library" no_mpi
check "soname liborcheck.so.1" soname

# --- Headers alone, in the strictest dialects ---------------------------------------------------
echo '#include <orcheck.h>
int main(void) { return ORC_API - 1; }' > "$WORK/alone.c"
cp "$WORK/alone.c" "$WORK/alone.cpp"
echo '#include <orcheck.hpp>
int main() { return 0; }' > "$WORK/alone17.cpp"
check "orcheck.h as C99" "$CC" -std=c99 -pedantic-errors $WARN $FLAGS -fsyntax-only "$WORK/alone.c"
check "orcheck.h as C++11" "$CXX" -std=c++11 -pedantic-errors $WARN $FLAGS -fsyntax-only "$WORK/alone.cpp"
check "orcheck.hpp as C++17" "$CXX" -std=c++17 -pedantic-errors $WARN $FLAGS -fsyntax-only "$WORK/alone17.cpp"

# --- One rank without MPI -----------------------------------------------------------------------
for program in misuse basic codec threads choose watch levels memory_files; do
  check "compile $program" "$CC" -std=c11 $WARN $FLAGS "$HERE/c/$program.c" -o "$WORK/$program" -lorcheck -lm -pthread
done
fresh
check "misuse" "$WORK/misuse"
fresh 1MiB 64KiB
ORC_TEST_MANY=1 check "misuse with the table full" "$WORK/misuse"
fresh
check "levels" "$WORK/levels"
fresh
check "memory files" "$WORK/memory_files"
fresh
check "basic save" "$WORK/basic" save
check "basic restore" "$WORK/basic" restore
check "basic changed" "$WORK/basic" changed

# Compressed and encrypted: the same bytes; nothing without the key; and the key is in no output.
key=603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4
echo "$key" > "$WORK/key" && tr 6 7 < "$WORK/key" > "$WORK/other" && chmod 600 "$WORK/key" "$WORK/other"
export ORC_TEST_SAID="$WORK/said"
fresh
plain=$ORC_TEST_OPTIONS
secret="
compress = \"zstd\"
encrypt = \"aes-256-gcm\""
export ORC_TEST_OPTIONS="$plain$secret
encrypt_key = \"file:$WORK/key\""
check "encrypted save" "$WORK/basic" save
check "encrypted restore" "$WORK/basic" restore
export ORC_TEST_OPTIONS="$plain$secret
encrypt_key = \"file:$WORK/other\""
check "encrypted, another key" "$WORK/basic" locked "sealed with another key"
export ORC_TEST_OPTIONS="$plain"
check "encrypted, no key" "$WORK/basic" locked "no key was given"
export ORC_TEST_OPTIONS="$plain
encrypt_key = \"$key\""
check "encrypted, the key as its own source" "$WORK/basic" unopened "never the key itself"
the_key_is_nowhere() {
  [ -s "$ORC_TEST_SAID" ] && ! grep -rqF "$key" "$WORK"/data* "$ORC_TEST_SAID"
}
export -f the_key_is_nowhere; export key
check "encrypted, the key is in no file" the_key_is_nowhere
fresh 1MiB 64KiB
check "codec" "$WORK/codec"
fresh
check "threads" "$WORK/threads"
fresh
ORC_TEST_OPTIONS="$ORC_TEST_OPTIONS
keep = 4"
check "choose" "$WORK/choose"
fresh
check "watch" "$WORK/watch"
check "compile disabled" "$CC" -std=c11 $WARN $FLAGS -D_XOPEN_SOURCE=700 "$HERE/c/disabled.c" -o "$WORK/disabled" -lorcheck
fresh
check "disabled" "$WORK/disabled" false
check "disabled, by itself" "$WORK/disabled" auto
stored_nothing() { [ -z "$(find "$ORC_TEST_DIR" -mindepth 1 -print -quit)" ]; }
export -f stored_nothing
check "disabled, nothing is stored" stored_nothing

# --- Lists, and the life of a process: forked, cancelled, ended at the wrong moment ---------------
for program in list forked life unload stack; do
  check "compile $program" "$CC" -std=gnu11 $WARN $FLAGS "$HERE/c/$program.c" -o "$WORK/$program" \
    $([ $program = unload ] || echo -lorcheck) -pthread -ldl
  fresh
  check "$program" "$WORK/$program"
done
check "compile C++ forked" "$CXX" -std=c++17 $WARN $FLAGS "$HERE/cpp/forked.cpp" -o "$WORK/forked_cpp" -lorcheck -pthread
fresh
check "C++ forked" "$WORK/forked_cpp"
if [ -x "$PREFIX/bin/orcheck" ]; then
  for program in forked life unload forked_cpp; do
    fresh
    ORC_TEST_OPTIONS="$ORC_TEST_OPTIONS
agent = \"start\"
agent_program = \"$PREFIX/bin/orcheck\"
agent_linger_s = 1"
    ORCHECK_NODE="life-$$-$program" check "$program, with an agent" "$WORK/$program"
  done

  # A server that comes back with an empty disk; the port stays the same.
  serve() { # PORT
    local tries
    for tries in $(seq 100); do
      rm -f "$WORK/served"
      "$PREFIX/bin/orcheck" server --dir "$WORK/disk" --listen "127.0.0.1:$1" --key "file:$WORK/key" > "$WORK/served" 2>&1 &
      server=$!
      while kill -0 $server 2> /dev/null && ! grep -qs identity "$WORK/served"; do read -r -t 0.02 < <(:) || :; done
      if grep -qs identity "$WORK/served"; then return 0; fi
      grep -q 'already in use' "$WORK/served" || break
    done
    cat "$WORK/served"
    return 1
  }
  unserve() { kill $server && wait $server; }
  check "compile emptied" "$CC" -std=c11 $WARN $FLAGS "$HERE/c/emptied.c" -o "$WORK/emptied" -lorcheck
  mkdir "$WORK/disk"
  serve 0
  at=$(sed -n 's/.* at \(orcheck:.*\): ready/\1/p' "$WORK/served")
  disk=$(sed -n 's/identity of its disk: //p' "$WORK/served")
  fresh
  options="pool = \"8MiB\"
chunk = \"64KiB\"
timeout_s = 30
global = [\"$at?key=file:$WORK/key"
  export ORC_TEST_OPTIONS="$options\"]"
  check "a job on a server" "$WORK/emptied" save
  unserve
  mv "$WORK/disk" "$WORK/disk-before" && mkdir "$WORK/disk"
  serve "${at##*:}"
  export ORC_TEST_OPTIONS="$options&id=$disk\"]"
  check "an empty disk, and an address that says which" "$WORK/emptied" unopened "expected identity $disk"
  export ORC_TEST_OPTIONS="$options\"]
strict = true"
  check "an empty disk, strict" "$WORK/emptied" refused "the disk of $at/emptied is new"
  export ORC_TEST_OPTIONS="$options\"]"
  check "an empty disk" "$WORK/emptied" told "its checkpoints there are gone"
  unserve
else
  echo "skip  with an agent or a server: there is no $PREFIX/bin/orcheck"
fi

# --- pkg-config and CMake ------------------------------------------------------------------------
export PKG_CONFIG_PATH="$PREFIX/lib/pkgconfig"
via_pkg_config() {
  "$CC" "$HERE/c/basic.c" -I"$HERE/c" $(pkg-config --cflags --libs orcheck) -o "$WORK/basic_pc" &&
    env -u LD_LIBRARY_PATH "$WORK/basic_pc" save && env -u LD_LIBRARY_PATH "$WORK/basic_pc" restore
}
via_cmake() {
  # The consumer's own environment: nothing of the prefix but its path.
  cmake -S "$HERE/consumer" -B "$WORK/consumer" -DCMAKE_PREFIX_PATH="$PREFIX" -DSOURCES="$HERE" \
    -DCMAKE_C_COMPILER="$CC" -DCMAKE_CXX_COMPILER="$CXX" -DCMAKE_Fortran_COMPILER="$FC" > "$WORK/cmake.log" 2>&1 ||
    { cat "$WORK/cmake.log"; return 1; }
  cmake --build "$WORK/consumer" -j 2 > "$WORK/cmake.log" 2>&1 || { cat "$WORK/cmake.log"; return 1; }
  unset LD_LIBRARY_PATH
  "$WORK/consumer/basic" save && "$WORK/consumer/basic_static" restore
}
solo_twice() { "$WORK/consumer/$1" && "$WORK/consumer/$1" | grep -q 'step 2'; }
# The block number $3 of language $2 in docs/$1.md.
block() {
  awk -v fence="\`\`\`$2" -v wanted="$3" '$0 == "```" { on = 0 } on { print } $0 == fence { on = (++seen == wanted) }' \
    "$HERE/../../../docs/$1.md"
}
# Builds the solver in directory $1 as docs/$2.md says, with block number $4 of language $3.
documented() {
  cd "$1" || return 1
  case $3 in
    sh) block "$2" sh "$4" > line && [ -s line ] && sh -eu line ;;
    make) block "$2" make "$4" > Makefile && make -s solver ;;
    cmake)
      block "$2" cmake "$4" > CMakeLists.txt && cmake -S . -B built -DCMAKE_PREFIX_PATH="$PREFIX" > log &&
        cmake --build built > log && cp built/solver . ;;
  esac
}
# A project with the program on standard input as $3, and the compilers of MPI $2 where the documentation has no name of an MPI.
project() {
  mkdir -p "$WORK/$1/bin" && cat > "$WORK/$1/$3"
  for compiler in mpif90 mpicxx; do
    printf '#!/bin/sh\nexec %s.%s "$@"\n' "$compiler" "$2" > "$WORK/$1/bin/$compiler"
    chmod 755 "$WORK/$1/bin/$compiler"
  done
}
# The program ends because of the error, and says which; each time, although launchers drop what comes late.
ends() {
  for _ in 1 2 3 4 5; do
    if "$@" > "$WORK/ends" 2>&1; then return 1; fi
    cat "$WORK/ends"
    grep -q "no region 'nothing' is protected" "$WORK/ends" && ! grep -q 'after the error' "$WORK/ends" || return 1
  done
}
export -f via_pkg_config via_cmake solo_twice block documented ends
fresh
check "pkg-config consumer" via_pkg_config
fresh
check "CMake consumer, shared and static" via_cmake
fresh
check "CMake consumer, Fortran without MPI" solo_twice solo_no_mpi
fresh
check "CMake consumer, Fortran" solo_twice solo

# --- Fortran, built as docs/fortran.md says -------------------------------------------------------
project shapes none solver.f90 < "$HERE/fortran/shapes.f90"
check "Fortran without MPI, in one line" documented "$WORK/shapes" fortran sh 2
fresh
check "Fortran shapes save" "$WORK/shapes/solver" save
check "Fortran shapes restore" "$WORK/shapes/solver" restore
stops() {
  if "$WORK/shapes/solver" wrong > "$WORK/stops" 2>&1; then return 1; fi
  cat "$WORK/stops"
  grep -q '^orc_checkpoint: .*step 5 does not grow' "$WORK/stops" && grep -q 'before the error' "$WORK/stops" &&
    ! grep -q 'after the error' "$WORK/stops"
}
export -f stops
check "Fortran ends at an error without ierr" stops
project forked-f none solver.f90 < "$HERE/fortran/forked.f90"
check "compile Fortran forked" documented "$WORK/forked-f" fortran sh 2
fresh
check "Fortran forked" "$WORK/forked-f/solver"
check "Fortran with long default integers" "$FC" -std=f2018 -fdefault-integer-8 -J "$WORK/shapes/bin" -fsyntax-only "$PREFIX/share/orcheck/fortran/orcheck.f90"

# --- MPI ------------------------------------------------------------------------------------------
for mpi in $MPIS; do
  dir="$WORK/$mpi"
  mkdir "$dir"
  mpicc="mpicc.$mpi"
  for program in mpi_two_jobs lend resize elastic request mpi_ends agreed mpi_forked; do
    check "$mpi: compile $program" "$mpicc" -std=c11 -D_XOPEN_SOURCE=700 $WARN $FLAGS "$HERE/c/$program.c" -o "$dir/$program" -lorcheck
  done
  check "$mpi: compile mpi_two_jobs, small pieces" "$mpicc" -std=c11 $WARN $FLAGS -DORC_MPI_PIECE_BYTES=7 \
    "$HERE/c/mpi_two_jobs.c" -o "$dir/mpi_two_jobs_pieces" -lorcheck
  check "$mpi: compile C++" "mpicxx.$mpi" -std=c++17 -Wall -Wextra -O1 $FLAGS "$HERE/cpp/session.cpp" -o "$dir/cpp" -lorcheck
  check "$mpi: compile Fortran shim" "$mpicc" $WARN $FLAGS -c "$PREFIX/share/orcheck/fortran/orcheck_fortran.c" -o "$dir/shim.o"
  check "$mpi: compile Fortran module" "mpif90.$mpi" -std=f2018 -Wall -Wextra -O1 -J "$dir" \
    -c "$PREFIX/share/orcheck/fortran/orcheck.f90" -o "$dir/module.o"
  check "$mpi: compile Fortran" "mpif90.$mpi" -Wall -O1 -I "$dir" -J "$dir" "$HERE/fortran/session.f90" \
    "$dir/module.o" "$dir/shim.o" -L"$PREFIX/lib" -lorcheck -o "$dir/fortran"
  for run in mpi_two_jobs:4 mpi_two_jobs_pieces:4 lend:2 resize:3 elastic:3 request:2 agreed:2 mpi_forked:2 cpp:2 fortran:2; do
    launcher "$mpi" "${run#*:}"
    fresh
    export ORC_TEST_SMALL="global = [\"$ORC_TEST_DIR\"]"
    ORC_TEST_OPTIONS="$ORC_TEST_OPTIONS
keep = 4"
    check "$mpi: ${run%:*}" "${LAUNCH[@]}" "$dir/${run%:*}"
  done
done

for mpi in $MPIS; do
  project "$mpi-line" "$mpi" solver.f90 < "$HERE/fortran/ends.f90"
  project "$mpi-make" "$mpi" solver.f90 < "$HERE/fortran/ends.f90"
  check "$mpi: Fortran in one line" env PATH="$WORK/$mpi-line/bin:$PATH" bash -c 'documented "$@"' - "$WORK/$mpi-line" fortran sh 1
  check "$mpi: Fortran with make" env PATH="$WORK/$mpi-make/bin:$PATH" bash -c 'documented "$@"' - "$WORK/$mpi-make" fortran make 1
  launcher "$mpi" 2
  for program in "$mpi/mpi_ends" "$mpi-line/solver" "$mpi-make/solver"; do
    fresh
    check "$mpi: an error ends all ranks of $(basename "$(dirname "$program")")" ends "${LAUNCH[@]}" "$WORK/$program"
  done
done
project cmake none solver.f90 < "$HERE/consumer/solo.f90"
check "Fortran with CMake" documented "$WORK/cmake" fortran cmake 1
fresh
check "Fortran with CMake runs" "$WORK/cmake/solver"

# --- C++, built as docs/cpp.md says ---------------------------------------------------------------
# A run of 60 steps, and one of 30 that another one resumes: they end alike. The arguments are the launcher's.
resumes() {
  export ORCHECK_EVERY_STEPS=10
  ORCHECK_GLOBAL="$ORC_TEST_DIR/whole" "$@" 60 > "$WORK/whole" && export ORCHECK_GLOBAL="$ORC_TEST_DIR/parts" || return 1
  "$@" 30 > /dev/null && ORCHECK_START=resume "$@" 60 > "$WORK/resumed" || return 1
  grep -q '^step 60, 40 particles, ' "$WORK/whole" && cmp "$WORK/whole" "$WORK/resumed"
}
wrong() {
  if ORCHECK_GLOBAL="$ORC_TEST_DIR" ORCHECK_EVERY_STEPS=never "$@" > "$WORK/wrong" 2>&1; then return 1; fi
  cat "$WORK/wrong"
  grep -q 'the environment variable ORCHECK_EVERY_STEPS: every_steps = "never": expected' "$WORK/wrong"
}
export -f resumes wrong
for mpi in $MPIS; do
  block cpp cpp 1 | project "$mpi-cpp" "$mpi" solver.cpp
  check "$mpi: C++ in one line" env PATH="$WORK/$mpi-cpp/bin:$PATH" bash -c 'documented "$@"' - "$WORK/$mpi-cpp" cpp sh 1
  launcher "$mpi" 2
  fresh
  mkdir "$ORC_TEST_DIR/whole" "$ORC_TEST_DIR/parts"
  check "$mpi: the C++ program of the documentation resumes" resumes "${LAUNCH[@]}" "$WORK/$mpi-cpp/solver"
  fresh
  check "$mpi: the C++ program of the documentation ends at an error" wrong "${LAUNCH[@]}" "$WORK/$mpi-cpp/solver"
done
block cpp cpp 1 | project cmake-cpp none solver.cpp
check "C++ with CMake" documented "$WORK/cmake-cpp" cpp cmake 1

leftovers() { ! find "$WORK"/data* -name '*.tmp' -print | grep .; }
export -f leftovers
check "nothing temporary left behind" leftovers

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]

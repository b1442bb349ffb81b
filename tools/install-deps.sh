#!/usr/bin/env bash
# Installs the distribution's packages that a target needs and that are missing, and nothing else; for check also the
# linters of the Python files, into a virtual environment below build/.
#
# usage: tools/install-deps.sh build|demo|check|bench|torture|arm
# exit:  0 all there, or what is missing is not needed by most of the target: one line says what, and the target continues
#        with the rest; 2 the target cannot work without what is missing and this user may not install it; any other:
#        apt's own failure.
set -euo pipefail

# What each target cannot do without, as PACKAGE:PROGRAM: a program from elsewhere will do.
compiler=(gcc:cc make:make)
mpi=(libopenmpi-dev:mpicc openmpi-bin:mpirun pkg-config:pkg-config python3:python3)
# What parts of the tests and benches need.
parts=(g++ gfortran cmake git strace munge libmpich-dev mpich e2fsprogs xfsprogs btrfs-progs)
# Daemons for tests: they are started by hand, in namespaces of their own.
moosefs=(moosefs-master moosefs-chunkserver moosefs-client moosefs-cli)
needed=("${compiler[@]}") wanted=()
case "${1:-}" in
build) ;;
demo) needed+=("${mpi[@]}") ;;
bench) needed+=("${mpi[@]}") wanted=("${parts[@]}" fio librsvg2-bin iproute2 sshfs openssh-sftp-server libfuse3-dev fuse3 "${moosefs[@]}") ;;
check) needed+=(python3:python3) wanted=("${parts[@]}" "${mpi[@]%%:*}" python3-venv libsimgrid-dev libfuse3-dev fuse3 rsync sqlite3 lammps gromacs libhdf5-openmpi-dev libnetcdf-mpi-dev fio iproute2 "${moosefs[@]}") ;;
torture) needed+=("${mpi[@]}") wanted=("${parts[@]}" python3-venv) ;;
arm) needed+=(gcc-aarch64-linux-gnu:aarch64-linux-gnu-gcc qemu-user:qemu-aarch64) wanted=(libc6-dev-arm64-cross) ;;
*)
    echo "usage: $0 build|demo|check|bench|torture|arm" >&2
    exit 64
    ;;
esac

if ! command -v "${CARGO:-cargo}" >/dev/null; then
    echo "Rust is missing: cargo is not in PATH. Next: install it from https://rustup.rs, then run this again." >&2
    exit 2
fi

packages() {
    missing=() vital=0
    for need in "${needed[@]}"; do
        command -v "${need#*:}" >/dev/null || { missing+=("${need%%:*}") && vital=1; }
    done
    if ! command -v dpkg-query >/dev/null; then
        # Not a Debian: names of packages differ, the programs do not.
        ((vital)) || return 0
        echo "missing: ${missing[*]} (names of Debian). Next: install them with your system's packages or modules, then run this again." >&2
        exit 2
    fi
    if ((${#wanted[@]})); then
        # One query for all packages: this runs before every target and must cost nothing.
        installed=$(dpkg-query -W -f='${db:Status-Abbrev} ${Package}\n' "${wanted[@]}" 2>/dev/null |
            sed -n 's/^ii *//p' || true)
        for package in "${wanted[@]}"; do
            grep -qxF "$package" <<<"$installed" || missing+=("$package")
        done
    fi
    ((${#missing[@]})) || return 0

    install=(apt-get install -y --no-install-recommends "${missing[@]}")
    if [[ $(id -u) -eq 0 ]]; then
        root=(env)
    elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
        root=(sudo -n env)
    else
        line="sudo apt-get install ${missing[*]}"
        if ((vital)); then
            echo "what this target needs is missing. Next: $line" >&2
            exit 2
        fi
        echo "some packages are missing; what needs them fails or is skipped. To have all: $line" >&2
        return 0
    fi

    echo "installing: ${missing[*]}"
    # RUNLEVEL=1: packages with a daemon do not start it (invoke-rc.d); where systemd runs, it is switched off below.
    root+=(DEBIAN_FRONTEND=noninteractive RUNLEVEL=1)
    # The lists may be old or empty, as in a fresh container: refresh them only if they do not serve.
    if ! "${root[@]}" "${install[@]}" </dev/null >/dev/null 2>&1; then
        "${root[@]}" apt-get update -q </dev/null
        "${root[@]}" "${install[@]}" </dev/null
    fi
    for package in "${missing[@]}"; do
        case "$package" in
        moosefs-master | moosefs-chunkserver)
            if [[ -d /run/systemd/system ]]; then
                "${root[@]}" systemctl disable --now "$package" >/dev/null 2>&1 || true
            fi
            ;;
        esac
    done
}

# Again only where tools/check-python.txt has changed since.
linters() {
    local there=build/python-tools log=build/python-tools.log
    cmp -s tools/check-python.txt "$there/installed" && return 0
    echo "installing ruff and mypy into $there"
    rm -rf "$there"
    mkdir -p build
    if { python3 -m venv "$there" && "$there/bin/pip" install -q --retries 1 --timeout 15 \
        --disable-pip-version-check -r tools/check-python.txt; } >"$log" 2>&1; then
        cp tools/check-python.txt "$there/installed"
        rm -f "$log"
    else
        rm -rf "$there"
        echo "ruff and mypy could not be installed ($log says why): the check of the Python files is skipped" >&2
    fi
}

packages
cd "$(dirname "$0")/.."
[[ $1 != check ]] || linters

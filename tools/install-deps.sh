#!/usr/bin/env bash
# Installs the distribution's packages that are missing, and nothing else.
#
# usage: tools/install-deps.sh base|check|bench|torture|arm
# exit:  0 all there; 2 something is missing and this user may not install it (the line to run
#        is printed); any other: apt's own failure.
set -euo pipefail

base=(gcc g++ gfortran make cmake pkg-config git strace munge python3 libopenmpi-dev openmpi-bin libmpich-dev mpich e2fsprogs xfsprogs btrfs-progs)
# Daemons for tests: they are started by hand, in namespaces of their own.
moosefs=(moosefs-master moosefs-chunkserver moosefs-client moosefs-cli)
case "${1:-}" in
base) wanted=("${base[@]}") ;;
bench) wanted=("${base[@]}" fio librsvg2-bin iproute2 sshfs openssh-sftp-server libfuse3-dev "${moosefs[@]}") ;;
check) wanted=("${base[@]}" libsimgrid-dev libfuse3-dev fio iproute2 "${moosefs[@]}") ;;
torture) wanted=("${base[@]}" python3-venv) ;;
arm) wanted=("${base[@]}" gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user) ;;
*)
    echo "usage: $0 base|check|bench|torture|arm" >&2
    exit 64
    ;;
esac

if ! command -v "${CARGO:-cargo}" >/dev/null; then
    echo "Rust is missing: cargo is not in PATH." >&2
    echo "Next: install it from https://rustup.rs, then run this again." >&2
    exit 2
fi

if ! command -v dpkg-query >/dev/null; then
    # Not a Debian: names of packages differ, the programs do not.
    missing=()
    for program in gcc g++ gfortran make cmake pkg-config git mpicc mpirun; do
        command -v "$program" >/dev/null || missing+=("$program")
    done
    if ((${#missing[@]})); then
        echo "These programs are missing, and this is not a system with apt: ${missing[*]}" >&2
        echo "Next: install them with your system's packages or modules, then run this again." >&2
        exit 2
    fi
    exit 0
fi

# One query for all packages: this runs before every target and must cost nothing.
installed=$(dpkg-query -W -f='${db:Status-Abbrev} ${Package}\n' "${wanted[@]}" 2>/dev/null |
    sed -n 's/^ii *//p' || true)
missing=()
for package in "${wanted[@]}"; do
    grep -qxF "$package" <<<"$installed" || missing+=("$package")
done
((${#missing[@]})) || exit 0

install=(apt-get install -y --no-install-recommends "${missing[@]}")
if [[ $(id -u) -eq 0 ]]; then
    root=(env)
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    root=(sudo -n env)
else
    echo "These packages are missing, and installing them takes an administrator:" >&2
    echo "    sudo apt-get update && sudo ${install[*]}" >&2
    exit 2
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

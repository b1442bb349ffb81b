#!/usr/bin/env bash
# One job on several hosts: network namespaces with host names of their own, joined by a bridge, so
# that votes, addresses and the job key really travel between machines. A rank is killed with
# SIGKILL in the middle of a flush; the job resumes and must end bit for bit like an undisturbed one.
#
# Needs root (namespaces); without it the test says so and counts nothing.
# usage: PREFIX=build/prefix LBM=build/examples/lbm hosts.sh
set -euo pipefail
prefix=${PREFIX:?PREFIX is where the library is staged}
lbm=${LBM:?LBM is the example solver}
if [[ $(id -u) -ne 0 ]] || ! unshare --net --uts true 2>/dev/null || ! command -v ip >/dev/null; then
    echo "SKIPPED: several hosts need root, network namespaces and iproute2"
    echo "0 passed, 0 failed"
    exit 0
fi
command -v mpirun.openmpi >/dev/null || { echo "SKIPPED: no Open MPI"; echo "0 passed, 0 failed"; exit 0; }

hosts=3
tag=orc$$
work=$(mktemp -d)
net=198.18.$((RANDOM % 250)) # a range that is set aside for tests between hosts
cleanup() {
    set +e
    for i in $(seq 0 "$hosts"); do
        for pid in $(ip netns pids "$tag$i" 2>/dev/null); do kill -9 "$pid" 2>/dev/null; done
        ip netns del "$tag$i" 2>/dev/null
    done
    rm -rf "$work"
}
trap cleanup EXIT

# Namespace 0 holds the switch, 1 … n are the hosts.
ip netns add "${tag}0"
ip -n "${tag}0" link add br0 type bridge
ip -n "${tag}0" link set br0 up
for i in $(seq 1 "$hosts"); do
    ip netns add "$tag$i"
    ip link add "v$i" netns "$tag$i" type veth peer name "p$i" netns "${tag}0"
    ip -n "${tag}0" link set "p$i" master br0 up
    ip -n "$tag$i" addr add "$net.$i/24" dev "v$i"
    ip -n "$tag$i" link set "v$i" up
    ip -n "$tag$i" link set lo up
done

# What mpirun starts on a "remote" host: the command, in that host's namespaces.
cat >"$work/agent" <<AGENT
#!/usr/bin/env bash
host=\$1; shift
i=\${host##*.}
exec ip netns exec "$tag\$i" unshare --uts bash -c "hostname host\$i; \$*"
AGENT
chmod +x "$work/agent"

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
unset OMPI_MCA_btl OMPI_MCA_pml
list=$(for i in $(seq 1 "$hosts"); do printf '%s.%d:2,' "$net" "$i"; done)
mpi=(mpirun.openmpi --host "${list%,}" -n $((2 * hosts)) --bind-to none
    --mca plm_rsh_agent "$work/agent" --mca plm_rsh_no_tree_spawn 1
    --mca btl tcp,self --mca pml ob1 --mca btl_tcp_if_include "$net.0/24"
    --mca oob_tcp_if_include "$net.0/24" --mca mpi_yield_when_idle 1)
mkdir "$work/ost0" "$work/ost1" "$work/local"
options="global = ['$work/ost0', '$work/ost1']
node_dir = '$work/local'"
solve=("$lbm" --nx 48 --ny 48 --nz 48 --steps 60 --job hosts)
on_host1() { ip netns exec "${tag}1" unshare --uts bash -c 'hostname host1; exec "$@"' - "$@"; }

passed=0
check() { # what, command...
    local what=$1
    shift
    if "$@"; then
        echo "ok: $what"
        passed=$((passed + 1))
    else
        echo "FAILED: $what"
        sed 's/^/   | /' "$work/log"
        echo "$passed passed, 1 failed"
        exit 1
    fi
}

on_host1 "${mpi[@]}" "${solve[@]}" --checkpoint none --final "$work/undisturbed" >"$work/log" 2>&1 || true
check "undisturbed run on $hosts hosts" test -s "$work/undisturbed"
on_host1 "$prefix/bin/orcheck" run --restarts 2 -- "${mpi[@]}" "${solve[@]}" --checkpoint async --every 15 \
    --options "$options" --die 45 --final "$work/resumed" >"$work/log" 2>&1 || true
check "resumed after SIGKILL of a rank" grep -q 'resumed from step' "$work/log"
check "same final state" cmp "$work/undisturbed" "$work/resumed"
check "every host has its own level node" test "$(ls "$work/local/hosts" | tr '\n' ' ')" = "host1 host2 host3 "
check "every host wrote containers" \
    test "$(find "$work"/ost* -name '*-n000[012]-w00.orc' -printf '%f\n' | sed 's/.*-n/n/' | sort -u | wc -l)" -eq "$hosts"
verdict=0
"$prefix/bin/orcheck" verify --all --dir "$work/ost0" --dir "$work/ost1" --job hosts >"$work/log" 2>&1 || verdict=$?
check "the checkpoints verify" test "$verdict" -eq 0
echo "$passed passed, 0 failed"

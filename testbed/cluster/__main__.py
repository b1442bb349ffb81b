"""A cluster on this machine, as long as a command runs.

    cluster run [--nodes 4] [--servers 0] [--rate 200mbit] [--dir build/bench] -- COMMAND...
    cluster on NODE COMMAND...       what ssh is elsewhere
    cluster kill NODE                its processes, its memory and its disk are gone
    cluster link NODE up|down        a partition

`run` starts COMMAND on the head of the cluster, from where `mpirun --host n1,n2 ...` starts ranks
on nodes. The others go to the cluster that CLUSTER names, which is set for COMMAND (CLUSTER_NODES
and CLUSTER_SERVERS too). A node sees its own disk as $CLUSTER/local, and no other's; everything
else is seen by all. Takes root.
"""

import argparse
import os
import signal
import subprocess
import sys

from testbed.cluster import cluster as cl
from testbed.cluster.held import HeldError

HERE = os.path.dirname(os.path.abspath(__file__))


def run(args: argparse.Namespace) -> int:
    def ended(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, ended)
    with cl.Cluster(args.dir, args.nodes, args.servers, args.rate) as cluster:
        try:
            return cluster.start(args.command).wait()
        except KeyboardInterrupt:
            return 130


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="cluster", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("run", help="a cluster for a command")
    one.add_argument("--nodes", type=int, default=4)
    one.add_argument("--servers", type=int, default=0)
    one.add_argument(
        "--rate", help="of each link, as tc has it: 200mbit (default: as fast as the machine)"
    )
    one.add_argument(
        "--dir",
        default=os.path.join(os.path.dirname(os.path.dirname(HERE)), "build", "bench"),
        help="where the disks of the nodes are (default build/bench)",
    )
    one.add_argument("command", nargs="+", metavar="COMMAND")
    for verb, more in (("on", "COMMAND"), ("kill", None), ("link", "up|down")):
        one = verbs.add_parser(verb)
        one.add_argument("node")
        if verb == "link":
            one.add_argument("state", choices=["up", "down"])
        elif more:
            one.add_argument("command", nargs=argparse.REMAINDER, metavar=more)
    args = parser.parse_args()
    try:
        if args.verb == "run":
            return run(args)
        work = os.environ.get("CLUSTER")
        if not work:
            raise HeldError(
                "CLUSTER is not set. Next: call this from a command that `cluster run` has started"
            )
        if args.verb == "on":
            return subprocess.run([os.path.join(work, "on"), args.node, *args.command]).returncode
        if args.verb == "kill":
            print(f"{args.node} is lost, and {cl.kill(work, args.node)} bytes on its disk")
        else:
            cl.link(work, args.node, args.state == "up")
        return 0
    except HeldError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())

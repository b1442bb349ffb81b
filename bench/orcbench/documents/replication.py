"""Rows D: replicas instead of central storage (Walters and Chaudhary)."""

from orcbench.reproduction import Claim, Document, Row

SCALE, INTERVALS = "scale-nodes", "scale-intervals"
FITTED = (
    "rates of links, disks and arrays are assumed, and that of the file system is what the "
    "document's own reached at 256 nodes; times until committed, of ranks that sleep"
)
SOLVER = "replication-solver"
SOLVE = "tools/bench.sh replication --only solver --factors 0.5,1 --solver-rounds 5"

REPLICATION = Document(
    "D. Replicas instead of central storage (Walters and Chaudhary, HiPC 2007)",
    (
        Row(
            "D1",
            "asynchronous replicas on other nodes (Figures 2, 3)",
            (
                Claim(
                    "a solver's slowdown, one replica ÷ central server with the program waiting "
                    "for "
                    "it, 8 nodes, checkpoints at intervals of half the server's transfer time",
                    "BT, every 4 minutes, about six transfer times: 9 % ÷ 38 %; every 8: 5.5 % ÷ "
                    "16 %",
                    SOLVE,
                    (SOLVER, "one_replica_slowdown_over_central_waited_8_every_0.5"),
                    note="shorter intervals than the document's, which take hours here",
                ),
                Claim(
                    "the same, at intervals of the whole transfer time",
                    "the same",
                    SOLVE,
                    (SOLVER, "one_replica_slowdown_over_central_waited_8_every_1"),
                    note="as above",
                ),
                Claim(
                    "half the transfer time; the copy to the server is asynchronous, too",
                    "no figure",
                    SOLVE,
                    (SOLVER, "one_replica_slowdown_over_central_8_every_0.5"),
                ),
                Claim(
                    "time of a checkpoint, 1 replica ÷ central server, 8 nodes that sleep, both "
                    "waited for",
                    "at most half (Figure 3 a)",
                    "tools/bench.sh scale --only nodes",
                    (SCALE, "one_replica_over_central_overhead"),
                    0.5,
                    bound=True,
                    model=True,
                    note="rates of links and disks are assumed",
                ),
            ),
        ),
        Row(
            "D2",
            "coordinated checkpoints",
            (
                Claim(
                    "a bookmark exchange that drains messages in flight, phases timed",
                    "coordination is small beside writing",
                    "",
                    built=False,
                    note="the program calls where it has no messages in flight",
                ),
            ),
        ),
        Row(
            "D3",
            "restart on other nodes, or on fewer",
            (
                Claim(
                    "byte for byte",
                    "no figure",
                    "cargo test -p orcheck-jobs --test session four_nodes_become",
                ),
            ),
        ),
        Row(
            "D4",
            "how many losses are survived (Table 1)",
            (
                Claim(
                    "entries of Table 1 that the formula gives, for replicas on nodes drawn at "
                    "random",
                    "108 entries",
                    "make bench-model",
                    ("model", "table1_alike"),
                    108,
                    less=False,
                    model=True,
                    note="Orcheck deals replicas evenly instead (ADR 49); [planning](planning.md) "
                    "has what that survives",
                ),
                Claim(
                    "the largest difference of another entry, in nodes",
                    "no figure",
                    "make bench-model",
                    ("model", "table1_off_most"),
                ),
            ),
        ),
        Row(
            "D5",
            "64 to 256 nodes (Figure 4)",
            (
                Claim(
                    "4 replicas ÷ parallel file system, 128 nodes",
                    "15.4 % ÷ 37.5 %",
                    "tools/bench.sh scale --only nodes",
                    (SCALE, "k4_over_pfs_128"),
                    15.4 / 37.5,
                    model=True,
                    note=FITTED,
                ),
                Claim(
                    "the same, 256 nodes",
                    "18.7 % ÷ 55 %",
                    "tools/bench.sh scale --only nodes",
                    (SCALE, "k4_over_pfs_256"),
                    18.7 / 55,
                    model=True,
                    fitted=True,
                    note=FITTED,
                ),
                Claim(
                    "1 replica, 256 ÷ 64 nodes",
                    "6 % ÷ 3 %",
                    "tools/bench.sh scale --only nodes",
                    (SCALE, "k1_256_over_64"),
                    2,
                    bound=True,
                    model=True,
                    note="each node has a disk and a link of its own, and nothing but the "
                    "agreement "
                    "grows with the nodes",
                ),
                Claim(
                    "1 replica ÷ parallel file system, 8 nodes",
                    "no figure",
                    "tools/bench.sh scale --only nodes",
                    (SCALE, "k1_over_pfs_8"),
                    model=True,
                ),
                Claim(
                    "4 replicas ÷ central server, 8 nodes",
                    "no figure",
                    "tools/bench.sh scale --only nodes",
                    (SCALE, "k4_over_central_8"),
                    model=True,
                ),
                Claim(
                    "4 replicas ÷ central server, 64 nodes",
                    "no figure",
                    "tools/bench.sh scale --only nodes",
                    (SCALE, "k4_over_central_64"),
                    model=True,
                ),
                Claim(
                    "1 replica ÷ SAN, 128 nodes",
                    "no figure",
                    "tools/bench.sh scale --only nodes",
                    (SCALE, "k1_over_san_128"),
                    model=True,
                ),
            ),
        ),
        Row(
            "D6",
            "intervals (Figure 3 b)",
            (
                Claim(
                    "8 nodes that sleep, 1 replica, at intervals of half the transfer time of a "
                    "central server: share by which a run is longer",
                    "2.2 % for a single checkpoint of HPL; below 4 minutes the network saturates",
                    "tools/bench.sh scale --only intervals",
                    (INTERVALS, "k1_slower_every_0.5"),
                    model=True,
                ),
                Claim(
                    "the same, central server",
                    "no figure",
                    "tools/bench.sh scale --only intervals",
                    (INTERVALS, "central_slower_every_0.5"),
                    model=True,
                ),
                Claim(
                    "the same, 4 replicas",
                    "no figure",
                    "tools/bench.sh scale --only intervals",
                    (INTERVALS, "k4_slower_every_0.5"),
                    model=True,
                ),
                Claim(
                    "4 replicas, at intervals of the transfer time",
                    "no figure",
                    "tools/bench.sh scale --only intervals",
                    (INTERVALS, "k4_slower_every_1"),
                    model=True,
                    note="the disk of a node takes its own bytes and those of four others",
                ),
                Claim(
                    "central server, at intervals of its transfer time",
                    "no figure",
                    "tools/bench.sh scale --only intervals",
                    (INTERVALS, "central_slower_every_1"),
                    model=True,
                ),
                Claim(
                    "4 replicas, at intervals of twice the transfer time",
                    "no figure",
                    "tools/bench.sh scale --only intervals",
                    (INTERVALS, "k4_slower_every_2"),
                    model=True,
                    note="no more than a checkpoint on the own disk costs a rank that sleeps",
                ),
            ),
        ),
    ),
)

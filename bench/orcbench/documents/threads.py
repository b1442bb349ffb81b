"""Rows C: asynchronous checkpoints by dedicated threads (Shahzad et al.)."""

from orcbench.reproduction import Claim, Document, Row

WEAK = "make bench-weak"
PEERS = "tools/bench.sh peers-runs --rounds 3 --seconds 6"

THREADS = Document(
    "C. Asynchronous checkpoints by dedicated threads (Shahzad et al., IPDPS Workshops 2013)",
    (
        Row(
            "C1",
            "CP-threads",
            (
                Claim(
                    "one a node, socket or core: the most that an asynchronous checkpoint costs ÷ "
                    "the least",
                    "the three perform alike; 1.25 is our criterion",
                    "make bench-lbm",
                    ("lbm", "schemes_worst_over_best"),
                    1.25,
                    bound=True,
                    note="the intervals of the three overlap "
                    "([table](lbm.md#schemes-scaling-incremental))",
                ),
            ),
        ),
        Row(
            "C2",
            "triggers, agreed by all ranks",
            (
                Claim(
                    "iterations, time, signals",
                    "no figure",
                    "cargo test -p orcheck-jobs --test session triggers",
                ),
            ),
        ),
        Row(
            "C3",
            "the previous checkpoint goes once the new one is complete",
            (
                Claim(
                    "a kill at every step of a write leaves a whole checkpoint",
                    "no figure",
                    "cargo test -p orcheck-jobs --test faults",
                ),
            ),
        ),
        Row(
            "C4",
            "toggle grids (Figures 4, 5)",
            (
                Claim(
                    "a lent grid: blocked ÷ a checkpoint that copies",
                    "the copy costs nothing; 0.05 is our criterion",
                    "make bench-stall",
                    ("stall", "lent_over_blocked"),
                    0.05,
                    bound=True,
                ),
            ),
        ),
        Row(
            "C5",
            "model of the overhead",
            (
                Claim(
                    "asynchronous: measured ÷ eq. (2), whose m comes from another program",
                    "2.6 s ÷ 2.2 s",
                    "make bench-lbm",
                    ("lbm", "async_over_eq2"),
                    2.6 / 2.2,
                    note="eq. (2) leaves out what writing takes from a solver on the same cores",
                ),
            ),
        ),
        Row(
            "C6",
            "a lattice Boltzmann solver (Figures 10, 11)",
            (
                Claim(
                    "four checkpoints, asynchronous ÷ synchronous, disk as it is",
                    "LiMa 2.5 % ÷ 51 %; HERMIT 0.85 % ÷ 23 %",
                    "make bench-lbm",
                    ("lbm", "four_async_over_sync"),
                    2.5 / 51,
                    note="whole runs on two cores vary by more than the cost of four "
                    "asynchronous checkpoints",
                ),
                Claim(
                    "the same, disk limited to 500 MB/s",
                    "the same",
                    "make bench-lbm",
                    ("lbm", "four_async_over_sync_500"),
                    2.5 / 51,
                    note="as above",
                ),
                Claim(
                    "weak scaling, a disk for each node: asynchronous, 16 nodes ÷ 1",
                    "flat; 1.2 is our criterion",
                    WEAK,
                    ("weak", "async_16_over_1"),
                    1.2,
                    bound=True,
                    note="a window of the solver ÷ one without a checkpoint; the ranks share two "
                    "cores, and there is no file system that all nodes share",
                ),
                Claim(
                    "the same, synchronous",
                    "grows; 1.2 is our criterion",
                    WEAK,
                    ("weak", "sync_16_over_1"),
                    1.2,
                    less=False,
                    bound=True,
                    note="with a disk for each node, it does not grow",
                ),
            ),
        ),
        Row(
            "C7",
            "memory bandwidth over time (Figure 7)",
            (
                Claim(
                    "asynchronous: the solver's lowest bandwidth in a slice of the run ÷ that of "
                    "a run without checkpoints",
                    "no dip; 0.8 is our criterion",
                    "make bench-lbm",
                    ("lbm", "lowest_async_over_none"),
                    0.8,
                    less=False,
                    bound=True,
                    note="[the picture](lbm.md#bandwidth-over-time)",
                ),
                Claim(
                    "synchronous: the same",
                    "falls to 0; half is our criterion",
                    "make bench-lbm",
                    ("lbm", "lowest_sync_over_none"),
                    0.5,
                    bound=True,
                ),
            ),
        ),
        Row(
            "C8",
            "beside SCR (Figures 9, 12)",
            (
                Claim(
                    "SCR: single + flush ÷ single, until the program continues",
                    "25 to 35",
                    PEERS,
                    ("peers-runs", "scr_flush_over_single"),
                    25,
                    less=False,
                    note="SCR's own figure on this machine, whose disk is nearly as fast as its "
                    "memory; you have to build SCR yourself",
                ),
                Claim(
                    "a run with four checkpoints, loss of Orcheck on the node ÷ of SCR single",
                    "no figure",
                    PEERS,
                    ("peers-runs", "node_over_rival"),
                ),
                Claim(
                    "the same, both in memory (Orcheck with an agent)",
                    "no figure",
                    PEERS,
                    ("peers-runs", "memory_over_rival"),
                    note="both cost so little that they differ by less than runs do",
                ),
                Claim(
                    "the same, on a peer ÷ SCR partner",
                    "no figure",
                    PEERS,
                    ("peers-runs", "peers_over_rival"),
                ),
                Claim(
                    "the same, both in memory",
                    "no figure",
                    PEERS,
                    ("peers-runs", "peers_memory_over_rival"),
                    note="SCR is faster here",
                ),
                Claim(
                    "the same, on the file system ÷ SCR partner + flush",
                    "no figure; ÷ partner alone 2.5 % ÷ 1.4 %",
                    PEERS,
                    ("peers-runs", "global_over_rival"),
                ),
                Claim(
                    "the same ÷ files in memory, copied in the background",
                    "0.35 % ÷ 18 % (Open MPI's SELF stage)",
                    PEERS,
                    ("peers-runs", "global_stage_over_rival"),
                    0.35 / 18,
                ),
            ),
        ),
        Row(
            "C9",
            "MPI's non-blocking I/O (Figures 1, 2)",
            (
                Claim(
                    "share of MPI_File_iwrite and its sync that is hidden behind an equally long "
                    "computation, Open MPI",
                    "none; 0.1 is our criterion",
                    "make bench-overlap",
                    ("overlap", "iwrite_overlap_1_openmpi"),
                    0.1,
                    bound=True,
                    note="Open MPI 4.1 writes in a thread of its own; the time of the sync, which "
                    "follows, is not hidden",
                ),
                Claim(
                    "the same, behind a computation twice as long",
                    "none; 0.1 is our criterion",
                    "make bench-overlap",
                    ("overlap", "iwrite_overlap_2_openmpi"),
                    0.1,
                    bound=True,
                    note="as above",
                ),
                Claim(
                    "MPI_File_iread, equally long, Open MPI",
                    "none; 0.1 is our criterion",
                    "make bench-overlap",
                    ("overlap", "iread_overlap_1_openmpi"),
                    0.1,
                    bound=True,
                    note="Open MPI 4.1 hides a read, unlike the document's",
                ),
                Claim(
                    "MPI_File_iwrite and its sync, equally long, MPICH",
                    "other libraries: poorly; 0.5 is our criterion",
                    "make bench-overlap",
                    ("overlap", "iwrite_overlap_1_mpich"),
                    0.5,
                    bound=True,
                ),
                Claim(
                    "MPI_File_iread, equally long, MPICH",
                    "other libraries: poorly; 0.5 is our criterion",
                    "make bench-overlap",
                    ("overlap", "iread_overlap_1_mpich"),
                    0.5,
                    bound=True,
                    note="MPICH 4.0 hides a read, unlike the document's libraries",
                ),
                Claim(
                    "a checkpoint with Orcheck until it is durable, equally long",
                    "no figure",
                    "make bench-overlap",
                    ("overlap", "orcheck_overlap_1_openmpi"),
                ),
            ),
        ),
    ),
)

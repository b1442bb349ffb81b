"""The rows of docs/reproduction.md: what the documents ask for, their figures, and ours.

Figures are ratios between two ways measured side by side. Where a document has seconds or percents
of both, `document` is their ratio.
"""

from orcbench.reproduction import Claim, Document, Row

CONTENTION = "tools/bench.sh contention --only"
HEADLINE, IMAGES = "contention-headline", "contention-images"
TASKS, RANKS = "contention-tasks", "contention-ranks"
SCALE, INTERVALS = "scale-nodes", "scale-intervals"
FITTED = (
    "rates of links, disks and arrays are assumed, and that of the file system is what the "
    "document's own reached at 256 nodes; times until committed, of ranks that sleep"
)
PROFILES, DEVICES = "staging-profiles", "staging-devices"

ORCHESTRATION = Document(
    "A. Orchestration (Jin et al., CCGrid 2012)",
    (
        Row(
            "A1",
            "vertical placement",
            (
                Claim(
                    "streams of a server, vertical, 256 ranks on 4 servers",
                    "64",
                    f"{CONTENTION} headline",
                    (HEADLINE, "streams_vertical"),
                    64,
                ),
                Claim(
                    "the mapping is balanced, can be adjusted, and stays while the job runs",
                    "Algorithm and mapping file, no figure",
                    "cargo test -p orcheck-placement --test placement",
                ),
            ),
        ),
        Row(
            "A2",
            "staged marshaling",
            (
                Claim(
                    "streams of a server, orchestrated",
                    "8",
                    f"{CONTENTION} headline",
                    (HEADLINE, "streams_orchestrated"),
                    8,
                ),
            ),
        ),
        Row(
            "A3",
            "three modes side by side (Figure 5)",
            (
                Claim(
                    "orchestrated ÷ traditional through a page cache, 256 ranks",
                    "LU.D: 105.99 s ÷ 157.41 s",
                    f"{CONTENTION} headline",
                    (HEADLINE, "orchestrated_over_cached_traditional_time"),
                    105.99 / 157.41,
                ),
                Claim(
                    "the same, LU.D's images",
                    "105.99 s ÷ 157.41 s",
                    f"{CONTENTION} images",
                    (IMAGES, "lu_d_over_cached"),
                    105.99 / 157.41,
                ),
                Claim(
                    "the same, by the model; one of its numbers is fitted to this very figure",
                    "105.99 s ÷ 157.41 s",
                    "make bench-model",
                    ("model", "lu_d_fitted"),
                    105.99 / 157.41,
                    model=True,
                ),
            ),
        ),
        Row(
            "A4",
            "more ranks, the same problem (Figures 6, 7)",
            (
                Claim(
                    "traditional (page cache): rate at 256 ranks ÷ at 32 or 64, five programs",
                    "loses more than 50 %",
                    f"{CONTENTION} tasks",
                    (TASKS, "tasks_cached_kept"),
                    0.5,
                    bound=True,
                    note="median of five programs; the servers' page cache merges what many ranks "
                    "write, and the loss is 46 %",
                ),
                Claim(
                    "orchestrated: the same",
                    "loses less than 25 %",
                    f"{CONTENTION} tasks",
                    (TASKS, "tasks_orchestrated_kept"),
                    0.75,
                    less=False,
                    bound=True,
                    note="median of five programs",
                ),
                Claim(
                    "orchestrated, LU: time with 256 ÷ with 128 ranks",
                    "grows by less than 15 %",
                    f"{CONTENTION} tasks",
                    (TASKS, "tasks_lu_doubled"),
                    1.15,
                    bound=True,
                    note="Table I gives 256 ranks 1.14 times the bytes of 128",
                ),
                Claim(
                    "orchestrated, CG: the same",
                    "grows by less than 15 %",
                    f"{CONTENTION} tasks",
                    (TASKS, "tasks_cg_doubled"),
                    1.15,
                    bound=True,
                    note="Table I gives 256 ranks 1.05 times the bytes of 128",
                ),
            ),
        ),
        Row(
            "A5",
            "larger problems (Figure 8)",
            (
                Claim(
                    "class C: orchestrated ÷ traditional (page cache), median of five programs",
                    "saves 50 % for four of five",
                    f"{CONTENTION} images",
                    (IMAGES, "class_c_over_cached"),
                    0.5,
                ),
                Claim(
                    "class D: the same",
                    "saves about 30 %",
                    f"{CONTENTION} images",
                    (IMAGES, "class_d_over_cached"),
                    0.7,
                ),
                Claim(
                    "class C, by the model, with a cost per write from the document of B",
                    "saves 50 %",
                    "make bench-model",
                    ("model", "class_c_writes"),
                    0.5,
                    model=True,
                ),
                Claim(
                    "class D, the same: the share that is saved falls, as in the document",
                    "saves about 30 %",
                    "make bench-model",
                    ("model", "class_d_writes"),
                    0.7,
                    model=True,
                ),
            ),
        ),
        Row(
            "A6",
            "a fixed total by 16 to 256 ranks (Figure 1)",
            (
                Claim(
                    "traditional (page cache): rate at 256 ÷ at 16 ranks",
                    "halves",
                    f"{CONTENTION} ranks",
                    (RANKS, "cached_rate_256_over_16"),
                    0.5,
                ),
                Claim(
                    "orchestrated: the same",
                    "no figure",
                    f"{CONTENTION} ranks",
                    (RANKS, "rate_256_over_16"),
                ),
            ),
        ),
        Row(
            "A7",
            "ordinary I/O beside checkpoints",
            (
                Claim(
                    "ordinary traffic keeps this share of its rate, the worst of three kinds",
                    "unaffected; 0.95 is our criterion",
                    "make bench-mixed",
                    ("mixed", "ordinary_kept"),
                    0.95,
                    less=False,
                    bound=True,
                    note="the servers are asked for a share of 0.95 (`--ordinary-share`); large "
                    "sequential writes get a little less, the other kinds more",
                ),
            ),
        ),
        Row(
            "A8",
            "at application level; tiers",
            (
                Claim(
                    "the program itself calls the library, at every level",
                    "no figure",
                    "make demo",
                ),
                Claim(
                    "600 MB/s on the node before 55 MB/s: safe on the node ÷ at the server",
                    "future work, no figure",
                    "make bench-tiers",
                    ("tiers", "node_safe_over_global_safe"),
                ),
                Claim(
                    "the same: a restart",
                    "future work, no figure",
                    "make bench-tiers",
                    ("tiers", "node_restart_over_global_restart"),
                ),
            ),
        ),
    ),
)

STAGING = Document(
    "B. Staging I/O (Ouyang et al., SNAPI 2010)",
    (
        Row(
            "B1",
            "profile of writes",
            (
                Claim(
                    "own disk through the page cache, LU.C.64: share of the disk's rate",
                    "30 ÷ 60 MB/s",
                    "tools/bench.sh staging --only profiles",
                    (PROFILES, "local_over_raw_lu"),
                    0.5,
                    note="today's ext4 gathers small writes in the page cache, and gets more of "
                    "the disk than the document's ext3 did",
                ),
                Claim(
                    "the same: seeks a second",
                    "150 and more",
                    "tools/bench.sh staging --only profiles",
                    (PROFILES, "local_seeks_per_s_lu"),
                    150,
                    less=False,
                    note="today's ext4 gathers small writes in the page cache; the document's ext3 "
                    "did less. The model disk counts; `python3 -m testbed.cluster.disktest` "
                    "compares that with the block layer's tracepoints",
                ),
                Claim(
                    "BT.C.64: seeks a second",
                    "1,200 and more",
                    "tools/bench.sh staging --only profiles",
                    (PROFILES, "local_seeks_per_s_bt"),
                    1200,
                    less=False,
                    note="as above; a disk with one head of 8.5 ms does a tenth of that",
                ),
            ),
        ),
        Row(
            "B2",
            "aggregation in a pool of chunks",
            (
                Claim(
                    "64 MiB in chunks of 4 MiB; every byte is written once, in large requests",
                    "no figure",
                    "cargo test -p orcheck-pool",
                ),
            ),
        ),
        Row(
            "B3",
            "servers that pull",
            (
                Claim(
                    "rate of the device reached through a server, device limited to 179 MB/s",
                    "97 % (SSD1)",
                    "tools/bench.sh staging --only devices",
                    (DEVICES, "server_over_raw_179"),
                    0.97,
                    less=False,
                    bound=True,
                ),
                Claim(
                    "the same, 600 MB/s",
                    "97 % (SSD2)",
                    "tools/bench.sh staging --only devices",
                    (DEVICES, "server_over_raw_600"),
                    0.97,
                    less=False,
                    bound=True,
                ),
            ),
        ),
        Row(
            "B4",
            "restart through the servers",
            (
                Claim(
                    "byte-identical",
                    "byte-identical",
                    "cargo test -p orcheck-jobs --test served",
                ),
            ),
        ),
        Row(
            "B5",
            "checkpoint time beside the alternatives",
            (
                Claim(
                    "LU.C.64: own disk, the faster of two ways, until safe ÷ staging servers, "
                    "until the program continues",
                    "4.68 s ÷ 1.25 s",
                    "tools/bench.sh staging --only profiles",
                    (PROFILES, "speedup_over_local_lu"),
                    4.68 / 1.25,
                    less=False,
                ),
                Claim(
                    "LU.C.64: striped file system ÷ staging servers, both until they continue",
                    "20.1 s ÷ 1.25 s",
                    "tools/bench.sh staging --only profiles",
                    (PROFILES, "speedup_over_shared_lu"),
                    20.1 / 1.25,
                    less=False,
                    note="our striped directory is faster than PVFS2 was: a client waits only at "
                    "the end, and its servers answer from the page cache",
                ),
                Claim(
                    "LU.C.64: own disk through the page cache ÷ staging servers, both until they "
                    "continue",
                    "4.68 s ÷ 1.25 s",
                    "tools/bench.sh staging --only profiles",
                    (PROFILES, "speedup_over_local_buffered_lu"),
                    4.68 / 1.25,
                    less=False,
                    note="the document does not say whether its times end before the bytes are on "
                    "the disks",
                ),
                Claim(
                    "BT.C.64: own disk ÷ staging servers",
                    "8.67 s ÷ 2.01 s",
                    "tools/bench.sh staging --only profiles",
                    (PROFILES, "speedup_over_local_bt"),
                    8.67 / 2.01,
                    less=False,
                ),
                Claim(
                    "BT.C.64: striped file system ÷ staging servers",
                    "34.1 s ÷ 2.01 s",
                    "tools/bench.sh staging --only profiles",
                    (PROFILES, "speedup_over_shared_bt"),
                    34.1 / 2.01,
                    less=False,
                    note="as for LU.C.64",
                ),
            ),
        ),
        Row(
            "B5",
            "real applications",
            (
                Claim(
                    "programs of NPB 3.4 that end verified by themselves after ten kills",
                    "no figure",
                    "tools/bench.sh npb --only kills --npb NPB3.4-MPI",
                    ("npb-kills", "npb_verified"),
                ),
                Claim(
                    "HPL ends with its residual check passed after ten kills",
                    "no figure",
                    "tools/bench.sh hpl --hpl hpcc-1.5.0",
                    ("hpl", "hpl_verified"),
                ),
                Claim(
                    "LU: a run with a checkpoint every five seconds through a staging server ÷ "
                    "without",
                    "16.1 % longer",
                    "tools/bench.sh npb --only cost --npb NPB3.4-MPI",
                    ("npb-cost", "lu_server_over_none"),
                    1.161,
                    bound=True,
                ),
                Claim(
                    "LU: the same, striped over four servers that write what comes as it comes",
                    "-",
                    "tools/bench.sh npb --only cost --npb NPB3.4-MPI",
                    ("npb-cost", "lu_striped_over_none"),
                ),
                Claim(
                    "BT: through a staging server",
                    "24.3 % longer",
                    "tools/bench.sh npb --only cost --npb NPB3.4-MPI",
                    ("npb-cost", "bt_server_over_none"),
                    1.243,
                    bound=True,
                ),
            ),
        ),
        Row(
            "B6",
            "staging for reads; a stackable file system; migration",
            (
                Claim(
                    "restart through a server ÷ raw reads",
                    "future work, no figure",
                    "make bench-staging",
                    ("staging", "read_over_raw"),
                ),
                Claim(
                    "a stackable file system for programs that cannot be changed",
                    "future work, no figure",
                    "cargo test -p orcheck-mount",
                    note="LAMMPS and GROMACS are killed and restarted; figures: make bench-mount",
                ),
                Claim(
                    "process migration",
                    "future work, no figure",
                    "-",
                    ("file-system", ""),
                    note="not built yet",
                ),
            ),
        ),
    ),
)

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
                    note="two cores: what writes in the background shares them with the solver, "
                    "and a disk as fast as this one makes synchronous checkpoints cheap",
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
                    "make bench-weak",
                    ("weak", "async_16_over_1"),
                    1.2,
                    bound=True,
                    note="a window of the solver ÷ one without a checkpoint; the ranks share two "
                    "cores",
                ),
            ),
        ),
        Row(
            "C7",
            "memory bandwidth over time (Figure 7)",
            (
                Claim(
                    "asynchronous: the solver's lowest bandwidth in a slice of the run ÷ the "
                    "median",
                    "no dip; 0.8 is our criterion",
                    "make bench-lbm",
                    ("lbm", "lowest_async"),
                    0.8,
                    less=False,
                    bound=True,
                    note="[the picture](lbm.md#bandwidth-over-time)",
                ),
                Claim(
                    "synchronous: the same",
                    "to 0",
                    "make bench-lbm",
                    ("lbm", "lowest_sync"),
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
                    "tools/bench.sh peers-runs",
                    ("peers-runs", "scr_flush_over_single"),
                    25,
                    less=False,
                    note="SCR's own figure on this machine, whose disk is nearly as fast as its "
                    "memory; SCR is built by the reader",
                ),
                Claim(
                    "a run with four checkpoints, loss of Orcheck on the node ÷ of SCR single",
                    "-",
                    "tools/bench.sh peers-runs",
                    ("peers-runs", "node_over_rival"),
                ),
                Claim(
                    "the same, on a peer ÷ SCR partner",
                    "-",
                    "tools/bench.sh peers-runs",
                    ("peers-runs", "peers_over_rival"),
                ),
                Claim(
                    "the same, on the file system ÷ SCR partner + flush",
                    "-",
                    "tools/bench.sh peers-runs",
                    ("peers-runs", "global_over_rival"),
                ),
                Claim(
                    "the same ÷ files in memory, copied in the background",
                    "-",
                    "tools/bench.sh peers-runs",
                    ("peers-runs", "global_stage_over_rival"),
                ),
            ),
        ),
        Row(
            "C9",
            "MPI's non-blocking I/O (Figures 1, 2)",
            (
                Claim(
                    "share of MPI_File_iwrite hidden behind an equally long computation, Open MPI",
                    "none; 0.1 is our criterion",
                    "make bench-overlap",
                    ("overlap", "iwrite_overlap_1_openmpi"),
                    0.1,
                    bound=True,
                    note="Open MPI 4.1 writes in a thread of its own; what its sync takes stays",
                ),
                Claim(
                    "the same, MPICH",
                    "others: poorly; 0.5 is our criterion",
                    "make bench-overlap",
                    ("overlap", "iwrite_overlap_1_mpich"),
                    0.5,
                    bound=True,
                ),
                Claim(
                    "the same, Orcheck",
                    "-",
                    "make bench-overlap",
                    ("overlap", "orcheck_overlap_1_openmpi"),
                ),
            ),
        ),
    ),
)

REPLICATION = Document(
    "D. Replicas instead of central storage (Walters and Chaudhary, HiPC 2007)",
    (
        Row(
            "D1",
            "asynchronous replicas on other nodes (Figures 2, 3)",
            (
                Claim(
                    "a solver's slowdown, one replica ÷ central server that is waited for, 8 "
                    "nodes, checkpoints at intervals of half the server's transfer time",
                    "BT, every 4 minutes: 9 % ÷ 38 %",
                    "tools/bench.sh replication --only solver",
                    ("replication-solver", "one_replica_slowdown_over_central_waited_8_every_0.5"),
                    9 / 38,
                    note="the document's interval is about six of the server's transfer times",
                ),
                Claim(
                    "the same, at intervals of its transfer time",
                    "the same",
                    "tools/bench.sh replication --only solver",
                    ("replication-solver", "one_replica_slowdown_over_central_waited_8_every_1"),
                    9 / 38,
                ),
                Claim(
                    "the same, of four times",
                    "the same",
                    "tools/bench.sh replication --only solver",
                    ("replication-solver", "one_replica_slowdown_over_central_waited_8_every_4"),
                    9 / 38,
                ),
                Claim(
                    "of half, where the copy to the server is asynchronous too",
                    "-",
                    "tools/bench.sh replication --only solver",
                    ("replication-solver", "one_replica_slowdown_over_central_8_every_0.5"),
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
                    "-",
                    ("drain", ""),
                    note="not built yet: the program calls where it has no messages in flight",
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
                    "entries of Table 1 that the formula gives; the others within two",
                    "108 entries",
                    "make bench-model",
                    ("model", "table1_alike"),
                    108,
                    less=False,
                    model=True,
                ),
                Claim(
                    "the largest difference of another entry",
                    "-",
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
                    note=FITTED,
                ),
                Claim(
                    "1 replica, 256 ÷ 64 nodes",
                    "6 % ÷ 3 %",
                    "tools/bench.sh scale --only nodes",
                    (SCALE, "k1_256_over_64"),
                    2,
                    model=True,
                    note="each node has a disk and a link of its own here, and nothing else grows "
                    "with the nodes but the agreement",
                ),
            ),
        ),
        Row(
            "D6",
            "intervals (Figure 3 b)",
            (
                Claim(
                    "1 replica, 8 nodes that sleep, at intervals of 32 times the transfer time of "
                    "a central server: share by which a run is longer",
                    "2.2 % for a single checkpoint",
                    "tools/bench.sh scale --only intervals",
                    (INTERVALS, "k1_slower_every_32"),
                    0.022,
                    bound=True,
                ),
                Claim(
                    "time of 1 replica ÷ central server, 8 nodes, both waited for",
                    "at most half (Figure 3 a)",
                    "tools/bench.sh scale --only nodes",
                    (SCALE, "one_replica_over_central_overhead"),
                    0.5,
                    bound=True,
                ),
            ),
        ),
    ),
)

DOCUMENTS = (ORCHESTRATION, STAGING, THREADS, REPLICATION)

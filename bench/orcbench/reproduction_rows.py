"""The rows of docs/reproduction.md: what the documents ask for, their figures, and ours.

Figures are ratios between two ways measured side by side. Where a document has seconds or percents
of both, `document` is their ratio.
"""

from orcbench.reproduction import Claim, Document, Row

CONTENTION = "tools/bench.sh contention --only"
HEADLINE, IMAGES = "contention-headline", "contention-images"
TASKS, RANKS = "contention-tasks", "contention-ranks"
SCALE = "scale"
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
                ),
                Claim(
                    "orchestrated: the same",
                    "loses less than 25 %",
                    f"{CONTENTION} tasks",
                    (TASKS, "tasks_orchestrated_kept"),
                    0.75,
                    less=False,
                ),
                Claim(
                    "orchestrated, LU: time with 256 ÷ with 128 ranks",
                    "grows by less than 15 %",
                    f"{CONTENTION} tasks",
                    (TASKS, "tasks_lu_doubled"),
                    1.15,
                ),
                Claim(
                    "orchestrated, CG: the same",
                    "grows by less than 15 %",
                    f"{CONTENTION} tasks",
                    (TASKS, "tasks_cg_doubled"),
                    1.15,
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
                    "no figure; does not fall",
                    f"{CONTENTION} ranks",
                    (RANKS, "rate_256_over_16"),
                    1.0,
                    less=False,
                ),
            ),
        ),
        Row(
            "A7",
            "ordinary I/O beside checkpoints",
            (
                Claim(
                    "ordinary traffic keeps this share of its rate, the worst of three kinds",
                    "unaffected",
                    "make bench-mixed",
                    ("mixed", "ordinary_kept"),
                    1.0,
                    less=False,
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
                ),
                Claim(
                    "the same: seeks a second",
                    "150 and more",
                    "tools/bench.sh staging --only profiles",
                    (PROFILES, "local_seeks_per_s_lu"),
                    150,
                    less=False,
                    note="today's ext4 gathers small writes in the page cache; the document's ext3 "
                    "did less",
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
                    "rate of the device reached through a server, model device of 179 MB/s",
                    "97 % (SSD1)",
                    "tools/bench.sh staging --only devices",
                    (DEVICES, "server_over_raw_179"),
                    0.97,
                    less=False,
                ),
                Claim(
                    "the same, 600 MB/s",
                    "97 % (SSD2)",
                    "tools/bench.sh staging --only devices",
                    (DEVICES, "server_over_raw_600"),
                    0.97,
                    less=False,
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
                    "LU.C.64: own disk (better way, safe) ÷ staging servers (continues)",
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
            "B6",
            "staging for reads; a stackable file system; migration",
            (
                Claim(
                    "restart through a server ÷ raw reads",
                    "future work, no figure",
                    "make bench-staging",
                    ("staging", "read_over_raw"),
                    0.9,
                    less=False,
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
                    "one a node, socket or core: alike",
                    "the three perform alike",
                    "make bench-lbm",
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
                    "cargo test -p orcheck-jobs --test session",
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
                    "the copy costs nothing",
                    "make bench-stall",
                    ("stall", "lent_over_blocked"),
                    0.05,
                ),
            ),
        ),
        Row(
            "C5",
            "model of the overhead",
            (
                Claim(
                    "measured ÷ predicted",
                    "2.6 s ÷ 2.2 s",
                    "make bench-lbm",
                    ("lbm", "async_over_bound"),
                    2.6 / 2.2,
                    note="the writes themselves take memory bandwidth and processors of a virtual "
                    "machine; beside what the writes alone cost it is 0.82 (ADR of the account)",
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
                    "flat",
                    "make bench-weak",
                    ("weak", "async_16_over_1"),
                    1.0,
                ),
            ),
        ),
        Row(
            "C7",
            "memory bandwidth over time (Figure 7)",
            (
                Claim(
                    "asynchronous checkpoints leave no dip in the solver's bandwidth",
                    "no dip",
                    "make bench-lbm",
                ),
            ),
        ),
        Row(
            "C8",
            "beside SCR (Figures 9, 12)",
            (
                Claim(
                    "SCR: partner + flush ÷ single, until it continues",
                    "25 to 35",
                    "make bench-peers",
                    ("peers", "scr_flush_over_single"),
                    25,
                    less=False,
                    note="the parallel file system here is a local disk",
                ),
            ),
        ),
        Row(
            "C9",
            "MPI's non-blocking I/O (Figures 1, 2)",
            (
                Claim(
                    "share of MPI_File_iwrite that a computation as long hides, Open MPI",
                    "none",
                    "make bench-overlap",
                    ("overlap", "iwrite_overlap_1_openmpi"),
                ),
                Claim(
                    "the same, MPICH",
                    "others: poorly",
                    "make bench-overlap",
                    ("overlap", "iwrite_overlap_1_mpich"),
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
                    "nodes, a checkpoint every half of the server's time",
                    "BT, every 4 minutes: 9 % ÷ 38 %",
                    "tools/bench.sh replication --only solver",
                    ("replication-solver", "one_replica_slowdown_over_central_waited"),
                    9 / 38,
                ),
                Claim(
                    "the same; the server's copy is asynchronous too",
                    "-",
                    "tools/bench.sh replication --only solver",
                    ("replication-solver", "one_replica_slowdown_over_central"),
                ),
            ),
        ),
        Row(
            "D2",
            "coordinated checkpoints",
            (
                Claim(
                    "messages in flight are drained, and phases timed",
                    "coordination is small beside writing",
                    "cargo test -p orcheck-jobs --test session",
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
                    "cargo test -p orcheck-jobs --test protect",
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
            ),
        ),
        Row(
            "D5",
            "64 to 256 nodes (Figure 4)",
            (
                Claim(
                    "4 replicas ÷ parallel file system, 128 nodes",
                    "15.4 % ÷ 37.5 %",
                    "make bench-scale",
                    (SCALE, "k4_over_pfs_128"),
                    15.4 / 37.5,
                ),
                Claim(
                    "the same, 256 nodes",
                    "18.7 % ÷ 55 %",
                    "make bench-scale",
                    (SCALE, "k4_over_pfs_256"),
                    18.7 / 55,
                ),
                Claim(
                    "1 replica, 256 ÷ 64 nodes",
                    "6 % ÷ 3 %",
                    "make bench-scale",
                    (SCALE, "k1_256_over_64"),
                    2,
                ),
            ),
        ),
        Row(
            "D6",
            "intervals (Figure 3 b)",
            (
                Claim(
                    "1 replica ÷ central server, 8 nodes, waited for",
                    "at most half",
                    "make bench-scale",
                    (SCALE, "one_replica_over_central_overhead"),
                    0.5,
                ),
            ),
        ),
    ),
)

DOCUMENTS = (ORCHESTRATION, STAGING, THREADS, REPLICATION)

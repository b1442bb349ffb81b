"""Rows B: staging I/O (Ouyang et al.)."""

from orcbench.reproduction import Claim, Document, Row

PROFILES, DEVICES = "staging-profiles", "staging-devices"

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
                    "rate of the device reached through a server, device limited to 55 MB/s; one "
                    "rank",
                    "no figure",
                    "tools/bench.sh staging --only devices",
                    (DEVICES, "server_over_raw_55"),
                ),
                Claim(
                    "the same, 179 MB/s",
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
                    note="beside the better of two ways of fio",
                ),
                Claim(
                    "179 MB/s, eight ranks",
                    "97 %",
                    "tools/bench.sh staging --only devices",
                    (DEVICES, "server_over_raw_179_8_ranks"),
                    0.97,
                    less=False,
                    bound=True,
                ),
                Claim(
                    "600 MB/s, eight ranks",
                    "97 %",
                    "tools/bench.sh staging --only devices",
                    (DEVICES, "server_over_raw_600_8_ranks"),
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
                    "LU.C.64: own disk through the page cache ÷ staging servers, until they "
                    "continue",
                    "4.68 s ÷ 1.25 s",
                    "tools/bench.sh staging --only profiles",
                    (PROFILES, "speedup_over_local_buffered_lu"),
                    4.68 / 1.25,
                    less=False,
                    note="an image is a fourth of the document's; it does not say whether its "
                    "times end "
                    "before the bytes are on the disks",
                ),
                Claim(
                    "LU.C.64: striped directory ÷ staging servers, until they continue",
                    "20.1 s ÷ 1.25 s",
                    "tools/bench.sh staging --only profiles",
                    (PROFILES, "speedup_over_shared_lu"),
                    20.1 / 1.25,
                    less=False,
                    note="our striped directory is faster than PVFS2 was: a client waits only at "
                    "the end, "
                    "and its servers answer from the page cache",
                ),
                Claim(
                    "LU.C.64: own disk until safe, the faster of two ways ÷ staging servers until "
                    "they continue",
                    "no figure",
                    "tools/bench.sh staging --only profiles",
                    (PROFILES, "speedup_over_local_lu"),
                    less=False,
                ),
                Claim(
                    "LU.C.64: staging servers ÷ striped directory, both until safe",
                    "no figure",
                    "tools/bench.sh staging --only profiles",
                    (PROFILES, "safe_over_shared_time_lu"),
                ),
                Claim(
                    "BT.C.64: own disk through the page cache ÷ staging servers, until they "
                    "continue",
                    "8.67 s ÷ 2.01 s",
                    "tools/bench.sh staging --only profiles",
                    (PROFILES, "speedup_over_local_buffered_bt"),
                    8.67 / 2.01,
                    less=False,
                ),
                Claim(
                    "BT.C.64: striped directory ÷ staging servers, until they continue",
                    "34.1 s ÷ 2.01 s",
                    "tools/bench.sh staging --only profiles",
                    (PROFILES, "speedup_over_shared_bt"),
                    34.1 / 2.01,
                    less=False,
                    note="as for LU.C.64",
                ),
                Claim(
                    "BT.C.64: own disk until safe, the faster of two ways ÷ staging servers until "
                    "they continue",
                    "no figure",
                    "tools/bench.sh staging --only profiles",
                    (PROFILES, "speedup_over_local_bt"),
                    less=False,
                ),
                Claim(
                    "BT.C.64: staging servers ÷ striped directory, both until safe",
                    "no figure",
                    "tools/bench.sh staging --only profiles",
                    (PROFILES, "safe_over_shared_time_bt"),
                ),
            ),
        ),
        Row(
            "B5",
            "real applications",
            (
                Claim(
                    "programs of NPB 3.4 whose own verification passes after ten kills",
                    "no figure",
                    "tools/bench.sh npb --only kills --npb NPB3.4-MPI --program lu --program bt",
                    ("npb-kills", "npb_verified"),
                ),
                Claim(
                    "runs of HPL whose residual check passes after ten kills",
                    "no figure",
                    "tools/bench.sh hpl --hpl hpcc-1.5.0",
                    ("hpl", "hpl_verified"),
                ),
                Claim(
                    "LU, class A, 4 ranks: a run with a checkpoint every five seconds through a "
                    "staging server ÷ without",
                    "16.1 % and 24.3 % longer on ext3 and PVFS2, without staging",
                    "tools/bench.sh npb --only cost --npb NPB3.4-MPI --program lu --program bt",
                    ("npb-cost", "lu_server_over_none"),
                    note="the document names no program, and has no figure with staging",
                ),
                Claim(
                    "LU: the same, striped over four servers that write requests in order of "
                    "arrival",
                    "the same",
                    "tools/bench.sh npb --only cost --npb NPB3.4-MPI --program lu --program bt",
                    ("npb-cost", "lu_striped_over_none"),
                ),
                Claim(
                    "BT: through a staging server",
                    "the same",
                    "tools/bench.sh npb --only cost --npb NPB3.4-MPI --program lu --program bt",
                    ("npb-cost", "bt_server_over_none"),
                    note="shorter than without: what a checkpoint costs here is less than what "
                    "runs "
                    "differ by",
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
                    "tools/bench.sh staging --only disk",
                    ("staging-disk", "read_over_raw"),
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
                    "",
                    built=False,
                ),
            ),
        ),
    ),
)

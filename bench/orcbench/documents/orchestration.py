"""Rows A: orchestrated checkpoints (Jin et al.)."""

from orcbench.reproduction import Claim, Document, Row

CONTENTION = "tools/bench.sh contention --only"
HEADLINE, IMAGES = "contention-headline", "contention-images"
TASKS, RANKS = "contention-tasks", "contention-ranks"

ORCHESTRATION = Document(
    "A. Orchestration (Jin et al., CCGrid 2012)",
    (
        Row(
            "A1",
            "vertical placement",
            (
                Claim(
                    "streams of a server, traditional, 256 ranks on 4 servers",
                    "256",
                    f"{CONTENTION} headline",
                    (HEADLINE, "streams_traditional"),
                    256,
                    note="counts files that are open at a server: some ranks have more than one",
                ),
                Claim(
                    "the same, vertical",
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
                    "vertical ÷ traditional, 256 ranks; traditional without a page cache",
                    "no figure",
                    f"{CONTENTION} headline",
                    (HEADLINE, "vertical_over_traditional_time"),
                ),
                Claim(
                    "vertical, and each node's ranks in turn, as in the document",
                    "no figure",
                    f"{CONTENTION} headline",
                    (HEADLINE, "marshaled_over_traditional_time"),
                ),
                Claim(
                    "orchestrated: in turn, and servers that pull",
                    "no figure",
                    f"{CONTENTION} headline",
                    (HEADLINE, "orchestrated_over_traditional_time"),
                ),
                Claim(
                    "orchestrated ÷ traditional through a page cache, 256 ranks",
                    "LU.D: 105.99 s ÷ 157.41 s",
                    f"{CONTENTION} headline",
                    (HEADLINE, "orchestrated_over_cached_traditional_time"),
                    105.99 / 157.41,
                    note="servers have no more dirty memory than a 16th of the burst",
                ),
                Claim(
                    "the same, LU.D's images",
                    "105.99 s ÷ 157.41 s",
                    f"{CONTENTION} images",
                    (IMAGES, "lu_d_over_cached"),
                    105.99 / 157.41,
                ),
                Claim(
                    "the same, by the model",
                    "105.99 s ÷ 157.41 s",
                    "make bench-model",
                    ("model", "lu_d_fitted"),
                    105.99 / 157.41,
                    model=True,
                    fitted=True,
                ),
            ),
        ),
        Row(
            "A4",
            "more ranks, the same problem (Figures 6, 7)",
            (
                Claim(
                    "traditional (page cache): rate at 256 ranks ÷ at the fewest (32 to 64), "
                    "median of "
                    "five programs",
                    "LU, BT and SP lose more than 50 %",
                    f"{CONTENTION} tasks",
                    (TASKS, "tasks_cached_kept"),
                    0.5,
                    bound=True,
                    note="the servers' page cache merges what many ranks write; the interval is of "
                    "the programs",
                ),
                Claim(
                    "traditional without a page cache: the same",
                    "the same",
                    f"{CONTENTION} tasks",
                    (TASKS, "tasks_traditional_kept"),
                    0.5,
                    bound=True,
                    note="each write waits for the disk, of few ranks as of many",
                ),
                Claim(
                    "orchestrated: the same",
                    "they lose less than 25 %",
                    f"{CONTENTION} tasks",
                    (TASKS, "tasks_orchestrated_kept"),
                    0.75,
                    less=False,
                    bound=True,
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
                    note="the interval is of the programs; FT is one of them, which the document "
                    "did "
                    "not run in class C",
                ),
                Claim(
                    "class D: the same",
                    "saves about 30 %",
                    f"{CONTENTION} images",
                    (IMAGES, "class_d_over_cached"),
                    0.7,
                ),
                Claim(
                    "the share that is saved falls from class C to class D: the same figure",
                    "from 50 % to about 30 %",
                    f"{CONTENTION} images",
                    (IMAGES, "class_d_over_cached"),
                    0.7,
                    less=False,
                    note="here it does not fall",
                ),
                Claim(
                    "class C, by the model",
                    "saves 50 %",
                    "make bench-model",
                    ("model", "class_c"),
                    0.5,
                    model=True,
                    note="a page cache of 1.6 GB turns everything into writes of 4 MiB",
                ),
                Claim(
                    "class D, the same",
                    "saves about 30 %",
                    "make bench-model",
                    ("model", "class_d"),
                    0.7,
                    model=True,
                    note="as above",
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
                    bound=True,
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
                    "ordinary traffic keeps this share of its rate, the worst of three kinds: "
                    "sequential writes",
                    "unaffected; 0.95 is our criterion",
                    "make bench-mixed",
                    ("mixed", "ordinary_kept"),
                    0.95,
                    less=False,
                    bound=True,
                    note="the servers are asked for just that share (`--ordinary-share`); "
                    "sequential writes get a little less",
                ),
                Claim(
                    "the same, without the hint that marks a checkpoint's requests",
                    "no figure",
                    "make bench-mixed",
                    ("mixed", "sequential writes: orchestrated, hint off"),
                ),
                Claim(
                    "the same, traditional",
                    "no figure",
                    "make bench-mixed",
                    ("mixed", "sequential writes: traditional"),
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

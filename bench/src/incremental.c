/* How long an incremental checkpoint keeps a program, beside a memcpy of all of its state.
 *
 *   mpirun -n N incremental --size BYTES --dir DIR --report FILE [--rounds 15] [--options TOML]
 *
 * The state is one region flagged ORC_CPU_WRITES_ONLY. Three sessions, one after the other:
 *
 *   same         a tenth of the pages is written, always the same ones: arrays that change beside ones that do not
 *   contiguous   a tenth of the pages is written in one piece, somewhere else every round
 *   random       a tenth of the pages is written, drawn again every round
 *
 * and in each round, in an order that alternates:
 *
 *   memcpy_whole the whole state copied within memory, warm; memcpy_whole_again: once more
 *   same, contiguous, random
 *                the checkpoint. dirty_s: what writing a word of each of these pages took before it,
 *                with the kernel noting the first write to each; again_s: the same writes once more
 *
 * Every checkpoint is committed before the next round, so that the next one may refer to it. */
#define _GNU_SOURCE
#include "ranks.h"

enum { PAGE = 4096 };

static char *source, *target;
typedef enum { SAME, CONTIGUOUS, RANDOM, KINDS } Kind;
static const char *const KIND[] = {"same", "contiguous", "random"};

static size_t size, pages, dirty;
static size_t *order; /* the pages that are written this round */
static uint64_t step, words;
static orc_session *session;
static FILE *report;
static int measured;

static void note(int round, const char *task, double s, const char *extra) {
    if (rank) return;
    fprintf(report, "%s\n {\"round\": %d, \"task\": \"%s\", \"s\": %.9f%s}", measured++ ? "," : "",
            round, task, s, extra);
}

static void measure_copy(int round, const char *task) {
    settle();
    double begin = now_s();
    memcpy(target, source, size);
    note(round, task, span_s(begin, now_s()), "");
}

static uint64_t drawn(uint64_t *state) { /* splitmix64 */
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u, z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* Which pages are written: a run from somewhere, or this many drawn ones in ascending order. */
static void draw(int round, Kind kind) {
    uint64_t state = (uint64_t)(kind == SAME ? 0 : round) << 32 | (uint64_t)rank;
    if (kind != RANDOM) {
        size_t from = drawn(&state) % (pages - dirty + 1);
        for (size_t i = 0; i < dirty; i++) order[i] = from + i;
        return;
    }
    for (size_t page = 0, taken = 0; page < pages && taken < dirty; page++)
        if (drawn(&state) % (pages - page) < dirty - taken) order[taken++] = page;
}

static double write_pages(void) {
    together();
    double begin = now_s();
    for (size_t i = 0; i < dirty; i++) *(volatile uint64_t *)(source + order[i] * PAGE + 64) = ++words;
    return span_s(begin, now_s());
}

static void measure_checkpoint(int round, Kind kind) {
    char extra[512];
    draw(round, kind);
    double dirty_s = write_pages(), again_s = write_pages();
    settle();
    double begin = now_s();
    TRY(orc_checkpoint(session, ++step));
    double s = span_s(begin, now_s());
    TRY(orc_wait(session, step, ORC_GLOBAL, 600));
    orc_stats stats = {.struct_size = sizeof stats};
    TRY(orc_stats_read(session, &stats));
    snprintf(extra, sizeof extra,
             ", \"dirty_s\": %.9f, \"again_s\": %.9f, \"stored_bytes\": %.0f, \"referred_bytes\": %.0f, "
             "\"tracked_bytes\": %.0f, \"full_because\": %.0f",
             dirty_s, again_s, largest((double)stats.stored_bytes), largest((double)stats.referred_bytes),
             largest((double)stats.tracked_bytes), largest((double)stats.full_because));
    note(round, KIND[kind], s, extra);
}

static void measure_session(Kind kind, int rounds, const char *options) {
    char memcpy_name[32], again_name[48];
    snprintf(memcpy_name, sizeof memcpy_name, "%s_memcpy", KIND[kind]);
    snprintf(again_name, sizeof again_name, "%s_again", memcpy_name);
    TRY(orc_mpi_open(&session, MPI_COMM_WORLD, KIND[kind], options));
    TRY(orc_protect(session, "state", source, ORC_F64, size / 8, ORC_CPU_WRITES_ONLY));
    /* The first one is full, and what it touches for the first time is not what is measured. */
    for (int i = 0; i < 2; i++) {
        TRY(orc_checkpoint(session, ++step));
        TRY(orc_wait(session, step, ORC_GLOBAL, 600));
    }
    for (int round = 0; round < rounds; round++) {
        if (round % 2) measure_checkpoint(round, kind);
        measure_copy(round, memcpy_name);
        if (round % 2 == 0) measure_checkpoint(round, kind);
        measure_copy(round, again_name);
    }
    TRY(orc_close(session, 600));
}

int main(int argc, char **argv) {
    start_ranks(&argc, &argv);
    char options[8192];
    size = (size_t)number(argc, argv, "--size", NULL);
    const char *dir = option(argc, argv, "--dir", NULL);
    int rounds = (int)number(argc, argv, "--rounds", "15");
    if (size < 16 << 20 || size % PAGE || rounds < 1) die("a value out of range");
    pages = size / PAGE, dirty = pages / 10;

    /* The whole snapshot, its record and what the record of scattered pages takes. */
    unsigned long long chunk = 4 << 20, chunks = (size + chunk - 1) / chunk * 51 / 50 + 4;
    int len = snprintf(options, sizeof options,
                       "global = [\"%s\"]\npool = %llu\nkeep = 1\nincremental = \"auto\"\nincremental_chain = 32\n%s",
                       dir, chunks * chunk * (unsigned long long)ranks, option(argc, argv, "--options", ""));
    if (len >= (int)sizeof options) die("--options: too long");
    source = memory(size, false, 1), target = memory(size, true, 0);
    order = malloc(dirty * sizeof *order);
    if (!order) die("no memory");
    for (size_t at = 0; at < size; at += 8) /* not all the same byte */
        memcpy(source + at, &(uint64_t){at * 0x9E3779B97F4A7C15u + (uint64_t)rank}, 8);
    if (rank == 0) {
        report = fopen(option(argc, argv, "--report", NULL), "w");
        if (!report) die("cannot create the report");
        fputs("[", report);
    }
    for (int kind = 0; kind < KINDS; kind++) measure_session((Kind)kind, rounds, options);
    if (rank == 0 && (fputs("]\n", report) < 0 || fclose(report))) die("cannot write the report");
    MPI_Finalize();
    return 0;
}

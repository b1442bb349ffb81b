/* What does a program wait for that writes its whole state as a file?
 *
 *   mpirun -n N files --size BYTES --dir DIR --report FILE [--rounds 15] [--options TOML]
 *
 * Each rank writes the same bytes with fwrite, in pieces of PIECES bytes, in four ways, in rotating order; before each,
 * nothing of the one before continues:
 *
 *   memcpy    the bytes are copied, into memory that was touched before: the limit
 *   memory    orc_fopen, fwrite, fclose, orc_checkpoint
 *   routed    fopen of a path from orc_route (in /dev/shm), fwrite, fclose, orc_checkpoint
 *   fsync     fopen in DIR, fwrite, fflush, fsync, fclose: what programs do without Orcheck
 *
 * Times go from the first rank that begins to the last that continues. `memory` is also measured while the checkpoint
 * before is being flushed (running; held_steps = 2). At the end a restart brings the file back, and every byte is compared. */
#define _GNU_SOURCE
#include "ranks.h"

static const size_t PIECES[] = {4096, 65536, 1 << 20};
enum { POINTS = sizeof PIECES / sizeof *PIECES };
enum { MEMCPY, MEMORY, ROUTED, FSYNC, RUNNING, WAYS };
static const char *const NAMES[WAYS] = {"memcpy", "memory", "routed", "fsync", "running"};

static char *state, *copy;
static size_t size;
static char own[4096], routed[4096];
static orc_session *with_memory, *with_route;
static uint64_t step;
static FILE *report;
static int measured;

static void write_all(FILE *file, size_t piece) {
    if (!file) die("no file: %s", orc_message());
    for (size_t at = 0; at < size; at += piece) {
        const size_t len = size - at < piece ? size - at : piece;
        if (fwrite(state + at, 1, len, file) != len) die("cannot write: %s", orc_message());
    }
}

static void closed(FILE *file) {
    if (fclose(file)) die("cannot close: %s", orc_message());
}

/* Not the last file's bytes. */
static void change(void) {
    step++;
    for (size_t at = 0; at + 8 <= size; at += 4096) memcpy(state + at, &step, 8);
}

static void by_memory(size_t piece) {
    FILE *file = orc_fopen(with_memory, "state", "w");
    write_all(file, piece);
    closed(file);
    TRY(orc_checkpoint(with_memory, step));
}

static double once(int way, size_t piece) {
    change();
    if (way == RUNNING) {
        /* The one that is being flushed meanwhile. */
        settle();
        by_memory(piece);
        change();
        together();
    } else {
        settle();
    }
    const double begin = now_s();
    if (way == MEMCPY) memcpy(copy, state, size);
    if (way == MEMORY || way == RUNNING) by_memory(piece);
    if (way == ROUTED) {
        FILE *file = fopen(routed, "w");
        write_all(file, piece);
        closed(file);
        TRY(orc_checkpoint(with_route, step));
    }
    if (way == FSYNC) {
        FILE *file = fopen(own, "w");
        write_all(file, piece);
        if (fflush(file) || fsync(fileno(file))) die("cannot sync %s", own);
        closed(file);
    }
    const double took = span_s(begin, now_s());
    if (way == MEMORY || way == RUNNING) TRY(orc_wait(with_memory, step, ORC_GLOBAL, 600));
    if (way == ROUTED) TRY(orc_wait(with_route, step, ORC_GLOBAL, 600));
    return took;
}

static orc_session *opened(const char *job, const char *dir, const char *more) {
    orc_session *session;
    char options[8192];
    const unsigned long long chunk = 4 << 20, chunks = (size + chunk - 1) / chunk + 2;
    int len = snprintf(options, sizeof options, "global = [\"%s\"]\npool = %llu\nkeep = 1\nheld_steps = 2\n%s", dir,
                       4 * chunks * chunk * (unsigned long long)ranks, more);
    if (len >= (int)sizeof options) die("--options: too long");
    TRY(orc_mpi_open(&session, MPI_COMM_WORLD, job, options));
    return session;
}

/* A restart brings back what was written last. */
static void compare(const char *dir, const char *more) {
    uint64_t found;
    TRY(orc_close(with_memory, 600));
    with_memory = opened("files-memory", dir, more);
    TRY(orc_find(with_memory, &found));
    TRY(orc_restart(with_memory, &found));
    FILE *file = orc_fopen(with_memory, "state", "r");
    if (!file || fread(copy, 1, size, file) != size || fgetc(file) != EOF) die("cannot read: %s", orc_message());
    closed(file);
    if (memcmp(copy, state, size)) die("a restart brought back other bytes");
    TRY(orc_close(with_memory, 600));
}

int main(int argc, char **argv) {
    start_ranks(&argc, &argv);
    size = (size_t)number(argc, argv, "--size", NULL);
    const char *dir = option(argc, argv, "--dir", NULL), *more = option(argc, argv, "--options", "");
    const int rounds = (int)number(argc, argv, "--rounds", "15");
    if (size < 4096 || (size_t)snprintf(own, sizeof own, "%s/own%d", dir, rank) >= sizeof own) die("a value out of range");
    state = memory(size, true, 1), copy = memory(size, true, 2);
    for (size_t at = 0; at + 8 <= size; at += 8) memcpy(state + at, &(uint64_t){at * 0x9E3779B97F4A7C15u + (uint64_t)rank}, 8);
    with_memory = opened("files-memory", dir, more);
    with_route = opened("files-route", dir, more);
    TRY(orc_route(with_route, "state", routed, sizeof routed));
    if (rank == 0) {
        report = fopen(option(argc, argv, "--report", NULL), "w");
        if (!report) die("cannot create the report");
        fputs("[", report);
    }
    /* The first use of anything is not what is measured; both pieces of memory are there afterwards. */
    for (int turn = 0; turn < 2; turn++)
        for (int way = 0; way < WAYS; way++) once(way, PIECES[POINTS - 1]);
    for (int round = 0; round < rounds; round++)
        for (int point = 0; point < POINTS; point++)
            for (int i = 0; i < WAYS; i++) {
                const int way = (round + i) % WAYS;
                const double took_s = once(way, PIECES[point]);
                if (rank == 0)
                    fprintf(report, "%s\n {\"round\": %d, \"way\": \"%s\", \"piece\": %zu, \"s\": %.9f}",
                            measured++ ? "," : "", round, NAMES[way], PIECES[point], took_s);
            }
    once(MEMORY, PIECES[0]);
    TRY(orc_close(with_route, 600));
    compare(dir, more);
    if (rank == 0 && (fputs("]\n", report) < 0 || fclose(report))) die("cannot write the report");
    MPI_Finalize();
    return 0;
}

/* How much of the memory's bandwidth a checkpoint takes from a computation: the factor m of
 * F. Shahzad et al., "An Evaluation of Different I/O Techniques for Checkpoint/Restart", eq. (2).
 *
 *   mpirun -n N traffic --size BYTES --dir DIR --report FILE [--rounds 25] [--threads 2]
 *                       [--options TOML]
 *
 * A kernel that does nothing but read and write memory (b = s * a, arrays far larger than caches)
 * runs on all threads for a fixed number of sweeps, half as long again as a flush takes: without a
 * checkpoint ("none"), with one that is copied ("copied") or lent ("lent") at its beginning, and
 * without again. What it takes longer, times its bandwidth, is what the checkpoint took. This says nothing about any other program: the
 * driver predicts from it what a solver will lose.
 *
 * Also noted: a warm memcpy of as many bytes on all threads ("memcpy"), and a checkpoint with
 * nothing beside it until it is safe ("flush"). */
#define _GNU_SOURCE
#include <omp.h>
#include "ranks.h"

enum { CALL_BYTES = 4 << 20 };
static const size_t ARRAY_BYTES = 256u << 20;

static double *a, *b;
static size_t doubles, size;
static char *state, *target;
static int threads;
static uint64_t step;
static orc_session *session;
static FILE *report;
static int measured;

static void sweep(void) {
#pragma omp parallel for simd num_threads(threads) schedule(static)
    for (size_t i = 0; i < doubles; i++) b[i] = 1.000001 * a[i];
    double *swap = a;
    a = b, b = swap;
}

static void note(int round, const char *task, double s, const char *extra) {
    if (rank) return;
    fprintf(report, "%s\n {\"kind\": \"window\", \"round\": %d, \"mode\": \"%s\", \"s\": %.9f%s}",
            measured++ ? "," : "", round, task, s, extra);
}

static void checkpoint(bool lent) {
    if (lent) TRY(orc_lend(session, "state"));
    TRY(orc_checkpoint(session, ++step));
}

static double flush_cpu_s(void) {
    orc_stats stats = {.struct_size = sizeof stats};
    TRY(orc_stats_read(session, &stats));
    return stats.flush_cpu_s;
}

enum { NONE, COPIED, LENT };
static const char *const MODE[] = {"none", "copied", "lent"};

static void measure_window(int round, int mode, int sweeps) {
    char extra[256] = "";
    double cpu_s = flush_cpu_s(), blocked_s = 0;
    for (int i = 0; i < 2; i++) sweep(); /* threads awake, nothing of before in the caches */
    together();
    double begin = now_s();
    if (mode != NONE) checkpoint(mode == LENT), blocked_s = now_s() - begin;
    for (int i = 0; i < sweeps; i++) sweep();
    double end = now_s(), s = span_s(begin, end);
    if (mode != NONE) {
        if (mode == LENT) TRY(orc_lent_done(session, "state", 600));
        TRY(orc_wait(session, step, ORC_GLOBAL, 600));
        double late_s = largest(now_s() - end); /* to be nothing: all was safe within the window */
        snprintf(extra, sizeof extra, ", \"blocked_s\": %.9f, \"late_s\": %.6f, \"cpu_s\": %.6f",
                 largest(blocked_s), late_s, largest(flush_cpu_s() - cpu_s));
    }
    settle();
    note(round, MODE[mode], s, extra);
}

static void measure_flush(int round) {
    together();
    double begin = now_s();
    checkpoint(false);
    TRY(orc_wait(session, step, ORC_GLOBAL, 600));
    note(round, "flush", span_s(begin, now_s()), "");
    settle();
}

static void measure_memcpy(int round) {
    double best_s = 1e9;
    for (int way = 0; way < 2; way++) {
        together();
        double begin = now_s();
#pragma omp parallel num_threads(threads)
        {
            size_t parts = (size_t)omp_get_num_threads(), me = (size_t)omp_get_thread_num();
            size_t from = size / parts * me, to = me + 1 == parts ? size : size / parts * (me + 1);
            size_t call = way ? CALL_BYTES : to - from;
            for (size_t at = from; at < to; at += call)
                memcpy(target + at, state + at, to - at < call ? to - at : call);
        }
        double s = span_s(begin, now_s());
        if (s < best_s) best_s = s;
    }
    note(round, "memcpy", best_s, "");
}

int main(int argc, char **argv) {
    start_ranks(&argc, &argv);
    char options[8192];
    size = (size_t)number(argc, argv, "--size", NULL);
    threads = (int)number(argc, argv, "--threads", "2");
    int rounds = (int)number(argc, argv, "--rounds", "25");
    if (size < 4096 || threads < 1) die("a value out of range");
    unsigned long long chunk = 4 << 20, chunks = (size + chunk - 1) / chunk + 3; /* at least the four of a pool */
    if (snprintf(options, sizeof options, "global = [\"%s\"]\npool = %llu\ncopy_threads = %d\nkeep = 1\n%s",
                 option(argc, argv, "--dir", NULL), chunks * chunk * (unsigned)ranks, threads,
                 option(argc, argv, "--options", "")) >= (int)sizeof options)
        die("--options: too long");
    doubles = ARRAY_BYTES / sizeof *a / (size_t)ranks;
    a = memory(doubles * sizeof *a, true, 1), b = memory(doubles * sizeof *b, true, 2);
    state = memory(size, false, 3), target = memory(size, true, 4);
    TRY(orc_mpi_open(&session, MPI_COMM_WORLD, "traffic", options));
    TRY(orc_protect(session, "state", state, ORC_BYTES, size, 0));
    if (rank == 0) {
        report = fopen(option(argc, argv, "--report", NULL), "w");
        if (!report) die("cannot create the report");
    }

    /* The first use of anything is not what is measured. */
    double fastest_s = 1e9;
    for (int i = 0; i < 8; i++) {
        together();
        double begin = now_s();
        sweep();
        double s = span_s(begin, now_s());
        if (s < fastest_s) fastest_s = s;
    }
    double safe_s = 0.1;
    for (int i = 0; i < 5; i++) {
        double begin = now_s();
        checkpoint(false);
        TRY(orc_wait(session, step, ORC_GLOBAL, 600));
        double s = largest(now_s() - begin);
        if (i > 1 && s > safe_s) safe_s = s;
        settle();
    }
    int sweeps = (int)(1.5 * safe_s / fastest_s) + 1;
    MPI_TRY(MPI_Bcast(&sweeps, 1, MPI_INT, 0, MPI_COMM_WORLD));
    if (rank == 0)
        fprintf(report, "{\"window_bytes\": %.0f, \"samples\": [",
                2.0 * (double)sweeps * (double)(doubles * sizeof *a) * ranks);
    for (int round = 0; round < rounds; round++) {
        measure_window(round, NONE, sweeps);
        measure_window(round, round % 2 ? COPIED : LENT, sweeps);
        measure_window(round, NONE, sweeps);
        measure_window(round, round % 2 ? LENT : COPIED, sweeps);
        measure_window(round, NONE, sweeps);
        measure_flush(round);
        measure_memcpy(round);
    }
    TRY(orc_close(session, 600));
    if (rank == 0 && (fputs("]}\n", report) < 0 || fclose(report))) die("cannot write the report");
    MPI_Finalize();
    return 0;
}

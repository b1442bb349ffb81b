/* What a checkpoint of little state keeps a program for, beside what it cannot do without.
 *
 *   mpirun -n N small --size BYTES --dir DIR --report FILE [--regions 128] [--rounds 31]
 *                     [--pause-ms 30] [--runs 9] [--run-s 3] [--options TOML]
 *
 * Everything is measured in the same state: what was measured before has ended, all threads sleep,
 * then every rank sleeps for the pause and meets the others in a barrier. Within one round the
 * tasks run in an order that rotates from round to round.
 *
 *   memcpy      the same bytes copied within memory by one call a rank; touched before, the target
 *               on huge pages
 *   agree       one MPI_Allreduce of ten numbers, which is as many as a checkpoint's agreement has
 *   one         orc_checkpoint of one region of these bytes
 *   many        orc_checkpoint of as many bytes in --regions regions
 *   ..._again   memcpy and agree once more: what difference is only noise?
 *
 * Then whole runs of about --run-s seconds: a loop over the state and a reduction, with the state in --regions
 * arrays, and each tenth of a second (what one a second costs is less than runs differ by)
 *
 *   run_none    nothing
 *   run_fwrite  fwrite of every array into one file a rank, and fsync; two files in turn
 *   run_many    orc_checkpoint; the run ends when the last one is safe
 *
 * `one` and `many` are two jobs that are open at once. Nothing is being flushed when they begin.
 * With each, the JSON has what orc_stats says of the call, the most of all ranks; at the end, how
 * much memory both pools take (`pools`). */
#define _GNU_SOURCE
#include "ranks.h"

enum { NUMBERS = 10 };

typedef struct {
    orc_session *session;
    uint64_t step;
} Job;

static char *source, *target;
static size_t size;
static long pause_ms;
static FILE *report;
static int measured;

static void note(int round, const char *task, double s, const char *extra) {
    if (rank) return;
    fprintf(report, "%s\n {\"round\": %d, \"task\": \"%s\", \"s\": %.9f%s}", measured++ ? "," : "",
            round, task, s, extra);
}

/* The state in which everything is measured. */
static void rest(void) {
    settle();
    nanosleep(&(struct timespec){.tv_sec = pause_ms / 1000, .tv_nsec = pause_ms % 1000 * 1000000}, NULL);
    together();
}

static void measure_copy(int round, const char *task) {
    rest();
    double begin = now_s();
    memcpy(target, source, size);
    note(round, task, span_s(begin, now_s()), "");
}

static void measure_agree(int round, const char *task) {
    int64_t values[NUMBERS];
    for (int i = 0; i < NUMBERS; i++) values[i] = rank + i;
    rest();
    double begin = now_s();
    MPI_TRY(MPI_Allreduce(MPI_IN_PLACE, values, NUMBERS, MPI_INT64_T, MPI_MIN, MPI_COMM_WORLD));
    note(round, task, span_s(begin, now_s()), "");
}

static void measure_checkpoint(int round, const char *task, Job *job) {
    char extra[256];
    rest();
    double begin = now_s();
    TRY(orc_checkpoint(job->session, ++job->step));
    double s = span_s(begin, now_s());
    TRY(orc_wait(job->session, job->step, ORC_GLOBAL, 600));
    orc_stats stats = {.struct_size = sizeof stats};
    TRY(orc_stats_read(job->session, &stats));
    double stage_s = largest(stats.stage_s), wait_s = largest(stats.wait_s), agree_s = largest(stats.agree_s);
    snprintf(extra, sizeof extra, ", \"agree_s\": %.9f, \"stage_s\": %.9f, \"wait_s\": %.9f", agree_s, stage_s,
             wait_s);
    note(round, task, s, extra);
}

static void measure_round(int round, Job *one, Job *many) {
    enum { TASKS = 6 };
    for (int i = 0; i < TASKS; i++)
        switch ((round + i) % TASKS) {
        case 0: measure_copy(round, "memcpy"); break;
        case 1: measure_checkpoint(round, "one", one); break;
        case 2: measure_agree(round, "agree"); break;
        case 3: measure_copy(round, "memcpy_again"); break;
        case 4: measure_checkpoint(round, "many", many); break;
        case 5: measure_agree(round, "agree_again"); break;
        }
}

/* ---- whole runs ----------------------------------------------------------------------------- */
typedef enum { NONE, FWRITE, MANY, WAYS } Way;
static const char *const WAY[] = {"run_none", "run_fwrite", "run_many"};

static void compute(void) {
    double *state = (double *)source, sum = 0;
    for (size_t i = 0; i < size / 8; i++) state[i] = 0.5 * state[i] + 0.25, sum += state[i];
    MPI_TRY(MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD));
}

/* As programs without a library do it. */
static void write_arrays(const char *dir, int number, size_t regions) {
    const size_t part = size / regions;
    char path[4096];
    snprintf(path, sizeof path, "%s/fwrite-%d-%d", dir, rank, number % 2);
    FILE *file = fopen(path, "w");
    if (!file) die("%s: cannot be created", path);
    for (size_t i = 0; i < regions; i++)
        if (fwrite(source + i * part, 1, part, file) != part) die("%s: cannot be written", path);
    if (fflush(file) || fsync(fileno(file)) || fclose(file)) die("%s: cannot be written", path);
}

static void measure_run(int round, Way way, Job *job, const char *dir, size_t regions, int steps, int each) {
    rest();
    double begin = now_s();
    for (int i = 1; i <= steps; i++) {
        compute();
        if (i % each || way == NONE) continue;
        if (way == FWRITE) write_arrays(dir, i / each, regions);
        else TRY(orc_checkpoint(job->session, ++job->step));
    }
    if (way == MANY) TRY(orc_wait(job->session, job->step, ORC_GLOBAL, 600));
    note(round, WAY[way], span_s(begin, now_s()), "");
}

static void measure_runs(int runs, double run_s, Job *job, const char *dir, size_t regions) {
    enum { LOOK = 50 };
    if (!runs) return;
    for (int i = 0; i < LOOK; i++) compute();
    together();
    double begin = now_s();
    for (int i = 0; i < LOOK; i++) compute();
    int each = (int)(LOOK / largest(now_s() - begin) / 10) + 1; /* in a tenth of a second */
    MPI_TRY(MPI_Bcast(&each, 1, MPI_INT, 0, MPI_COMM_WORLD));
    for (int round = 0; round < runs; round++)
        for (int i = 0; i < WAYS; i++)
            measure_run(round, (Way)((round + i) % WAYS), job, dir, regions, (int)(10 * run_s * each) + each / 2, each);
}

/* Memory of this node's pool, in bytes. */
static double pool_memory(const Job *job) {
    orc_stats stats = {.struct_size = sizeof stats};
    TRY(orc_stats_read(job->session, &stats));
    return (double)stats.pool_memory_bytes;
}

static Job open_job(const char *name, const char *options) {
    Job job = {NULL, 0};
    TRY(orc_mpi_open(&job.session, MPI_COMM_WORLD, name, options));
    return job;
}

static void warm(Job *job) { /* the first use of anything is not what is measured */
    for (int i = 0; i < 6; i++) {
        TRY(orc_checkpoint(job->session, ++job->step));
        TRY(orc_wait(job->session, job->step, ORC_GLOBAL, 600));
    }
}

int main(int argc, char **argv) {
    start_ranks(&argc, &argv);
    char options[8192], name[32];
    size = (size_t)number(argc, argv, "--size", NULL);
    size_t regions = (size_t)number(argc, argv, "--regions", "128");
    int rounds = (int)number(argc, argv, "--rounds", "31");
    pause_ms = (long)number(argc, argv, "--pause-ms", "30");
    if (regions < 1 || size % (8 * regions)) die("--size: not a multiple of 8 bytes in each region");
    int len = snprintf(options, sizeof options, "global = [\"%s\"]\nkeep = 1\n%s",
                       option(argc, argv, "--dir", NULL), option(argc, argv, "--options", ""));
    if (len >= (int)sizeof options) die("--options: too long");
    source = memory(size, false, 1), target = memory(size, true, 0);
    for (size_t at = 0; at < size; at += 8) /* not all the same byte */
        memcpy(source + at, &(uint64_t){at * 0x9E3779B97F4A7C15u + (uint64_t)rank}, 8);
    Job one = open_job("one", options), many = open_job("many", options);
    TRY(orc_protect(one.session, "state", source, ORC_F64, size / 8, 0));
    size_t part = size / regions;
    for (size_t i = 0; i < regions; i++) {
        snprintf(name, sizeof name, "array %zu", i);
        TRY(orc_protect(many.session, name, source + i * part, ORC_F64, part / 8, 0));
    }
    if (rank == 0) {
        report = fopen(option(argc, argv, "--report", NULL), "w");
        if (!report) die("cannot create the report");
        fputs("[", report);
    }
    warm(&one), warm(&many);
    for (int round = 0; round < rounds; round++) measure_round(round, &one, &many);
    measure_runs((int)number(argc, argv, "--runs", "9"), (double)number(argc, argv, "--run-s", "3"), &many,
                 option(argc, argv, "--dir", NULL), regions);
    settle();
    char extra[128];
    snprintf(extra, sizeof extra, ", \"bytes\": %.0f", pool_memory(&one) + pool_memory(&many));
    note(0, "pools", 0, extra);
    TRY(orc_close(many.session, 600));
    TRY(orc_close(one.session, 600));
    if (rank == 0 && (fputs("]\n", report) < 0 || fclose(report))) die("cannot write the report");
    MPI_Finalize();
    return 0;
}

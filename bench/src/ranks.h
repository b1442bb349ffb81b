/* What the measuring programs share: a clock, a barrier that sleeps, and options.
 *
 * All ranks run on one machine, so one clock serves them all, and the time of something that all
 * do at once is from the first that begins to the last that ends. The barrier is not MPI's: ranks
 * that spin in it would take the processor from those that are being measured. */
#ifndef ORCBENCH_RANKS_H
#define ORCBENCH_RANKS_H
#include <dirent.h>
#include <mpi.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <orcheck.h>
#include <orcheck_mpi.h>
#include "machine.h"

enum { MAX_RANKS = 256 };

typedef struct {
    pthread_barrier_t barrier;
    double begin_s[MAX_RANKS], end_s[MAX_RANKS], value[MAX_RANKS];
} Shared;

static int rank, ranks;
static Shared *shared;

#ifndef HAS_DIE /* a program that brings its own */
static _Noreturn void die(const char *format, ...) {
    char text[2048];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    fprintf(stderr, "rank %d: %s\n", rank, text);
    MPI_Abort(MPI_COMM_WORLD, 1);
    abort();
}
#endif
#define TRY(call) do { if ((call) != ORC_OK) die("%s: %s", #call, orc_message()); } while (0)
#define MPI_TRY(call) do { if ((call) != MPI_SUCCESS) die("%s failed", #call); } while (0)

static void together(void) { pthread_barrier_wait(&shared->barrier); }

static void start_ranks(int *argc, char ***argv) {
    int provided, unit;
    MPI_Aint len;
    MPI_Win window;
    MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks > MAX_RANKS) die("at most %d ranks", MAX_RANKS);
    MPI_TRY(MPI_Win_allocate_shared(rank ? 0 : (MPI_Aint)sizeof *shared, 1, MPI_INFO_NULL,
                                    MPI_COMM_WORLD, &shared, &window));
    MPI_TRY(MPI_Win_shared_query(window, 0, &len, &unit, &shared));
    if (rank == 0) {
        pthread_barrierattr_t attributes;
        pthread_barrierattr_init(&attributes);
        pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
        if (pthread_barrier_init(&shared->barrier, &attributes, (unsigned)ranks)) die("no barrier");
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* The largest of all ranks' values; every rank gets it. */
static double largest(double mine) {
    double most = mine;
    shared->value[rank] = mine;
    together();
    for (int i = 0; i < ranks; i++)
        if (shared->value[i] > most) most = shared->value[i];
    together();
    return most;
}

/* The sum of all ranks' values; every rank gets it. */
static double sum(double mine) {
    double total = 0;
    shared->value[rank] = mine;
    together();
    for (int i = 0; i < ranks; i++) total += shared->value[i];
    together();
    return total;
}

/* Seconds from the first rank's begin to the last rank's end; every rank gets it. */
static double span_s(double begin_s, double end_s) {
    double first = begin_s, last = end_s;
    shared->begin_s[rank] = begin_s, shared->end_s[rank] = end_s;
    together();
    for (int i = 0; i < ranks; i++) {
        if (shared->begin_s[i] < first) first = shared->begin_s[i];
        if (shared->end_s[i] > last) last = shared->end_s[i];
    }
    together();
    return last - first;
}

/* The same of ranks that share no memory, on several nodes: the least, the most or the sum of all ranks' values. */
static double reduced(double mine, MPI_Op op) {
    double all = mine;
    MPI_TRY(MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, op, MPI_COMM_WORLD));
    return all;
}

static double from_first_to_last_s(double begin_s, double end_s) {
    const double first = reduced(begin_s, MPI_MIN), last = reduced(end_s, MPI_MAX);
    return last - first;
}

/* A barrier that sleeps, then one that does not: all have come, and all continue together. */
static void all_here(void) {
    MPI_Request request;
    int done = 0;
    MPI_TRY(MPI_Ibarrier(MPI_COMM_WORLD, &request));
    for (;;) {
        MPI_TRY(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
        if (done) break;
        nanosleep(&(struct timespec){.tv_nsec = 4 * 1000 * 1000}, NULL);
    }
    MPI_TRY(MPI_Barrier(MPI_COMM_WORLD));
}

/* Whether a thread of this process other than the caller runs, or waits for a disk. */
static bool others_busy(void) {
    char path[64], text[512];
    bool busy = false;
    const pid_t own = (pid_t)syscall(SYS_gettid);
    DIR *tasks = opendir("/proc/self/task");
    if (!tasks) die("no /proc");
    for (struct dirent *entry; (entry = readdir(tasks)) != NULL;) {
        int tid = atoi(entry->d_name);
        snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
        FILE *file = tid > 0 && tid != own ? fopen(path, "r") : NULL;
        if (!file) continue;
        text[fread(text, 1, sizeof text - 1, file)] = 0;
        fclose(file);
        const char *state = strrchr(text, ')');
        if (state && strlen(state) > 2 && (state[2] == 'R' || state[2] == 'D')) busy = true;
    }
    closedir(tasks);
    return busy;
}

/* Waits until nothing of what was measured before continues: after a commit, files of an older step
 * are removed, which on some file systems takes as long as writing them. */
static void settle(void) {
    together();
    for (int quiet = 0; quiet < 5; quiet = others_busy() ? 0 : quiet + 1)
        nanosleep(&(struct timespec){.tv_nsec = 5 * 1000 * 1000}, NULL);
    together();
}

/* Memory that is there (touched). huge: ask for huge pages, as a baseline deserves them. */
static void *memory(size_t len_bytes, bool huge, int fill) {
    void *at = mmap(NULL, len_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) die("no memory for %zu bytes", len_bytes);
    if (huge) madvise(at, len_bytes, MADV_HUGEPAGE); /* refused: normal pages, as good */
    memset(at, fill, len_bytes);
    return at;
}

/* "--name value" pairs; NULL if the option is not there and has no default. */
static const char *option(int argc, char **argv, const char *name, const char *otherwise) {
    for (int i = 1; i + 1 < argc; i += 2)
        if (strcmp(argv[i], name) == 0) return argv[i + 1];
    if (!otherwise) die("%s is missing", name);
    return otherwise;
}

static long long number(int argc, char **argv, const char *name, const char *otherwise) {
    const char *text = option(argc, argv, name, otherwise);
    char *end;
    long long value = strtoll(text, &end, 10);
    if (*end || end == text || value < 0) die("%s %s: not a number", name, text);
    return value;
}

#endif

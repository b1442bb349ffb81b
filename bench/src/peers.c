/* The same program with one of several checkpoint libraries: how long each keeps it, until when it is safe, what it slows.
 *
 *   mpirun -n N peers --with orcheck|posix|scr|veloc|fti --size BYTES --dir DIR --conf FILE --rounds N --report FILE
 *
 * A window is as many sweeps over the state as take --window milliseconds or a little more. Windows without and with a checkpoint at the
 * beginning take turns; afterwards each checkpoint is waited for, where the library has a way to. Compiled with -DWITH_SCR,
 * -DWITH_VELOC or -DWITH_FTI the program has that library instead of Orcheck: they do not share a process. bench/orcbench/peers.py
 * writes --conf and sets what they read from the environment. Memory is what the machine has less of, everywhere. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <math.h>
#include "ranks.h"
#if defined(WITH_SCR)
#include <scr.h>
#elif defined(WITH_VELOC)
#include <veloc.h>
#elif defined(WITH_FTI)
#include <fti.h>
#endif

static char *state;
static size_t size;
static MPI_Comm world = MPI_COMM_WORLD; /* FTI gives another one */

/* ---- adapters: begin, take a checkpoint (returns when the program may continue), wait until it is safe, end ---- */
typedef struct {
    const char *name;
    void (*begin)(const char *dir, const char *conf);
    void (*take)(int version);
    void (*wait)(int version); /* NULL: safe when take returns; see orcbench/peers.py for those that do not tell */
    void (*end)(void);
} Adapter;

static void write_file(const char *path, bool sync) {
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file < 0) die("cannot create %s", path);
    for (size_t at = 0; at < size;) {
        ssize_t took = write(file, state + at, size - at);
        if (took <= 0) die("cannot write %s", path);
        at += (size_t)took;
    }
    if ((sync && fsync(file)) || close(file)) die("cannot finish %s", path);
}

#if defined(WITH_SCR)
static void scr_begin(const char *dir, const char *conf) {
    (void)dir, (void)conf;
    if (SCR_Init() != SCR_SUCCESS) die("SCR_Init");
}
static void scr_take(int version) {
    char name[64], file[4096], routed[SCR_MAX_FILENAME];
    snprintf(name, sizeof name, "step.%d", version);
    snprintf(file, sizeof file, "step.%d/rank.%d", version, rank);
    if (SCR_Start_output(name, SCR_FLAG_CHECKPOINT) != SCR_SUCCESS || SCR_Route_file(file, routed) != SCR_SUCCESS)
        die("SCR_Start_output");
    write_file(routed, true);
    if (SCR_Complete_output(1) != SCR_SUCCESS) die("SCR_Complete_output");
}
static void scr_end(void) { SCR_Finalize(); }
static const Adapter ADAPTERS[] = {{"scr", scr_begin, scr_take, NULL, scr_end}};
#elif defined(WITH_VELOC)
static void veloc_begin(const char *dir, const char *conf) {
    (void)dir;
    if (VELOC_Init(world, conf) != VELOC_SUCCESS || VELOC_Mem_protect(0, state, size, 1) != VELOC_SUCCESS) die("VELOC_Init");
}
static void veloc_take(int version) {
    if (VELOC_Checkpoint("peers", version) != VELOC_SUCCESS) die("VELOC_Checkpoint");
}
static void veloc_wait(int version) {
    (void)version;
    if (VELOC_Checkpoint_wait() != VELOC_SUCCESS) die("VELOC_Checkpoint_wait");
}
static void veloc_end(void) { VELOC_Finalize(1); }
static const Adapter ADAPTERS[] = {{"veloc", veloc_begin, veloc_take, veloc_wait, veloc_end}};
#elif defined(WITH_FTI)
static void fti_begin(const char *dir, const char *conf) {
    (void)dir;
    if (FTI_Init(conf, MPI_COMM_WORLD) != FTI_SCES) die("FTI_Init");
    world = FTI_COMM_WORLD;
    if (FTI_Protect(0, state, (long)size, FTI_CHAR) != FTI_SCES) die("FTI_Protect");
}
static void fti_take(int version) {
    if (FTI_Checkpoint(version, 4) != FTI_DONE) die("FTI_Checkpoint");
}
static void fti_end(void) { FTI_Finalize(); }
static const Adapter ADAPTERS[] = {{"fti", fti_begin, fti_take, NULL, fti_end}};
#else
static orc_session *session;
static char scratch[4096];
static void orcheck_begin(const char *dir, const char *conf) {
    (void)conf;
    char options[8192];
    snprintf(options, sizeof options, "global = [\"%s\"]\nkeep = 1", dir);
    TRY(orc_mpi_open(&session, MPI_COMM_WORLD, "peers", options));
    TRY(orc_protect(session, "state", state, ORC_F64, size / 8, 0));
}
static void orcheck_take(int version) { TRY(orc_checkpoint(session, (uint64_t)version)); }
static void orcheck_wait(int version) { TRY(orc_wait(session, (uint64_t)version, ORC_GLOBAL, 600)); }
static void orcheck_end(void) { TRY(orc_close(session, 600)); }
static void posix_begin(const char *dir, const char *conf) {
    (void)conf;
    snprintf(scratch, sizeof scratch, "%s", dir);
}
static void posix_take(int version) {
    char path[5000];
    snprintf(path, sizeof path, "%s/%d.%d", scratch, version % 2, rank);
    write_file(path, true);
}
static void posix_end(void) {}
static const Adapter ADAPTERS[] = {{"orcheck", orcheck_begin, orcheck_take, orcheck_wait, orcheck_end},
                                   {"posix", posix_begin, posix_take, NULL, posix_end}};
#endif

/* ---- the program ---- */
static double most(double mine) {
    double all = mine;
    MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_MAX, world);
    return all;
}

static void sweep(int times) {
    double *x = (double *)state;
    for (int t = 0; t < times; t++)
        for (size_t i = 0; i < size / 8; i++) x[i] = 0.5 * x[i] + 1.0;
}

static double available_bytes(void) {
    char line[256];
    double found = 0;
    FILE *file = fopen("/proc/meminfo", "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %lf kB", &found) == 1) break;
    if (file) fclose(file);
    return found * 1024;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    const char *with = option(argc, argv, "--with", NULL);
    const Adapter *adapter = NULL;
    for (size_t i = 0; i < sizeof ADAPTERS / sizeof *ADAPTERS; i++)
        if (strcmp(ADAPTERS[i].name, with) == 0) adapter = &ADAPTERS[i];
    if (!adapter) die("--with %s: this program was compiled without it", with);
    size = (size_t)number(argc, argv, "--size", NULL) / 4096 * 4096;
    state = memory(size, false, 1);
    FILE *report = rank == 0 ? fopen(option(argc, argv, "--report", NULL), "w") : NULL;
    if (rank == 0 && !report) die("cannot create the report");
    const double before_bytes = available_bytes();
    double least_bytes = before_bytes;
    adapter->begin(option(argc, argv, "--dir", NULL), option(argc, argv, "--conf", ""));

    sweep(2);
    double begin_s = 0, one_s = INFINITY; /* the fastest of several: windows are rather too long than too short */
    for (int i = 0; i < 5; i++) {
        begin_s = now_s();
        sweep(1);
        one_s = fmin(one_s, now_s() - begin_s);
    }
    one_s = most(one_s);
    const double window_s = (double)number(argc, argv, "--window", "2000") / 1e3;
    const int times = (int)fmax(1, ceil(window_s / one_s));
    int version = 0;
    if (report) fputs("[", report);
    const int rounds = (int)number(argc, argv, "--rounds", "9");
    for (int round = 0; round <= rounds; round++) {
        double s[2], blocked_s = 0, durable_s = 0;
        for (int taking = 0; taking < 2; taking++) {
            MPI_Barrier(world);
            begin_s = now_s();
            if (taking) adapter->take(++version);
            blocked_s = now_s() - begin_s;
            least_bytes = fmin(least_bytes, available_bytes());
            sweep(times);
            s[taking] = most(now_s() - begin_s);
            if (taking && adapter->wait) adapter->wait(version);
        }
        /* Until when it is safe: with nothing beside it. */
        MPI_Barrier(world);
        begin_s = now_s();
        adapter->take(++version);
        if (adapter->wait) adapter->wait(version);
        durable_s = most(now_s() - begin_s), blocked_s = most(blocked_s);
        least_bytes = fmin(least_bytes, available_bytes());
        if (report && round > 0) /* the first one touches everything for the first time */
            fprintf(report, "%s{\"window_s\": %.9f, \"with_s\": %.9f, \"blocked_s\": %.9f, \"durable_s\": %.9f, \"tells\": %s, "
                    "\"memory_bytes\": %.0f}", round > 1 ? ", " : "", s[0], s[1], blocked_s, durable_s,
                    strcmp(with, "scr") ? "true" : "false", before_bytes - least_bytes);
    }
    if (report && (fputs("]\n", report) < 0 || fclose(report))) die("cannot write the report");
    adapter->end();
    MPI_Finalize();
    return 0;
}

/* The same program with one of several checkpoint libraries: how long it is kept, until when a checkpoint is safe, what processors and
 * memory that takes, and how long a restart takes of what lies in memory.
 *
 *   mpirun -n N peers --do write|restart|run --with NAME --size BYTES --dir DIR --conf FILE --level LEVEL --nodes 0|1
 *                     --warm N --rounds N --sweeps N --report FILE
 *
 * write: --warm checkpoints that are not reported (first touch; from then on an old one is removed for each new one), then --rounds that
 * are; then all ranks are killed, as a failure of the program would do. restart: a new run; open_s is until the library is open and a
 * checkpoint is found, read_s until the bytes are in place, and each of them is compared. memcpy_s, in both: copies of the same bytes,
 * all ranks at once, to memory that was touched before. run: a program that computes on its state, --sweeps times, and takes --rounds
 * checkpoints, evenly spread; s is the whole of it, until the library is closed, after one checkpoint that does not count.
 *
 * Processor time: cpu_s is of all processes of the job, with mpirun, daemons and agents (those with the environment's
 * ORCBENCH_MARK), until nothing of the checkpoint is running any more; machine_s is of the whole machine until then and through sync_s,
 * a syncfs of --dir: what a library reported as safe and left in the page cache. What watching takes is subtracted.
 * Memory is what the machine has more of in use, everywhere.
 * --nodes 1: each rank is a node of its own. Compiled with -DWITH_SCR, -DWITH_VELOC or -DWITH_FTI the program has that library
 * instead of Orcheck. */
#define _GNU_SOURCE
#include <math.h>
#include <signal.h>
#include <sys/utsname.h>
#include "peers/adapter.h"
#if defined(WITH_SCR)
#include "peers/scr.h"
#elif defined(WITH_VELOC)
#include "peers/veloc.h"
#elif defined(WITH_FTI)
#include "peers/fti.h"
#else
#include "peers/orcheck.h"
#endif

/* Libraries find this one before libc's: with --nodes 1 each rank's host has another name. */
int gethostname(char *name, size_t len) {
    struct utsname system;
    if (uname(&system)) return -1;
    snprintf(name, len, "%s", system.nodename);
    if (virtual_nodes) snprintf(name, len, "node%d", rank);
    return 0;
}

/* ---- what is stored: no page is like another, and each says which version it is ---- */
static uint64_t word_at(size_t i) {
    uint64_t x = (uint64_t)i * 0x9E3779B97F4A7C15u + (uint64_t)(rank + 1) * 0xD1B54A32D192ED03u;
    x ^= x >> 29, x *= 0xBF58476D1CE4E5B9u;
    return x ^ x >> 32;
}
static void fill(void) {
    for (size_t i = 0; i < size / 8; i++) ((uint64_t *)state)[i] = word_at(i);
}
static void set_version(int version) {
    for (size_t at = 0; at < size; at += 4096) ((uint64_t *)(state + at))[0] = (uint64_t)version;
}
static void compare(int version) {
    const uint64_t *words = (const uint64_t *)state;
    for (size_t i = 0; i < size / 8; i++)
        if (words[i] != (i % 512 ? word_at(i) : (uint64_t)version)) die("wrong bytes at word %zu of version %d", i, version);
}

/* ---- what the machine did ---- */
/* Anonymous and shared memory (tmpfs too), which nothing but its owner can give back. Free memory says less: the kernel keeps hundreds
 * of MiB for each processor that count as neither. */
static double used_bytes(void) {
    char line[256];
    double found = 0, one;
    FILE *file = fopen("/proc/meminfo", "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "AnonPages: %lf kB", &one) == 1 || sscanf(line, "Shmem: %lf kB", &one) == 1) found += one;
    if (file) fclose(file);
    return found * 1024;
}

static bool has_mark(int pid, const char *mark) {
    static char text[1 << 18];
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/environ", pid);
    FILE *file = fopen(path, "r");
    if (!file) return false;
    const size_t len = fread(text, 1, sizeof text, file);
    fclose(file);
    return memmem(text, len, mark, strlen(mark)) != NULL;
}

/* Of all processes of the job. */
static double job_cpu_s(void) {
    char mark[256];
    double total = 0;
    struct timespec took;
    clockid_t clock;
    snprintf(mark, sizeof mark, "ORCBENCH_MARK=%s", getenv("ORCBENCH_MARK") ? getenv("ORCBENCH_MARK") : "none");
    DIR *all = opendir("/proc");
    if (!all) die("no /proc");
    for (struct dirent *entry; (entry = readdir(all)) != NULL;) {
        const int pid = atoi(entry->d_name);
        if (pid > 0 && has_mark(pid, mark) && clock_getcpuclockid(pid, &clock) == 0 && clock_gettime(clock, &took) == 0)
            total += (double)took.tv_sec + 1e-9 * (double)took.tv_nsec;
    }
    closedir(all);
    return total;
}

static double machine_cpu_s(void) {
    const Processors now = processors();
    return (now.all - now.idle) / (double)sysconf(_SC_CLK_TCK);
}

/* Sleeps until no thread of any rank runs, and no process of the job took processor time for a while. */
static void quiet(void) {
    const struct timespec pause = {.tv_nsec = 5 * 1000 * 1000};
    for (int still = 0; still < 4; still = others_busy() ? 0 : still + 1) nanosleep(&pause, NULL);
    all_here();
    for (double before_s = rank ? 0 : job_cpu_s(), waited_s = 0; rank == 0 && waited_s < 30; waited_s += 0.05) {
        nanosleep(&(struct timespec){.tv_nsec = 50 * 1000 * 1000}, NULL);
        const double s = job_cpu_s();
        if (s - before_s < 0.01) break; /* less than a fifth of a core: the ranks that wait here look every 4 ms */
        before_s = s;
    }
    all_here();
}

static double sync_dir_s(const char *dir) {
    const double begin_s = now_s();
    int file = open(dir, O_RDONLY | O_DIRECTORY);
    if (file < 0 || syncfs(file) || close(file)) die("cannot sync %s", dir);
    return now_s() - begin_s;
}

/* ---- the two runs ---- */
static void copies(FILE *report) {
    enum { COPIES = 3 };
    char *to = memory(size, true, 1);
    if (report) fputs("\"memcpy_s\": [", report);
    for (int i = 0; i <= COPIES; i++) {
        all_here();
        const double begin_s = now_s();
        memcpy(to, state, size);
        const double s = from_first_to_last_s(begin_s, now_s());
        if (report && i) fprintf(report, "%s%.9f", i > 1 ? ", " : "", s);
    }
    if (report) fputs("]", report);
    munmap(to, size);
}

typedef struct { double blocked_s, safe_s, sync_s, job_s, machine_s, most_bytes; } Taken;

/* One checkpoint, when all is quiet, until it is again; without an adapter, what the watching takes. Only rank 0 has all of it. */
static Taken take_one(const Adapter *adapter, int version, const char *dir) {
    Taken one = {0};
    const double job_before_s = rank ? 0 : job_cpu_s(), machine_before_s = machine_cpu_s();
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin_s = now_s();
    if (adapter) adapter->take(version);
    const double continued_s = now_s();
    one.most_bytes = used_bytes();
    if (adapter && adapter->wait) adapter->wait(version);
    const double end_s = now_s();
    one.most_bytes = fmax(one.most_bytes, used_bytes());
    if (adapter && adapter->finish) adapter->finish(version);
    quiet();
    one.job_s = rank ? 0 : job_cpu_s() - job_before_s, one.sync_s = rank ? 0 : sync_dir_s(dir);
    one.machine_s = machine_cpu_s() - machine_before_s;
    one.blocked_s = from_first_to_last_s(begin_s, continued_s), one.safe_s = from_first_to_last_s(begin_s, end_s);
    one.most_bytes = reduced(one.most_bytes, MPI_MAX);
    return one;
}

static void write_rounds(const Adapter *adapter, const char *dir, int warm, int rounds, double before_bytes, FILE *report) {
    Taken none = {0};
    if (report) fputs(", \"rounds\": [", report);
    quiet();
    for (int round = 0; round < warm + rounds; round++) {
        set_version(round + 1);
        if (round == warm) none = take_one(NULL, 0, dir);
        const Taken one = take_one(adapter, round + 1, dir);
        if (report && round >= warm)
            fprintf(report, "%s{\"blocked_s\": %.9f, \"safe_s\": %.9f, \"sync_s\": %.9f, \"cpu_s\": %.6f, \"machine_s\": %.3f, "
                    "\"memory_bytes\": %.0f, \"watching_s\": %.6f}", round > warm ? ", " : "", one.blocked_s, one.safe_s, one.sync_s,
                    one.job_s - none.job_s, one.machine_s - none.machine_s, one.most_bytes - before_bytes, none.job_s);
    }
    if (report && (fputs("]}\n", report) < 0 || fclose(report))) die("cannot write the report");
    all_here();
    raise(SIGKILL);
}

static void restart(const Adapter *adapter, const Setup *setup, int version, FILE *report) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin_s = now_s();
    adapter->open(setup);
    const int found = adapter->find();
    const double open_s = now_s();
    if (found < 0) die("no checkpoint was found");
    if (found > 0 && found != version) die("version %d was found, not %d", found, version);
    MPI_Barrier(MPI_COMM_WORLD);
    const double found_s = now_s();
    adapter->restore(found);
    const double end_s = now_s();
    compare(version);
    const double opened = from_first_to_last_s(begin_s, open_s), read = from_first_to_last_s(found_s, end_s);
    const double all = from_first_to_last_s(begin_s, end_s), kept = reduced(kept_bytes, MPI_SUM);
    if (report && (fprintf(report, ", \"open_s\": %.9f, \"read_s\": %.9f, \"s\": %.9f, \"kept_bytes\": %.0f}\n", opened, read, all,
                           kept) < 0 || fclose(report)))
        die("cannot write the report");
    adapter->close();
}

/* As a solver does: all of the state is read and written, and all ranks agree on how far they are. */
static void compute(long long sweeps) {
    double *const values = (double *)state, residual, all;
    for (; sweeps > 0; sweeps--) {
        residual = 0;
        for (size_t i = 0; i < size / 8; i++) {
            const double next = 0.5 * values[i] + 1.0;
            residual += next - values[i], values[i] = next;
        }
        MPI_TRY(MPI_Allreduce(&residual, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD));
    }
}

static void run(const Adapter *adapter, const Setup *setup, long long sweeps, int checkpoints, FILE *report) {
    for (size_t i = 0; i < size / 8; i++) ((double *)state)[i] = (double)(i + (size_t)rank);
    adapter->open(setup);
    adapter->take(1);
    if (adapter->wait) adapter->wait(1);
    if (adapter->finish) adapter->finish(1);
    quiet();
    double blocked_s = 0;
    const double begin_s = now_s();
    for (int part = 0; part <= checkpoints; part++) {
        compute(sweeps * (part + 1) / (checkpoints + 1) - sweeps * part / (checkpoints + 1));
        const double called_s = now_s();
        if (part < checkpoints) adapter->take(part + 2);
        blocked_s += now_s() - called_s;
    }
    const double computed_s = now_s();
    adapter->close();
    const double end_s = now_s(), all = from_first_to_last_s(begin_s, end_s), computed = from_first_to_last_s(begin_s, computed_s);
    blocked_s = reduced(blocked_s, MPI_MAX);
    if (report && (fprintf(report, ", \"s\": %.9f, \"computed_s\": %.9f, \"blocked_s\": %.9f}\n", all, computed, blocked_s) < 0 ||
                   fclose(report)))
        die("cannot write the report");
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const char *with = option(argc, argv, "--with", NULL), *what = option(argc, argv, "--do", NULL);
    const Adapter *adapter = NULL;
    for (size_t i = 0; i < sizeof ADAPTERS / sizeof *ADAPTERS; i++)
        if (strcmp(ADAPTERS[i].name, with) == 0) adapter = &ADAPTERS[i];
    if (!adapter) die("--with %s: this program was compiled without it", with);
    virtual_nodes = number(argc, argv, "--nodes", "0") != 0;
    size = (size_t)number(argc, argv, "--size", NULL) / 4096 * 4096;
    if (size == 0) die("--size is less than a page");
    state = memory(size, false, 1);
    const Setup setup = {option(argc, argv, "--dir", NULL), option(argc, argv, "--conf", ""), option(argc, argv, "--level", "")};
    const int warm = (int)number(argc, argv, "--warm", "2"), rounds = (int)number(argc, argv, "--rounds", "1");
    FILE *report = rank == 0 ? fopen(option(argc, argv, "--report", NULL), "w") : NULL;
    if (rank == 0 && !report) die("cannot create the report");
    if (report) fputs("{", report);
    copies(report);
    if (strcmp(what, "write") == 0) {
        fill();
        MPI_Barrier(MPI_COMM_WORLD);
        const double before_bytes = used_bytes();
        adapter->open(&setup);
        write_rounds(adapter, setup.dir, warm, rounds, before_bytes, report);
    } else if (strcmp(what, "restart") == 0) {
        restart(adapter, &setup, warm + rounds, report);
    } else if (strcmp(what, "run") == 0) {
        run(adapter, &setup, number(argc, argv, "--sweeps", NULL), rounds, report);
    } else die("--do %s: write, restart or run", what);
    MPI_Finalize();
    return 0;
}

/* What checkpoints cost examples/lbm: its own code, driven window by window.
 *
 *   mpirun -n N solver --cells EDGE --dir DIR --report FILE [--depth CELLS] [--rounds 41] [--runs 2]
 *                      [--counts 1,2,3,4] [--modes sync,async,lent,device] [--timelines 0] [--threads 2] [--options TOML]
 *
 * Two runs of a program differ by more than a checkpoint costs: other programs, other pages, another
 * clock. So the solver is started once, and computes windows of the same number of steps: one with
 * a checkpoint at its beginning (synchronous, asynchronous, lent, in turn), and before and after it
 * one without ("none"). A window is half as long again as a flush, so what it takes longer than its
 * two neighbours is the whole cost. In "device" no checkpoint is taken: a thread writes as many bytes
 * from memory of its own, which is what the machine takes for the writes alone. In addition, --runs
 * times, whole runs with --counts checkpoints and without: so long that flushes, and the removal of
 * older files, do not meet, and at least RUN_OVER_IO times as long as one checkpoint takes.
 * --timelines: this many runs of each mode with two checkpoints, and without, in which the time of
 * every step is noted. --depth: cells in z, if the box is no cube. */
#define _GNU_SOURCE
#define main lbm_main
#include "../../examples/lbm/lbm.c"
#undef main
#include <fcntl.h>
#define HAS_DIE /* lbm.c has one */
#include "ranks.h"

enum { NONE, SYNC, ASYNC, LENT, DEVICE, MODES };
static const char *const MODE[] = {"none", "sync", "async", "lent", "device"};
/* Length of a whole run, in times of a synchronous checkpoint: four of them fit in twice. */
enum { RUN_OVER_IO = 8 };

static Block block;
static Settings settings;
static Run run;
static uint64_t at_step;
static FILE *report;
static int measured;
static double *stamps; /* NULL, or where the time of every step goes, and of every checkpoint's begin */
enum { MARKS = 16 };
static double marks[MARKS];

/* Processor time of Orcheck's threads in this process, by the kernel's own count. */
static double orcheck_cpu_s(void) {
    char path[64], name[32];
    double sum_s = 0;
    DIR *tasks = opendir("/proc/self/task");
    if (!tasks) die("no /proc");
    for (struct dirent *entry; (entry = readdir(tasks)) != NULL;) {
        const int tid = atoi(entry->d_name);
        struct timespec ran;
        snprintf(path, sizeof path, "/proc/self/task/%d/comm", tid);
        FILE *file = fopen(path, "r");
        if (!file) continue;
        bool ours = fgets(name, sizeof name, file) && strncmp(name, "orcheck-", 8) == 0;
        fclose(file);
        const clockid_t clock = (clockid_t)(~(unsigned)tid << 3 | 6); /* as pthread_getcpuclockid */
        if (ours && clock_gettime(clock, &ran) == 0) sum_s += (double)ran.tv_sec + 1e-9 * (double)ran.tv_nsec;
    }
    closedir(tasks);
    return sum_s;
}

static void advance_one(void) {
    int due = 0;
    advance(&block, run.src, run.dst);
    toggle(&run);
    at_step++;
    TRY(orc_due(run.s, at_step, &due)); /* no trigger is set; a program asks all the same */
}

/* Writes as many bytes as a checkpoint has, with direct I/O, and does nothing else. */
typedef struct {
    char *bytes;
    size_t len;
    char path[4096];
    pthread_t thread;
    bool running;
    double cpu_s;
} Writes;

static Writes writes;

static void *write_all(void *arg) {
    enum { REQUEST = 4 << 20 };
    Writes *all = arg;
    unlink(all->path); /* as an older checkpoint goes */
    const int file = open(all->path, O_CREAT | O_WRONLY | O_DIRECT | O_CLOEXEC, 0600);
    if (file < 0 || posix_fallocate(file, 0, (off_t)all->len)) die("%s: cannot create", all->path);
    for (size_t at = 0; at < all->len; at += REQUEST) {
        const size_t len = all->len - at < REQUEST ? all->len - at : REQUEST;
        if (pwrite(file, all->bytes + at, len, (off_t)at) != (ssize_t)len) die("%s: cannot write", all->path);
    }
    if (fdatasync(file) || close(file)) die("%s: cannot write", all->path);
    struct timespec ran;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ran);
    all->cpu_s = (double)ran.tv_sec + 1e-9 * (double)ran.tv_nsec;
    return NULL;
}

static void prepare_writes(const char *dir) {
    writes.len = (block.count * sizeof(double)) & ~(size_t)4095;
    snprintf(writes.path, sizeof writes.path, "%s/device-%d", dir, rank);
    writes.bytes = mmap(NULL, writes.len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (writes.bytes == MAP_FAILED) die("no memory");
    madvise(writes.bytes, writes.len, MADV_HUGEPAGE); /* cheaper to hand to the kernel */
    memset(writes.bytes, 1, writes.len);
}

static void take(int mode) {
    if (mode == DEVICE) {
        if (pthread_create(&writes.thread, NULL, write_all, &writes)) die("no thread");
        writes.running = true;
        return;
    }
    settings.checkpoint = MODE[mode];
    checkpoint(&block, &settings, &run, at_step);
}

/* Until everything taken is safe, lent memory is back, older files are gone. */
static void drain(void) {
    if (writes.running) pthread_join(writes.thread, NULL), writes.running = false;
    if (run.taken) TRY(orc_wait(run.s, run.steps[run.taken - 1], ORC_GLOBAL, 600));
    if (run.lent) TRY(orc_lent_done(run.s, "f", 600));
    run.lent = NULL;
    settle();
}

/* Computes steps with this many checkpoints, evenly spaced from the first step on. */
static void measure(const char *kind, int round, int mode, int count, int steps) {
    double stage_s = 0, call_s = 0;
    const int lead = stamps ? steps / (2 * (count + 1)) : 0; /* a timeline shows what it was like before, too */
    drain();
    for (int i = 0; i < 2; i++) advance_one(); /* threads awake, caches as in a run */
    double cpu_s = orcheck_cpu_s();
    together();
    double begin = now_s();
    for (int i = 0, taken = 0; i < steps; i++) {
        if (taken < count && (int64_t)(i - lead) * count >= (int64_t)taken * (steps - lead)) {
            marks[taken % MARKS] = now_s() - begin;
            take(mode), taken++;
            if (mode != DEVICE)
                stage_s += run.times[run.taken - 1].stage_s, call_s += run.times[run.taken - 1].call_s;
        }
        advance_one();
        if (stamps) stamps[i] = now_s() - begin;
    }
    double end = now_s(), s = span_s(begin, end);
    if (mode == DEVICE) drain();
    else if (count) TRY(orc_wait(run.s, run.steps[run.taken - 1], ORC_GLOBAL, 600));
    double late_s = largest(now_s() - end); /* to be nothing: all was safe within the window */
    drain();
    cpu_s = sum(mode == DEVICE ? writes.cpu_s : orcheck_cpu_s() - cpu_s);
    stage_s = largest(stage_s), call_s = largest(call_s);
    if (rank) return;
    fprintf(report, "%s\n {\"kind\": \"%s\", \"round\": %d, \"mode\": \"%s\", \"checkpoints\": %d, "
            "\"s\": %.9f, \"call_s\": %.9f, \"stage_s\": %.9f, \"cpu_s\": %.9f, \"late_s\": %.6f",
            measured++ ? "," : "", kind, round, MODE[mode], count, s, call_s, stage_s, cpu_s, count ? late_s : 0);
    if (stamps) {
        fprintf(report, ", \"begin_s\": %.6f, \"marks_s\": [", begin);
        for (int i = 0; i < count && i < MARKS; i++) fprintf(report, "%s%.6f", i ? ", " : "", marks[i]);
        fprintf(report, "], \"steps_s\": [");
        for (int i = 0; i < steps; i++) fprintf(report, "%s%.6f", i ? ", " : "", stamps[i]);
        fputc(']', report);
    }
    fputc('}', report);
}

/* How long a checkpoint takes until it is safe, and until nothing of it continues; and a step. */
static void look(double *safe_s, double *quiet_s, double *step_s) {
    *safe_s = 0.1, *quiet_s = 0.1, *step_s = 1e9;
    for (int i = 0; i < 24; i++) {
        double begin = now_s();
        advance_one();
        double s = largest(now_s() - begin);
        if (i >= 4 && s < *step_s) *step_s = s;
    }
    for (int i = 0; i < 5; i++) { /* the first ones fill the pool, and remove nothing */
        drain();
        at_step++;
        double begin = now_s();
        take(ASYNC);
        TRY(orc_wait(run.s, at_step, ORC_GLOBAL, 600));
        double safe = largest(now_s() - begin);
        drain();
        double quiet = largest(now_s() - begin);
        if (i > 1 && safe > *safe_s) *safe_s = safe;
        if (i > 1 && quiet > *quiet_s) *quiet_s = quiet;
    }
}

static bool is_listed(const char *list, const char *name) {
    const size_t len = strlen(name);
    for (const char *at = list; (at = strstr(at, name)) != NULL; at += len)
        if ((at == list || at[-1] == ',') && (at[len] == ',' || !at[len])) return true;
    return false;
}

int main(int argc, char **argv) {
    start_ranks(&argc, &argv);
    char options[8192];
    int64_t edge = number(argc, argv, "--cells", "128");
    int rounds = (int)number(argc, argv, "--rounds", "41"), runs = (int)number(argc, argv, "--runs", "2");
    int threads = (int)number(argc, argv, "--threads", "2"), counts[16], different = 0, most = 1;
    const char *list = option(argc, argv, "--counts", "1,2,3,4");
    int chosen[MODES], modes = 0, timelines = (int)number(argc, argv, "--timelines", "0");
    const char *names = option(argc, argv, "--modes", "sync,async,lent,device");
    for (int mode = NONE + 1; mode < MODES; mode++)
        if (is_listed(names, MODE[mode])) chosen[modes++] = mode;
    if (!modes) die("--modes: none of sync, async, lent, device");
    /* The last mode: writes alone have no place in whole runs, where what matters is the sum. */
    const int whole = chosen[modes - 1] == DEVICE ? modes - 1 : modes;
    int64_t depth = number(argc, argv, "--depth", "0");
    for (char *end; different < 16 && *list; list = *end ? end + 1 : end) {
        counts[different] = (int)strtol(list, &end, 10);
        if (end == list || counts[different] < 1) die("--counts: not a list of numbers");
        if (counts[different] > most) most = counts[different];
        different++;
    }
    if (edge < 8 || edge > 2048 || depth > 65536 || rounds < 1) die("a value out of range");
    settings = (Settings){.checkpoint = "lent", .memory = "heap", .level = "global", .job = "solver",
                          .options = options, .nx = edge, .ny = edge, .nz = depth ? depth : edge, .re = 1000,
                          .lid_velocity = 0.1, .die = -1};
    run.level = ORC_GLOBAL;
    cut(&block, &settings);
    double bytes = sum((double)(block.count * sizeof(double)));
    double room = bytes + (double)(24u << 20) * ranks;
    if (snprintf(options, sizeof options, "global = [\"%s\"]\npool = %.0f\ncopy_threads = %d\nkeep = 1\n%s",
                 option(argc, argv, "--dir", NULL), room, threads, option(argc, argv, "--options", "")) >=
        (int)sizeof options)
        die("--options: too long");
    open_and_resume(&block, &settings, &run); /* with three grids, so that every mode can be used */
    if (rank == 0 && !(report = fopen(option(argc, argv, "--report", NULL), "w"))) die("no report");

    if (whole < modes) prepare_writes(option(argc, argv, "--dir", NULL));
    double safe_s, quiet_s, step_s;
    look(&safe_s, &quiet_s, &step_s);
    int steps = (int)(1.5 * safe_s / step_s) + 1, length = (int)(1.3 * quiet_s / step_s * most) + steps;
    const int least = (int)(RUN_OVER_IO * safe_s / step_s) + 1;
    if (length < least) length = least;
    MPI_TRY(MPI_Bcast(&steps, 1, MPI_INT, 0, MPI_COMM_WORLD));
    MPI_TRY(MPI_Bcast(&length, 1, MPI_INT, 0, MPI_COMM_WORLD));
    if (rank == 0)
        fprintf(report, "{\"checkpoint_bytes\": %.0f, \"window_steps\": %d, \"run_steps\": %d, \"step_s\": %.6f, \"io_s\": %.6f, "
                "\"step_bytes\": %.0f, \"samples\": [", bytes, steps, length, step_s, safe_s,
                2.0 * Q * sizeof(double) * (double)settings.nx * (double)settings.ny * (double)settings.nz);
    for (int round = 0; round < rounds; round++) {
        measure("window", round, NONE, 0, steps);
        for (int i = 0; i < modes; i++) {
            measure("window", round, chosen[(round + i) % modes], 1, steps);
            measure("window", round, NONE, 0, steps);
        }
        for (int turn = round * runs / rounds; turn < (round + 1) * runs / rounds; turn++)
            for (int n = 0; n < different; n++) {
                int count = counts[(turn + n) % different];
                for (int i = 0; i <= whole; i++) {
                    int which = (turn + n + i) % (whole + 1), mode = which ? chosen[which - 1] : NONE;
                    measure("run", turn * different + n, mode, mode == NONE ? 0 : count, length);
                }
            }
    }
    for (int round = 0; round < timelines; round++)
        for (int i = 0; i <= whole; i++) {
            int mode = i ? chosen[i - 1] : NONE, count = mode == NONE ? 0 : 2, long_steps = 3 * steps;
            if (!(stamps = calloc((size_t)long_steps, sizeof *stamps))) die("no memory");
            measure("timeline", round, mode, count, long_steps);
            free(stamps), stamps = NULL;
        }
    if (rank == 0 && (fputs("]}\n", report) < 0 || fclose(report))) die("cannot write the report");
    TRY(orc_close(run.s, 600));
    MPI_Finalize();
    return 0;
}

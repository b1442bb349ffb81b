/* Do writes and reads continue while a program computes?
 *
 *   mpirun -n N overlap --size BYTES --dir DIR --report FILE [--rounds 5] [--options TOML]
 *
 * In each round, each way does its I/O alone, and then beside computations that take 0 to 3 times as
 * long as that (FACTORS). The computation touches no memory and calls nothing, also not MPI: whatever
 * needs such calls to make progress makes none.
 *
 *   iwrite    MPI_File_iwrite_at, compute, MPI_Wait, MPI_File_sync and fsync, because MPICH 4.0's
 *             MPI_File_sync syncs nothing after MPI_File_iwrite_at; one file, whose pages are in
 *             memory already (new ones cost much more in a virtual machine, and more or less by chance)
 *   iread     MPI_File_iread_at of a file that is not in the page cache, compute, MPI_Wait
 *   orcheck   orc_checkpoint, compute, orc_wait until safe
 *
 * Times go from the first rank that begins to the last that ends. */
#define _GNU_SOURCE
#include <fcntl.h>
#include "ranks.h"

enum { MOST_REQUESTS = 16 };
static const double FACTORS[] = {0, 0.5, 1, 1.5, 2, 3};
enum { POINTS = sizeof FACTORS / sizeof *FACTORS, NO_COMPUTATION = 0 };

static char *state;
static size_t size;
static const char *dir;
static orc_session *session;
static uint64_t step;
static FILE *report;
static int measured;
static double work_per_s;
static volatile double sink;

/* Times of one way. */
typedef struct { double call_s, compute_s, wait_s, sync_s, total_s; } Times;

/* io_s: what the I/O alone took just before. */
static void note(int round, const char *way, double factor, double io_s, const Times *t) {
    if (rank) return;
    fprintf(report, "%s\n {\"round\": %d, \"way\": \"%s\", \"factor\": %g, \"io_s\": %.9f, \"call_s\": %.9f, \"compute_s\": %.9f, "
            "\"wait_s\": %.9f, \"sync_s\": %.9f, \"total_s\": %.9f}", measured++ ? "," : "", round, way,
            factor, io_s, t->call_s, t->compute_s, t->wait_s, t->sync_s, t->total_s);
}

/* ---- computing ------------------------------------------------------------------------------ */
static void compute(double for_s) {
    double x = 0.5;
    for (int64_t i = 0; i < (int64_t)(work_per_s * for_s); i++) x = x * (1 - x) * 3.7;
    sink = x;
}

static double compute_alone(double for_s) {
    settle();
    double begin = now_s();
    compute(for_s);
    return span_s(begin, now_s());
}

static void calibrate(void) {
    work_per_s = 1e8;
    for (int i = 0; i < 3; i++) work_per_s *= 0.1 / compute_alone(0.1);
}

/* ---- files ---------------------------------------------------------------------------------- */
static void path_of(char *path, size_t cap, const char *name) {
    if ((size_t)snprintf(path, cap, "%s/%s", dir, name) >= cap) die("--dir: too long");
}

/* MPI counts are ints, and some implementations fail on pieces of 2 GiB: pieces of at most 1 GiB. */
static size_t piece(size_t at) { return size - at < (1u << 30) ? size - at : 1u << 30; }

static MPI_File open_file(const char *path, int mode) {
    MPI_File file;
    if (MPI_File_open(MPI_COMM_WORLD, path, mode, MPI_INFO_NULL, &file)) die("cannot open %s", path);
    return file;
}

static int begin_all(MPI_File file, bool reads, MPI_Request *requests) {
    int n = 0;
    for (size_t at = 0; at < size; at += piece(at)) {
        const MPI_Offset to = (MPI_Offset)((size_t)rank * size + at);
        if (n == MOST_REQUESTS) die("--size: too large");
        if (reads) MPI_TRY(MPI_File_iread_at(file, to, state + at, (int)piece(at), MPI_BYTE, &requests[n++]));
        else MPI_TRY(MPI_File_iwrite_at(file, to, state + at, (int)piece(at), MPI_BYTE, &requests[n++]));
    }
    return n;
}

/* Takes the file out of the page cache. */
static void cool(const char *path) {
    together();
    if (rank == 0) {
        int file = open(path, O_RDONLY | O_CLOEXEC);
        if (file < 0 || fsync(file) || posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED))
            die("cannot take %s out of the page cache", path);
        close(file);
    }
    together();
}

static Times file_io(bool reads, double compute_s) {
    char path[4096];
    MPI_Request requests[MOST_REQUESTS];
    path_of(path, sizeof path, reads ? "read" : "written");
    if (reads) cool(path);
    MPI_File file = open_file(path, reads ? MPI_MODE_RDONLY : MPI_MODE_WRONLY);
    const int own = !reads && rank == 0 ? open(path, O_WRONLY | O_CLOEXEC) : -1;
    settle();
    double t[5] = {now_s()};
    const int n = begin_all(file, reads, requests);
    t[1] = now_s();
    compute(compute_s);
    t[2] = now_s();
    MPI_TRY(MPI_Waitall(n, requests, MPI_STATUSES_IGNORE));
    t[3] = now_s();
    if (!reads) MPI_TRY(MPI_File_sync(file));
    if (own >= 0 && fsync(own)) die("cannot sync %s", path);
    t[4] = now_s();
    Times times = {span_s(t[0], t[1]), span_s(t[1], t[2]), span_s(t[2], t[3]), span_s(t[3], t[4]),
                   span_s(t[0], t[4])};
    if (own >= 0) close(own);
    MPI_TRY(MPI_File_close(&file));
    return times;
}

static Times checkpoint(double compute_s) {
    settle();
    double t[4] = {now_s()};
    TRY(orc_checkpoint(session, ++step));
    t[1] = now_s();
    compute(compute_s);
    t[2] = now_s();
    TRY(orc_wait(session, step, ORC_GLOBAL, 600));
    t[3] = now_s();
    return (Times){span_s(t[0], t[1]), span_s(t[1], t[2]), span_s(t[2], t[3]), 0, span_s(t[0], t[3])};
}

static void make_file(const char *name) {
    char path[4096];
    MPI_Request requests[MOST_REQUESTS];
    path_of(path, sizeof path, name);
    MPI_File file = open_file(path, MPI_MODE_CREATE | MPI_MODE_WRONLY);
    const int n = begin_all(file, false, requests);
    MPI_TRY(MPI_Waitall(n, requests, MPI_STATUSES_IGNORE));
    MPI_TRY(MPI_File_sync(file));
    MPI_TRY(MPI_File_close(&file));
}

/* ---- main ----------------------------------------------------------------------------------- */
enum { IWRITE, IREAD, ORCHECK, WAYS };
static const char *const NAMES[WAYS] = {"iwrite", "iread", "orcheck"};

static Times once(int way, double compute_s) {
    return way == ORCHECK ? checkpoint(compute_s) : file_io(way == IREAD, compute_s);
}

int main(int argc, char **argv) {
    start_ranks(&argc, &argv);
    char options[8192];
    size = (size_t)number(argc, argv, "--size", NULL);
    dir = option(argc, argv, "--dir", NULL);
    const int rounds = (int)number(argc, argv, "--rounds", "5");
    const unsigned long long chunk = 4 << 20, chunks = (size + chunk - 1) / chunk + 2;
    int len = snprintf(options, sizeof options, "global = [\"%s\"]\npool = %llu\nkeep = 1\n%s", dir,
                       chunks * chunk * (unsigned long long)ranks, option(argc, argv, "--options", ""));
    if (size < 4096 || len >= (int)sizeof options) die("a value out of range");
    state = memory(size, false, 1);
    for (size_t at = 0; at < size; at += 8) /* not all the same byte */
        memcpy(state + at, &(uint64_t){at * 0x9E3779B97F4A7C15u + (uint64_t)rank}, 8);
    TRY(orc_mpi_open(&session, MPI_COMM_WORLD, "overlap", options));
    TRY(orc_protect(session, "state", state, ORC_F64, size / 8, 0));
    if (rank == 0) {
        report = fopen(option(argc, argv, "--report", NULL), "w");
        if (!report) die("cannot create the report");
        fputs("[", report);
    }
    make_file("read"), make_file("written");
    calibrate();
    /* The first use of anything is not what is measured. */
    for (int way = 0; way < WAYS; way++) once(way, NO_COMPUTATION);
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < WAYS; i++) {
            const int way = (round + i) % WAYS;
            const double io_s = once(way, NO_COMPUTATION).total_s;
            for (int point = 0; point < POINTS; point++) {
                Times times = once(way, FACTORS[point] * io_s);
                note(round, NAMES[way], FACTORS[point], io_s, &times);
            }
        }
    TRY(orc_close(session, 600));
    if (rank == 0 && (fputs("]\n", report) < 0 || fclose(report))) die("cannot write the report");
    MPI_Finalize();
    return 0;
}

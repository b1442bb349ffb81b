/* How long a checkpoint keeps a program, beside what else it could have done with the same bytes.
 *
 *   mpirun -n N stall --size BYTES --dir DIR --report FILE [--rounds 15] [--slow 5] [--threads 1]
 *                     [--held 2] [--warm 2] [--series 0] [--options TOML]
 *
 * All peers run in turn within one round, in an order that rotates from round to round, so that
 * whatever disturbs the machine disturbs all of them; the driver pairs figures of one round.
 *
 *   memcpy_whole, memcpy_calls   the same bytes copied within memory, one call a thread or calls
 *                                of 4 MiB; source and destination warm, destination on huge pages
 *   stream                       the same with a loop of stores that go around the caches, which
 *                                may beat the library's memcpy (but is not what programs call)
 *   ..._again                    the same once more: what difference is only noise?
 *   orcheck                      orc_checkpoint, nothing else being flushed
 *   orcheck_running              orc_checkpoint while the one before is still being flushed
 *   lent                         orc_lend + orc_checkpoint: no copy, the library reads it later
 *   agree                        one MPI_Allreduce of a number: part of any collective call
 *   posix                        open, write, fsync, close; a file a rank
 *   mpiio                        open, MPI_File_write_at_all, MPI_File_sync, close; one file
 *   iwrite                       MPI_File_iwrite_at, compute, MPI_Wait: does it overlap?
 *   orcheck_overlap              orc_checkpoint, compute, orc_wait: the same question
 *
 *   series, series_memcpy        --series: the first N checkpoints of the session, one after
 *                                the other, each with a memcpy beside it; `faults` is how many
 *                                pages the calling threads of all ranks touched for the first time
 *
 * What writes and waits, and orcheck_running, is slow and runs in --slow of the rounds only. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <omp.h>
#include <sys/resource.h>
#include <sys/stat.h>
#ifdef __SSE2__
#include <immintrin.h>
#endif
#include "ranks.h"

enum { CALL_BYTES = 4 << 20 };

static char *source, *target;
static size_t size;
static int threads;
static uint64_t step;
static orc_session *session;
static const char *dir;
static FILE *report;
static int measured;
static double work_per_s;
static volatile double sink;

/* One measurement, as a JSON object; extra: more of its members, or "". */
static void note(int round, const char *task, double s, const char *extra) {
    if (rank) return;
    fprintf(report, "%s\n {\"round\": %d, \"task\": \"%s\", \"s\": %.9f%s}", measured++ ? "," : "",
            round, task, s, extra);
}

/* ---- peers ---------------------------------------------------------------------------------- */
static void stream(char *to, const char *from, size_t len) { /* around the caches */
    size_t at = 0;
#ifdef __AVX512F__
    for (; at + 64 <= len; at += 64) _mm512_stream_si512((void *)(to + at), _mm512_loadu_si512(from + at));
#elif defined __SSE2__
    for (; at + 16 <= len; at += 16)
        _mm_stream_si128((void *)(to + at), _mm_loadu_si128((const void *)(from + at)));
#endif
    memcpy(to + at, from + at, len - at);
}

enum { WHOLE, CALLS, STREAM };

static void copy(int way) {
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        size_t parts = (size_t)omp_get_num_threads(), me = (size_t)omp_get_thread_num();
        size_t slice = size / parts / 4096 * 4096;
        size_t from = slice * me, to = me + 1 == parts ? size : slice * (me + 1);
        if (way == WHOLE) memcpy(target + from, source + from, to - from);
        else if (way == STREAM) stream(target + from, source + from, to - from);
        else
            for (size_t at = from; at < to; at += CALL_BYTES)
                memcpy(target + at, source + at, to - at < CALL_BYTES ? to - at : CALL_BYTES);
    }
}

static void measure_copy(int round, int way, const char *task) {
    settle();
    double begin = now_s();
    copy(way);
    note(round, task, span_s(begin, now_s()), "");
}

static void wait_safe(void) { TRY(orc_wait(session, step, ORC_GLOBAL, 600)); }

/* What ranks that agree on one number pay alone for the messages (more ranks than cores: a lot). */
static void measure_agree(int round) {
    int64_t mine = rank, least;
    settle();
    double begin = now_s();
    MPI_TRY(MPI_Allreduce(&mine, &least, 1, MPI_INT64_T, MPI_MIN, MPI_COMM_WORLD));
    note(round, "agree", span_s(begin, now_s()), "");
}

/* Pages that the calling thread had to map since it began. */
static double faults_so_far(void) {
    struct rusage used;
    if (getrusage(RUSAGE_THREAD, &used)) die("no getrusage");
    return (double)(used.ru_minflt + used.ru_majflt);
}

/* What this thread ran and what it waited for a processor so far, in seconds. */
static void scheduled(double *ran_s, double *queued_s) {
    unsigned long long ran_ns = 0, queued_ns = 0;
    FILE *file = fopen("/proc/thread-self/schedstat", "r");
    if (!file || fscanf(file, "%llu %llu", &ran_ns, &queued_ns) != 2) ran_ns = queued_ns = 0;
    if (file) fclose(file);
    *ran_s = (double)ran_ns / 1e9, *queued_s = (double)queued_ns / 1e9;
}

/* One checkpoint under the clock. lent: by reference. drained: nothing is being flushed before it,
 * and the time until it is safe is noted too. */
static void measure_checkpoint(int round, const char *task, bool lent, bool drained) {
    char extra[320];
    if (drained) settle();
    together();
    double ran_s[2], queued_s[2];
    scheduled(&ran_s[0], &queued_s[0]);
    double faults = faults_so_far(), begin = now_s();
    if (lent) TRY(orc_lend(session, "state"));
    TRY(orc_checkpoint(session, ++step));
    double end = now_s();
    scheduled(&ran_s[1], &queued_s[1]);
    double s = span_s(begin, end);
    faults = sum(faults_so_far() - faults);
    if (lent) TRY(orc_lent_done(session, "state", 600));
    wait_safe();
    double safe_s = span_s(begin, now_s());
    orc_stats stats = {.struct_size = sizeof stats};
    TRY(orc_stats_read(session, &stats));
    double stage_s = largest(stats.stage_s), wait_s = largest(stats.wait_s);
    snprintf(extra, sizeof extra,
             ", \"stage_s\": %.9f, \"wait_s\": %.9f, \"ran_s\": %.6f, \"queued_s\": %.6f, \"safe_s\": %.6f, \"faults\": %.0f",
             stage_s, wait_s, largest(ran_s[1] - ran_s[0]), largest(queued_s[1] - queued_s[0]), safe_s, faults);
    note(round, task, s, extra);
}

static void measure_series(int checkpoints) {
    for (int i = 0; i < checkpoints; i++) {
        measure_checkpoint(i, "series", false, true);
        measure_copy(i, WHOLE, "series_memcpy");
    }
}

static void measure_running(int round) {
    settle();
    TRY(orc_checkpoint(session, ++step));
    measure_checkpoint(round, "orcheck_running", false, false);
}

static void path_of(char *path, size_t cap, const char *kind, int number) {
    if ((size_t)snprintf(path, cap, "%s/%s-%d", dir, kind, number) >= cap) die("--dir: too long");
}

static int write_file(const char *path) {
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0) die("cannot create %s", path);
    for (size_t at = 0; at < size;) {
        ssize_t wrote = write(file, source + at, size - at);
        if (wrote <= 0) die("cannot write %s", path);
        at += (size_t)wrote;
    }
    return file;
}

/* Memory that a file has just left is faster to fill than memory that a virtual machine must first
 * ask its host for: the peers that write through the page cache are given such memory. */
static void warm_page_cache(void) {
    char path[4096];
    path_of(path, sizeof path, "warm", rank);
    settle();
    close(write_file(path));
    unlink(path);
    settle();
}

static void measure_posix(int round) {
    char path[4096];
    path_of(path, sizeof path, "posix", rank);
    warm_page_cache();
    double begin = now_s();
    int file = write_file(path);
    if (fsync(file) || close(file)) die("cannot sync %s", path);
    note(round, "posix", span_s(begin, now_s()), "");
    unlink(path);
}

/* MPI counts are ints, and some implementations fail on pieces of 2 GiB: pieces of at most 1 GiB. */
static size_t piece(size_t at) { return size - at < (1u << 30) ? size - at : 1u << 30; }

static MPI_File open_mpi_file(const char *path) {
    MPI_File file;
    if (MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL, &file))
        die("cannot create %s", path);
    return file;
}

static void check_and_remove(const char *path) {
    struct stat status;
    together();
    if (stat(path, &status) || (size_t)status.st_size != size * (size_t)ranks)
        die("%s is not as long as what was written", path);
    together();
    if (rank == 0) unlink(path);
    together();
}

static void write_all(MPI_File file) {
    for (size_t at = 0; at < size; at += piece(at))
        MPI_TRY(MPI_File_write_at_all(file, (MPI_Offset)((size_t)rank * size + at), source + at,
                                      (int)piece(at), MPI_BYTE, MPI_STATUS_IGNORE));
}

/* Returns how long the writing alone took, without open, sync and close. */
static double measure_mpiio(int round) {
    char path[4096], extra[64];
    path_of(path, sizeof path, "mpiio", 0);
    warm_page_cache();
    double begin = now_s();
    MPI_File file = open_mpi_file(path);
    double opened = now_s();
    write_all(file);
    double written = now_s();
    MPI_TRY(MPI_File_sync(file));
    MPI_TRY(MPI_File_close(&file));
    double s = span_s(begin, now_s()), write_s = span_s(opened, written);
    snprintf(extra, sizeof extra, ", \"write_s\": %.9f", write_s);
    note(round, "mpiio", s, extra);
    check_and_remove(path);
    return write_s;
}

/* ---- does it overlap with computing? --------------------------------------------------------- */
static void compute(double work) { /* touches no memory: what overlaps is not memory traffic */
    double x = 0.5;
    for (int64_t i = 0; i < (int64_t)work; i++) x = x * (1 - x) * 3.7;
    sink = x;
}

static void calibrate_compute(void) {
    double best_s = 1e9;
    for (int i = 0; i < 5; i++) {
        together();
        double begin = now_s();
        compute(2e6);
        double s = span_s(begin, now_s());
        if (s < best_s) best_s = s;
    }
    work_per_s = 2e6 / best_s;
}

static double compute_alone(double work) {
    together();
    double begin = now_s();
    compute(work);
    return span_s(begin, now_s());
}

/* io_s: what the I/O takes alone; the computation is made to take about as long. */
static void note_overlap(int round, const char *task, const double *t, double io_s, double compute_s,
                         double sync_s) {
    char extra[256];
    double total_s = span_s(t[0], t[3]), call_s = span_s(t[0], t[1]), wait_s = span_s(t[2], t[3]);
    snprintf(extra, sizeof extra, ", \"call_s\": %.9f, \"wait_s\": %.9f, \"io_s\": %.9f, "
             "\"compute_s\": %.9f, \"sync_s\": %.9f", call_s, wait_s, io_s, compute_s, sync_s);
    note(round, task, total_s, extra);
}

static void measure_iwrite(int round, double write_s) {
    char path[4096];
    MPI_Request requests[16];
    int n = 0;
    double work = work_per_s * write_s, compute_s = compute_alone(work);
    path_of(path, sizeof path, "iwrite", 0);
    MPI_File file = open_mpi_file(path);
    warm_page_cache();
    double t[4] = {now_s()};
    for (size_t at = 0; at < size; at += piece(at)) {
        if (n == 16) die("--size: too large");
        MPI_TRY(MPI_File_iwrite_at(file, (MPI_Offset)((size_t)rank * size + at), source + at,
                                   (int)piece(at), MPI_BYTE, &requests[n++]));
    }
    t[1] = now_s();
    compute(work);
    t[2] = now_s();
    MPI_TRY(MPI_Waitall(n, requests, MPI_STATUSES_IGNORE));
    t[3] = now_s();
    together();
    double begin = now_s();
    MPI_TRY(MPI_File_sync(file));
    double sync_s = span_s(begin, now_s());
    note_overlap(round, "iwrite", t, write_s, compute_s, sync_s);
    MPI_TRY(MPI_File_close(&file));
    check_and_remove(path);
}

static void measure_orcheck_overlap(int round) {
    settle();
    double begin = now_s();
    TRY(orc_checkpoint(session, ++step));
    wait_safe();
    double io_s = span_s(begin, now_s()), work = work_per_s * io_s, compute_s = compute_alone(work);
    settle();
    double t[4] = {now_s()};
    TRY(orc_checkpoint(session, ++step));
    t[1] = now_s();
    compute(work);
    t[2] = now_s();
    wait_safe();
    t[3] = now_s();
    note_overlap(round, "orcheck_overlap", t, io_s, compute_s, 0);
}

/* ---- main ----------------------------------------------------------------------------------- */
static void quick_round(int round) {
    enum { TASKS = 8 };
    for (int i = 0; i < TASKS; i++)
        switch ((round + i) % TASKS) {
        case 0: measure_copy(round, WHOLE, "memcpy_whole"); break;
        case 1: measure_copy(round, CALLS, "memcpy_calls"); break;
        case 2: measure_checkpoint(round, "orcheck", false, true); break;
        case 3: measure_copy(round, WHOLE, "memcpy_whole_again"); break;
        case 4: measure_copy(round, CALLS, "memcpy_calls_again"); break;
        case 5: measure_checkpoint(round, "lent", true, true); break;
        case 6: measure_copy(round, STREAM, "stream"); break;
        case 7: measure_agree(round); break;
        }
}

static void slow_round(int round, int turn) {
    enum { TASKS = 4 };
    for (int i = 0; i < TASKS; i++)
        switch ((turn + i) % TASKS) {
        case 0: measure_running(round); break;
        case 1: measure_posix(round); break;
        case 2: measure_iwrite(round, measure_mpiio(round)); break;
        case 3: measure_orcheck_overlap(round); break;
        }
}

int main(int argc, char **argv) {
    start_ranks(&argc, &argv);
    char options[8192];
    size = (size_t)number(argc, argv, "--size", NULL);
    dir = option(argc, argv, "--dir", NULL);
    threads = (int)number(argc, argv, "--threads", "1");
    int rounds = (int)number(argc, argv, "--rounds", "15"), slow = (int)number(argc, argv, "--slow", "5");
    long long held = number(argc, argv, "--held", "2"), warm = number(argc, argv, "--warm", "2");
    int series = (int)number(argc, argv, "--series", "0");
    if (size < 4096 || threads < 1 || slow > rounds) die("a value out of range");

    /* Room for all snapshots and their records: no rank waits for another one's flush. */
    unsigned long long chunk = 4 << 20, chunks = (size + chunk - 1) / chunk + 2;
    int len = snprintf(options, sizeof options,
                       "global = [\"%s\"]\npool = %llu\nheld_steps = %lld\ncopy_threads = %d\nkeep = 1\n%s",
                       dir, chunks * chunk * (unsigned long long)(ranks * held), held, threads,
                       option(argc, argv, "--options", ""));
    if (len >= (int)sizeof options) die("--options: too long");
    source = memory(size, false, 1), target = memory(size, true, 0);
    for (size_t at = 0; at < size; at += 8) /* not all the same byte */
        memcpy(source + at, &(uint64_t){at * 0x9E3779B97F4A7C15u + (uint64_t)rank}, 8);
    TRY(orc_mpi_open(&session, MPI_COMM_WORLD, "stall", options));
    TRY(orc_protect(session, "state", source, ORC_F64, size / 8, 0));
    if (rank == 0) {
        report = fopen(option(argc, argv, "--report", NULL), "w");
        if (!report) die("cannot create the report");
        fputs("[", report);
    }

    copy(WHOLE);
    measure_series(series);
    /* The first use of anything is not what is measured: pool, files, threads, the copy's pages. */
    for (int i = 0; i < warm; i++) {
        for (int j = 0; j < held; j++) TRY(orc_checkpoint(session, ++step));
        wait_safe();
    }
    copy(WHOLE), copy(CALLS), copy(STREAM);
    if (slow) calibrate_compute();
    for (int round = 0; round < rounds; round++) {
        quick_round(round);
        int turn = round * slow / rounds;
        if ((round + 1) * slow / rounds > turn) slow_round(round, turn);
    }
    TRY(orc_close(session, 600));
    if (rank == 0 && (fputs("]\n", report) < 0 || fclose(report))) die("cannot write the report");
    MPI_Finalize();
    return 0;
}

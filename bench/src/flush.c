/* How fast a checkpoint becomes safe: one checkpoint for each line "go" that comes in.
 *
 *   mpirun -n N flush --size BYTES --dir DIR [--chunk 4194304] [--pool BYTES] [--fill noise|field]
 *                     [--options TOML] --report FILE
 *
 * --size is what all ranks have together. The driver lets other programs use the disk between two
 * lines; a line is answered by the seconds from the first rank that enters orc_checkpoint to the
 * last that learns that the checkpoint is committed, after everything that follows a commit (the
 * removal of the one before) has ended too. Memory is filled with what does not shrink (noise) or
 * with a smooth field of doubles whose last digits are noise. */
#define _GNU_SOURCE
#include <math.h>
#include "ranks.h"

static uint64_t next_noise(uint64_t *state) {
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state;
}

static void fill(char *at, size_t len, const char *kind) {
    uint64_t state = 0x9E3779B97F4A7C15u * (uint64_t)(rank + 1) | 1;
    if (strcmp(kind, "noise") && strcmp(kind, "field")) die("--fill %s: noise or field", kind);
    for (size_t i = 0; i < len / 8; i++) {
        uint64_t word = next_noise(&state);
        if (kind[0] == 'f') {
            double value = sin((double)i * 1e-4 + rank) * (1 + 1e-9 * (double)(word >> 40) / (1 << 24));
            memcpy(&word, &value, 8);
        }
        memcpy(at + 8 * i, &word, 8);
    }
}

static double clock_s(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Processor time of this process but for this thread: Orcheck's threads, and those of the kernel that write for them. */
static double background_cpu_s(void) {
    return clock_s(CLOCK_PROCESS_CPUTIME_ID) - clock_s(CLOCK_THREAD_CPUTIME_ID);
}

int main(int argc, char **argv) {
    start_ranks(&argc, &argv);
    char options[8192], line[64];
    orc_session *session;
    uint64_t step = 0;
    long long all = number(argc, argv, "--size", NULL), chunk = number(argc, argv, "--chunk", "4194304");
    size_t size = (size_t)(all / ranks / 4096 * 4096);
    if (size < 4096 || chunk < 65536) die("a value out of range");
    /* Room for all snapshots and their records, unless a smaller pool is asked for. */
    long long chunks = ((long long)size + chunk - 1) / chunk + 2;
    char pool[32];
    snprintf(pool, sizeof pool, "%lld", chunks * chunk * ranks);
    int len = snprintf(options, sizeof options, "global = [\"%s\"]\npool = %lld\nchunk = %lld\nkeep = 1\n%s",
                       option(argc, argv, "--dir", NULL), number(argc, argv, "--pool", pool), chunk,
                       option(argc, argv, "--options", ""));
    if (len >= (int)sizeof options) die("--options: too long");
    char *state = memory(size, false, 1);
    fill(state, size, option(argc, argv, "--fill", "noise"));
    TRY(orc_mpi_open(&session, MPI_COMM_WORLD, "flush", options));
    TRY(orc_protect(session, "state", state, ORC_F64, size / 8, 0));

    FILE *report = NULL;
    if (rank == 0) {
        report = fopen(option(argc, argv, "--report", NULL), "w");
        if (!report) die("cannot open the report");
    }
    orc_stats before = {.struct_size = sizeof before}, after = before;
    for (;;) {
        int go = 0;
        if (rank == 0) go = fgets(line, sizeof line, stdin) && strcmp(line, "go\n") == 0;
        shared->value[0] = rank == 0 ? go : shared->value[0];
        together();
        if (shared->value[0] == 0) break;
        TRY(orc_stats_read(session, &before));
        settle();
        double cpu_s = background_cpu_s(), begin = now_s();
        TRY(orc_checkpoint(session, ++step));
        double staged = now_s();
        TRY(orc_wait(session, step, ORC_GLOBAL, 600));
        double s = span_s(begin, now_s()), blocked_s = span_s(begin, staged);
        settle();
        double settled_s = span_s(begin, now_s());
        TRY(orc_stats_read(session, &after));
        cpu_s = sum(background_cpu_s() - cpu_s);
        if (rank == 0) {
            fprintf(report, "{\"s\": %.9f, \"blocked_s\": %.9f, \"settled_s\": %.9f, \"cpu_s\": %.9f, "
                    "\"flushed_bytes\": %llu, \"stored_bytes\": %llu, \"bytes\": %llu}\n", s, blocked_s,
                    settled_s, cpu_s,
                    (unsigned long long)(after.flushed_bytes - before.flushed_bytes),
                    (unsigned long long)(after.file_bytes - before.file_bytes),
                    (unsigned long long)size * (unsigned long long)ranks);
            if (fflush(report)) die("cannot write the report");
        }
    }
    TRY(orc_close(session, 600));
    if (rank == 0 && fclose(report)) die("cannot write the report");
    MPI_Finalize();
    return 0;
}

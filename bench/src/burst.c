/* Bursts of checkpoints by some or all ranks of a cluster on one machine (testbed/cluster), one for each line that comes in.
 *
 *   burst BOARD NODE NODES PER_NODE       once on each node, NODE from 0
 *
 * BOARD is a file that all nodes see. Each node forks its ranks. Node 0 reads lines: "NODES RANKS BYTES COUNT LEVEL EVERY_S
 * OPTIONS" has the first RANKS ranks of each of the first NODES nodes open a job with the options in the file OPTIONS, take
 * COUNT checkpoints of BYTES a rank, each when the one before is committed at LEVEL (an orc_level), and close it; all others
 * sleep. With a COUNT of 1 the ranks compute before, until the machine is quiet. A line is answered by the seconds from the
 * first rank that enters orc_checkpoint to the last that knows that the last checkpoint is committed, and those until the last
 * has its program back from the first one, and the share of the machine's processors that was taken meanwhile: without opening
 * and closing the job. With EVERY_S above 0 the ranks wait for no commit: they sleep that long before each checkpoint and after
 * the last, and the time ends with that sleep.
 *
 * The ranks talk through the board, with barriers that sleep: MPI's spin, and 256 ranks that spin on the few cores of one
 * machine leave nothing to its servers. A clock of the machine serves all. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <orcheck.h>
#include "machine.h"

enum { MAX_RANKS = 1024, TABLE_BYTES = 4 << 20 };

typedef struct {
    pthread_barrier_t all, members;
    char line[PATH_MAX + 64];
    int set;                                    /* the barrier of all is there */
    double begin_s[MAX_RANKS], back_s[MAX_RANKS], safe_s[MAX_RANKS];
    double busy;                                /* of the processors, within the burst */
    char table[TABLE_BYTES];                    /* what members tell each other */
} Board;

static Board *board;
static int rank, ranks;

static _Noreturn void die(const char *format, ...) {
    va_list list;
    va_start(list, format);
    fprintf(stderr, "rank %d: ", rank);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
    _exit(1);
}
#define TRY(call) do { if ((call) != ORC_OK) die("%s: %s", #call, orc_message()); } while (0)

/* ---- what members tell each other -------------------------------------------------------------- */
typedef struct { int rank, size; } Member;

static void members_meet(void) { pthread_barrier_wait(&board->members); }

static int bcast(void *ctx, void *buf, size_t len, int root) {
    const Member *me = ctx;
    for (size_t at = 0, piece; at < len; at += piece) {
        piece = len - at < TABLE_BYTES ? len - at : TABLE_BYTES;
        if (me->rank == root) memcpy(board->table, (char *)buf + at, piece);
        members_meet();
        if (me->rank != root) memcpy((char *)buf + at, board->table, piece);
        members_meet();
    }
    return 0;
}

static int gather(void *ctx, const void *mine, size_t len, void *out, int root) {
    const Member *me = ctx;
    const size_t share = (size_t)(TABLE_BYTES / me->size);
    for (size_t at = 0, piece; at < len; at += piece) {
        piece = len - at < share ? len - at : share;
        memcpy(board->table + (size_t)me->rank * share, (const char *)mine + at, piece);
        members_meet();
        for (int i = 0; me->rank == root && i < me->size; i++)
            memcpy((char *)out + (size_t)i * len + at, board->table + (size_t)i * share, piece);
        members_meet();
    }
    return 0;
}

static int allreduce_min(void *ctx, int64_t *v, size_t n) {
    const Member *me = ctx;
    const size_t share = (size_t)(TABLE_BYTES / me->size) / 8;
    int64_t *table = (int64_t *)board->table;
    for (size_t at = 0, piece; at < n; at += piece) {
        piece = n - at < share ? n - at : share;
        memcpy(table + (size_t)me->rank * share, v + at, piece * 8);
        members_meet();
        for (int i = 0; i < me->size; i++)
            for (size_t k = 0; k < piece; k++)
                if (table[(size_t)i * share + k] < v[at + k]) v[at + k] = table[(size_t)i * share + k];
        members_meet();
    }
    return 0;
}

/* A program computes before its first checkpoint, and the library makes its memory ready meanwhile: waits until the processors
 * have been idle for a moment. */
static void compute_a_while(void) {
    const struct timespec look = {.tv_nsec = 250000000};
    int idle = 0;
    for (int looks = 0; looks < 60 && idle < 3; looks++) {
        const Processors before = processors();
        nanosleep(&look, NULL);
        idle = busy(before, processors()) < 0.1 ? idle + 1 : 0;
    }
}

/* ---- one burst --------------------------------------------------------------------------------- */
static const char *text_of(const char *path) {
    static char text[16384];
    FILE *file = fopen(path, "r");
    if (!file) die("cannot open %s", path);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    return text;
}

typedef struct { size_t size; int count, level; double every_s; } Burst;

static void sleep_s(double s) {
    const struct timespec pause = {.tv_sec = (time_t)s, .tv_nsec = (long)((s - (double)(time_t)s) * 1e9)};
    nanosleep(&pause, NULL);
}

static void burst(Member *me, const char *options, Burst of) {
    const size_t size = of.size;
    const orc_collective collective = {.struct_size = sizeof collective, .ctx = me, .rank = me->rank, .size = me->size,
                                       .bcast = bcast, .gather = gather, .allreduce_min = allreduce_min};
    orc_session *session;
    uint64_t *state = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (state == MAP_FAILED) die("no memory for %zu bytes", size);
    for (size_t i = 0; i < size / 8; i++) state[i] = ((uint64_t)rank << 40) + i;
    TRY(orc_open(&session, "burst", &collective, options));
    TRY(orc_protect(session, "state", state, ORC_U64, size / 8, 0));
    members_meet();
    if (me->rank == 0 && of.count == 1) compute_a_while();
    members_meet();
    const Processors before = me->rank ? (Processors){0} : processors();
    members_meet();
    board->begin_s[rank] = now_s();
    for (int step = 1; step <= of.count; step++) {
        sleep_s(of.every_s);
        TRY(orc_checkpoint(session, (uint64_t)step));
        if (step == 1) board->back_s[rank] = now_s();
        if (of.every_s == 0) TRY(orc_wait(session, (uint64_t)step, of.level, 900));
    }
    sleep_s(of.every_s);
    board->safe_s[rank] = now_s();
    TRY(orc_wait(session, (uint64_t)of.count, of.level, 900));
    members_meet(); /* the last is safe; then jobs are closed, which is not of the burst */
    if (me->rank == 0) board->busy = busy(before, processors());
    TRY(orc_close(session, 900));
    munmap(state, size);
}

static void answer(size_t bytes) {
    double begin_s = 1e300, back_s = 0, safe_s = 0;
    for (int i = 0; i < ranks; i++) {
        if (board->begin_s[i] == 0) continue;
        if (board->begin_s[i] < begin_s) begin_s = board->begin_s[i];
        if (board->back_s[i] > back_s) back_s = board->back_s[i];
        if (board->safe_s[i] > safe_s) safe_s = board->safe_s[i];
    }
    printf("{\"s\": %.6f, \"blocked_s\": %.6f, \"bytes\": %zu, \"busy\": %.4f}\n", safe_s - begin_s, back_s - begin_s, bytes,
           board->busy);
    fflush(stdout);
}

static void serve(int per_node) {
    for (;;) {
        if (rank == 0 && !fgets(board->line, sizeof board->line, stdin)) board->line[0] = 0;
        pthread_barrier_wait(&board->all);
        /* Behind this barrier, which rank 0 reaches when it has answered: before it, an answer could miss this rank. */
        board->begin_s[rank] = 0;
        int nodes, of_node;
        Burst of;
        char options[PATH_MAX];
        if (sscanf(board->line, "%d %d %zu %d %d %lf %4095s", &nodes, &of_node, &of.size, &of.count, &of.level, &of.every_s,
                   options) != 7)
            return;
        const int node = rank / per_node, local = rank % per_node;
        if (rank == 0) {
            pthread_barrierattr_t attributes;
            pthread_barrierattr_init(&attributes);
            pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
            if (pthread_barrier_init(&board->members, &attributes, (unsigned)(nodes * of_node))) die("no barrier");
        }
        pthread_barrier_wait(&board->all);
        if (node < nodes && local < of_node)
            burst(&(Member){node * of_node + local, nodes * of_node}, text_of(options), of);
        pthread_barrier_wait(&board->all);
        if (rank == 0) answer(of.size * (size_t)(nodes * of_node) * (size_t)of.count);
    }
}

static void begin_board(const char *path) {
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, sizeof(Board))) die("cannot make %s: %s", path, strerror(errno));
    board = mmap(NULL, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (board == MAP_FAILED) die("cannot map %s", path);
    close(file);
}

int main(int argc, char **argv) {
    if (argc != 5) die("usage: burst BOARD NODE NODES PER_NODE");
    const int node = atoi(argv[2]), nodes = atoi(argv[3]), per_node = atoi(argv[4]);
    ranks = nodes * per_node;
    if (node < 0 || node >= nodes || per_node < 1 || ranks > MAX_RANKS) die("a value out of range");
    begin_board(argv[1]);
    if (node == 0) {
        pthread_barrierattr_t attributes;
        pthread_barrierattr_init(&attributes);
        pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
        if (pthread_barrier_init(&board->all, &attributes, (unsigned)ranks)) die("no barrier");
        __atomic_store_n(&board->set, 1, __ATOMIC_RELEASE);
        puts("ready"), fflush(stdout);
    }
    while (!__atomic_load_n(&board->set, __ATOMIC_ACQUIRE)) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    for (int local = 0; local < per_node; local++) {
        const pid_t child = fork();
        if (child < 0) die("cannot fork");
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            rank = node * per_node + local;
            serve(per_node);
            _exit(0);
        }
    }
    for (int left = per_node; left > 0; left--) {
        int status;
        if (wait(&status) < 0 || status != 0) die("a rank of node %d ended with %d", node, status); /* the others go with this one */
    }
    return 0;
}

/* Checkpoints and restarts of ranks on several nodes (testbed/cluster): how long until they are safe, and until they are back.
 *
 *   mpirun ... spread --job NAME --do write|restart|exchange --size BYTES [--only RANK] --level node|peers|global --rounds N
 *                     [--first node] [--beside A1,A2,...] [--leave 0|1|2] [--copies N] --options TOML --report FILE
 *
 * --size is what each rank has; with --only the others have a page. A round is one checkpoint; its clock runs from the
 * first rank that enters orc_checkpoint to the last that learns that the step is safe at the level. The clock is the
 * machine's, which virtual nodes share. --first node: first_s is until it is safe at that level, before. The first round (connections, the pool's memory) is not reported. --leave 1: the
 * last checkpoint is only staged, and all ranks are killed; 2: it is safe, and all ranks are killed. busy: the share of the machine's processors that was taken
 * within the clock. restart: open_s is until the job is open and a step found,
 * read_s until its bytes are in place; then whether they are the right ones; close_s is what closing takes afterwards, which
 * waits for copies with close = 'copies'. With --copies, copy_s are the times of this many copies of the same bytes by memcpy
 * before the job is open, all ranks at once, into the memory that is restored later; all of it was touched before. memory_bytes
 * is what came from memory that agents kept. exchange: no job; each rank sends --size bytes, the same share to each of the
 * others at the same time, by MPI.
 *
 * --beside: addresses of the ranks 1, 2, ... In each round, before and after, rank 0 sends its bytes to each of them
 * through a TCP connection, all at once; the clock runs until the last has all. restart: rank 1 to rank 0, twice, before. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include "ranks.h"

/* What every byte is for: no page is like another, and none shrinks. */
static uint64_t word_at(size_t i) {
    uint64_t x = (uint64_t)i * 0x9E3779B97F4A7C15u + (uint64_t)(rank + 1) * 0xD1B54A32D192ED03u;
    x ^= x >> 29, x *= 0xBF58476D1CE4E5B9u;
    return x ^ x >> 32;
}

static void quiet(void) {
    for (int still = 0; still < 5; still = others_busy() ? 0 : still + 1)
        nanosleep(&(struct timespec){.tv_nsec = 5 * 1000 * 1000}, NULL);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* ---- what the link carries without Orcheck ---- */
enum { PORT = 9000, TAKERS = 8, PIECE = 4 << 20, MOST_RANKS = 64 };
typedef struct { int socket; const char *from; size_t size; } Sent;

static void *send_all(void *argument) {
    const Sent *sent = argument;
    char answer;
    for (size_t at = 0; at < sent->size;) {
        size_t piece = sent->size - at < PIECE ? sent->size - at : PIECE;
        ssize_t took = send(sent->socket, sent->from + at, piece, 0);
        if (took <= 0) die("raw TCP: send failed");
        at += (size_t)took;
    }
    if (recv(sent->socket, &answer, 1, 0) != 1) die("raw TCP: the taker went away");
    return NULL;
}

static void take_all(int socket, size_t size) {
    static char *into;
    if (!into) into = memory(PIECE, false, 1);
    while (size > 0) {
        ssize_t got = recv(socket, into, size < PIECE ? size : PIECE, 0);
        if (got <= 0) die("raw TCP: receive failed");
        size -= (size_t)got;
    }
    if (send(socket, "k", 1, 0) != 1) die("raw TCP: the answer failed");
}

/* Seconds until each of the ranks 1, 2, ... has rank 0's bytes, or -1 without --beside. back: rank 1 sends, rank 0 takes. */
static double raw_s(const char *beside, const char *bytes, size_t size, bool back) {
    static int sockets[TAKERS], count;
    if (!*beside) return -1;
    if (count == 0) {
        char list[1024], *rest = list, *one;
        snprintf(list, sizeof list, "%s", beside);
        struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(PORT)};
        for (int number = 1; (one = strsep(&rest, ",")) != NULL; number++, count++) {
            if (number > TAKERS || number >= ranks || inet_pton(AF_INET, one, &at.sin_addr) != 1) die("--beside %s", beside);
            int door = rank == number ? socket(AF_INET, SOCK_STREAM, 0) : -1;
            if (door >= 0) setsockopt(door, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
            if (door >= 0 && (bind(door, (struct sockaddr *)&at, sizeof at) || listen(door, 1))) die("cannot listen on %s", one);
            MPI_Barrier(MPI_COMM_WORLD);
            if (rank == 0) {
                sockets[count] = socket(AF_INET, SOCK_STREAM, 0);
                if (connect(sockets[count], (struct sockaddr *)&at, sizeof at)) die("cannot connect to %s", one);
            } else if (rank == number) {
                sockets[0] = accept(door, NULL, NULL);
                if (sockets[0] < 0) die("cannot accept on %s", one);
                close(door);
            }
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin_s = now_s();
    if (back) {
        if (rank == 1) send_all(&(Sent){sockets[0], bytes, size});
        if (rank == 0) take_all(sockets[0], size);
    } else if (rank == 0) {
        pthread_t threads[TAKERS];
        Sent sent[TAKERS];
        for (int i = 0; i < count; i++) {
            sent[i] = (Sent){sockets[i], bytes, size};
            if (pthread_create(&threads[i], NULL, send_all, &sent[i])) die("no thread");
        }
        for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
    } else if (rank <= count) take_all(sockets[0], size);
    const double end_s = now_s();
    return from_first_to_last_s(begin_s, end_s);
}

/* What the network carries if every rank sends as much to every other one. */
static void exchange_rounds(long long rounds, const char *bytes, size_t size, FILE *report) {
    if (ranks < 2) die("--do exchange needs two ranks");
    const size_t share = size / (size_t)(ranks - 1);
    if (share > INT32_MAX || share == 0) die("--size is too large or too small");
    char *into = memory(share * (size_t)ranks, false, 1);
    MPI_Request requests[2 * MOST_RANKS];
    if (ranks > MOST_RANKS) die("more than %d ranks", MOST_RANKS);
    for (long long round = 0; round <= rounds; round++) {
        int count = 0;
        quiet();
        const double begin_s = now_s();
        for (int i = 1; i < ranks; i++) {
            const int from = (rank + ranks - i) % ranks, to = (rank + i) % ranks;
            MPI_TRY(MPI_Irecv(into + share * (size_t)from, (int)share, MPI_BYTE, from, 0, MPI_COMM_WORLD, &requests[count++]));
            MPI_TRY(MPI_Isend(bytes + share * (size_t)(i - 1), (int)share, MPI_BYTE, to, 0, MPI_COMM_WORLD, &requests[count++]));
        }
        MPI_TRY(MPI_Waitall(count, requests, MPI_STATUSES_IGNORE));
        const double s = from_first_to_last_s(begin_s, now_s());
        if (rank == 0 && round > 0) fprintf(report, "%s{\"s\": %.9f}", round > 1 ? ", " : "", s);
    }
}

/* A level whose checkpoint is waited for before that of the level asked for; 0: none. */
static int first_level;

static void write_rounds(orc_session *session, orc_level level, long long rounds, int leave, const void *state, size_t size,
                         const char *beside, size_t beside_size, FILE *report) {
    for (long long round = 0; round <= rounds; round++) {
        const double raw_before_s = raw_s(beside, state, beside_size, false);
        quiet();
        const uint64_t step = (uint64_t)round + 1;
        const Processors before = rank ? (Processors){0} : processors();
        MPI_Barrier(MPI_COMM_WORLD);
        const double begin_s = now_s();
        TRY(orc_checkpoint(session, step));
        const double staged_s = now_s();
        if (leave == 1 && round == rounds) {
            MPI_Barrier(MPI_COMM_WORLD);
            raise(SIGKILL);
        }
        if (first_level) TRY(orc_wait(session, step, first_level, 600));
        const double first_s = now_s();
        TRY(orc_wait(session, step, level, 600));
        const double end_s = now_s();
        all_here();
        if (leave == 2 && round == rounds) raise(SIGKILL);
        const double taken = rank ? 0 : busy(before, processors());
        const double safe_s = from_first_to_last_s(begin_s, end_s), blocked_s = from_first_to_last_s(begin_s, staged_s);
        const double first_safe_s = from_first_to_last_s(begin_s, first_s);
        const double all = reduced((double)size, MPI_SUM), raw_after_s = raw_s(beside, state, beside_size, false);
        if (rank == 0 && round > 0)
            fprintf(report, "%s{\"s\": %.9f, \"blocked_s\": %.9f, \"first_s\": %.9f, \"bytes\": %.0f, \"busy\": %.4f, \"raw_s\": [%.9f, %.9f]}",
                    round > 1 ? ", " : "", safe_s, blocked_s, first_safe_s, all, taken, raw_before_s, raw_after_s);
    }
}

/* Writes how long copies of the same bytes take, all ranks at once. */
static void copies(long long count, void *to, size_t size, char *list, size_t room) {
    char *from = count > 0 ? memory(size, false, 1) : NULL;
    size_t at = 0;
    *list = 0;
    for (long long i = 0; i < count; i++) {
        quiet();
        const double begin_s = now_s();
        memcpy(to, from, size);
        const double s = from_first_to_last_s(begin_s, now_s());
        if (at < room) at += (size_t)snprintf(list + at, room - at, "%s%.9f", i ? ", " : "", s);
    }
    if (from) munmap(from, size);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const char *what = option(argc, argv, "--do", NULL), *name = option(argc, argv, "--level", NULL);
    const orc_level level = !strcmp(name, "node") ? ORC_NODE : !strcmp(name, "peers") ? ORC_PEERS : ORC_GLOBAL;
    first_level = !strcmp(option(argc, argv, "--first", ""), "node") ? ORC_NODE : 0;
    const int only = atoi(option(argc, argv, "--only", "-1"));
    size_t size = (size_t)number(argc, argv, "--size", NULL) / 4096 * 4096;
    const char *beside = option(argc, argv, "--beside", "");
    const size_t beside_size = size;
    if (only >= 0 && only != rank) size = 4096;
    if (size == 0) die("--size is less than a page");
    uint64_t *state = memory(size, false, 1), step = 0;
    FILE *report = NULL;
    if (rank == 0 && !(report = fopen(option(argc, argv, "--report", NULL), "w"))) die("cannot create the report");

    if (strcmp(what, "exchange") == 0) {
        if (report) fputs("[", report);
        exchange_rounds(number(argc, argv, "--rounds", "5"), (const char *)state, size, report);
        if (report && (fputs("]\n", report) < 0 || fclose(report))) die("cannot write the report");
        MPI_Finalize();
        return 0;
    }
    char copied[1024];
    copies(number(argc, argv, "--copies", "0"), state, size, copied, sizeof copied);
    double raw[2] = {-1, -1}; /* before the job is open: once it is, missing copies are made again */
    if (*beside && strcmp(what, "restart") == 0) {
        char *more = rank == 1 ? memory(beside_size, false, 1) : NULL;
        for (int i = 0; i < 2; i++) raw[i] = raw_s(beside, more, beside_size, true);
    }

    MPI_Barrier(MPI_COMM_WORLD);
    const double begin_s = now_s();
    orc_session *session;
    TRY(orc_mpi_open(&session, MPI_COMM_WORLD, option(argc, argv, "--job", NULL), option(argc, argv, "--options", NULL)));
    TRY(orc_protect(session, "state", state, ORC_U64, size / 8, 0));
    if (strcmp(what, "write") == 0) {
        for (size_t i = 0; i < size / 8; i++) state[i] = word_at(i);
        if (report) fputs("[", report);
        write_rounds(session, level, number(argc, argv, "--rounds", "5"), atoi(option(argc, argv, "--leave", "0")),
                     state, size, beside, beside_size, report);
        if (report) fputs("]\n", report);
    } else if (strcmp(what, "restart") == 0) {
        TRY(orc_find(session, &step));
        const double open_s = now_s();
        MPI_Barrier(MPI_COMM_WORLD);
        const double found_s = now_s();
        TRY(orc_restart(session, &step));
        const double end_s = now_s();
        for (size_t i = 0; i < size / 8; i++)
            if (state[i] != word_at(i)) die("wrong bytes at word %zu", i);
        const double opened = from_first_to_last_s(begin_s, open_s), read = from_first_to_last_s(found_s, end_s);
        const double all = from_first_to_last_s(begin_s, end_s), bytes = reduced((double)size, MPI_SUM);
        orc_stats stats = {.struct_size = sizeof stats};
        TRY(orc_stats_read(session, &stats));
        const double kept = reduced((double)stats.memory_bytes, MPI_SUM);
        MPI_Barrier(MPI_COMM_WORLD);
        const double closing_s = now_s();
        TRY(orc_close(session, 600));
        const double closed = from_first_to_last_s(closing_s, now_s());
        if (report) fprintf(report, "{\"open_s\": %.9f, \"read_s\": %.9f, \"s\": %.9f, \"bytes\": %.0f, \"step\": %llu, "
                            "\"close_s\": %.9f, \"raw_s\": [%.9f, %.9f], \"memory_bytes\": %.0f, \"copy_s\": [%s]}\n", opened, read, all,
                            bytes, (unsigned long long)step, closed, raw[0], raw[1], kept, copied);
        session = NULL;
    } else die("--do %s: write, restart or exchange", what);
    if (report && fclose(report)) die("cannot write the report");
    if (session) TRY(orc_close(session, 600));
    MPI_Finalize();
    return 0;
}

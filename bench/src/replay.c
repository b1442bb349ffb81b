/* The write profile of a process checkpointer, replayed by many ranks on several nodes (testbed/cluster), four ways.
 *
 *   mpirun ... replay --job NAME --writes N --size BYTES --rounds N --local DIR --shared A1,A2,... --disks DIR
 *                     --options TOML --report FILE
 *
 * A rank's image has --size bytes and is written with --writes calls, the profile of LU.C.64 in X. Ouyang et al.,
 * Staging I/O (slide "Checkpointing Profiling"): 60 % of the writes are small and carry 1.5 % of the bytes, 0.8 % are
 * large and carry 79 %, the others (39.2 %) 19.5 %. Within a class sizes vary evenly from half to one and a half
 * times the mean, the order is drawn once, and all ranks have the same. The ways:
 *
 *   local     one file a rank in the directory --local with %h replaced by the node's name: write, then fsync
 *   direct    the same, but the whole pages of large writes go past the page cache (O_DIRECT); fsync for the others
 *   shared    as a client of a striping file system: a file a rank, 1 MiB stripes in turn over the servers at the
 *             addresses of --shared (striped.c), beginning with another one for each rank; each write is sent as it
 *             comes; then a sync of all
 *   orcheck   one region from a codec that hands over the same pieces with as many copies; orc_checkpoint, orc_wait
 *
 * continue_s: from the first rank that begins to the last that continues computing: its writes have been taken, by the
 * page cache of its node or of the servers, or orc_checkpoint has returned. safe_s: until all is synced, or
 * committed at level global. One run gives both, so `local` is "buffered without fsync" and "with fsync".
 *
 * Each round has every way once, in rotating order; the first is not reported, and in it what was written is read
 * back and compared. Before each, nothing is dirty and no disk is busy. busy: the share of this machine's processors
 * that was taken from begin to safe. disks: the `stats` files below --disks (testbed/cluster/disk.c), reset at the begin. At
 * the end the image is wiped and restored by orc_restart. Ranks that have nothing to do sleep: they share processors
 * with those that have.
 *
 * Not here: how the job is started, and what stands at the paths (../orcbench/staging_profiles.py). */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include "ranks.h"
#include "striped.h"

enum { STRIPE = 1 << 20, PAGE = 4096, MOST_SERVERS = 16 };
enum { LOCAL, DIRECT, SHARED, ORCHECK, WAYS };
static const char *const names[WAYS] = {"local", "direct", "shared", "orcheck"};

static char *image;
static size_t size_bytes, *lengths, *begins, pieces;
static char *local_path;
static int servers, sockets[MOST_SERVERS];

static uint64_t mixed(uint64_t x) {
    x *= 0x9E3779B97F4A7C15u;
    x ^= x >> 29, x *= 0xBF58476D1CE4E5B9u;
    return x ^ x >> 32;
}

static void fill(void) {
    uint64_t *words = (uint64_t *)image;
    for (size_t i = 0; i < size_bytes / 8; i++) words[i] = mixed(i + ((uint64_t)(rank + 1) << 40));
}

static void compare(const char *what, const char *found, size_t at, size_t len) {
    for (size_t i = 0; i < len; i++) {
        const uint64_t word = mixed((at + i) / 8 + ((uint64_t)(rank + 1) << 40));
        if (found[i] != ((const char *)&word)[(at + i) % 8]) die("%s: wrong byte at %zu", what, at + i);
    }
}

/* ---- the profile ---- */
static size_t class_lengths(size_t from, size_t count, double bytes) {
    size_t total = 0;
    for (size_t i = 0; i < count; i++) { /* half to one and a half times the mean, evenly */
        const double share = 0.5 + ((double)i + 0.5) / (double)count;
        const size_t one = (size_t)(share * bytes / (double)count);
        lengths[from + i] = one ? one : 1;
        total += lengths[from + i];
    }
    return total;
}

static void draw_profile(size_t count) {
    pieces = count;
    lengths = calloc(count, sizeof *lengths), begins = calloc(count, sizeof *begins);
    if (!lengths || !begins || count < 100) die("--writes is less than 100, or there is no memory");
    const size_t small = count * 60 / 100, large = (count * 8 + 500) / 1000, middle = count - small - large;
    size_t total = class_lengths(0, small, 0.015 * (double)size_bytes);
    total += class_lengths(small, middle, 0.195 * (double)size_bytes);
    total += class_lengths(small + middle, large, 0.79 * (double)size_bytes);
    if (total > size_bytes) die("the profile has %zu bytes, --size %zu", total, size_bytes);
    lengths[count - 1] += size_bytes - total; /* what rounding has left */
    for (size_t i = count - 1; i > 0; i--) {
        const size_t other = mixed(i) % (i + 1), length = lengths[i];
        lengths[i] = lengths[other], lengths[other] = length;
    }
    for (size_t i = 1; i < count; i++) begins[i] = begins[i - 1] + lengths[i - 1];
}

/* ---- files ---- */
static void write_all(int file, const char *from, size_t len, size_t at) {
    while (len > 0) {
        const ssize_t wrote = pwrite(file, from, len, (off_t)at);
        if (wrote <= 0) die("%zu bytes at %zu: %s", len, at, strerror(errno));
        from += wrote, at += (size_t)wrote, len -= (size_t)wrote;
    }
}

static int create(const char *path, int more) {
    const int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC | more, 0600);
    if (file < 0) die("%s: %s", path, strerror(errno));
    return file;
}

static void synced(int file) {
    if (fsync(file) || close(file)) die("a file could not be synced: %s", strerror(errno));
}

static double to_local(bool direct) {
    const int file = create(local_path, 0), past = direct ? create(local_path, O_DIRECT) : -1;
    for (size_t i = 0; i < pieces; i++) {
        size_t at = begins[i], end = at + lengths[i];
        const size_t first = (at + PAGE - 1) / PAGE * PAGE, last = end / PAGE * PAGE;
        if (direct && last >= first + STRIPE / 16) { /* as large as is worth a request of its own: 64 KiB */
            write_all(file, image + at, first - at, at);
            write_all(past, image + first, last - first, first);
            at = last;
        }
        write_all(file, image + at, end - at, at);
    }
    const double taken_s = now_s();
    synced(file);
    if (direct) close(past);
    return taken_s;
}

/* Where a byte of this rank's file lies: the server, the offset in its part, and how far that continues. */
static int stripe(size_t at, size_t *offset, size_t *len) {
    const size_t number = at / STRIPE, within = at % STRIPE;
    if (*len > STRIPE - within) *len = STRIPE - within;
    *offset = number / (size_t)servers * STRIPE + within;
    return (int)((number + (size_t)rank) % (size_t)servers);
}

/* Nothing follows for a while (last), or the kernel may gather small ones as long as others are on their way. */
static void ask(int server, Kind kind, const void *from, size_t len, size_t at, bool last) {
    Request request = {.kind = kind, .length_bytes = (uint32_t)len, .at = at};
    struct iovec parts[2] = {{&request, sizeof request}, {(void *)(uintptr_t)from, from ? len : 0}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    size_t left = sizeof request + parts[1].iov_len;
    while (left > 0) {
        const ssize_t sent = sendmsg(sockets[server], &message, MSG_NOSIGNAL);
        if (sent <= 0) die("server %d of the striped directory went away", server);
        left -= (size_t)sent;
        size_t skip = (size_t)sent;
        for (int i = 0; i < 2; i++) {
            const size_t one = skip < parts[i].iov_len ? skip : parts[i].iov_len;
            parts[i].iov_base = (char *)parts[i].iov_base + one, parts[i].iov_len -= one, skip -= one;
        }
    }
    if (last) {
        setsockopt(sockets[server], IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        setsockopt(sockets[server], IPPROTO_TCP, TCP_NODELAY, &(int){0}, sizeof(int));
    }
}

static void answered(int server, void *into, size_t len) {
    if (recv(sockets[server], into, len, MSG_WAITALL) != (ssize_t)len)
        die("server %d of the striped directory failed", server);
}

static void ask_all(Kind kind, const char *text) {
    char byte;
    for (int i = 0; i < servers; i++) ask(i, kind, text, text ? strlen(text) : 0, 0, true);
    for (int i = 0; i < servers; i++) answered(i, &byte, 1);
}

static void connect_to(const char *address) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    const int one = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (inet_pton(AF_INET, address, &at.sin_addr) != 1 || connect(one, (struct sockaddr *)&at, sizeof at))
        die("no server of the striped directory at %s: %s", address, strerror(errno));
    sockets[servers++] = one;
}

static double to_shared(void) {
    char name[32];
    snprintf(name, sizeof name, "rank%d", rank);
    ask_all(OPEN, name);
    for (size_t i = 0; i < pieces; i++)
        for (size_t done = 0; done < lengths[i];) {
            size_t offset, len = lengths[i] - done;
            const int server = stripe(begins[i] + done, &offset, &len);
            ask(server, WRITE, image + begins[i] + done, len, offset, false);
            done += len;
        }
    ask_all(TAKEN, NULL);
    const double taken_s = now_s();
    ask_all(SYNC, NULL);
    return taken_s;
}

static void read_back(int way) {
    static char piece[STRIPE];
    const int file = way == SHARED ? -1 : open(local_path, O_RDONLY | O_CLOEXEC);
    for (size_t at = 0; at < size_bytes;) {
        size_t offset = at, len = size_bytes - at < STRIPE ? size_bytes - at : STRIPE;
        if (way == SHARED) {
            const int server = stripe(at, &offset, &len);
            ask(server, READ, NULL, len, offset, true);
            answered(server, piece, len);
        } else if (pread(file, piece, len, (off_t)offset) != (ssize_t)len)
            die("%s: nothing at %zu: %s", names[way], at, strerror(errno));
        compare(names[way], piece, at, len);
        at += len;
    }
    if (file >= 0) close(file);
}

static void remove_files(int way) {
    if (way == SHARED) ask_all(REMOVE, NULL);
    else if (way != ORCHECK) unlink(local_path);
}

/* ---- Orcheck ---- */
static int image_size(void *unused, size_t *len) {
    (void)unused;
    *len = size_bytes;
    return 0;
}

static int image_pack(void *unused, size_t at, void *into, size_t len) {
    (void)unused;
    static size_t piece; /* positions grow, and begin again */
    if (at < begins[piece]) piece = 0;
    while (begins[piece] + lengths[piece] <= at && piece + 1 < pieces) piece++;
    for (char *to = into; len > 0; piece++) {
        const size_t within = at - begins[piece], left = lengths[piece] - within, now = left < len ? left : len;
        memcpy(to, image + at, now);
        to += now, at += now, len -= now;
        if (len == 0) break;
    }
    return 0;
}

static int image_unpack(void *unused, size_t at, const void *from, size_t len) {
    (void)unused;
    memcpy(image + at, from, len);
    return 0;
}

static double to_orcheck(orc_session *session, uint64_t step) {
    TRY(orc_checkpoint(session, step));
    const double taken_s = now_s();
    TRY(orc_wait(session, step, ORC_GLOBAL, 600));
    return taken_s;
}

/* ---- around a sample ---- */
/* For each disk below the directory: `reset`, or its counters into the report. */
static void disks(const char *where, FILE *report) {
    DIR *all = opendir(where);
    if (!all) die("%s: %s", where, strerror(errno));
    const char *before = "";
    for (struct dirent *entry; (entry = readdir(all)) != NULL;) {
        char path[4096], text[2048];
        snprintf(path, sizeof path, "%s/%s/stats", where, entry->d_name);
        const int file = entry->d_name[0] == '.' ? -1 : open(path, report ? O_RDONLY : O_WRONLY);
        if (file < 0) continue;
        const ssize_t len = report ? read(file, text, sizeof text) : write(file, "reset", 5);
        if (len <= 0) die("%s: %s", path, strerror(errno));
        if (report) fprintf(report, "%s\"%s\": %.*s", before, entry->d_name, (int)len, text), before = ", ";
        close(file);
    }
    closedir(all);
}

/* Nothing is dirty on the file systems of this rank's files, and nothing continues in this process. */
static void quiet(const char *disks_dir) {
    for (int still = 0; still < 5; still = others_busy() ? 0 : still + 1)
        nanosleep(&(struct timespec){.tv_nsec = 5 * 1000 * 1000}, NULL);
    all_here();
    if (rank == 0) {
        char where[4096];
        snprintf(where, sizeof where, "%s/../fs", disks_dir);
        DIR *all = opendir(where);
        if (!all) die("%s: %s", where, strerror(errno));
        for (struct dirent *entry; (entry = readdir(all)) != NULL;) {
            const int file = entry->d_name[0] == '.' ? -1 : openat(dirfd(all), entry->d_name, O_RDONLY | O_DIRECTORY);
            if (file >= 0 && (syncfs(file) || close(file))) die("%s: %s", entry->d_name, strerror(errno));
        }
        closedir(all);
    }
    all_here();
}

static void sample(int way, orc_session *session, uint64_t step, int round, const char *disks_dir, FILE *report) {
    quiet(disks_dir);
    if (rank == 0) disks(disks_dir, NULL);
    const Processors before = rank ? (Processors){0} : processors();
    all_here();
    const double begin_s = now_s();
    const double taken_s = way == ORCHECK ? to_orcheck(session, step)
                           : way == SHARED ? to_shared() : to_local(way == DIRECT);
    const double end_s = now_s();
    all_here();
    const double taken = rank ? 0 : busy(before, processors());
    const double first_s = reduced(begin_s, MPI_MIN);
    const double continue_s = reduced(taken_s, MPI_MAX) - first_s, safe_s = reduced(end_s, MPI_MAX) - first_s;
    const double bytes = reduced((double)size_bytes, MPI_SUM);
    if (report) {
        static bool one;
        fprintf(report, "%s\n{\"way\": \"%s\", \"round\": %d, \"continue_s\": %.6f, \"safe_s\": %.6f, "
                "\"bytes\": %.0f, \"busy\": %.4f, \"disks\": {",
                one ? "," : "", names[way], round, continue_s, safe_s, bytes, taken);
        disks(disks_dir, report);
        fputs("}}", report);
        one = true;
    }
    if (round == 0 && way != ORCHECK) read_back(way);
    all_here();
    remove_files(way);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    size_bytes = (size_t)number(argc, argv, "--size", NULL) / 8 * 8;
    image = memory((size_bytes + PAGE - 1) / PAGE * PAGE, false, 1);
    fill();
    draw_profile((size_t)number(argc, argv, "--writes", NULL));
    const char *disks_dir = option(argc, argv, "--disks", NULL);
    const int rounds = (int)number(argc, argv, "--rounds", NULL);

    char host[256], list[4096], *rest = list, *one;
    const char *local = option(argc, argv, "--local", NULL), *mark = strstr(local, "%h");
    if (gethostname(host, sizeof host) || !mark) die("--local %s: expected a path with %%h in it", local);
    if (asprintf(&local_path, "%.*s%s%s/rank%d", (int)(mark - local), local, host, mark + 2, rank) < 0) die("no memory");
    snprintf(list, sizeof list, "%s", option(argc, argv, "--shared", NULL));
    while ((one = strsep(&rest, ",")) != NULL && servers < MOST_SERVERS)
        connect_to(one);

    FILE *report = NULL;
    if (rank == 0 && !(report = fopen(option(argc, argv, "--report", NULL), "w"))) die("cannot create the report");
    if (report) fputs("[", report);
    const char *job = option(argc, argv, "--job", NULL), *options = option(argc, argv, "--options", NULL);
    orc_session *session;
    orc_codec codec = {.struct_size = sizeof codec, .size = image_size, .pack = image_pack, .unpack = image_unpack};
    TRY(orc_mpi_open(&session, MPI_COMM_WORLD, job, options));
    TRY(orc_protect_codec(session, "image", &codec, 0));
    for (int round = 0; round <= rounds; round++)
        for (int turn = 0; turn < WAYS; turn++)
            sample((round + turn) % WAYS, session, (uint64_t)round + 1, round, disks_dir, round ? report : NULL);
    if (report && (fputs("]\n", report) < 0 || fclose(report))) die("cannot write the report");

    uint64_t step = 0;
    memset(image, 0, size_bytes);
    TRY(orc_close(session, 600)); /* as a new run would */
    TRY(orc_mpi_open(&session, MPI_COMM_WORLD, job, options));
    TRY(orc_protect_codec(session, "image", &codec, 0));
    TRY(orc_find(session, &step));
    TRY(orc_restart(session, &step));
    if (step != (uint64_t)rounds + 1) die("restored step %llu", (unsigned long long)step);
    compare("restart", image, 0, size_bytes);
    TRY(orc_close(session, 600));
    MPI_Finalize();
    return 0;
}

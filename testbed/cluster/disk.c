/* A disk with one head, as a file: what seek-bound devices do to interleaved streams, on a machine that has none.
 *
 *   disk MOUNTPOINT --size BYTES [--rate 90000000] [--seek-ms 8.5] [--settle-ms 1] [--revolution-ms 8.3] [--depth 32]
 *                   [--backing FILE] [--touch 1]
 *
 * A FUSE file system (libfuse3, low level) with two files: `disk`, which a loop device in direct mode makes a block
 * device (cluster/disks.py does that), and `stats`. Says "ready" on its standard output once mounted, and runs until
 * it is unmounted or ended by SIGTERM, SIGINT or SIGHUP. Bytes are really kept: in memory, or in a sparse FILE, which
 * is less exact, for the real disk below it takes part. --touch: all memory is taken at the start, so that no request waits
 * for pages, which a virtual machine may have to get from its host, with a processor each.
 *
 * The model. What a request takes is the time to get there and its bytes at --rate:
 *   - it begins where the last one ended: no time to get there;
 *   - it begins shortly after that: the gap passes below the head at --rate, if that is quicker than
 *   - to seek, settle + b * sqrt(distance / size), and then to wait half a revolution for its sector.
 * b is such that the mean over two places drawn at random is --seek-ms: E sqrt|x - y| = 8/15 for x, y uniform in [0,
 * 1]. Every wait for a sector is its mean: so the least time to get there is the least distance, and figures need no
 * luck.
 *
 * Queueing, as in a drive with --depth tags: of the oldest `depth` outstanding requests, the one with the least time
 * to get there is served next, but no request is passed over more than 2 * depth times. Those beyond wait in the
 * order in which they came: a loop device takes 128, and the kernel's scheduler sorts what waits for that. What was
 * acknowledged is on the disk (there is no volatile cache, so a flush costs nothing).
 *
 * Invariants. 1. Service times lie on a clock of their own: a request begins when the one before it ends or when it
 * arrives, whichever is later, by the model's time and not when a thread got round to it; so delays of the host do
 * not add up.
 * 2. Nothing is answered before its time. 3. A drive that was idle for less than GRACE was not idle: a host that was
 * told late loses no time by it (drives have buffers for that). `late_s` in `stats` is by how much answers came after their
 * time, in all; beside busy_s it says whether the machine could keep up.
 *
 * `stats` is read as JSON; writing `reset` to it sets the counters to 0, `model off` answers at once without
 * counting (to make a file system, or to check it), `model on` is the beginning.
 *
 * Not here: zones of different rate, the angle of the platter, remapped sectors, faults, discard (refused). */
#define _GNU_SOURCE
#define FUSE_USE_VERSION 312
#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { DISK = 2, STATS = 3 }; /* inodes */
enum { MOST_BYTES = 1 << 20, BACKGROUND = 256 };
static const int64_t GRACE_NS = 1000 * 1000;

typedef struct Request {
    struct Request *next;
    fuse_req_t fuse;
    bool write;
    uint64_t at, size_bytes;
    int64_t arrived_ns;
    int passed;
} Request;

static struct { double rate_bytes_per_s, seek_s, settle_s, revolution_s; uint64_t size_bytes; int depth; } model = {
    .rate_bytes_per_s = 90e6, .seek_s = 8.5e-3, .settle_s = 1e-3, .revolution_s = 8.3e-3, .depth = 32};
static struct {
    uint64_t reads, writes, read_bytes, write_bytes, repositionings, waiting_sum, waiting_most;
    double busy_s, late_s, late_most_s;
    int64_t begin_ns;
} count;
static char *bytes;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;
static Request *oldest, **newest = &oldest;
static uint64_t waiting, head_at; /* waiting: with the one that is served */
static int64_t busy_until_ns;
static bool modelled = true;

static _Noreturn void die(const char *format, ...) {
    va_list list;
    va_start(list, format);
    fputs("disk: ", stderr);
    vfprintf(stderr, format, list);
    fputs("\n", stderr);
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- the drive ---- */
/* Seconds until the head is at a place; whether it has to be moved there. */
static double get_there_s(uint64_t at, bool *moved) {
    const double distance = at > head_at ? (double)(at - head_at) : (double)(head_at - at);
    const double b = (model.seek_s - model.settle_s) * 15 / 8;
    const double seek_s = model.settle_s + b * sqrt(distance / (double)model.size_bytes) + model.revolution_s / 2;
    const double pass_s = distance / model.rate_bytes_per_s;
    *moved = at < head_at || pass_s > seek_s;
    return *moved ? seek_s : pass_s;
}

/* Takes the next request out of the queue, which has one, and moves the clock and the head to its end. */
static Request *serve(void) {
    int64_t begin_ns = oldest->arrived_ns - GRACE_NS;
    if (begin_ns < busy_until_ns) begin_ns = busy_until_ns;
    Request **best = &oldest;
    double best_s = INFINITY;
    bool best_moved = false;
    int seen = 0;
    /* Of those that were there by then: a thread that woke late does not choose from what came since. */
    for (Request **one = &oldest; *one && seen < model.depth; one = &(*one)->next, seen++) {
        if ((*one)->arrived_ns - GRACE_NS > begin_ns) break;
        bool moved;
        const double there_s = get_there_s((*one)->at, &moved);
        const bool starved = (*one)->passed >= 2 * model.depth;
        if (starved || there_s < best_s) best = one, best_s = there_s, best_moved = moved;
        if (starved) break; /* the oldest of them */
    }
    for (Request *one = oldest; one && seen > 0; one = one->next, seen--) one->passed++;
    Request *request = *best;
    *best = request->next;
    if (!*best) newest = best;
    const double service_s = best_s + (double)request->size_bytes / model.rate_bytes_per_s;
    busy_until_ns = begin_ns + (int64_t)(service_s * 1e9);
    head_at = request->at + request->size_bytes;
    count.busy_s += service_s;
    count.repositionings += best_moved;
    count.waiting_sum += waiting;
    request->write ? count.writes++ : count.reads++;
    *(request->write ? &count.write_bytes : &count.read_bytes) += request->size_bytes;
    return request;
}

static void answer(const Request *request) {
    if (request->write) fuse_reply_write(request->fuse, request->size_bytes);
    else fuse_reply_buf(request->fuse, bytes + request->at, request->size_bytes);
}

static void *drive(void *unused) {
    (void)unused;
    prctl(PR_SET_TIMERSLACK, 1000UL);
    for (;;) {
        pthread_mutex_lock(&lock);
        while (!oldest) pthread_cond_wait(&more, &lock);
        Request *request = serve();
        const int64_t until_ns = busy_until_ns;
        pthread_mutex_unlock(&lock);
        const struct timespec at = {.tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR) {}
        const double late_s = (double)(now_ns() - until_ns) * 1e-9;
        pthread_mutex_lock(&lock);
        count.late_s += late_s;
        if (late_s > count.late_most_s) count.late_most_s = late_s;
        waiting--;
        pthread_mutex_unlock(&lock);
        answer(request);
        free(request);
    }
    return NULL;
}

static void arrived(fuse_req_t fuse, bool write, uint64_t at, uint64_t size_bytes, int64_t arrived_ns) {
    Request *request = malloc(sizeof *request);
    if (!request) {
        fuse_reply_err(fuse, ENOMEM);
        return;
    }
    *request = (Request){.fuse = fuse, .write = write, .at = at, .size_bytes = size_bytes, .arrived_ns = arrived_ns};
    pthread_mutex_lock(&lock);
    const bool wait = modelled;
    if (wait) {
        *newest = request, newest = &request->next;
        if (++waiting > count.waiting_most) count.waiting_most = waiting;
        pthread_cond_signal(&more);
    }
    pthread_mutex_unlock(&lock);
    if (!wait) answer(request), free(request);
}

static size_t stats(char *text, size_t len) {
    pthread_mutex_lock(&lock);
    const double each = count.reads + count.writes ? (double)(count.reads + count.writes) : 1;
    const int wrote = snprintf(text, len,
        "{\"reads\": %" PRIu64 ", \"writes\": %" PRIu64 ", \"read_bytes\": %" PRIu64 ", \"write_bytes\": %" PRIu64
        ", \"repositionings\": %" PRIu64 ", \"busy_s\": %.6f, \"elapsed_s\": %.6f, \"waiting_mean\": %.2f"
        ", \"waiting_most\": %" PRIu64
        ", \"late_s\": %.6f, \"late_most_s\": %.6f, \"bytes_per_request\": %.0f, \"size_bytes\": %" PRIu64
        ", \"rate_bytes_per_s\": %.0f, \"seek_s\": %.6f, \"settle_s\": %.6f, \"revolution_s\": %.6f, \"depth\": %d}\n",
        count.reads, count.writes, count.read_bytes, count.write_bytes, count.repositionings, count.busy_s,
        (double)(now_ns() - count.begin_ns) * 1e-9, (double)count.waiting_sum / each, count.waiting_most,
        count.late_s, count.late_most_s, (double)(count.read_bytes + count.write_bytes) / each,
        model.size_bytes, model.rate_bytes_per_s, model.seek_s, model.settle_s, model.revolution_s, model.depth);
    pthread_mutex_unlock(&lock);
    return (size_t)wrote;
}

/* ---- the file system ---- */
static bool attributes(fuse_ino_t inode, struct stat *found) {
    *found = (struct stat){.st_ino = inode, .st_nlink = 1, .st_blksize = 4096};
    if (inode == FUSE_ROOT_ID) found->st_mode = S_IFDIR | 0700, found->st_nlink = 2;
    else if (inode == DISK) found->st_mode = S_IFREG | 0600, found->st_size = (off_t)model.size_bytes;
    else if (inode == STATS) found->st_mode = S_IFREG | 0600;
    else return false;
    return true;
}

static void on_init(void *unused, struct fuse_conn_info *conn) {
    (void)unused;
    conn->want |= conn->capable & FUSE_CAP_ASYNC_DIO;
    conn->max_write = MOST_BYTES;
    /* Requests of the loop device are background requests here; at the 12 that are usual a queue never fills. */
    conn->max_background = conn->congestion_threshold = BACKGROUND;
}

static void on_lookup(fuse_req_t request, fuse_ino_t parent, const char *name) {
    struct fuse_entry_param entry = {.attr_timeout = 1e6, .entry_timeout = 1e6};
    entry.ino = parent != FUSE_ROOT_ID ? 0 : strcmp(name, "disk") == 0 ? DISK : strcmp(name, "stats") == 0 ? STATS : 0;
    if (attributes(entry.ino, &entry.attr)) fuse_reply_entry(request, &entry);
    else fuse_reply_err(request, ENOENT);
}

static void on_getattr(fuse_req_t request, fuse_ino_t inode, struct fuse_file_info *file) {
    (void)file;
    struct stat found;
    if (attributes(inode, &found)) fuse_reply_attr(request, &found, 1e6);
    else fuse_reply_err(request, ENOENT);
}

/* `echo reset > stats` cuts the file first; times and modes are nothing to us. The disk keeps its size. */
static void on_setattr(fuse_req_t request, fuse_ino_t inode, struct stat *wanted, int which,
                       struct fuse_file_info *file) {
    const bool resize = which & FUSE_SET_ATTR_SIZE && wanted->st_size != (off_t)model.size_bytes;
    if (inode == DISK && resize) fuse_reply_err(request, EPERM);
    else on_getattr(request, inode, file);
}

static void on_readdir(fuse_req_t request, fuse_ino_t inode, size_t size, off_t offset, struct fuse_file_info *file) {
    (void)file;
    static const struct { const char *name; fuse_ino_t inode; } all[] = {
        {".", 1}, {"..", 1}, {"disk", DISK}, {"stats", STATS}};
    char text[1024];
    size_t len = 0;
    struct stat found;
    if (inode != FUSE_ROOT_ID) {
        fuse_reply_err(request, ENOTDIR);
        return;
    }
    for (off_t i = offset; i < 4 && attributes(all[i].inode, &found); i++) {
        const size_t one = fuse_add_direntry(request, NULL, 0, all[i].name, NULL, 0);
        if (len + one > sizeof text || len + one > size) break;
        fuse_add_direntry(request, text + len, one, all[i].name, &found, i + 1);
        len += one;
    }
    fuse_reply_buf(request, text, len);
}

static void on_open(fuse_req_t request, fuse_ino_t inode, struct fuse_file_info *file) {
    (void)inode;
    file->direct_io = 1;
    fuse_reply_open(request, file);
}

static void on_read(fuse_req_t request, fuse_ino_t inode, size_t size, off_t offset, struct fuse_file_info *file) {
    (void)file;
    if (inode == STATS) {
        char text[1024];
        const size_t len = stats(text, sizeof text);
        const size_t from = (size_t)offset < len ? (size_t)offset : len;
        fuse_reply_buf(request, text + from, len - from < size ? len - from : size);
        return;
    }
    const uint64_t at = (uint64_t)offset < model.size_bytes ? (uint64_t)offset : model.size_bytes;
    const uint64_t left = model.size_bytes - at;
    if (left == 0) fuse_reply_buf(request, NULL, 0);
    else arrived(request, false, at, size < left ? size : left, now_ns());
}

static void command(fuse_req_t request, const char *text, size_t size) {
    const size_t whole = size;
    bool known = true;
    while (size > 0 && text[size - 1] == '\n') size--;
    pthread_mutex_lock(&lock);
    if (size == 5 && memcmp(text, "reset", size) == 0) memset(&count, 0, sizeof count), count.begin_ns = now_ns();
    else if (size == 8 && memcmp(text, "model on", size) == 0) modelled = true;
    else if (size == 9 && memcmp(text, "model off", size) == 0) modelled = false;
    else known = false;
    pthread_mutex_unlock(&lock);
    if (known) fuse_reply_write(request, whole);
    else fuse_reply_err(request, EINVAL);
}

static void on_write(fuse_req_t request, fuse_ino_t inode, const char *data, size_t size, off_t offset,
                     struct fuse_file_info *file) {
    (void)file;
    if (inode == STATS) {
        command(request, data, size);
        return;
    }
    if ((uint64_t)offset > model.size_bytes || size > model.size_bytes - (uint64_t)offset) {
        fuse_reply_err(request, ENOSPC);
        return;
    }
    const int64_t arrived_ns = now_ns(); /* before memory is touched, which takes long the first time */
    memcpy(bytes + offset, data, size); /* into the drive's buffer; acknowledged when the head has been there */
    arrived(request, true, (uint64_t)offset, size, arrived_ns);
}

static void on_sync(fuse_req_t request, fuse_ino_t inode, int data_only, struct fuse_file_info *file) {
    (void)inode, (void)data_only, (void)file;
    fuse_reply_err(request, 0); /* what was acknowledged is there */
}

static void on_flush(fuse_req_t request, fuse_ino_t inode, struct fuse_file_info *file) {
    (void)inode, (void)file;
    fuse_reply_err(request, 0);
}

static const struct fuse_lowlevel_ops ops = {
    .init = on_init, .lookup = on_lookup, .getattr = on_getattr, .setattr = on_setattr, .readdir = on_readdir,
    .open = on_open, .read = on_read, .write = on_write, .fsync = on_sync, .flush = on_flush};

/* ---- the program ---- */
static double positive(const char *name, const char *text) {
    char *end;
    const double value = text ? strtod(text, &end) : 0;
    if (!text || *end || end == text || !(value > 0)) die("%s %s: expected a number above 0", name, text ? text : "");
    return value;
}

int main(int argc, char **argv) {
    const char *backing = NULL;
    bool touch = false;
    if (argc < 2 || argv[1][0] == '-') die("usage: disk MOUNTPOINT --size BYTES [options]; see the head of disk.c");
    for (int i = 2; i < argc; i += 2) {
        const char *name = argv[i], *text = argv[i + 1];
        if (strcmp(name, "--backing") == 0) backing = text;
        else if (strcmp(name, "--touch") == 0) touch = positive(name, text) > 0;
        else if (strcmp(name, "--size") == 0) model.size_bytes = (uint64_t)positive(name, text) / 4096 * 4096;
        else if (strcmp(name, "--rate") == 0) model.rate_bytes_per_s = positive(name, text);
        else if (strcmp(name, "--seek-ms") == 0) model.seek_s = positive(name, text) / 1e3;
        else if (strcmp(name, "--settle-ms") == 0) model.settle_s = positive(name, text) / 1e3;
        else if (strcmp(name, "--revolution-ms") == 0) model.revolution_s = positive(name, text) / 1e3;
        else if (strcmp(name, "--depth") == 0) model.depth = (int)positive(name, text);
        else die("unknown option %s", name);
    }
    if (model.size_bytes == 0) die("--size is missing");
    if (model.seek_s < model.settle_s) die("--seek-ms is the mean, and less than --settle-ms, the least");
    const int file = backing ? open(backing, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (backing && (file < 0 || ftruncate(file, (off_t)model.size_bytes))) die("%s: %s", backing, strerror(errno));
    bytes = mmap(NULL, model.size_bytes, PROT_READ | PROT_WRITE,
                 backing ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, file, 0);
    if (bytes == MAP_FAILED) die("no memory for %" PRIu64 " bytes: %s", model.size_bytes, strerror(errno));
    madvise(bytes, model.size_bytes, MADV_HUGEPAGE); /* refused: slower to touch, nothing else */
    if (touch && madvise(bytes, model.size_bytes, MADV_POPULATE_WRITE)) die("no memory to touch: %s", strerror(errno));
    prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0); /* not throttled by the dirty pages it writes; refused: likely never */

    char *words[] = {argv[0], "-o", "fsname=orcheck-disk,nodev,nosuid,noexec"};
    struct fuse_args args = FUSE_ARGS_INIT(3, words);
    struct fuse_session *session = fuse_session_new(&args, &ops, sizeof ops, NULL);
    if (!session || fuse_set_signal_handlers(session) || fuse_session_mount(session, argv[1]))
        die("cannot mount at %s", argv[1]);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before); /* signals are for the loop below */
    pthread_t thread;
    count.begin_ns = now_ns();
    if (pthread_create(&thread, NULL, drive, NULL)) die("no thread");
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    puts("ready");
    fflush(stdout);
    const int rc = fuse_session_loop(session);
    fuse_session_unmount(session);
    return rc < 0 ? 1 : 0; /* the thread, and what it was serving, end with the process */
}

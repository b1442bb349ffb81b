/* Checkpoints as they should not be: each way is one mistake, which the harness must find.
 *
 *   bad WAY save DIR STATES FIRST LAST ACK | bad WAY restore DIR INTO
 *
 * lazy      syncs the name of a file and not its bytes
 * retry     calls fsync again when it failed, and believes the second answer
 * trusting  checks neither length nor content
 * endless   waits for the rest of a file that is too short
 * stuck     keeps a lock that outlives it
 * untidy    names temporary files after its process, so nobody collects them
 * The rest is right: two steps are kept, restart takes the newest that is whole by its length. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *way;
static int is(const char *mistake) { return strcmp(way, mistake) == 0; }
#define NEED(condition) do { if (!(condition)) { perror("bad: " #condition); exit(1); } } while (0)

enum { MOST = 1 << 20, LAST = 64 };
static char bytes[MOST];

static void sync_path(const char *path) {
    int fd = open(path, O_RDONLY);
    NEED(fd >= 0);
    if (fsync(fd)) NEED(is("retry") && fsync(fd) == 0);
    NEED(close(fd) == 0);
}

static void save(const char *dir, const char *states, uint64_t step, const char *ack) {
    char from[4096], temporary[4096], path[4096], old[4096], line[32];
    snprintf(from, sizeof from, "%s/%llu", states, (unsigned long long)step);
    snprintf(temporary, sizeof temporary, "%s/temporary-%d", dir, is("untidy") ? (int)getpid() : 0);
    snprintf(path, sizeof path, "%s/%llu", dir, (unsigned long long)step);
    snprintf(old, sizeof old, "%s/%llu", dir, (unsigned long long)step - 2);
    int fd = open(from, O_RDONLY);
    ssize_t len = fd < 0 ? -1 : read(fd, bytes, MOST);
    NEED(len > 0);
    close(fd);
    fd = open(temporary, O_CREAT | O_TRUNC | O_WRONLY, 0666);
    NEED(fd >= 0 && write(fd, &len, sizeof len) == sizeof len && write(fd, bytes, (size_t)len) == len && close(fd) == 0);
    if (!is("lazy")) sync_path(temporary);
    NEED(rename(temporary, path) == 0);
    sync_path(dir);
    if (access(old, F_OK) == 0) NEED(unlink(old) == 0);
    int n = snprintf(line, sizeof line, "%llu\n", (unsigned long long)step);
    fd = open(ack, O_WRONLY | O_APPEND);
    NEED(fd >= 0 && write(fd, line, (size_t)n) == n && close(fd) == 0);
}

static int restore(const char *dir, const char *into) {
    int refused = 0;
    for (int step = LAST; step > 0; step--) {
        char path[4096];
        ssize_t len = 0;
        snprintf(path, sizeof path, "%s/%d", dir, step);
        int fd = open(path, O_RDONLY);
        if (fd < 0) continue;
        ssize_t head = read(fd, &len, sizeof len), got = read(fd, bytes, MOST);
        close(fd);
        if (is("endless") && got != len) pause();
        if (!is("trusting") && (head != sizeof len || got != len)) {
            fprintf(stderr, "bad: %s is not whole\n", path);
            refused = 1;
            continue;
        }
        fd = open(into, O_CREAT | O_TRUNC | O_WRONLY, 0666);
        NEED(fd >= 0 && write(fd, bytes, (size_t)(got > 0 ? got : 0)) == (got > 0 ? got : 0) && close(fd) == 0);
        printf("restored %d\n", step);
        return 0;
    }
    if (!refused) puts("nothing");
    return refused;
}

int main(int argc, char **argv) {
    char lock[4096];
    if (argc < 5) return 64;
    way = argv[1];
    if (strcmp(argv[2], "restore") == 0) return restore(argv[3], argv[4]);
    if (argc != 8) return 64;
    snprintf(lock, sizeof lock, "%s/lock", argv[3]);
    if (is("stuck")) NEED(open(lock, O_CREAT | O_EXCL | O_WRONLY, 0666) >= 0);
    for (uint64_t step = strtoull(argv[5], NULL, 10); step <= strtoull(argv[6], NULL, 10); step++)
        save(argv[3], argv[4], step, argv[7]);
    if (is("stuck")) NEED(unlink(lock) == 0);
    return 0;
}

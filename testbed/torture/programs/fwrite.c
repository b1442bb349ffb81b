/* Hand-written checkpoints with stdio, as many simulation codes have them.
 *
 *   fwrite plain|rename save DIR STATES FIRST LAST ACK
 *   fwrite plain|rename restore DIR INTO
 *
 * plain: the one file is overwritten. rename: a temporary file is flushed, synced and renamed, the directory
 * synced, two are kept: what the manual pages recommend. Both check every call, and the length at restart. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { char magic[8]; uint64_t step, len_bytes; } Head;

static _Noreturn void die(const char *what, const char *where) {
    fprintf(stderr, "fwrite: %s %s: %s\n", what, where, strerror(errno));
    exit(1);
}

static char *slurp(const char *path, size_t *len) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) die("cannot read", path);
    *len = (size_t)ftell(file);
    rewind(file);
    char *bytes = malloc(*len + 1);
    if (!bytes || fread(bytes, 1, *len, file) != *len) die("cannot read", path);
    fclose(file);
    return bytes;
}

static void sync_dir(const char *dir) {
    int fd = open(dir, O_RDONLY | O_DIRECTORY);
    if (fd < 0 || fsync(fd) || close(fd)) die("cannot sync", dir);
}

static void write_file(const char *path, uint64_t step, const char *bytes, size_t len, int sync) {
    Head head = {"FWRITE1", step, len};
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(&head, sizeof head, 1, file) != 1 || fwrite(bytes, 1, len, file) != len || fflush(file))
        die("cannot write", path);
    if (sync && fsync(fileno(file))) die("cannot sync", path);
    if (fclose(file)) die("cannot close", path);
}

static void acknowledge(const char *path, uint64_t step) {
    char line[32];
    int n = snprintf(line, sizeof line, "%llu\n", (unsigned long long)step), fd = open(path, O_WRONLY | O_APPEND);
    if (fd < 0 || write(fd, line, (size_t)n) != n || close(fd)) die("cannot acknowledge in", path);
}

/* The steps of the files step-N in a directory, newest first; temporary files are removed if asked. */
static int list(const char *dir, uint64_t *steps, int most, int clean) {
    int n = 0;
    DIR *open_dir = opendir(dir);
    if (!open_dir) die("cannot list", dir);
    for (struct dirent *entry; (entry = readdir(open_dir));) {
        unsigned long long step;
        int end = 0;
        if (sscanf(entry->d_name, "step-%llu%n", &step, &end) == 1 && !entry->d_name[end]) {
            if (n == most) die("too many files in", dir);
            int at = n++;
            for (; at && steps[at - 1] < step; at--) steps[at] = steps[at - 1];
            steps[at] = step;
        } else if (clean && strstr(entry->d_name, ".tmp") && unlinkat(dirfd(open_dir), entry->d_name, 0)) {
            die("cannot remove", entry->d_name);
        }
    }
    closedir(open_dir);
    return n;
}

static int load(const char *path, const char *into) {
    size_t len;
    if (access(path, F_OK)) return 0;
    char *bytes = slurp(path, &len);
    Head head;
    if (len < sizeof head || (memcpy(&head, bytes, sizeof head), memcmp(head.magic, "FWRITE1", 8)) ||
        head.len_bytes != len - sizeof head) {
        fprintf(stderr, "fwrite: %s is incomplete: %zu bytes\n", path, len);
        free(bytes);
        return -1;
    }
    FILE *file = fopen(into, "wb");
    if (!file || fwrite(bytes + sizeof head, 1, len - sizeof head, file) != len - sizeof head || fclose(file))
        die("cannot write", into);
    printf("restored %llu\n", (unsigned long long)head.step);
    return 1;
}

int main(int argc, char **argv) {
    char path[4096], temporary[4096];
    uint64_t steps[64];
    if (argc < 5) return 64;
    const int plain = strcmp(argv[1], "plain") == 0, save = strcmp(argv[2], "save") == 0;
    const char *dir = argv[3];
    if (plain) snprintf(path, sizeof path, "%s/state", dir);
    if (!save) {
        int n = plain ? 1 : list(dir, steps, 64, 0), result = 0;
        for (int i = 0; i < n && result <= 0; i++) {
            if (!plain) snprintf(path, sizeof path, "%s/step-%llu", dir, (unsigned long long)steps[i]);
            int found = load(path, argv[4]);
            if (found) result = found;
        }
        if (result == 0) puts("nothing");
        return result < 0;
    }
    if (argc != 8) return 64;
    if (!plain) list(dir, steps, 64, 1);
    for (uint64_t step = strtoull(argv[5], NULL, 10); step <= strtoull(argv[6], NULL, 10); step++) {
        size_t len;
        snprintf(temporary, sizeof temporary, "%s/%llu", argv[4], (unsigned long long)step);
        char *bytes = slurp(temporary, &len);
        if (plain) {
            write_file(path, step, bytes, len, 0);
        } else {
            snprintf(path, sizeof path, "%s/step-%llu", dir, (unsigned long long)step);
            snprintf(temporary, sizeof temporary, "%s/step-%llu.tmp", dir, (unsigned long long)step);
            write_file(temporary, step, bytes, len, 1);
            if (rename(temporary, path)) die("cannot rename", temporary);
            sync_dir(dir);
            for (int i = 2, n = list(dir, steps, 64, 0); i < n; i++) {
                snprintf(path, sizeof path, "%s/step-%llu", dir, (unsigned long long)steps[i]);
                if (unlink(path)) die("cannot remove", path);
            }
        }
        free(bytes);
        acknowledge(argv[7], step);
    }
    return 0;
}

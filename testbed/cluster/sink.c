/* A file system that keeps nothing: the least that a file system in user space takes for a write.
 *
 *   sink MOUNTPOINT
 *
 * libfuse3, low level; requests of 1 MiB, several threads with a channel each, no page cache of its own to keep. Names
 * are remembered until they are removed, bytes only by their number. Says "ready" once mounted; runs until it is
 * unmounted or ended by a signal.
 *
 * Not here: reading, renaming, permissions. */
#define FUSE_USE_VERSION 312
#include <errno.h>
#include <fuse_lowlevel.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 65536, NAME_BYTES = 64, REQUEST_BYTES = 1 << 20 };

struct Node {
    fuse_ino_t parent;
    off_t size;
    mode_t mode;
    char name[NAME_BYTES];
};

static struct Node nodes[MOST] = {[FUSE_ROOT_ID] = {.mode = S_IFDIR | 0755}};
static fuse_ino_t used = FUSE_ROOT_ID + 1;
static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;

static struct stat stat_of(fuse_ino_t ino) {
    return (struct stat){.st_ino = ino, .st_mode = nodes[ino].mode, .st_nlink = 1, .st_size = nodes[ino].size};
}

static struct fuse_entry_param entry_of(fuse_ino_t ino) {
    return (struct fuse_entry_param){.ino = ino, .attr = stat_of(ino), .attr_timeout = 1, .entry_timeout = 1};
}

/* 0: there is none. */
static fuse_ino_t find(fuse_ino_t parent, const char *name) {
    for (fuse_ino_t ino = FUSE_ROOT_ID + 1; ino < used; ino++)
        if (nodes[ino].parent == parent && strcmp(nodes[ino].name, name) == 0) return ino;
    return 0;
}

static fuse_ino_t make(fuse_ino_t parent, const char *name, mode_t mode) {
    pthread_mutex_lock(&one);
    fuse_ino_t ino = used < MOST && strlen(name) < NAME_BYTES ? used++ : 0;
    if (ino) {
        nodes[ino] = (struct Node){.parent = parent, .mode = mode};
        strcpy(nodes[ino].name, name);
    }
    pthread_mutex_unlock(&one);
    return ino;
}

static void on_init(void *data, struct fuse_conn_info *connection) {
    (void)data;
    connection->max_write = REQUEST_BYTES;
    connection->max_background = 64;
}

static void on_lookup(fuse_req_t request, fuse_ino_t parent, const char *name) {
    pthread_mutex_lock(&one);
    fuse_ino_t ino = find(parent, name);
    pthread_mutex_unlock(&one);
    if (!ino) {
        fuse_reply_err(request, ENOENT);
        return;
    }
    struct fuse_entry_param entry = entry_of(ino);
    fuse_reply_entry(request, &entry);
}

static void on_getattr(fuse_req_t request, fuse_ino_t ino, struct fuse_file_info *file) {
    (void)file;
    struct stat found = stat_of(ino);
    fuse_reply_attr(request, &found, 1);
}

static void on_setattr(fuse_req_t request, fuse_ino_t ino, struct stat *to, int set, struct fuse_file_info *file) {
    if (set & FUSE_SET_ATTR_SIZE) nodes[ino].size = to->st_size;
    on_getattr(request, ino, file);
}

static void on_mkdir(fuse_req_t request, fuse_ino_t parent, const char *name, mode_t mode) {
    fuse_ino_t ino = make(parent, name, S_IFDIR | mode);
    if (!ino) {
        fuse_reply_err(request, ENOSPC);
        return;
    }
    struct fuse_entry_param entry = entry_of(ino);
    fuse_reply_entry(request, &entry);
}

static void on_create(fuse_req_t request, fuse_ino_t parent, const char *name, mode_t mode, struct fuse_file_info *file) {
    fuse_ino_t ino = make(parent, name, S_IFREG | mode);
    if (!ino) {
        fuse_reply_err(request, ENOSPC);
        return;
    }
    struct fuse_entry_param entry = entry_of(ino);
    fuse_reply_create(request, &entry, file);
}

static void on_open(fuse_req_t request, fuse_ino_t ino, struct fuse_file_info *file) {
    (void)ino;
    fuse_reply_open(request, file);
}

static void on_write(fuse_req_t request, fuse_ino_t ino, const char *bytes, size_t len, off_t at, struct fuse_file_info *file) {
    (void)bytes, (void)file;
    off_t end = at + (off_t)len;
    if (end > nodes[ino].size) nodes[ino].size = end;
    fuse_reply_write(request, len);
}

static void on_remove(fuse_req_t request, fuse_ino_t parent, const char *name) {
    pthread_mutex_lock(&one);
    fuse_ino_t ino = find(parent, name);
    if (ino) nodes[ino].parent = 0;
    pthread_mutex_unlock(&one);
    fuse_reply_err(request, ino ? 0 : ENOENT);
}

static void on_sync(fuse_req_t request, fuse_ino_t ino, int data, struct fuse_file_info *file) {
    (void)ino, (void)data, (void)file;
    fuse_reply_err(request, 0);
}

static void on_close(fuse_req_t request, fuse_ino_t ino, struct fuse_file_info *file) {
    (void)ino, (void)file;
    fuse_reply_err(request, 0);
}

static void on_readdir(fuse_req_t request, fuse_ino_t dir, size_t size, off_t at, struct fuse_file_info *file) {
    (void)file;
    char buffer[4096];
    size_t filled = 0;
    pthread_mutex_lock(&one);
    for (fuse_ino_t ino = at ? (fuse_ino_t)at : FUSE_ROOT_ID + 1; ino < used; ino++) {
        if (nodes[ino].parent != dir) continue;
        struct stat found = stat_of(ino);
        size_t room = (size < sizeof buffer ? size : sizeof buffer) - filled;
        size_t needs = fuse_add_direntry(request, buffer + filled, room, nodes[ino].name, &found, (off_t)ino + 1);
        if (needs > room) break;
        filled += needs;
    }
    pthread_mutex_unlock(&one);
    fuse_reply_buf(request, buffer, filled);
}

static const struct fuse_lowlevel_ops CALLS = {
    .init = on_init, .lookup = on_lookup, .getattr = on_getattr, .setattr = on_setattr, .mkdir = on_mkdir,
    .create = on_create, .open = on_open, .write = on_write, .unlink = on_remove, .rmdir = on_remove,
    .fsync = on_sync, .fsyncdir = on_sync, .opendir = on_open, .readdir = on_readdir, .flush = on_close, .release = on_close,
};

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s MOUNTPOINT\n", argv[0]);
        return 64;
    }
    struct fuse_args args = FUSE_ARGS_INIT(1, argv);
    struct fuse_session *session = fuse_session_new(&args, &CALLS, sizeof CALLS, NULL);
    if (!session || fuse_set_signal_handlers(session) || fuse_session_mount(session, argv[1])) return 1;
    puts("ready");
    fflush(stdout);
    struct fuse_loop_config *config = fuse_loop_cfg_create();
    fuse_loop_cfg_set_clone_fd(config, 1);
    fuse_session_loop_mt(session, config);
    fuse_loop_cfg_destroy(config);
    fuse_session_unmount(session);
    fuse_session_destroy(session);
    return 0;
}

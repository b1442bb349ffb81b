/* A target of a striping file system, as small as can be: what replay.c's striped directory is made of.
 *
 *   striped ADDRESS DIR
 *
 * Listens on PORT of the address and keeps the parts of files that clients send, below DIR. A connection is one open
 * file, and has a thread. Requests are served as they come, each written by a pwrite of its own, as the targets
 * of PVFS do; but a client need not wait for the answer to a write, which makes it faster than those. Says "ready";
 * ends when killed.
 *
 * A request is a Request and, for OPEN (the name) and WRITE, length_bytes bytes. OPEN, TAKEN (all writes before are
 * in the server's page cache), SYNC (on its disk) and REMOVE are answered by one byte; READ by the bytes.
 *
 * Why not a real one, or sshfs: the processors of one machine serve 64 ranks and 4 servers, and with those they are
 * the limit long before the disks are. Survives: clients that go away. Not here: names in directories, permissions,
 * more than one writer. */
#define _GNU_SOURCE
#include "striped.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const char *dir;

static int failed(const char *what) {
    fprintf(stderr, "striped: %s: %s\n", what, strerror(errno));
    return -1;
}

static int take(int client, void *into, size_t len) {
    for (char *to = into; len > 0;) {
        const ssize_t got = recv(client, to, len, 0);
        if (got <= 0) return -1;
        to += got, len -= (size_t)got;
    }
    return 0;
}

static int answer(int client, const void *from, size_t len) {
    return send(client, from, len, MSG_NOSIGNAL) == (ssize_t)len ? 0 : -1;
}

/* 0 if the client continues. */
static int serve(int client, int *file, char *path, char *buffer) {
    Request request;
    if (take(client, &request, sizeof request) || request.length_bytes > MOST_BYTES) return -1;
    const ssize_t len = request.length_bytes;
    switch (request.kind) {
    case OPEN:
        if (request.length_bytes >= 256 || take(client, buffer, request.length_bytes)) return -1;
        snprintf(path, 4096, "%s/%.*s", dir, (int)request.length_bytes, buffer);
        if (*file >= 0) close(*file);
        *file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        return *file < 0 ? failed(path) : answer(client, "k", 1);
    case WRITE:
        if (take(client, buffer, request.length_bytes)) return -1;
        if (pwrite(*file, buffer, (size_t)len, (off_t)request.at) != len) return failed(path);
        return 0;
    case READ:
        if (pread(*file, buffer, (size_t)len, (off_t)request.at) != len) return failed(path);
        return answer(client, buffer, request.length_bytes);
    case SYNC: return fsync(*file) ? failed(path) : answer(client, "k", 1);
    case REMOVE: return unlink(path) ? failed(path) : answer(client, "k", 1);
    case TAKEN: return answer(client, "k", 1);
    default: return -1;
    }
}

static void *connection(void *argument) {
    const int client = (int)(intptr_t)argument;
    char path[4096] = "", *buffer = malloc(MOST_BYTES);
    int file = -1;
    while (buffer && serve(client, &file, path, buffer) == 0) {}
    if (file >= 0) close(file);
    close(client);
    free(buffer);
    return NULL;
}

int main(int argc, char **argv) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    if (argc != 3 || inet_pton(AF_INET, argv[1], &at.sin_addr) != 1) {
        fputs("usage: striped ADDRESS DIR\n", stderr);
        return 64;
    }
    dir = argv[2];
    const int door = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(door, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    if (bind(door, (struct sockaddr *)&at, sizeof at) || listen(door, 256)) return failed(argv[1]), 1;
    puts("ready");
    fflush(stdout);
    for (;;) {
        const int client = accept(door, NULL, NULL);
        pthread_t thread;
        if (client < 0) continue;
        setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        if (pthread_create(&thread, NULL, connection, (void *)(intptr_t)client)) close(client);
        else pthread_detach(thread);
    }
}

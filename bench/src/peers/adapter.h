/* What peers.c asks of a checkpoint library, and what the adapters share. One of them is compiled into a program: the libraries do not
 * share a process. */
#ifndef ORCBENCH_PEERS_ADAPTER_H
#define ORCBENCH_PEERS_ADAPTER_H
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include "../ranks.h"

static char *state; /* this rank's, of size bytes */
static size_t size;
static bool virtual_nodes;              /* each rank is a node of its own */

typedef struct {
    const char *dir;   /* of the job; its own */
    const char *conf;  /* a file that orcbench/peers_setups.py wrote for the library */
    const char *level; /* in the words of the library */
} Setup;

typedef struct {
    const char *name;
    void (*open)(const Setup *setup);
    void (*take)(int version);   /* returns when the program may continue */
    void (*wait)(int version);   /* until it is safe; NULL: it is when take returns, or nobody tells (orcbench/peers_setups.py) */
    void (*finish)(int version); /* after the clock: until nothing of it is under way any more; NULL: it is when it is safe */
    int (*find)(void);           /* the newest version that there is, after open; -1: none */
    void (*restore)(int version);
    void (*close)(void);
} Adapter;

/* What came from memory that an agent kept, of all ranks. */
static double kept_bytes;

static void write_file(const char *path, bool sync) {
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file < 0) die("cannot create %s: %s", path, strerror(errno));
    for (size_t at = 0; at < size;) {
        ssize_t took = write(file, state + at, size - at);
        if (took <= 0) die("cannot write %s: %s", path, strerror(errno));
        at += (size_t)took;
    }
    if ((sync && fsync(file)) || close(file)) die("cannot finish %s: %s", path, strerror(errno));
}

static void read_file(const char *path) {
    int file = open(path, O_RDONLY);
    if (file < 0) die("cannot open %s: %s", path, strerror(errno));
    for (size_t at = 0; at < size;) {
        ssize_t got = read(file, state + at, size - at);
        if (got <= 0) die("cannot read %s: %s", path, got ? strerror(errno) : "it is too short");
        at += (size_t)got;
    }
    close(file);
}

#endif

/* What goes over a connection to striped.c. */
#ifndef ORCBENCH_STRIPED_H
#define ORCBENCH_STRIPED_H
#include <stdint.h>

enum { PORT = 9002, MOST_BYTES = 1 << 20 };
typedef enum { OPEN = 1, WRITE, READ, TAKEN, SYNC, REMOVE } Kind;
typedef struct {
    uint32_t kind, length_bytes;
    uint64_t at; /* offset in the server's part of the file */
} Request;

#endif

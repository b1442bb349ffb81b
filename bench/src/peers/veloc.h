/* VELOC, which reads a file. Asynchronous, it starts a daemon that outlives the job. */
#include <veloc.h>

static void veloc_open(const Setup *setup) {
    if (VELOC_Init(MPI_COMM_WORLD, setup->conf) != VELOC_SUCCESS) die("VELOC_Init failed");
    if (VELOC_Mem_protect(0, state, size, 1) != VELOC_SUCCESS) die("VELOC_Mem_protect failed");
}
static void veloc_take(int version) {
    if (VELOC_Checkpoint("peers", version) != VELOC_SUCCESS) die("VELOC_Checkpoint failed");
}
static void veloc_wait(int version) {
    (void)version;
    if (VELOC_Checkpoint_wait() != VELOC_SUCCESS) die("VELOC_Checkpoint_wait failed");
}
static int veloc_find(void) { return VELOC_Restart_test("peers", 0); }
static void veloc_restore(int version) {
    if (VELOC_Restart("peers", version) != VELOC_SUCCESS) die("VELOC_Restart failed");
}
static void veloc_close(void) { VELOC_Finalize(1); }

static const Adapter ADAPTERS[] = {{"veloc", veloc_open, veloc_take, veloc_wait, NULL, veloc_find, veloc_restore, veloc_close}};

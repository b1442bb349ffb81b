/* FTI, which reads a file, and writes into it what a restart needs. FTI_Init repairs what was lost before it returns. */
#include <fti.h>

static int fti_level, fti_version;

static void fti_open(const Setup *setup) {
    fti_level = atoi(setup->level);
    if (FTI_Init(setup->conf, MPI_COMM_WORLD) != FTI_SCES) die("FTI_Init failed");
    if (FTI_Protect(0, state, (long)size, FTI_CHAR) != FTI_SCES ||
        FTI_Protect(1, &fti_version, 1, FTI_INTG) != FTI_SCES)
        die("FTI_Protect failed");
}
static void fti_take(int version) {
    fti_version = version;
    if (FTI_Checkpoint(version, fti_level) != FTI_DONE) die("FTI_Checkpoint failed");
}
static int fti_find(void) { return FTI_Status() ? 0 : -1; } /* which one it is, FTI_Recover says */
static void fti_restore(int version) {
    (void)version;
    if (FTI_Recover() != FTI_SCES) die("FTI_Recover failed");
}
static void fti_close(void) { FTI_Finalize(); }

static const Adapter ADAPTERS[] = {{"fti", fti_open, fti_take, NULL, NULL, fti_find, fti_restore, fti_close}};

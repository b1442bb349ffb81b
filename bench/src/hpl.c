/* HPL as a program of its own with checkpoints: orcbench/hpl.py makes HPL_pdgesv0 call this, which factors a matrix panel by panel.
 *
 *   for (j = hpl_begin(GRID->all_comm, A); j < N; j += nb) { hpl_panel(j); ... }  hpl_end();
 *
 * All that a panel leaves is in the rank's part of the matrix: the panels to its left are not needed any more but for the upper
 * triangle, the rest has been updated. So a checkpoint at column j is the matrix, and a restart begins with that column. */
#include <inttypes.h>
#include <orcheck.h>
#include <orcheck_mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include "hpl.h"

int HPL_main(int argc, char **argv, HPL_RuntimeData *result, int *failure);

static orc_session *session;
static int first;

static void check(orc_status status) {
    if (status == ORC_OK) return;
    fprintf(stderr, "%s\n", orc_message());
    MPI_Abort(MPI_COMM_WORLD, 1);
}

int hpl_begin(MPI_Comm comm, const HPL_T_pmat *matrix) {
    uint64_t step = 0;
    check(orc_mpi_open(&session, comm, "hpl", ""));
    check(orc_protect(session, "A", matrix->A, ORC_F64, (size_t)matrix->ld * (size_t)matrix->nq, 0));
    if (orc_find(session, &step) != ORC_NOT_FOUND) check(orc_restart(session, &step));
    first = (int)step;
    return first;
}

void hpl_panel(int column) {
    int due = 0;
    if (column <= first) return;
    check(orc_due(session, (uint64_t)column, &due));
    if (due) check(orc_checkpoint(session, (uint64_t)column));
}

void hpl_end(void) {
    check(orc_close(session, 600));
    session = NULL;
}

/* HPCC's choice of parameters where there is no file of them; there is one. */
int HPCC_Defaults() {
    fprintf(stderr, "hpccinf.txt cannot be read\n");
    MPI_Abort(MPI_COMM_WORLD, 1);
    return 1;
}

int main(int argc, char **argv) {
    HPL_RuntimeData result = {0};
    int failure = 0;
    MPI_Init(&argc, &argv);
    HPL_main(argc, argv, &result, &failure);
    MPI_Finalize();
    return failure;
}

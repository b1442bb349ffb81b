/* Two ranks, one of which makes a mistake in ORC_TRY: the whole program ends, and says why.
 *
 * Breaks if: orcheck_mpi.h leaves ORC_TRY_END() at abort() (a launcher may wait for the other rank), or ORC_TRY continues. */
#include "orcheck_mpi.h"

int main(int argc, char **argv) {
  orc_session *s;
  int rank;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  ORC_TRY(orc_mpi_open(&s, MPI_COMM_WORLD, "ends", getenv("ORC_TEST_OPTIONS")));
  if (rank == 1) ORC_TRY(orc_unprotect(s, "nothing"));
  MPI_Barrier(MPI_COMM_WORLD);
  puts("after the error");
  return 0;
}

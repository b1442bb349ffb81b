/* Four ranks. Two jobs on two halves of the program at the same time, and a third on all of it; the
 * program's own messages stay its own; every duplicated communicator is freed. Then everything again
 * after reopening, and restored.
 *
 * Breaks if: orc_mpi_collective uses the program's communicator instead of a duplicate, or
 * orc_mpi_release does not free the duplicate. */
#include "orcheck_mpi.h"

#include "check.h"

static int dups, frees;

/* MPI's profiling names let the test count what orcheck_mpi.h does. */
int MPI_Comm_dup(MPI_Comm comm, MPI_Comm *copy) {
  dups++;
  return PMPI_Comm_dup(comm, copy);
}
int MPI_Comm_free(MPI_Comm *comm) {
  frees++;
  return PMPI_Comm_free(comm);
}

enum { N = 50000 };
static double mine[N], all[N];

int main(int argc, char **argv) {
  int rank, size, level, flag, in = -1, out = 4711;
  MPI_Comm half;
  MPI_Request wild;
  orc_session *s, *w;
  uint64_t step, restored;

  REFUSED(orc_mpi_open(&s, MPI_COMM_WORLD, "early", NULL), ORC_INVALID, "not initialized");
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  CHECK(level >= MPI_THREAD_FUNNELED);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  CHECK(size == 4);
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
  const char *job = rank % 2 ? "odd" : "even";

  REFUSED(orc_mpi_open(NULL, half, job, NULL), ORC_INVALID, "session is NULL");
  REFUSED(orc_mpi_open(&s, MPI_COMM_NULL, job, NULL), ORC_INVALID, "MPI_COMM_NULL");

  MPI_Comm between;
  MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, rank % 2 ? 2 : 3, 9, &between);
  REFUSED(orc_mpi_open(&s, between, job, NULL), ORC_INVALID, "inter-communicator");
  PMPI_Comm_free(&between);

  /* Receives anything that comes over the communicators the program gave us. */
  MPI_Irecv(&in, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, half, &wild);

  OKAY(orc_mpi_open(&s, half, job, test_options()));
  OKAY(orc_mpi_open(&w, MPI_COMM_WORLD, "world", test_options()));
  CHECK(orc_find(s, &step) == ORC_NOT_FOUND);
  CHECK(orc_find(w, &step) == ORC_NOT_FOUND);
  OKAY(orc_protect(s, "mine", mine, ORC_F64, N, 0));
  OKAY(orc_protect(w, "all", all, ORC_F64, N, 0));
  for (step = 1; step <= 4; step++) {
    for (size_t i = 0; i < N; i++) mine[i] = element(rank, step, i), all[i] = -mine[i];
    OKAY(orc_checkpoint(s, step));
    /* The halves need not keep pace with each other, the job on all ranks needs all. */
    if (step % 2 == 0) OKAY(orc_checkpoint(w, step * 100));
  }
  OKAY(orc_wait(s, 4, ORC_GLOBAL, 30));
  OKAY(orc_wait(w, 400, ORC_GLOBAL, 30));
  OKAY(orc_close(s, 30));
  OKAY(orc_close(w, 30));
  MPI_Test(&wild, &flag, MPI_STATUS_IGNORE);
  CHECK(!flag);
  CHECK(dups == 2 && frees == 2);

  OKAY(orc_mpi_open(&w, MPI_COMM_WORLD, "world", test_options()));
  OKAY(orc_mpi_open(&s, half, job, test_options()));
  OKAY(orc_find(s, &step));
  CHECK(step == 4);
  OKAY(orc_find(w, &step));
  CHECK(step == 400);
  memset(mine, 0, sizeof mine), memset(all, 0, sizeof all);
  OKAY(orc_protect(s, "mine", mine, ORC_F64, N, 0));
  OKAY(orc_protect(w, "all", all, ORC_F64, N, 0));
  OKAY(orc_restart(w, &restored));
  CHECK(restored == 400);
  OKAY(orc_restart(s, &restored));
  CHECK(restored == 4);
  for (size_t i = 0; i < N; i++)
    CHECK(mine[i] == element(rank, 4, i) && all[i] == -element(rank, 4, i));
  OKAY(orc_close(w, 30));
  orc_abandon(s);
  CHECK(dups == 4 && frees == 3);

  MPI_Barrier(half);
  int half_rank, half_size;
  MPI_Comm_rank(half, &half_rank);
  MPI_Comm_size(half, &half_size);
  MPI_Send(&out, 1, MPI_INT, (half_rank + 1) % half_size, 5, half);
  MPI_Wait(&wild, MPI_STATUS_IGNORE);
  CHECK(in == 4711);
  MPI_Comm_free(&half);
  MPI_Finalize();
  if (rank == 0) puts("mpi_two_jobs: ok");
  return 0;
}

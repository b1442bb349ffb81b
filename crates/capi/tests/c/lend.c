/* Lent regions, in pool memory and in private memory: not copied, written again only after
 * orc_lent_done, restored as they were. Two ranks. */
#include "orcheck_mpi.h"

#include "check.h"

enum { N = 400000 };

int main(int argc, char **argv) {
  int rank;
  orc_session *s;
  void *memory;
  uint64_t step;
  double *pool, *own = malloc((N + 1) * sizeof *own);
  /* Misaligned on purpose: 8 bytes past what malloc gave. */
  double *private_ = own + 1;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  OKAY(orc_mpi_open(&s, MPI_COMM_WORLD, "lend", test_options()));
  OKAY(orc_alloc(s, N * sizeof *pool, &memory));
  CHECK((uintptr_t)memory % 4096 == 0);
  pool = memory;
  OKAY(orc_protect(s, "pool", pool, ORC_F64, N, 0));
  OKAY(orc_protect(s, "private", private_, ORC_F64, N, 0));
  for (step = 1; step <= 5; step++) {
    for (size_t i = 0; i < N; i++) pool[i] = element(rank, step, i), private_[i] = -pool[i];
    OKAY(orc_lend(s, "pool"));
    OKAY(orc_lend(s, "private"));
    OKAY(orc_checkpoint(s, step));
    CHECK(pool[7] == element(rank, step, 7)); /* reading stays allowed */
    orc_status polled = orc_lent_done(s, "pool", 0);
    CHECK(polled == ORC_OK || polled == ORC_UNAVAILABLE);
    OKAY(orc_lent_done(s, "pool", 30));
    OKAY(orc_lent_done(s, "private", 30));
  }
  /* What is still lent may not be taken away. */
  OKAY(orc_lend(s, "pool"));
  OKAY(orc_checkpoint(s, 6));
  OKAY(orc_wait(s, 6, ORC_GLOBAL, 30));
  OKAY(orc_lent_done(s, "pool", 30));
  REFUSED(orc_free(s, (char *)memory + 8), ORC_INVALID, "orc_free");
  OKAY(orc_unprotect(s, "pool"));
  OKAY(orc_free(s, memory));
  REFUSED(orc_free(s, memory), ORC_INVALID, "orc_free");
  OKAY(orc_close(s, 30));

  OKAY(orc_mpi_open(&s, MPI_COMM_WORLD, "lend", test_options()));
  OKAY(orc_find(s, &step));
  CHECK(step == 6);
  OKAY(orc_alloc(s, N * sizeof *pool, &memory));
  pool = memory;
  memset(private_, 0, N * sizeof *private_);
  OKAY(orc_protect(s, "pool", pool, ORC_F64, N, 0));
  OKAY(orc_protect(s, "private", private_, ORC_F64, N, 0));
  OKAY(orc_restart(s, &step));
  for (size_t i = 0; i < N; i++)
    CHECK(pool[i] == element(rank, 5, i) && private_[i] == -element(rank, 5, i));
  OKAY(orc_close(s, 30));
  free(own);
  MPI_Finalize();
  if (rank == 0) puts("lend: ok");
  return 0;
}

/* Children of the ranks of an MPI program with an open session: their calls are refused without a message to anybody, and
 * the job continues.
 *
 * Breaks if: registry.rs looks at a slot without asking whose it is: the child's collective calls would meet those of
 * the other rank. */
#include "check.h"
#include "orcheck_mpi.h"

#include <sys/wait.h>
#include <unistd.h>

static double x[1000];

static int child(orc_session *s) {
  int due = 7;
  uint64_t step = 7;
  alarm(20);
  REFUSED(orc_due(s, 9, &due), ORC_INVALID, "forked");
  REFUSED(orc_checkpoint(s, 9), ORC_INVALID, "forked");
  REFUSED(orc_find(s, &step), ORC_INVALID, "forked");
  REFUSED(orc_restart(s, &step), ORC_INVALID, "forked");
  REFUSED(orc_reject(s, 1), ORC_INVALID, "forked");
  REFUSED(orc_wait(s, 1, ORC_GLOBAL, 10), ORC_INVALID, "forked");
  /* The communicator's context is not released here either: freeing it would be a message. */
  REFUSED(orc_close(s, 1), ORC_INVALID, "forked");
  orc_abandon(s);
  return 0;
}

int main(int argc, char **argv) {
  orc_session *s;
  int rank;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  OKAY(orc_mpi_open(&s, MPI_COMM_WORLD, "forked", test_options()));
  OKAY(orc_protect(s, "x", x, ORC_F64, 1000, 0));
  for (uint64_t step = 1; step <= 6; step++) {
    pid_t pid = -1;
    int status = -1;
    /* On one rank, on the other one, on both. */
    const int forks = step % 3 == 0 || (int)(step % 2) == rank;
    for (int i = 0; i < 1000; i++) x[i] = element(rank, step, (size_t)i);
    if (forks) {
      pid = fork();
      CHECK(pid >= 0);
      if (pid == 0) _Exit(child(s));
    }
    OKAY(orc_checkpoint(s, step));
    OKAY(orc_wait(s, step, ORC_GLOBAL, 30));
    if (forks) {
      CHECK(waitpid(pid, &status, 0) == pid);
      if (status) FAIL("the child of rank %d ended with status %#x", rank, (unsigned)status);
    }
  }
  OKAY(orc_close(s, 30));
  MPI_Finalize();
  if (rank == 0) puts("mpi_forked: ok");
  return 0;
}

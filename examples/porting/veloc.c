/* A program that protected its memory with VELOC, on Orcheck. The comment above each new block shows the calls that it replaces.
 *
 * usage: mpirun -n 2 veloc STEPS [DIE]    (DIE: the last rank kills itself after that step, unless it resumed) */
#include <orcheck_mpi.h>

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 10000 };
static double u[N];
static double time_now;

static void advance(void) {
  time_now += 0.125;
  for (int i = 0; i < N; i++) u[i] = 0.5 * u[i] + 1.0 / (i + 1);
}

int main(int argc, char **argv) {
  int rank, ranks, due;
  uint64_t t = 0, last = argc > 1 ? strtoull(argv[1], NULL, 10) : 100, die = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
  orc_session *s;
  orc_status r;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);

  /* VELOC_Init(MPI_COMM_WORLD, "veloc.cfg"), and a backend for each node that somebody starts and ends */
  ORC_TRY(orc_mpi_open(&s, MPI_COMM_WORLD, "from_veloc", "every_steps = 10\nenabled = 'auto'"));

  /* VELOC_Mem_protect(0, u, N, sizeof *u); VELOC_Mem_protect(1, &time_now, 1, sizeof time_now); */
  ORC_TRY(ORC_PROTECT(s, {"u", u, ORC_F64, N, 0}, {"time", &time_now, ORC_F64, 1, 0}));

  /* int v = VELOC_Restart_test("from_veloc", 0); if (v > 0) VELOC_Restart("from_veloc", v); */
  r = orc_find(s, &t);
  if (r == ORC_OK) {
    ORC_TRY(orc_restart(s, &t));
    if (!rank) printf("resumed from step %" PRIu64 "\n", t);
    die = 0;
  } else if (r != ORC_NOT_FOUND) ORC_TRY(r);

  while (t < last && !orc_should_stop(s)) {
    advance();
    t++;
    /* if (t % 10 == 0) */
    ORC_TRY(orc_due(s, t, &due));
    /* VELOC_Checkpoint_wait(); VELOC_Checkpoint("from_veloc", t); */
    if (due) ORC_TRY(orc_checkpoint(s, t));
    if (t == die && rank == ranks - 1) raise(SIGKILL);
  }
  double sum = time_now, all;
  for (int i = 0; i < N; i++) sum += u[i];
  MPI_Reduce(&sum, &all, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
  if (!rank) printf("step %" PRIu64 "  sum %.17g\n", t, all);
  /* VELOC_Finalize(1) */
  ORC_TRY(orc_close(s, 300));
  MPI_Finalize();
  return 0;
}

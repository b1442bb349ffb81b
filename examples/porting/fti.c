/* A program that protected its memory with FTI, on Orcheck. The comment above each new block shows the calls that it replaces.
 *
 * usage: mpirun -n 2 fti STEPS [DIE]      (DIE: the last rank kills itself after that step, unless it resumed) */
#include <orcheck_mpi.h>

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

static double *u;
static size_t n = 1000;

/* The state grows: a restart has to ask how large it was. */
static void advance(void) {
  u = realloc(u, (n + 100) * sizeof *u);
  if (!u) abort();
  for (size_t i = n; i < n + 100; i++) u[i] = 0;
  n += 100;
  for (size_t i = 0; i < n; i++) u[i] = 0.5 * u[i] + 1.0 / (double)(i + 1);
}

int main(int argc, char **argv) {
  int rank, ranks, due, resumes;
  uint64_t t = 0, last = argc > 1 ? strtoull(argv[1], NULL, 10) : 100, die = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
  orc_session *s;
  orc_status r;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);

  /* FTI_Init("config.fti", MPI_COMM_WORLD), and FTI_COMM_WORLD instead of MPI_COMM_WORLD from here on */
  ORC_TRY(orc_mpi_open(&s, MPI_COMM_WORLD, "from_fti", "every_steps = 10\nenabled = 'auto'"));

  /* if (FTI_Status() != 0) { n = FTI_GetStoredSize(0) / sizeof *u; u = FTI_Realloc(0, u); FTI_Recover(); } */
  r = orc_find(s, &t);
  if (r != ORC_NOT_FOUND) ORC_TRY(r);
  resumes = r == ORC_OK;
  do {
    orc_array stored = {.struct_size = sizeof stored};
    if (resumes) {
      ORC_TRY(orc_stored(s, "u", &stored, NULL));
      n = (size_t)stored.local[0];
    }
    u = realloc(u, n * sizeof *u);
    /* FTI_Protect(0, u, n, FTI_DBLE) */
    ORC_TRY(orc_protect(s, "u", u, ORC_F64, n, 0));
  } while (resumes && (r = orc_restart(s, &t)) == ORC_AGAIN);
  if (resumes) {
    ORC_TRY(r);
    if (!rank) printf("resumed from step %" PRIu64 "\n", t);
    die = 0;
  } else {
    for (size_t i = 0; i < n; i++) u[i] = 0;
  }

  while (t < last && !orc_should_stop(s)) {
    advance();
    t++;
    /* FTI_Snapshot(), or if (t % 10 == 0) FTI_Checkpoint(t, FTI_L4) */
    ORC_TRY(orc_due(s, t, &due));
    if (due) {
      ORC_TRY(orc_protect(s, "u", u, ORC_F64, n, 0));
      ORC_TRY(orc_checkpoint(s, t));
    }
    if (t == die && rank == ranks - 1) raise(SIGKILL);
  }
  double sum = 0, all;
  for (size_t i = 0; i < n; i++) sum += u[i];
  MPI_Reduce(&sum, &all, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
  if (!rank) printf("step %" PRIu64 "  sum %.17g\n", t, all);
  /* FTI_Finalize() */
  ORC_TRY(orc_close(s, 300));
  free(u);
  MPI_Finalize();
  return 0;
}

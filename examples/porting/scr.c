/* A program that wrote its checkpoints into files that SCR named, on Orcheck.
 *
 * The comment above each new block shows the calls that it replaces. Built with -DOLD_FILES it keeps writing files, at paths from
 * orc_route(); otherwise it writes memory files (orc_fopen), which take no file system and no second copy.
 *
 * usage: mpirun -n 2 scr STEPS [DIE]      (DIE: the last rank kills itself after that step, unless it resumed) */
#include <orcheck_mpi.h>

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 10000 };
static double u[N];

static void advance(void) {
  for (int i = 0; i < N; i++) u[i] = 0.5 * u[i] + 1.0 / (i + 1);
}

/* The program's own file format is left as it was. */
static int write_state(FILE *f) { return fwrite(u, sizeof *u, N, f) != N; }
static int read_state(FILE *f) { return fread(u, sizeof *u, N, f) != N; }

#ifdef OLD_FILES
static FILE *open_state(orc_session *s, const char *mode) {
  static char path[4096]; /* asked for once, and the same until the session ends */
  if (!*path) ORC_TRY(orc_route(s, "state.dat", path, sizeof path));
  return fopen(path, mode);
}
#else
static FILE *open_state(orc_session *s, const char *mode) { return orc_fopen(s, "state.dat", mode); }
#endif

static void fail(const char *what) {
  fprintf(stderr, "%s: %s\n", what, orc_message());
  MPI_Abort(MPI_COMM_WORLD, 1);
}

int main(int argc, char **argv) {
  int rank, ranks, due;
  uint64_t t = 0, last = argc > 1 ? strtoull(argv[1], NULL, 10) : 100, die = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
  orc_session *s;
  orc_status r;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);

  /* SCR_Init(); with SCR_JOB_ID=from_scr, SCR_CHECKPOINT_INTERVAL=10 */
  ORC_TRY(orc_mpi_open(&s, MPI_COMM_WORLD, "from_scr", "every_steps = 10\nenabled = 'auto'"));

  /* SCR_Have_restart(&have, name); if (have) { SCR_Start_restart(name); SCR_Route_file(file, path); ... } */
#ifdef OLD_FILES
  fclose(open_state(s, "w")); /* a routed file is named before the restart, as any region */
#endif
  r = orc_find(s, &t);
  if (r == ORC_OK) {
    ORC_TRY(orc_restart(s, &t));
    FILE *f = open_state(s, "r");
    if (!f || read_state(f) || fclose(f)) fail("reading the state");
    /* SCR_Complete_restart(valid): nothing. What orc_restart() brings back is verified, on all ranks. */
    if (!rank) printf("resumed from step %" PRIu64 "\n", t);
    die = 0;
  } else if (r != ORC_NOT_FOUND) ORC_TRY(r);

  /* SCR_Should_exit(&flag) */
  while (t < last && !orc_should_stop(s)) {
    advance();
    t++;
    /* SCR_Need_checkpoint(&due) */
    ORC_TRY(orc_due(s, t, &due));
    if (due) {
      /* SCR_Start_output(name, SCR_FLAG_CHECKPOINT); SCR_Route_file(file, path); fopen(path, "w"); ... */
      FILE *f = open_state(s, "w");
      if (!f || write_state(f) || fclose(f)) fail("writing the state");
      /* SCR_Complete_output(valid) */
      ORC_TRY(orc_checkpoint(s, t));
    }
    if (t == die && rank == ranks - 1) raise(SIGKILL);
  }
  double sum = 0, all;
  for (int i = 0; i < N; i++) sum += u[i];
  MPI_Reduce(&sum, &all, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
  if (!rank) printf("step %" PRIu64 "  sum %.17g\n", t, all);
  /* SCR_Finalize(), which flushes the last one: */
  ORC_TRY(orc_close(s, 300));
  MPI_Finalize();
  return 0;
}

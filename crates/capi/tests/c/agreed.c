/* Two ranks. What is wrong on one of them has the same status on both: a program would wait for ever in its next
 * collective call where one rank continued and the other did not. */
#include "orcheck_mpi.h"

#include "check.h"

static int size(void *ctx, size_t *len) { return (void)ctx, *len = 5000, 0; }
static int pack(void *ctx, size_t at, void *to, size_t len) {
  (void)at, memset(to, 1, len);
  return *(int *)ctx;
}
static int unpack(void *ctx, size_t at, const void *from, size_t len) {
  return (void)ctx, (void)at, (void)from, (void)len, 0;
}

int main(int argc, char **argv) {
  static double p[1000];
  orc_session *s, *many[100];
  orc_codec codec = {0};
  char options[4096];
  int rank, level, opened = 0, fails = 0;

  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);

  /* An option, a name and a table of sessions that is full, on one rank. */
  snprintf(options, sizeof options, "%s%s", test_options(), rank ? "\nkeeep = 3" : "");
  REFUSED(orc_mpi_open(&s, MPI_COMM_WORLD, "agreed", options), ORC_INVALID, "keeep");
  REFUSED(orc_mpi_open(&s, MPI_COMM_WORLD, rank ? "a/b" : "ab", test_options()), ORC_INVALID, "job name");
  snprintf(options, sizeof options, "%s\npool = '1 MiB'\nchunk = '64 KiB'", getenv("ORC_TEST_SMALL"));
  for (; rank && opened < 64; opened++) {
    char job[32];
    snprintf(job, sizeof job, "many%d", opened);
    OKAY(orc_open(&many[opened], job, NULL, options));
  }
  REFUSED(orc_mpi_open(&s, MPI_COMM_WORLD, "agreed", test_options()), ORC_UNAVAILABLE, "64 sessions");
  while (opened-- > 0) orc_abandon(many[opened]);

  /* A codec that fails on one rank: no error, but a loss that both are told of. */
  codec.struct_size = sizeof codec, codec.ctx = &fails;
  codec.size = size, codec.pack = pack, codec.unpack = unpack;
  OKAY(orc_mpi_open(&s, MPI_COMM_WORLD, "agreed", test_options()));
  OKAY(orc_protect(s, "p", p, ORC_F64, 1000, 0));
  OKAY(orc_protect_codec(s, "c", &codec, 0));
  OKAY(orc_checkpoint(s, 1));
  fails = rank ? 3 : 0;
  OKAY(orc_checkpoint(s, 2));
  CHECK(!strstr(orc_message(), "checkpoint 2 will be lost") == !rank);
  REFUSED(orc_wait(s, 2, ORC_GLOBAL, 30), ORC_UNAVAILABLE, "rank 1 gave its snapshot of step 2 up");
  fails = 0;
  OKAY(orc_checkpoint(s, 3));
  OKAY(orc_close(s, 30));
  if (rank == 0) puts("agreed: ok");
  MPI_Finalize();
  return 0;
}

/* A sparse matrix, its rows dealt among two ranks, then among three and one: docs/elastic.md. Rows have different
 * lengths, so they are two lists. What belongs to its rank is refused, and named. Three ranks. */
#include "orcheck_mpi.h"

#include "check.h"

enum { ROWS = 1000 };

static size_t row_of(size_t i) { return i * 7 % 5 + (i == 3 ? 2000 : 0); }

static size_t entries_before(size_t row) {
  size_t n = 0;
  for (size_t i = 0; i < row; i++) n += row_of(i);
  return n;
}

static void save(MPI_Comm comm, int rank) {
  orc_session *s;
  uint64_t t;
  const size_t first = rank ? 300 : 0, rows = rank ? ROWS - 300 : 300;
  const size_t entry = entries_before(first), entries = entries_before(first + rows) - entry;
  int64_t *row_len = malloc(rows * sizeof *row_len);
  double *value = malloc(entries * 2 * sizeof *value), own = rank;
  for (size_t i = 0; i < rows; i++) row_len[i] = (int64_t)row_of(first + i);
  for (size_t i = 0; i < entries; i++) value[2 * i] = element(0, 1, entry + i), value[2 * i + 1] = -value[2 * i];
  OKAY(orc_mpi_open(&s, comm, "sparse", test_options()));
  CHECK(orc_find(s, &t) == ORC_NOT_FOUND);
  OKAY(orc_protect_list(s, "row_len", row_len, ORC_I64, NULL, 0, rows, 0));
  OKAY(orc_protect_list(s, "value", value, ORC_F64, (int64_t[]){2}, 1, entries, 0));
  OKAY(orc_protect(s, "own", &own, ORC_F64, 1, 0));
  OKAY(orc_checkpoint(s, 1));
  OKAY(orc_close(s, 30));
  free(row_len), free(value);
}

static void restore(MPI_Comm comm, int rank, int ranks) {
  orc_session *s;
  uint64_t t;
  double own = 0;
  orc_array a = {.struct_size = sizeof a};
  OKAY(orc_mpi_open(&s, comm, "sparse", test_options()));
  OKAY(orc_find(s, &t));
  REFUSED(orc_stored(s, "own", &a, NULL), ORC_UNSUPPORTED, "written by 2 ranks");
  OKAY(orc_stored(s, "row_len", &a, NULL));
  const size_t rows = (size_t)a.local[0], first = (size_t)a.offset[0];
  CHECK(a.ndim == 1 && a.global[0] == ROWS && rows == ROWS / (size_t)ranks + (rank < ROWS % ranks));
  int64_t *row_len = malloc(rows * sizeof *row_len);
  OKAY(orc_protect_list(s, "row_len", row_len, ORC_I64, NULL, 0, rows, 0));
  OKAY(orc_restart_region(s, "row_len"));
  size_t entries = 0;
  for (size_t i = 0; i < rows; i++) entries += (size_t)row_len[i];
  double *value = malloc(entries * 2 * sizeof *value);
  OKAY(orc_protect(s, "own", &own, ORC_F64, 1, 0));
  OKAY(orc_protect_list(s, "value", value, ORC_F64, (int64_t[]){2}, 1, entries + (rank == 0), 0));
  REFUSED(orc_restart(s, &t), ORC_UNSUPPORTED, "own (each rank's own)");
  OKAY(orc_unprotect(s, "own"));
  REFUSED(orc_restart(s, &t), ORC_INVALID, "list 'value' has");
  OKAY(orc_protect_list(s, "value", value, ORC_F64, (int64_t[]){1}, 1, 2 * entries, 0));
  REFUSED(orc_restart(s, &t), ORC_INVALID, "items of [2] f64 in the checkpoint");
  OKAY(orc_protect_list(s, "value", value, ORC_F64, (int64_t[]){2}, 1, entries, 0));
  OKAY(orc_restart(s, &t));
  CHECK(t == 1);
  for (size_t i = 0; i < rows; i++) CHECK(row_len[i] == (int64_t)row_of(first + i));
  const size_t entry = entries_before(first);
  for (size_t i = 0; i < entries; i++) {
    CHECK(value[2 * i] == element(0, 1, entry + i));
    CHECK(value[2 * i + 1] == -value[2 * i]);
  }
  OKAY(orc_close(s, 30));
  free(row_len), free(value);
}

int main(int argc, char **argv) {
  int rank, ranks;
  MPI_Comm two;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  CHECK(ranks == 3);
  MPI_Comm_split(MPI_COMM_WORLD, rank < 2 ? 0 : MPI_UNDEFINED, 0, &two);
  if (rank < 2) save(two, rank);
  MPI_Barrier(MPI_COMM_WORLD);
  restore(MPI_COMM_WORLD, rank, 3);
  if (rank == 2) restore(MPI_COMM_SELF, 0, 1);
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank < 2) MPI_Comm_free(&two);
  if (rank == 0) puts("elastic: ok");
  MPI_Finalize();
  return 0;
}

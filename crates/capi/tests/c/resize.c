/* A particle code: every rank has another number of particles, and another one at every step; a
 * restarted program learns the number from orc_stored before it allocates, and again when the newest
 * step turns out damaged. Three ranks. */
#include "orcheck_mpi.h"

#include "check.h"

typedef struct {
  double x, y;
  int64_t id;
} particle;

static size_t count(int rank, uint64_t step) {
  return rank == 1 && step == 3 ? 0 : (size_t)(1000 * (rank + 1)) + (size_t)step * 17;
}

static particle made(int rank, uint64_t step, size_t i) {
  particle p;
  memset(&p, 0, sizeof p);
  p.x = element(rank, step, i), p.y = -p.x, p.id = (int64_t)i;
  return p;
}

static void run(int rank, uint64_t first, uint64_t last, int damaged) {
  orc_session *s;
  uint64_t step = 0, restored = 0;
  size_t n = 0, len = 0;
  particle *p = NULL;
  OKAY(orc_mpi_open(&s, MPI_COMM_WORLD, "particles", test_options()));
  orc_status found = orc_find(s, &step);
  CHECK(found == (first > 1 ? ORC_OK : ORC_NOT_FOUND));
  if (found == ORC_OK) {
    CHECK(step == first - 1 + (uint64_t)damaged);
    do {
      OKAY(orc_stored(s, "p", NULL, &len));
      n = len / sizeof *p;
      CHECK(n == count(rank, step));
      p = realloc(p, n * sizeof *p + 1);
      OKAY(orc_protect(s, "p", p, ORC_BYTES, n * sizeof *p, 0));
      found = orc_restart(s, &restored);
      CHECK(found == (damaged && step == first ? ORC_AGAIN : ORC_OK));
      step = restored;
    } while (found == ORC_AGAIN);
    CHECK(restored == first - 1);
    for (size_t i = 0; i < n; i++) {
      particle q = made(rank, step, i);
      CHECK(memcmp(&p[i], &q, sizeof q) == 0);
    }
  }
  for (step = first; step <= last; step++) {
    free(p);
    n = count(rank, step);
    p = n ? malloc(n * sizeof *p) : NULL;
    for (size_t i = 0; i < n; i++) p[i] = made(rank, step, i);
    OKAY(orc_protect(s, "p", p, ORC_BYTES, n * sizeof *p, 0));
    OKAY(orc_checkpoint(s, step));
  }
  OKAY(orc_close(s, 30));
  free(p);
}

int main(int argc, char **argv) {
  int rank;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  run(rank, 1, 3, 0); /* ends where rank 1 has none */
  run(rank, 4, 5, 0);
  run(rank, 6, 7, 0);
  if (rank == 0) CHECK(system("sh \"$HERE/damage.sh\" particles") == 0);
  MPI_Barrier(MPI_COMM_WORLD);
  run(rank, 7, 8, 1); /* step 7 is damaged; it is computed again from step 6 */
  MPI_Finalize();
  if (rank == 0) puts("resize: ok");
  return 0;
}

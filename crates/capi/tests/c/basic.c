/* One rank without MPI. `basic save`: takes three checkpoints and closes. `basic restore`: a new
 * process finds them, asks for sizes, restarts and compares. `basic changed`: types and sizes that
 * are not the stored ones are refused. `basic locked`: what is encrypted is refused without its key.
 *
 * Breaks if: resume.rs takes a missing key for damage (orc_find then says that nothing is there). */
#include "check.h"
#include "orcheck.h"
#include <unistd.h>

enum { N = 300000, ROWS = 30, COLS = 50 };

static double flat[N];
static float grid[ROWS + 2][COLS + 2]; /* with ghost cells */
static uint64_t counter;

static orc_array inner(void) {
  orc_array a = {0};
  a.struct_size = sizeof a, a.dtype = ORC_F32, a.ndim = 2;
  a.global[0] = a.local[0] = ROWS, a.global[1] = a.local[1] = COLS;
  a.stride[0] = COLS + 2, a.stride[1] = 1;
  return a;
}

static void fill(uint64_t step) {
  for (size_t i = 0; i < N; i++) flat[i] = element(0, step, i);
  for (int i = 0; i < ROWS + 2; i++)
    for (int j = 0; j < COLS + 2; j++) grid[i][j] = (float)(step * 10000 + (uint64_t)(i * 100 + j));
  counter = step;
}

static void put(const char *path, const char *text) {
  FILE *f = fopen(path, "w");
  CHECK(f != NULL && fputs(text, f) >= 0 && fclose(f) == 0);
}

static void save(void) {
  orc_session *s;
  uint64_t step;
  orc_stats stats = {0};
  orc_array a = inner();
  char path[4096], rare[4096], mesh[4096];
  OKAY(orc_open(&s, "basic", NULL, test_options()));
  REFUSED(orc_find(s, &step), ORC_NOT_FOUND, "orc_find");
  OKAY(orc_protect(s, "flat", flat, ORC_F64, N, 0));
  OKAY(orc_protect_array(s, "grid", &grid[1][1], &a, 0));
  OKAY(orc_protect(s, "counter", &counter, ORC_U64, 1, ORC_SAME));
  OKAY(orc_route(s, "log", path, sizeof path));
  OKAY(orc_route_file(s, "out/step/errors", ORC_OPTIONAL, rare, sizeof rare));
  OKAY(orc_route_file(s, "out/mesh", 0, mesh, sizeof mesh));
  put(mesh, "mesh\n");
  for (step = 1; step <= 3; step++) {
    FILE *f = fopen(path, "w");
    CHECK(f != NULL);
    fprintf(f, "step %llu\n", (unsigned long long)step);
    CHECK(fclose(f) == 0);
    fill(step);
    if (step < 3) put(rare, "not at step 3\n");
    else CHECK(remove(rare) == 0);
    OKAY(orc_checkpoint(s, step));
    fill(777); /* the snapshot is the library's own now */
    OKAY(orc_wait(s, step, ORC_GLOBAL, 30));
    OKAY(orc_route(s, "log", path, sizeof path));
  }
  stats.struct_size = sizeof stats;
  OKAY(orc_stats_read(s, &stats));
  CHECK(stats.step == 3 && stats.committed_global_step == 3);
  CHECK(stats.staged_bytes >= sizeof flat && stats.blocked_s > 0);
  OKAY(orc_close(s, 30));
}

static void restore(void) {
  orc_session *s;
  uint64_t step = 0, restored = 0;
  size_t len = 0;
  char path[4096], rare[4096], mesh[4096], line[64] = "";
  orc_array a = {0}, g = inner();
  a.struct_size = sizeof a;
  OKAY(orc_open(&s, "basic", NULL, test_options()));
  OKAY(orc_find(s, &step));
  CHECK(step == 3);
  OKAY(orc_stored(s, "flat", &a, &len));
  CHECK(len == sizeof flat && a.dtype == ORC_F64 && a.ndim == 1 && a.local[0] == N);
  OKAY(orc_stored(s, "grid", &a, &len));
  CHECK(len == ROWS * COLS * sizeof(float) && a.dtype == ORC_F32 && a.ndim == 2);
  CHECK(a.local[0] == ROWS && a.local[1] == COLS && a.global[0] == ROWS && a.offset[0] == 0);
  REFUSED(orc_stored(s, "nobody", &a, &len), ORC_NOT_FOUND, "nobody");
  CHECK(len == 0);
  for (int i = 0; i < ROWS + 2; i++)
    for (int j = 0; j < COLS + 2; j++) grid[i][j] = -1;
  OKAY(orc_protect(s, "flat", flat, ORC_F64, N, 0));
  OKAY(orc_protect_array(s, "grid", &grid[1][1], &g, 0));
  OKAY(orc_protect(s, "counter", &counter, ORC_U64, 1, ORC_SAME));
  OKAY(orc_protect(s, "new since then", path, ORC_BYTES, 10, ORC_OPTIONAL));
  OKAY(orc_route(s, "log", path, sizeof path));
  OKAY(orc_route_file(s, "out/step/errors", ORC_OPTIONAL, rare, sizeof rare));
  OKAY(orc_route_file(s, "out/mesh", 0, mesh, sizeof mesh));
  put(rare, "of this run\n");
  OKAY(orc_restart(s, &restored));
  CHECK(restored == 3 && counter == 3);
  CHECK(access(rare, F_OK) != 0 && access(mesh, R_OK) == 0);
  for (size_t i = 0; i < N; i++) CHECK(flat[i] == element(0, 3, i));
  for (int i = 0; i < ROWS + 2; i++)
    for (int j = 0; j < COLS + 2; j++) {
      int ghost = i == 0 || j == 0 || i > ROWS || j > COLS;
      CHECK(grid[i][j] == (ghost ? -1 : (float)(30000 + i * 100 + j)));
    }
  OKAY(orc_route(s, "log", path, sizeof path));
  FILE *f = fopen(path, "r");
  CHECK(f != NULL && fgets(line, sizeof line, f) != NULL && !strcmp(line, "step 3\n"));
  fclose(f);
  OKAY(orc_checkpoint(s, 4));
  OKAY(orc_close(s, 30));
}

/* One restart with one region declared differently. */
static void changed(const char *name, void *address, int dtype, size_t count, const char *piece) {
  orc_session *s;
  uint64_t step;
  OKAY(orc_open(&s, "basic", NULL, test_options()));
  OKAY(orc_find(s, &step));
  OKAY(orc_protect(s, name, address, dtype, count, 0));
  REFUSED(orc_restart(s, &step), ORC_INVALID, piece);
  CHECK(step == 0);
  orc_abandon(s);
}

/* A region that is stored but not declared any more is left out, and said. */
static void partial(void) {
  orc_session *s;
  uint64_t step;
  counter = 0;
  OKAY(orc_open(&s, "basic", NULL, test_options()));
  OKAY(orc_find(s, &step));
  OKAY(orc_protect(s, "counter", &counter, ORC_U64, 1, ORC_SAME));
  REFUSED(orc_checkpoint(s, step + 1), ORC_INVALID, "not restarted");
  OKAY(orc_restart(s, NULL));
  CHECK(counter == 3 && strstr(orc_message(), "flat") && strstr(orc_message(), "grid"));
  OKAY(orc_protect(s, "counter", &counter, ORC_U64, 1, ORC_SAME));
  CHECK(*orc_message() == 0);
  REFUSED(orc_checkpoint(s, step), ORC_INVALID, "does not grow");
  orc_abandon(s);
}

/* What a refusal says goes where the script can look through it. */
static void said(void) {
  const char *path = getenv("ORC_TEST_SAID");
  FILE *f = path ? fopen(path, "a") : NULL;
  CHECK(f != NULL && fprintf(f, "%s\n", orc_message()) > 0);
  CHECK(fclose(f) == 0);
}

/* What is there cannot be read: an error that says why, and no fresh start. */
static void locked(const char *piece) {
  orc_session *s;
  uint64_t step = 0;
  OKAY(orc_open(&s, "basic", NULL, test_options()));
  REFUSED(orc_find(s, &step), ORC_INVALID, piece);
  said();
  fill(4);
  OKAY(orc_protect(s, "flat", flat, ORC_F64, N, 0));
  CHECK(orc_checkpoint(s, 4) == ORC_INVALID);
  said();
  orc_close(s, 30);
}

static void unopened(const char *piece) {
  orc_session *s;
  REFUSED(orc_open(&s, "basic", NULL, test_options()), ORC_INVALID, piece);
  said();
}

int main(int argc, char **argv) {
  const char *mode = argc > 1 ? argv[1] : "";
  if (!strcmp(mode, "save")) save();
  else if (!strcmp(mode, "restore")) restore();
  else if (!strcmp(mode, "changed")) {
    changed("flat", flat, ORC_F64, N - 1, "flat");
    changed("flat", flat, ORC_I64, N, "flat");
    partial();
    changed("flat2", flat, ORC_F64, N, "flat2");
  } else if (!strcmp(mode, "locked") && argc > 2) locked(argv[2]);
  else if (!strcmp(mode, "unopened") && argc > 2) unopened(argv[2]);
  else FAIL("usage: basic save|restore|changed|locked PIECE|unopened PIECE");
  printf("basic %s: ok\n", mode);
  return 0;
}

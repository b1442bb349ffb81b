/* A session without checkpoints: each call of the interface works or refuses as documented, and nothing is stored. Run
 * without any directory in the options (`disabled auto`), or with one and enabled = false (`disabled false`).
 *
 * Breaks if: a function of the interface reaches for the session with checkpoints that is not there. */
#include "check.h"
#include "orcheck.h"

#include <unistd.h>

static int events;
static void on_event(void *ctx, const orc_event *event) {
  (void)ctx, (void)event;
  events++;
}
static int never(void *ctx, size_t *len_bytes) {
  (void)ctx, (void)len_bytes;
  FAIL("a session without checkpoints asked for bytes");
}
static int no_pack(void *ctx, size_t at, void *dst, size_t len_bytes) {
  (void)ctx, (void)at, (void)dst, (void)len_bytes;
  return 1;
}
static int no_unpack(void *ctx, size_t at, const void *src, size_t len_bytes) {
  (void)ctx, (void)at, (void)src, (void)len_bytes;
  return 1;
}

int main(int argc, char **argv) {
  const int is_auto = argc > 1 && !strcmp(argv[1], "auto");
  orc_session *s;
  static double u[100], grid[4][5];
  uint64_t step = 7;
  size_t len = 7;
  int due = 7;
  void *memory = NULL;
  char path[4096], options[8192];
  FILE *file;
  orc_array a = {0};
  orc_stats stats = {0};
  orc_codec codec = {0};
  a.struct_size = sizeof a, a.dtype = ORC_F64, a.ndim = 2, a.local[0] = 4, a.local[1] = 5;
  stats.struct_size = sizeof stats;
  codec.struct_size = sizeof codec, codec.size = never, codec.pack = no_pack, codec.unpack = no_unpack;

  REFUSED(orc_open(&s, "off", NULL, "every_s = 5"), ORC_INVALID, "enabled = 'auto'");
  REFUSED(orc_open(&s, "off", NULL, "enabled = 'maybe'"), ORC_INVALID, "true, false or 'auto'");
  REFUSED(orc_open(&s, "a/b", NULL, "enabled = false"), ORC_INVALID, "job");
  REFUSED(orc_open(&s, "off", NULL, "enabled = false\nkeep = 0"), ORC_INVALID, "keep");
  snprintf(options, sizeof options, "%s\nenabled = %s\nevery_steps = 1\nsignal = 'TERM'",
           is_auto ? "" : test_options(), is_auto ? "'auto'" : "false");
  OKAY(orc_open(&s, "off", NULL, options));
  CHECK(strstr(orc_message(), "job 'off' runs without checkpoints: enabled = "));

  OKAY(ORC_PROTECT(s, {"u", u, ORC_F64, 100, ORC_SAME}, {"step", &step, ORC_U64, 1, 0}));
  OKAY(orc_protect_array(s, "grid", grid, &a, 0));
  OKAY(orc_protect_codec(s, "codec", &codec, 0));
  REFUSED(orc_protect(s, "", u, ORC_F64, 100, 0), ORC_INVALID, "region name");
  REFUSED(orc_protect(s, "v", u, 99, 100, 0), ORC_INVALID, "dtype");
  REFUSED(orc_protect(s, "v", NULL, ORC_F64, 100, 0), ORC_INVALID, "address is NULL");
  REFUSED(orc_unprotect(s, "v"), ORC_NOT_FOUND, "there are: codec, grid, step, u");
  OKAY(orc_watch(s, on_event, NULL));
  OKAY(orc_alloc(s, 1 << 20, &memory));
  memset(memory, 7, 1 << 20);
  OKAY(orc_protect(s, "memory", memory, ORC_BYTES, 1 << 20, 0));
  REFUSED(orc_free(s, memory), ORC_INVALID, "region 'memory' lies in");
  REFUSED(orc_alloc(s, SIZE_MAX, &memory), ORC_NO_SPACE, "no memory");
  OKAY(orc_route(s, "notes", path, sizeof path));
  file = fopen(path, "w");
  CHECK(file && fputs("notes\n", file) >= 0 && !fclose(file));
  REFUSED(orc_route(s, "../notes", path, sizeof path), ORC_INVALID, "relative path");
  OKAY(orc_route(s, "notes", path, sizeof path));

  REFUSED(orc_restart(s, &step), ORC_INVALID, "call find first");
  REFUSED(orc_find(s, &step), ORC_NOT_FOUND, "start from nothing");
  CHECK(step == 0);
  REFUSED(orc_find_step(s, ORC_EXACTLY, 3, &step), ORC_NOT_FOUND, "step 3");
  REFUSED(orc_stored(s, "u", &a, &len), ORC_INVALID, "call find first");
  REFUSED(orc_restart_region(s, "u"), ORC_INVALID, "call find first");
  for (uint64_t t = 1; t <= 100; t++) {
    OKAY(orc_due(s, t, &due));
    CHECK(due == 0);
    orc_request(s, 1);
    CHECK(orc_should_stop(s) == 0);
    OKAY(orc_lend(s, "memory"));
    OKAY(orc_checkpoint(s, t));
    CHECK(orc_message()[0] == 0);
    OKAY(orc_lent_done(s, "memory", 0));
  }
  REFUSED(orc_checkpoint(s, 100), ORC_INVALID, "does not grow");
  OKAY(orc_wait(s, 100, ORC_GLOBAL, 0));
  CHECK(strstr(orc_message(), "nothing of checkpoint 100 is safe at level global"));
  REFUSED(orc_wait(s, 101, ORC_GLOBAL, 0), ORC_NOT_FOUND, "101");
  REFUSED(orc_wait(s, 100, 9, 0), ORC_INVALID, "level");
  REFUSED(orc_safe_step(s, ORC_NODE, &step), ORC_NOT_FOUND, "enabled = ");
  OKAY(orc_reject(s, 100));
  OKAY(orc_stats_read(s, &stats));
  CHECK(stats.disabled == 1 && stats.step == 0 && stats.pool_bytes == 0);
  CHECK(events == 0 && !access(path, R_OK));
  REFUSED(orc_close(s, -1), ORC_INVALID, "timeout_s");
  OKAY(orc_close(s, 10));
  CHECK(access(path, R_OK) != 0);
  REFUSED(orc_checkpoint(s, 101), ORC_INVALID, "not an open session");

  OKAY(orc_open(&s, "off", NULL, options));
  OKAY(orc_route(s, "notes", path, sizeof path));
  orc_abandon(s);
  *strrchr(path, '/') = 0;
  CHECK(access(path, R_OK) != 0);
  puts("disabled: ok");
  return 0;
}

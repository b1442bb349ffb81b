/* One rank without MPI: each level at its own pace, and a level that is asked for.
 *
 * Breaks if: orc_checkpoint_at passes another level on, or orc_wait waits for a level that the step
 * does not go to. */
#include "check.h"
#include "orcheck.h"
#include <sys/stat.h>

static double state[1000];

static int waits(orc_session *s, uint64_t step, orc_level level, orc_status status) {
  return orc_wait(s, step, level, 30) == status;
}

int main(void) {
  orc_session *s;
  orc_stats stats = {0};
  char options[8192], node[4096];
  uint64_t step = 0;
  int due = 0;
  snprintf(node, sizeof node, "%s-node", getenv("ORC_TEST_DIR"));
  CHECK(mkdir(node, 0700) == 0);
  snprintf(options, sizeof options, "%s\nnode_dir = \"%s\"\n[level.node]\nevery_steps = 2\n[level.global]\nevery_steps = 4\n",
           test_options(), node);
  OKAY(orc_open(&s, "levels", NULL, options));
  OKAY(orc_protect(s, "state", state, ORC_F64, 1000, 0));
  for (step = 1; step <= 4; step++) {
    OKAY(orc_due(s, step, &due));
    CHECK(due == (step % 2 == 0));
    if (due) OKAY(orc_checkpoint(s, step));
  }
  CHECK(waits(s, 2, ORC_NODE, ORC_OK) && waits(s, 4, ORC_GLOBAL, ORC_OK));
  REFUSED(orc_wait(s, 2, ORC_GLOBAL, 30), ORC_NOT_FOUND, "does not go to level global");
  OKAY(orc_checkpoint_at(s, 5, ORC_NODE));
  CHECK(waits(s, 5, ORC_NODE, ORC_OK) && waits(s, 5, ORC_GLOBAL, ORC_NOT_FOUND));
  OKAY(orc_checkpoint_at(s, 7, ORC_GLOBAL));
  CHECK(waits(s, 7, ORC_GLOBAL, ORC_OK));
  REFUSED(orc_checkpoint_at(s, 9, (orc_level)9), ORC_INVALID, "level is 9");
  stats.struct_size = sizeof stats;
  OKAY(orc_stats_read(s, &stats));
  CHECK(stats.committed_global_step == 7 && stats.step == 7);
  OKAY(orc_close(s, 30));
  snprintf(options, sizeof options, "%s\n[level.node]\nevery_s = 5\n", test_options());
  REFUSED(orc_open(&s, "levels", NULL, options), ORC_INVALID, "level node is not configured");
  return 0;
}

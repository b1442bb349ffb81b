/* A job whose only directory is on a server, which comes back with an empty disk.
 *
 *   emptied save            takes a checkpoint
 *   emptied told TEXT       begins from nothing, and is told TEXT when it looks
 *   emptied refused TEXT    does not begin from nothing: strict
 *   emptied unopened TEXT   does not open: the address says which disk it means
 *
 * Breaks if: an empty disk is taken for a job that never ran. */
#include "check.h"
#include "orcheck.h"

enum { N = 1000 };

static double u[N];

int main(int argc, char **argv) {
  const char *mode = argc > 1 ? argv[1] : "save";
  const char *text = argc > 2 ? argv[2] : "";
  orc_session *s;
  uint64_t step;
  for (size_t i = 0; i < N; i++) u[i] = element(0, 1, i);
  if (!strcmp(mode, "unopened")) {
    REFUSED(orc_open(&s, "emptied", NULL, test_options()), ORC_UNAVAILABLE, text);
    return 0;
  }
  OKAY(orc_open(&s, "emptied", NULL, test_options()));
  if (!strcmp(mode, "refused")) {
    REFUSED(orc_find(s, &step), ORC_INVALID, text);
    OKAY(orc_close(s, 30));
    return 0;
  }
  REFUSED(orc_find(s, &step), ORC_NOT_FOUND, text);
  OKAY(orc_protect(s, "u", u, ORC_F64, N, 0));
  OKAY(orc_checkpoint(s, 1));
  OKAY(orc_wait(s, 1, ORC_GLOBAL, 30));
  OKAY(orc_close(s, 30));
  return 0;
}

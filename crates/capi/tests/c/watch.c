/* What became of checkpoints: told to a function of the program, in messages and in figures; asked for without waiting. */
#include "check.h"

#include <stddef.h>

#include <orcheck.h>

struct told {
  orc_session *session;
  int safe, lost, refused;
  uint64_t last;
  int status;
  char text[1024];
};

static void on_event(void *ctx, const orc_event *event) {
  struct told *told = ctx;
  uint64_t step;
  if (event->struct_size < sizeof *event || event->level != ORC_GLOBAL) return;
  told->last = event->step;
  told->status = event->status;
  snprintf(told->text, sizeof told->text, "%s", event->text);
  told->safe += event->kind == ORC_EVENT_SAFE;
  told->lost += event->kind == ORC_EVENT_LOST;
  told->refused += orc_safe_step(told->session, ORC_GLOBAL, &step) == ORC_INVALID;
}

int main(void) {
  static double p[5000];
  struct told told = {0};
  char options[4096];
  orc_session *s, *other;
  uint64_t step = 9;
  orc_stats stats = {0};
  int due;

  snprintf(options, sizeof options, "%s\nevery_steps = 1", test_options());
  OKAY(orc_open(&s, "watch", NULL, options));
  told.session = s;
  OKAY(orc_watch(s, on_event, &told));
  OKAY(orc_protect(s, "p", p, ORC_F64, 5000, 0));
  REFUSED(orc_safe_step(s, ORC_GLOBAL, &step), ORC_NOT_FOUND, "no checkpoint of this session is safe");
  REFUSED(orc_safe_step(s, 7, &step), ORC_INVALID, "level is 7");
  REFUSED(orc_safe_step(s, ORC_GLOBAL, NULL), ORC_INVALID, "step is NULL");
  OKAY(orc_checkpoint(s, 1));
  OKAY(orc_wait(s, 1, ORC_GLOBAL, 30));
  CHECK(told.safe == 1 && told.lost == 0 && told.last == 1 && told.status == ORC_OK && !told.text[0]);
  CHECK(told.refused == 1);
  OKAY(orc_safe_step(s, ORC_NODE, &step));
  CHECK(step == 1);

  /* A newer run takes over. */
  snprintf(options, sizeof options, "%s\ntake_over = true", test_options());
  OKAY(orc_open(&other, "watch", NULL, options));
  OKAY(orc_checkpoint(s, 2));
  REFUSED(orc_wait(s, 2, ORC_GLOBAL, 30), ORC_FENCED, "superseded");
  CHECK(told.lost == 1 && told.last == 2 && told.status == ORC_FENCED);
  CHECK(strstr(told.text, "checkpoint 2 is lost at level global"));
  OKAY(orc_due(s, 3, &due));
  CHECK(strstr(orc_message(), "checkpoint 2 is lost at level global"));
  REFUSED(orc_checkpoint(s, 3), ORC_FENCED, "checkpoint 3 was not staged");
  REFUSED(orc_checkpoint(s, 3), ORC_FENCED, "checkpoint 2 is lost");
  OKAY(orc_safe_step(s, ORC_GLOBAL, &step));
  CHECK(step == 1 && told.lost == 1);

  /* By level and cause; and with the structure of a program of the first version. */
  stats.struct_size = sizeof stats;
  OKAY(orc_stats_read(s, &stats));
  CHECK(stats.step == 2 && stats.lost_steps[ORC_GLOBAL][ORC_FENCED] == 1);
  CHECK(stats.lost_steps[ORC_GLOBAL][0] == 1 && stats.lost_steps[ORC_NODE][0] == 0);
  memset(&stats, 0, sizeof stats);
  stats.struct_size = offsetof(orc_stats, captured_step);
  OKAY(orc_stats_read(s, &stats));
  CHECK(stats.step == 2 && stats.lost_steps[ORC_GLOBAL][ORC_FENCED] == 0);

  orc_abandon(s);
  OKAY(orc_watch(other, on_event, &told));
  OKAY(orc_watch(other, NULL, NULL));
  OKAY(orc_close(other, 30));
  REFUSED(orc_watch(other, on_event, &told), ORC_INVALID, "not an open session");
  CHECK(told.safe == 1 && told.lost == 1);
  puts("watch: ok");
  return 0;
}

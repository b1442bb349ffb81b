/* Another checkpoint than the newest, one region alone, and the loop of a program whose size changes when
 * newer steps are damaged. One rank. */
#define _POSIX_C_SOURCE 200112L /* setenv */
#include <orcheck.h>

#include "check.h"

static double *u;
static size_t n;
static int64_t sizes[2];

/* State of a step: its size is its own. */
static void make(orc_session *s, uint64_t step) {
  n = 20000 + 100 * (size_t)step;
  u = realloc(u, n * sizeof *u);
  for (size_t i = 0; i < n; i++) u[i] = element(0, step, i);
  sizes[0] = (int64_t)n, sizes[1] = (int64_t)step;
  OKAY(orc_protect(s, "sizes", sizes, ORC_I64, 2, 0));
  OKAY(orc_protect(s, "u", u, ORC_F64, n, 0));
}

static int holds(uint64_t step) {
  for (size_t i = 0; i < n; i++)
    if (u[i] != element(0, step, i)) return 0;
  return n == 20000 + 100 * (size_t)step && sizes[1] == (int64_t)step;
}

/* As the README has it: how often it was asked for sizes. */
static int resume(orc_session *s, uint64_t *t) {
  size_t len;
  int asked = 0;
  orc_array a = {.struct_size = sizeof a};
  orc_status r = orc_find(s, t);
  int resumes = r == ORC_OK;
  OKAY(orc_protect(s, "sizes", sizes, ORC_I64, 2, 0));
  do {
    if (resumes) { OKAY(orc_stored(s, "u", &a, &len)); n = (size_t)a.local[0], asked++; }
    u = realloc(u, n * sizeof *u);
    OKAY(orc_protect(s, "u", u, ORC_F64, n, 0));
  } while (resumes && (r = orc_restart(s, t)) == ORC_AGAIN);
  CHECK(r == ORC_OK || r == ORC_NOT_FOUND);
  return asked;
}

static void damage(void) { CHECK(system("sh \"$HERE/damage.sh\" choose") == 0); }

int main(void) {
  orc_session *s;
  uint64_t t = 0;
  OKAY(orc_open(&s, "choose", NULL, test_options()));
  REFUSED(orc_find_step(s, 3, 1, &t), ORC_INVALID, "ORC_EXACTLY");
  CHECK(orc_find_step(s, ORC_EXACTLY, 1, &t) == ORC_NOT_FOUND);
  n = 1;
  CHECK(resume(s, &t) == 0);
  for (uint64_t step = 1; step <= 4; step++) {
    make(s, step);
    OKAY(orc_checkpoint(s, step));
  }
  OKAY(orc_close(s, 30));

  /* The newest is damaged: the natural loop asks twice, and the program is at the older step. */
  damage();
  for (int again = 0; again < 2; again++) {
    OKAY(orc_open(&s, "choose", NULL, test_options()));
    CHECK(resume(s, &t) == 2);
    CHECK(t == 3 && holds(3) && strstr(orc_message(), "step 4 skipped"));
    orc_abandon(s);
  }
  /* A program that was built without ORC_AGAIN sees an error with a text, and no success. */
  OKAY(orc_open(&s, "choose", NULL, test_options()));
  OKAY(orc_find(s, &t));
  make(s, 4);
  orc_status old = orc_restart(s, &t);
  CHECK(old != ORC_OK && old == 9 && t == 3);
  CHECK(strstr(orc_message(), "step 3 does not fit") && strstr(orc_message(), "step 4 skipped"));
  REFUSED(orc_restart(s, &t), ORC_INVALID, "does not fit");

  /* A certain step, one older, none. */
  OKAY(orc_find_step(s, ORC_EXACTLY, 2, &t));
  CHECK(t == 2);
  OKAY(orc_find_step(s, ORC_OLDER_THAN, 2, &t));
  CHECK(t == 1);
  REFUSED(orc_find_step(s, ORC_EXACTLY, 9, &t), ORC_NOT_FOUND, "3, 2, 1");
  REFUSED(orc_restart_region(s, "sizes"), ORC_INVALID, "find first");

  /* One region first, then the rest. */
  OKAY(orc_find(s, &t));
  CHECK(t == 3);
  REFUSED(orc_restart_region(s, "nothing"), ORC_NOT_FOUND, "nothing");
  OKAY(orc_restart_region(s, "sizes"));
  CHECK(sizes[0] == 20300 && sizes[1] == 3);
  n = (size_t)sizes[0];
  u = realloc(u, n * sizeof *u);
  OKAY(orc_protect(s, "u", u, ORC_F64, n, 0));
  OKAY(orc_restart(s, &t));
  CHECK(t == 3 && holds(3));

  /* The program finds it wrong: never again, in this run and in the next one. */
  OKAY(orc_reject(s, 3));
  REFUSED(orc_reject(s, 9), ORC_NOT_FOUND, "2, 1");
  CHECK(resume(s, &t) == 1);
  CHECK(t == 2 && holds(2));
  OKAY(orc_close(s, 30));
  OKAY(orc_open(&s, "choose", NULL, test_options()));
  CHECK(resume(s, &t) == 2); /* step 4 is damaged still */
  CHECK(t == 2 && holds(2));
  make(s, 5);
  OKAY(orc_checkpoint(s, 5));
  OKAY(orc_close(s, 30));

  /* A mistyped option is no option. */
  setenv("ORCHECK_EVERY_STEP", "2", 1);
  REFUSED(orc_open(&s, "choose", NULL, test_options()), ORC_INVALID, "did you mean ORCHECK_EVERY_STEPS?");
  unsetenv("ORCHECK_EVERY_STEP");
  /* Nor is a session without a trigger silent. */
  int due;
  OKAY(orc_open(&s, "choose", NULL, test_options()));
  OKAY(orc_due(s, 1, &due));
  CHECK(!due && strstr(orc_message(), "no trigger is configured"));
  OKAY(orc_due(s, 2, &due));
  CHECK(!due && !strcmp(orc_message(), ""));
  orc_abandon(s);
  free(u);
  puts("choose: ok");
  return 0;
}

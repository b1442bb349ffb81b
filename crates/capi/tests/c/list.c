/* Several regions in one call, and ORC_TRY: names the wrong entry, protects all or none, ends a program at an error.
 *
 * Breaks if: list.rs names regions before all entries are checked, or ORC_TRY continues. */
#include "check.h"
#include "orcheck.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
  orc_session *s;
  static double p[100], q[50];
  uint64_t t = 7, step = 0;
  size_t len = 0;
  int status = -1, ends[2];
  char said[4096] = "";
  pid_t child;
  ORC_TRY(orc_open(&s, "list", NULL, test_options()));
  REFUSED(orc_protect_all(s, NULL, 1), ORC_INVALID, "regions is NULL");
  REFUSED(ORC_PROTECT(s, {"p", p, ORC_F64, 100, 0}, {"q", q, 99, 50, 0}), ORC_INVALID, "regions[1]: region \"q\": dtype");
  REFUSED(ORC_PROTECT(s, {"p", p, ORC_F64, 100, 0}, {NULL, q, ORC_F64, 50, 0}), ORC_INVALID, "regions[1]: ");
  REFUSED(ORC_PROTECT(s, {"p", p, ORC_F64, 100, 0}, {"q", NULL, ORC_F64, 50, 0}), ORC_INVALID, "address is NULL");
  REFUSED(ORC_PROTECT(s, {"p", p, ORC_F64, 100, 0}, {"q", q, ORC_F64, SIZE_MAX, 0}), ORC_INVALID, "larger than memory");
  REFUSED(ORC_PROTECT(s, {"p", p, ORC_F64, 100, 0}, {"t", &t, ORC_U64, 1, 0}, {"p", q, ORC_F64, 50, 0}), ORC_INVALID,
          "regions[0] and regions[2] have the same name, \"p\"");
  REFUSED(orc_unprotect(s, "p"), ORC_NOT_FOUND, "p");
  OKAY(orc_protect_all(s, NULL, 0));
  OKAY(ORC_PROTECT(s, {"p", p, ORC_F64, 100, 0}, {"q", q, ORC_F64, 50, 0}, {"t", &t, ORC_U64, 1, ORC_SAME}));
  /* A later call replaces what an earlier one named. */
  ORC_TRY(ORC_PROTECT(s, {"p", p, ORC_F64, 100, 0}, {"q", q, ORC_F64, 50, 0}, {"t", &t, ORC_U64, 1, ORC_SAME}));
  for (int i = 0; i < 100; i++) p[i] = i, q[i / 2] = -i;
  ORC_TRY(orc_checkpoint(s, 1));
  ORC_TRY(orc_close(s, 60));

  ORC_TRY(orc_open(&s, "list", NULL, test_options()));
  ORC_TRY(orc_find(s, &step));
  ORC_TRY(orc_stored(s, "q", NULL, &len));
  CHECK(step == 1 && len == sizeof q);
  memset(p, 0, sizeof p), memset(q, 0, sizeof q), t = 0;
  ORC_TRY(ORC_PROTECT(s, {"p", p, ORC_F64, 100, 0}, {"q", q, ORC_F64, 50, 0}, {"t", &t, ORC_U64, 1, ORC_SAME}));
  ORC_TRY(orc_restart(s, NULL));
  CHECK(p[99] == 99 && q[49] == -99 && t == 7);
  orc_abandon(s);

  CHECK(!pipe(ends));
  child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    dup2(ends[1], 2);
    ORC_TRY(orc_checkpoint(NULL, 1));
    _Exit(0);
  }
  CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
  CHECK(read(ends[0], said, sizeof said - 1) > 0);
  CHECK(strstr(said, "list.c:") && strstr(said, "the session is NULL") && strstr(said, "orc_checkpoint(NULL, 1)"));
  puts("list: ok");
  return 0;
}

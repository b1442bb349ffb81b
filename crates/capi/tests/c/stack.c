/* Threads with small stacks: every call is refused before it begins, and the session does not notice. A stack that the
 * program switched to by itself is not known, and not refused.
 *
 * Breaks if: fault.rs does not ask how much stack is left (SIGSEGV). */
#include "check.h"
#include "orcheck.h"

#include <limits.h>
#include <pthread.h>
#include <ucontext.h>

#define LEFT "bytes of this thread's stack are left"

static orc_session *s;
static double x[1000];
static volatile int fits;

static void *calls(void *nothing) {
  static char path[4096];
  static orc_array a;
  static orc_stats stats;
  static orc_codec codec;
  orc_session *other = NULL;
  double *y = x;
  void *memory = NULL;
  int due = 7;
  uint64_t step = 7;
  size_t len = 7;
  (void)nothing;
  a.struct_size = sizeof a, a.dtype = ORC_F64, a.ndim = 1, a.global[0] = a.local[0] = 1;
  stats.struct_size = sizeof stats, codec.struct_size = sizeof codec;
  REFUSED(orc_open(&other, "other", NULL, test_options()), ORC_INVALID, LEFT);
  CHECK(!other);
  REFUSED(orc_protect(s, "y", y, ORC_F64, 1, 0), ORC_INVALID, LEFT);
  REFUSED(orc_protect_array(s, "y", y, &a, 0), ORC_INVALID, LEFT);
  REFUSED(orc_protect_codec(s, "c", &codec, 0), ORC_INVALID, LEFT);
  REFUSED(ORC_PROTECT(s, {"y", y, ORC_F64, 1, 0}), ORC_INVALID, LEFT);
  REFUSED(orc_unprotect(s, "x"), ORC_INVALID, LEFT);
  REFUSED(orc_alloc(s, 4096, &memory), ORC_INVALID, LEFT);
  REFUSED(orc_free(s, y), ORC_INVALID, LEFT);
  REFUSED(orc_due(s, 1, &due), ORC_INVALID, LEFT);
  CHECK(due == 0 || due == 7);
  CHECK(orc_should_stop(s) == 0);
  REFUSED(orc_lend(s, "x"), ORC_INVALID, LEFT);
  REFUSED(orc_lent_done(s, "x", 0), ORC_INVALID, LEFT);
  REFUSED(orc_checkpoint(s, 1), ORC_INVALID, LEFT);
  REFUSED(orc_wait(s, 1, ORC_GLOBAL, 1), ORC_INVALID, LEFT);
  REFUSED(orc_find(s, &step), ORC_INVALID, LEFT);
  REFUSED(orc_find_step(s, ORC_EXACTLY, 1, &step), ORC_INVALID, LEFT);
  REFUSED(orc_reject(s, 1), ORC_INVALID, LEFT);
  REFUSED(orc_stored(s, "x", &a, &len), ORC_INVALID, LEFT);
  REFUSED(orc_restart(s, &step), ORC_INVALID, LEFT);
  REFUSED(orc_restart_region(s, "x"), ORC_INVALID, LEFT);
  REFUSED(orc_route(s, "y", path, sizeof path), ORC_INVALID, LEFT);
  REFUSED(orc_route_file(s, "y", 0, path, sizeof path), ORC_INVALID, LEFT);
  REFUSED(orc_safe_step(s, ORC_GLOBAL, &step), ORC_INVALID, LEFT);
  REFUSED(orc_watch(s, NULL, NULL), ORC_INVALID, LEFT);
  REFUSED(orc_stats_read(s, &stats), ORC_INVALID, LEFT);
  REFUSED(orc_close(s, 1), ORC_INVALID, LEFT);
  orc_abandon(s);
  return NULL;
}

static void *checkpoint(void *nothing) {
  (void)nothing;
  OKAY(orc_checkpoint(s, 1));
  OKAY(orc_wait(s, 1, ORC_GLOBAL, 60));
  return NULL;
}

static void on_stack(size_t len_bytes, void *(*work)(void *)) {
  pthread_attr_t attributes;
  pthread_t thread;
  CHECK(!pthread_attr_init(&attributes));
  CHECK(!pthread_attr_setstacksize(&attributes, len_bytes));
  CHECK(!pthread_create(&thread, &attributes, work, NULL));
  CHECK(!pthread_join(thread, NULL));
  pthread_attr_destroy(&attributes);
}

static ucontext_t here, fiber;
static void in_fiber(void) {
  OKAY(orc_checkpoint(s, 2));
  fits = 1;
}

int main(void) {
  size_t len_bytes = 256 << 10;
  void *stack = malloc(len_bytes);
  CHECK(stack);
  OKAY(orc_open(&s, "stack", NULL, test_options()));
  OKAY(orc_protect(s, "x", x, ORC_F64, 1000, 0));
  on_stack(16 << 10, calls);
  on_stack(64 << 10, calls);
  on_stack(512 << 10, checkpoint);
  CHECK(!getcontext(&fiber));
  fiber.uc_stack.ss_sp = stack, fiber.uc_stack.ss_size = len_bytes, fiber.uc_link = &here;
  makecontext(&fiber, in_fiber, 0);
  CHECK(!swapcontext(&here, &fiber));
  CHECK(fits);
  OKAY(orc_wait(s, 2, ORC_GLOBAL, 60));
  OKAY(orc_close(s, 60));
  free(stack);
  puts("stack: ok");
  return 0;
}

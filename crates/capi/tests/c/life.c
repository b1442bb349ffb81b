/* The end of a thread or of the process at the wrong moment: cancelled inside a call, exit() inside a callback, a
 * session abandoned at exit after it was closed.
 *
 * Breaks if: fault.rs leaves cancellation on (the thread ends with the session locked), or does not refuse calls from
 * callbacks (exit() hangs in its handlers). */
#include "check.h"
#include "orcheck.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static orc_session *s;
static double x[1000];
static volatile int returned;

static int cancels_itself(void *ctx, size_t *len_bytes) {
  (void)ctx;
  *len_bytes = 8;
  pthread_cancel(pthread_self());
  pthread_testcancel();
  return 0;
}
static int exits(void *ctx, size_t *len_bytes) {
  (void)ctx;
  *len_bytes = 8;
  exit(17);
}
static int pack(void *ctx, size_t at, void *dst, size_t len_bytes) {
  (void)ctx, (void)at;
  memset(dst, 1, len_bytes);
  return 0;
}
static int unpack(void *ctx, size_t at, const void *src, size_t len_bytes) {
  (void)ctx, (void)at, (void)src, (void)len_bytes;
  return 0;
}

static void *cancelled(void *nothing) {
  (void)nothing;
  OKAY(orc_checkpoint(s, 1));
  returned = 1;
  pthread_testcancel();
  FAIL("the request to cancel was lost");
}

static void open_with(const char *job, int (*size)(void *, size_t *)) {
  orc_codec codec = {0};
  codec.struct_size = sizeof codec;
  codec.size = size, codec.pack = pack, codec.unpack = unpack;
  OKAY(orc_open(&s, job, NULL, test_options()));
  OKAY(orc_protect(s, "x", x, ORC_F64, 1000, 0));
  OKAY(orc_protect_codec(s, "c", &codec, 0));
}

static int cancel(void) {
  pthread_t thread;
  void *result = NULL;
  open_with("cancelled", cancels_itself);
  CHECK(!pthread_create(&thread, NULL, cancelled, NULL));
  CHECK(!pthread_join(thread, &result));
  CHECK(returned && result == PTHREAD_CANCELED);
  /* Nothing is left locked. */
  OKAY(orc_unprotect(s, "c"));
  OKAY(orc_checkpoint(s, 2));
  OKAY(orc_wait(s, 2, ORC_GLOBAL, 60));
  OKAY(orc_close(s, 60));
  return 0;
}

static void abandon(void) {
  orc_abandon(s);
  orc_abandon(s);
}

static int exit_inside(void) {
  atexit(abandon);
  open_with("exits", exits);
  orc_checkpoint(s, 1);
  FAIL("the callback returned");
}

static int exit_after_close(void) {
  atexit(abandon);
  open_with("closed", exits);
  OKAY(orc_close(s, 60));
  exit(17);
}

static const struct {
  const char *name;
  int (*run)(void);
  int status;
} ENDS[] = {
    {"cancels a thread inside a call", cancel, 0},
    {"exits inside a callback", exit_inside, 17},
    {"abandons after close, at exit", exit_after_close, 17},
};

int main(void) {
  for (size_t end = 0; end < sizeof ENDS / sizeof *ENDS; end++) {
    int status = -1;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      alarm(50);
      exit(ENDS[end].run());
    }
    CHECK(waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != ENDS[end].status)
      FAIL("a program that %s ended with status %#x", ENDS[end].name, (unsigned)status);
  }
  puts("life: ok");
  return 0;
}

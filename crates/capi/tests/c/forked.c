/* Children of a program with an open session, one kind after the other: each call is refused, none crashes, and the
 * parent does not notice.
 *
 * Breaks if: registry.rs looks at a slot without asking whose it is (the child waits for a lock of a thread that it
 * does not have, or touches the pool, which it does not have either). */
#include "check.h"
#include "orcheck.h"

#include <errno.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static orc_session *s;
static double *lent, x[1000];
static char routed[4096];
static int events;
static pid_t parent;

static void on_event(void *ctx, const orc_event *event) {
  (void)ctx;
  /* The parent hears what becomes of its checkpoints; the child hears nothing. */
  if (getpid() != parent) FAIL("a child heard of step %llu", (unsigned long long)event->step);
  events += event->level == ORC_GLOBAL;
}
static int size(void *ctx, size_t *len_bytes) {
  (void)ctx, (void)len_bytes;
  FAIL("a codec that no session has was asked");
}
static int pack(void *ctx, size_t at, void *dst, size_t len_bytes) {
  (void)ctx, (void)at, (void)dst, (void)len_bytes;
  return 1;
}
static int unpack(void *ctx, size_t at, const void *src, size_t len_bytes) {
  (void)ctx, (void)at, (void)src, (void)len_bytes;
  return 1;
}

/* Each function on the session, in the child. */
static int calls(void) {
  double y = 0;
  int due = 7;
  uint64_t step = 7;
  size_t len = 7;
  void *p = &y;
  char path[64] = "y";
  orc_array a = {0};
  orc_stats stats = {0};
  orc_codec codec = {0};
  orc_region region = {"y", &y, ORC_F64, 1, 0};
  codec.struct_size = sizeof codec, codec.size = size, codec.pack = pack, codec.unpack = unpack;
  a.struct_size = sizeof a, a.dtype = ORC_F64, a.ndim = 1, a.global[0] = a.local[0] = 1;
  stats.struct_size = sizeof stats;
  REFUSED(orc_protect(s, "y", &y, ORC_F64, 1, 0), ORC_INVALID, "forked");
  REFUSED(orc_protect_array(s, "y", &y, &a, 0), ORC_INVALID, "forked");
  REFUSED(ORC_PROTECT(s, {"y", &y, ORC_F64, 1, 0}), ORC_INVALID, "forked");
  REFUSED(orc_protect_all(s, &region, 1), ORC_INVALID, "forked");
  REFUSED(orc_protect_codec(s, "y", &codec, 0), ORC_INVALID, "forked");
  REFUSED(orc_unprotect(s, "x"), ORC_INVALID, "forked");
  REFUSED(orc_alloc(s, 4096, &p), ORC_INVALID, "forked");
  REFUSED(orc_free(s, lent), ORC_INVALID, "forked");
  REFUSED(orc_due(s, 3, &due), ORC_INVALID, "forked");
  CHECK(due == 0);
  orc_request(s, 1);
  CHECK(orc_should_stop(s) == 0 && strstr(orc_message(), "forked"));
  REFUSED(orc_lend(s, "x"), ORC_INVALID, "forked");
  REFUSED(orc_lent_done(s, "x", 0), ORC_INVALID, "forked");
  REFUSED(orc_checkpoint(s, 3), ORC_INVALID, "forked");
  REFUSED(orc_wait(s, 1, ORC_GLOBAL, 1), ORC_INVALID, "forked");
  REFUSED(orc_find(s, &step), ORC_INVALID, "forked");
  REFUSED(orc_find_step(s, ORC_EXACTLY, 1, &step), ORC_INVALID, "forked");
  CHECK(step == 0);
  REFUSED(orc_reject(s, 1), ORC_INVALID, "forked");
  REFUSED(orc_watch(s, on_event, NULL), ORC_INVALID, "forked");
  REFUSED(orc_watch(s, NULL, NULL), ORC_INVALID, "forked");
  REFUSED(orc_safe_step(s, ORC_GLOBAL, &step), ORC_INVALID, "forked");
  REFUSED(orc_restart_region(s, "x"), ORC_INVALID, "forked");
  REFUSED(orc_stored(s, "x", &a, &len), ORC_INVALID, "forked");
  REFUSED(orc_restart(s, &step), ORC_INVALID, "forked");
  REFUSED(orc_route(s, "y", path, sizeof path), ORC_INVALID, "forked");
  REFUSED(orc_route_file(s, "y", 0, path, sizeof path), ORC_INVALID, "forked");
  REFUSED(orc_stats_read(s, &stats), ORC_INVALID, "forked");
  REFUSED(orc_close(s, 1), ORC_INVALID, "forked");
  CHECK(strstr(orc_message(), "orc_close"));
  orc_abandon(s);
  return 0;
}
static int exits(void) { exit(0); }
static int executes(void) {
  execl("/bin/true", "true", (char *)0);
  return errno;
}
static int grandchild(void) {
  int status = -1;
  pid_t child = fork();
  if (child == 0) _Exit(calls());
  return waitpid(child, &status, 0) != child || status != 0;
}
static void *thread_calls(void *nothing) {
  (void)nothing;
  calls();
  return NULL;
}
static int from_a_thread(void) {
  pthread_t thread;
  return pthread_create(&thread, NULL, thread_calls, NULL) || pthread_join(thread, NULL);
}

static const struct {
  const char *name;
  int (*child)(void);
} KINDS[] = {
    {"calls each function", calls},
    {"exits with destructors", exits},
    {"executes another program", executes},
    {"forks again", grandchild},
    {"calls from a thread of its own", from_a_thread},
};

/* Keeps the session's lock busy while the children are made. */
static volatile int done;
static void *busy(void *nothing) {
  orc_stats stats = {0};
  (void)nothing;
  stats.struct_size = sizeof stats;
  while (!done) OKAY(orc_stats_read(s, &stats));
  return NULL;
}

static void abandon_at_exit(void) {
  orc_abandon(s);
  orc_abandon(s);
}

int main(void) {
  pthread_t thread;
  void *memory;
  FILE *file;
  uint64_t step = 1;
  parent = getpid();
  atexit(abandon_at_exit);
  OKAY(orc_open(&s, "forked", NULL, test_options()));
  OKAY(orc_alloc(s, 1 << 20, &memory));
  lent = memory;
  for (int i = 0; i < 1000; i++) lent[i] = x[i] = element(0, 1, (size_t)i);
  OKAY(orc_protect(s, "x", x, ORC_F64, 1000, 0));
  OKAY(orc_protect(s, "lent", lent, ORC_F64, 1000, 0));
  OKAY(orc_route(s, "notes", routed, sizeof routed));
  file = fopen(routed, "w");
  CHECK(file && fputs("notes\n", file) >= 0 && !fclose(file));
  OKAY(orc_watch(s, on_event, NULL));
  CHECK(!pthread_create(&thread, NULL, busy, NULL));
  for (size_t kind = 0; kind < sizeof KINDS / sizeof *KINDS; kind++)
    for (int turn = 0; turn < 8; turn++) {
      int status = -1;
      pid_t child;
      fflush(NULL);
      child = fork();
      CHECK(child >= 0);
      if (child == 0) {
        alarm(20);
        _Exit(KINDS[kind].child());
      }
      CHECK(waitpid(child, &status, 0) == child);
      if (status) FAIL("a child that %s ended with status %#x", KINDS[kind].name, status);
      /* The parent continues: what it staged, holds and wrote is there. */
      OKAY(orc_checkpoint(s, step));
      OKAY(orc_wait(s, step, ORC_GLOBAL, 60));
      CHECK(orc_should_stop(s) == 0);
      CHECK(access(routed, R_OK) == 0);
      CHECK(events == (int)step);
      step++;
    }
  done = 1;
  pthread_join(thread, NULL);
  OKAY(orc_close(s, 60));
  puts("forked: ok");
  return 0;
}

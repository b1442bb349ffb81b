/* Several threads on one session while it is closed under them: they wait for each other, then get an
 * error; nothing is used after it is gone. One rank, no MPI. */
#include "check.h"
#include "orcheck.h"

#include <pthread.h>
#include <stdatomic.h>

static orc_session *session;
static atomic_int ready, checked;

/* Waits for whatever step there is, until the session is gone. */
static void *waiter(void *arg) {
  (void)arg;
  atomic_fetch_add(&ready, 1);
  for (uint64_t step = 1;; step = step % 5 + 1) {
    orc_status status = orc_wait(session, step, ORC_GLOBAL, 30);
    if (status == ORC_OK || status == ORC_NOT_FOUND) continue;
    /* Given up while it waited, or gone before it asked. */
    if (status == ORC_UNAVAILABLE && strstr(orc_message(), "the session ends")) continue;
    if (status != ORC_INVALID || !strstr(orc_message(), "session")) FAIL("%s", orc_message());
    atomic_fetch_add(&checked, 1);
    return NULL;
  }
}

static void *reader(void *arg) {
  orc_stats stats = {0};
  stats.struct_size = sizeof stats;
  (void)arg;
  atomic_fetch_add(&ready, 1);
  for (;;) {
    orc_status status = orc_stats_read(session, &stats);
    orc_request(session, 0);
    if (status == ORC_OK) continue;
    if (status != ORC_INVALID || !strstr(orc_message(), "session")) FAIL("%s", orc_message());
    atomic_fetch_add(&checked, 1);
    return NULL;
  }
}

int main(void) {
  enum { THREADS = 4 };
  static double x[10000];
  pthread_t threads[THREADS];
  for (int round = 0; round < 3; round++) {
    char job[32];
    snprintf(job, sizeof job, "threads%d", round);
    OKAY(orc_open(&session, job, NULL, test_options()));
    OKAY(orc_protect(session, "x", x, ORC_F64, 10000, 0));
    ready = checked = 0;
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, i ? reader : waiter, NULL) == 0);
    while (ready < THREADS) continue;
    for (uint64_t step = 1; step <= 5; step++) OKAY(orc_checkpoint(session, step));
    if (round == 1) orc_abandon(session);
    else OKAY(orc_close(session, 30));
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(checked == THREADS);
  }
  puts("threads: ok");
  return 0;
}

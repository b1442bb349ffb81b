/* orc_request from signal handlers: on one rank only, agreed by all; and while the program is inside
 * other calls, in which it must neither deadlock nor disturb. Two ranks. */
#include "orcheck_mpi.h"

#include "check.h"

#include <signal.h>
#include <sys/time.h>

static orc_session *session;
static volatile sig_atomic_t alarms;

static void once(int signal) {
  (void)signal;
  orc_request(session, 1);
}

static void often(int signal) {
  (void)signal;
  alarms++;
  orc_request(session, 0);
}

static void handle(int signal, void (*handler)(int)) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  CHECK(sigaction(signal, &action, NULL) == 0);
}

int main(int argc, char **argv) {
  enum { N = 20000 };
  static double x[N];
  int rank, due = 0;
  uint64_t step = 0;
  struct itimerval every = {{0, 500}, {0, 500}}, off = {{0, 0}, {0, 0}};
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  OKAY(orc_mpi_open(&session, MPI_COMM_WORLD, "request", test_options()));
  OKAY(orc_protect(session, "x", x, ORC_F64, N, 0));
  OKAY(orc_due(session, ++step, &due));
  CHECK(due == 0 && orc_should_stop(session) == 0);

  /* A storm of requests while checkpoints are taken. */
  handle(SIGALRM, often);
  if (rank == 0) CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0);
  int seen = 0;
  while (seen < 20) {
    CHECK(step < 1000000);
    OKAY(orc_due(session, ++step, &due));
    if (!due) continue;
    seen++;
    OKAY(orc_checkpoint(session, step));
  }
  if (rank == 0) {
    CHECK(setitimer(ITIMER_REAL, &off, NULL) == 0);
    CHECK(alarms > 0);
  }
  CHECK(orc_should_stop(session) == 0);
  /* Whatever the last alarms asked for. */
  for (int i = 0; i < 1000; i++) OKAY(orc_due(session, ++step, &due));

  handle(SIGUSR2, once);
  if (rank == 1) raise(SIGUSR2);
  due = 0;
  for (int i = 0; i < 100000 && !due; i++) OKAY(orc_due(session, ++step, &due));
  CHECK(due == 1 && orc_should_stop(session) == 1);
  OKAY(orc_checkpoint(session, step));
  OKAY(orc_close(session, 30));
  raise(SIGUSR2); /* the session is gone: ignored */
  orc_request(NULL, 1);
  MPI_Finalize();
  if (rank == 0) puts("request: ok");
  return 0;
}

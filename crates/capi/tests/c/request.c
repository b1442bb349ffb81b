/* orc_request from signal handlers: on one rank only, agreed by all; and while the program is inside
 * other calls, in which it must neither deadlock nor disturb. Two ranks. */
#include "orcheck_mpi.h"

#include "check.h"

#include <signal.h>
#include <sys/time.h>
#include <time.h>

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

enum { N = 20000 };
static double x[N];

/* A step of some length: how often ranks agree on requests depends on it. The number of steps differs
 * from run to run, but is the same on all ranks. */
static void compute(void) {
  for (size_t i = 1; i < N; i++) x[i] += 0.5 * x[i - 1] + 1;
}

static void in_time(void) {
  static time_t begin;
  if (!begin) begin = time(NULL);
  CHECK(time(NULL) - begin < 40);
}

int main(int argc, char **argv) {
  int rank, due = 0;
  char options[4096];
  uint64_t step = 0;
  struct itimerval every = {{0, 500}, {0, 500}}, off = {{0, 0}, {0, 0}};
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  /* The time trigger bounds how many steps may pass until the ranks agree. */
  snprintf(options, sizeof options, "%s\nevery_s = 1", test_options() ? test_options() : "");
  OKAY(orc_mpi_open(&session, MPI_COMM_WORLD, "request", options));
  OKAY(orc_protect(session, "x", x, ORC_F64, N, 0));
  OKAY(orc_due(session, ++step, &due));
  CHECK(orc_should_stop(session) == 0);

  /* A storm of requests while checkpoints are taken. */
  handle(SIGALRM, often);
  if (rank == 0) CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0);
  int seen = 0;
  while (seen < 10) {
    in_time();
    compute();
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
  /* What is asked now is heard at an agreement after the last alarm. */
  orc_request(session, 0);
  do {
    in_time();
    compute();
    OKAY(orc_due(session, ++step, &due));
  } while (!due);

  handle(SIGUSR2, once);
  if (rank == 1) raise(SIGUSR2);
  due = 0;
  while (!due || !orc_should_stop(session)) {
    in_time();
    compute();
    OKAY(orc_due(session, ++step, &due));
  }
  OKAY(orc_checkpoint(session, step));
  OKAY(orc_close(session, 30));
  raise(SIGUSR2); /* the session is gone: ignored */
  orc_request(NULL, 1);
  MPI_Finalize();
  if (rank == 0) puts("request: ok");
  return 0;
}

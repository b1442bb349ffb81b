/* Particles in a kicked box, under MPI, checkpointed with Orcheck: a program whose size changes.
 *
 *     mpirun -n 2 particles STEPS [PARTICLES [DIE]]
 *
 * Each particle has a place x on a ring and a momentum p, and obeys the standard map of Chirikov:
 *
 *     p' = p + K sin x,   x' = x + p'  (mod 2 pi)
 *
 * A rank owns the particles on its part of the ring. After each step they move to their new owners, so each rank holds
 * another number of them in every checkpoint. They are lists: a restart may have any number of ranks, each of which asks
 * for its share before it allocates, and asks again (ORC_AGAIN) when the newest checkpoint turned out damaged. From there
 * the particles go to their owners as after a step. The motion is chaotic; one wrong bit is a different end after a few dozen steps. The
 * hash at the end is over all particles, whoever owns them, and does not depend on ranks, kills and restarts.
 *
 * Where checkpoints go and when they are due comes from the environment (ORCHECK_GLOBAL=/scratch/me, ORCHECK_EVERY_STEPS=50);
 * without a directory the program runs without checkpoints. DIE rehearses a failure: the last rank kills itself while
 * the checkpoint of that step is being written. */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <orcheck_mpi.h>

/* With this K (a zero of the Bessel function J2, away from accelerator modes) p diffuses as a random walk does: the mean
 * of p * p is K * K / 2 a step (A. B. Rechester, R. B. White, Physical Review Letters 44, 1980). */
static const double K = 8.4172441404, RING = 6.283185307179586;

typedef struct {
  size_t n, room;
  double *x, *p;
  uint64_t *id;
} Particles;

static int rank, ranks;

static void resize(Particles *q, size_t n) {
  q->n = n;
  if (n <= q->room && q->room) return;
  q->room = n + n / 8 + 16;
  q->x = realloc(q->x, q->room * sizeof *q->x);
  q->p = realloc(q->p, q->room * sizeof *q->p);
  q->id = realloc(q->id, q->room * sizeof *q->id);
  if (!q->x || !q->p || !q->id) { fputs("particles: no memory\n", stderr); MPI_Abort(MPI_COMM_WORLD, 1); }
}

static int owner(double x) {
  int at = (int)(x / RING * ranks);
  return at < ranks ? at : ranks - 1;
}

/* All particles at rest, evenly on the ring; each rank begins with its own. */
static void begin(Particles *q, uint64_t all) {
  resize(q, 0);
  for (uint64_t id = 0; id < all; id++) {
    double x = RING * ((double)id + 0.5) / (double)all;
    if (owner(x) != rank) continue;
    size_t at = q->n;
    resize(q, at + 1);
    q->x[at] = x, q->p[at] = 0, q->id[at] = id;
  }
}

/* Brings every particle to its owner. */
static void migrate(Particles *q) {
  int *count = calloc((size_t)ranks * 4, sizeof *count), *first = count + ranks, *in = first + ranks, *from = in + ranks;
  uint64_t *sent = malloc((q->n + 1) * sizeof *sent);
  size_t n = 0;
  for (size_t i = 0; i < q->n; i++) count[owner(q->x[i])]++;
  MPI_Alltoall(count, 1, MPI_INT, in, 1, MPI_INT, MPI_COMM_WORLD);
  for (int r = 1; r < ranks; r++) first[r] = first[r - 1] + count[r - 1], from[r] = from[r - 1] + in[r - 1];
  n = (size_t)(from[ranks - 1] + in[ranks - 1]);
  int *place = malloc((q->n + 1) * sizeof *place), *next = calloc((size_t)ranks, sizeof *next);
  for (size_t i = 0; i < q->n; i++) {
    int to = owner(q->x[i]);
    place[i] = first[to] + next[to]++;
  }
  size_t before = q->n;
  resize(q, n > before ? n : before);
  /* The three arrays one after the other; all have elements of 8 bytes. */
  void *arrays[3] = {q->x, q->p, q->id};
  for (int k = 0; k < 3; k++) {
    for (size_t i = 0; i < before; i++) memcpy(&sent[place[i]], (char *)arrays[k] + i * 8, 8);
    MPI_Alltoallv(sent, count, first, MPI_UINT64_T, arrays[k], in, from, MPI_UINT64_T, MPI_COMM_WORLD);
  }
  q->n = n;
  free(count), free(sent), free(place), free(next);
}

static void advance(Particles *q) {
  for (size_t i = 0; i < q->n; i++) {
    q->p[i] += K * sin(q->x[i]);
    q->x[i] = fmod(q->x[i] + q->p[i], RING);
    if (q->x[i] < 0) q->x[i] += RING;
  }
  migrate(q);
}

/* Where the particles are now, and how many. */
static void protect(orc_session *s, Particles *q) {
  ORC_TRY(orc_protect_list(s, "x", q->x, ORC_F64, NULL, 0, q->n, 0));
  ORC_TRY(orc_protect_list(s, "p", q->p, ORC_F64, NULL, 0, q->n, 0));
  ORC_TRY(orc_protect_list(s, "id", q->id, ORC_U64, NULL, 0, q->n, 0));
}

/* The sum of a hash of each particle: the same whoever owns it. */
static uint64_t hash(const Particles *q) {
  uint64_t sum = 0, all = 0;
  for (size_t i = 0; i < q->n; i++) {
    uint64_t words[3] = {q->id[i], 0, 0}, h = UINT64_C(0xcbf29ce484222325);
    memcpy(&words[1], &q->x[i], 8), memcpy(&words[2], &q->p[i], 8);
    for (int k = 0; k < 3; k++) h = (h ^ words[k]) * UINT64_C(0x100000001b3), h ^= h >> 29;
    sum += h;
  }
  MPI_Allreduce(&sum, &all, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
  return all;
}

static uint64_t number(int argc, char **argv, int at, uint64_t otherwise) {
  char *end = NULL;
  if (argc <= at) return otherwise;
  uint64_t value = strtoull(argv[at], &end, 10);
  if (*end || !value) { fputs("usage: particles STEPS [PARTICLES [DIE]]\n", stderr); MPI_Abort(MPI_COMM_WORLD, 2); }
  return value;
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const uint64_t steps = number(argc, argv, 1, 100), all = number(argc, argv, 2, 100000);
  uint64_t t = 0, die = number(argc, argv, 3, UINT64_MAX);
  Particles q = {0};
  orc_session *s;
  int due;

  ORC_TRY(orc_mpi_open(&s, MPI_COMM_WORLD, "particles", "enabled = 'auto'\nevery_s = 600"));
  orc_status r = orc_find(s, &t);
  if (r != ORC_NOT_FOUND) ORC_TRY(r);
  const int resumes = r == ORC_OK;
  if (!resumes) begin(&q, all);
  do {
    orc_array a = {.struct_size = sizeof a};
    if (resumes) { ORC_TRY(orc_stored(s, "x", &a, NULL)); resize(&q, (size_t)a.local[0]); }
    protect(s, &q);
  } while (resumes && (r = orc_restart(s, &t)) == ORC_AGAIN);  /* an older step, of another size */
  if (r != ORC_NOT_FOUND) ORC_TRY(r);
  if (resumes) {
    die = UINT64_MAX;                                   /* one rehearsal is enough */
    if (rank == 0) printf("%s%sresumed from step %" PRIu64 "\n", orc_message(), *orc_message() ? "\n" : "", t);
    fflush(stdout);
    migrate(&q);                                        /* the share of a list is not the part of the ring */
  }
  while (t < steps && !orc_should_stop(s)) {
    t++;
    advance(&q);
    ORC_TRY(orc_due(s, t, &due));
    if (!due) continue;
    protect(s, &q);
    ORC_TRY(orc_checkpoint(s, t));                      /* returns when they are copied */
    if (t == die && rank == ranks - 1) raise(SIGKILL);
  }
  ORC_TRY(orc_close(s, 300));

  double mine[2] = {(double)q.n, 0}, sums[2];
  for (size_t i = 0; i < q.n; i++) mine[1] += q.p[i] * q.p[i];
  MPI_Allreduce(mine, sums, 2, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  const uint64_t state = hash(&q);
  if (rank == 0)
    printf("step %" PRIu64 "  particles %.0f  p*p / (t K*K/2) %.4f  state %016" PRIx64 "\n", t, sums[0],
           sums[1] / sums[0] / ((double)t * K * K / 2), state);
  MPI_Finalize();
  return 0;
}

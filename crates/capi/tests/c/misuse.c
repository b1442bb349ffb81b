/* Every function with NULL, with closed and forged sessions, with nonsense and in the wrong order:
 * always a status and a text, never a crash. One rank, no MPI.
 *
 * Breaks if: registry.rs compares slots without generations (the closed session is the new one), if
 * fault.rs does not refuse calls from callbacks (hangs), or if session.rs forgets `release`. */
#include "check.h"
#include "orcheck.h"

#include <limits.h>
#include <math.h>

static int bad_bcast(void *ctx, void *buf, size_t len_bytes, int root) {
  (void)ctx, (void)buf, (void)len_bytes, (void)root;
  return 42;
}
static int bad_gather(void *ctx, const void *mine, size_t len_bytes, void *out, int root) {
  (void)ctx, (void)mine, (void)len_bytes, (void)out, (void)root;
  return 43;
}
static int bad_allreduce(void *ctx, int64_t *v, size_t n) {
  (void)ctx, (void)v, (void)n;
  return 44;
}

static int released, released_orderly;
static void release(void *ctx, int orderly) {
  (void)ctx;
  released++;
  released_orderly += orderly;
}

static orc_session *inner;
static int calls_back(void *ctx, size_t *len_bytes) {
  (void)ctx;
  *len_bytes = 0;
  /* Must not wait for the session that waits for us. */
  return orc_checkpoint(inner, 1000) == ORC_INVALID && strstr(orc_message(), "callback") ? 9 : 0;
}
static int no_pack(void *ctx, size_t at, void *dst, size_t len_bytes) {
  (void)ctx, (void)at, (void)dst, (void)len_bytes;
  return 0;
}
static int no_unpack(void *ctx, size_t at, const void *src, size_t len_bytes) {
  (void)ctx, (void)at, (void)src, (void)len_bytes;
  return 0;
}

/* Every function on a session that is none. */
static void none(orc_session *s) {
  double x = 0;
  int due = 7;
  uint64_t step = 7;
  size_t len = 7;
  void *p = &x;
  char path[64] = "x";
  orc_array a = {0};
  orc_stats stats = {0};
  orc_codec codec = {0};
  a.struct_size = sizeof a, a.dtype = ORC_F64, a.ndim = 1, a.global[0] = a.local[0] = 1;
  stats.struct_size = sizeof stats;
  codec.struct_size = sizeof codec;
  codec.size = calls_back, codec.pack = no_pack, codec.unpack = no_unpack;
  REFUSED(orc_protect(s, "x", &x, ORC_F64, 1, 0), ORC_INVALID, "session");
  REFUSED(orc_protect_array(s, "x", &x, &a, 0), ORC_INVALID, "session");
  REFUSED(orc_protect_codec(s, "x", &codec, 0), ORC_INVALID, "session");
  REFUSED(orc_unprotect(s, "x"), ORC_INVALID, "session");
  REFUSED(orc_alloc(s, 4096, &p), ORC_INVALID, "session");
  CHECK(p == NULL);
  REFUSED(orc_free(s, &x), ORC_INVALID, "session");
  REFUSED(orc_due(s, 1, &due), ORC_INVALID, "session");
  CHECK(due == 0);
  orc_request(s, 1);
  CHECK(orc_should_stop(s) == 0 && strstr(orc_message(), "session"));
  REFUSED(orc_lend(s, "x"), ORC_INVALID, "session");
  REFUSED(orc_lent_done(s, "x", 0), ORC_INVALID, "session");
  REFUSED(orc_checkpoint(s, 1), ORC_INVALID, "session");
  REFUSED(orc_wait(s, 1, ORC_GLOBAL, 1), ORC_INVALID, "session");
  REFUSED(orc_find(s, &step), ORC_INVALID, "session");
  CHECK(step == 0);
  REFUSED(orc_stored(s, "x", &a, &len), ORC_INVALID, "session");
  CHECK(len == 0);
  REFUSED(orc_restart(s, &step), ORC_INVALID, "session");
  REFUSED(orc_route(s, "x", path, sizeof path), ORC_INVALID, "session");
  REFUSED(orc_route_file(s, "x", 0, path, sizeof path), ORC_INVALID, "session");
  CHECK(path[0] == 0);
  REFUSED(orc_stats_read(s, &stats), ORC_INVALID, "session");
  REFUSED(orc_close(s, 1), ORC_INVALID, "session");
  orc_abandon(s);
}

static void wrong_opens(void) {
  orc_session *s = (orc_session *)&s;
  orc_collective c = {0};
  char long_name[5000];
  memset(long_name, 'a', sizeof long_name);
  REFUSED(orc_open(NULL, "job", NULL, NULL), ORC_INVALID, "session is NULL");
  REFUSED(orc_open(&s, NULL, NULL, test_options()), ORC_INVALID, "the job has no name");
  CHECK(s == NULL);
  REFUSED(orc_open_v(0, &s, "job", NULL, NULL), ORC_UNSUPPORTED, "interface 0");
  REFUSED(orc_open_v(ORC_API + 1, &s, "job", NULL, NULL), ORC_UNSUPPORTED, "rebuild");
  REFUSED(orc_open(&s, "", NULL, test_options()), ORC_INVALID, "job");
  REFUSED(orc_open(&s, "a/b", NULL, test_options()), ORC_INVALID, "job");
  REFUSED(orc_open(&s, "\xff\xfe", NULL, test_options()), ORC_INVALID, "UTF-8");
  REFUSED(orc_open(&s, long_name, NULL, test_options()), ORC_INVALID, "job");
  if (test_options()) {
    REFUSED(orc_open(&s, "job", NULL, "this is = = not TOML"), ORC_INVALID, "option");
    REFUSED(orc_open(&s, "job", NULL, "no_such_option = 1"), ORC_INVALID, "no_such_option");
  }
  REFUSED(orc_open(&s, "job", &c, test_options()), ORC_INVALID, "struct_size");
  c.struct_size = sizeof c;
  REFUSED(orc_open(&s, "job", &c, test_options()), ORC_INVALID, "rank 0 of 0");
  c.size = 2;
  REFUSED(orc_open(&s, "job", &c, test_options()), ORC_INVALID, "NULL");
  c.bcast = bad_bcast, c.gather = bad_gather, c.allreduce_min = bad_allreduce, c.release = release;
  c.rank = 2;
  REFUSED(orc_open(&s, "job", &c, test_options()), ORC_INVALID, "rank 2 of 2");
  c.rank = -1;
  REFUSED(orc_open(&s, "job", &c, test_options()), ORC_INVALID, "rank -1");
  c.rank = 1;
  REFUSED(orc_open(&s, "job", &c, test_options()), ORC_UNAVAILABLE, "returned 4");
  CHECK(released == 0 && s == NULL);
}

static void wrong_regions(orc_session *s) {
  static double x[4];
  void *p;
  orc_array a = {0}, good = {0};
  orc_codec codec = {0};
  char long_name[400];
  memset(long_name, 'n', sizeof long_name);
  long_name[399] = 0;
  REFUSED(orc_protect(s, NULL, x, ORC_F64, 4, 0), ORC_INVALID, "name is NULL");
  REFUSED(orc_protect(s, "", x, ORC_F64, 4, 0), ORC_INVALID, "name");
  REFUSED(orc_protect(s, "a\nb", x, ORC_F64, 4, 0), ORC_INVALID, "name");
  REFUSED(orc_protect(s, long_name, x, ORC_F64, 4, 0), ORC_INVALID, "name");
  REFUSED(orc_protect(s, "\xc0", x, ORC_F64, 4, 0), ORC_INVALID, "UTF-8");
  REFUSED(orc_protect(s, "x", NULL, ORC_F64, 4, 0), ORC_INVALID, "address is NULL");
  REFUSED(orc_protect(s, "x", x, -1, 4, 0), ORC_INVALID, "dtype is -1");
  REFUSED(orc_protect(s, "x", x, 15, 4, 0), ORC_INVALID, "dtype is 15");
  REFUSED(orc_protect(s, "x", x, 256 + ORC_F64, 4, 0), ORC_INVALID, "dtype is 267");
  REFUSED(orc_protect(s, "x", x, ORC_F64, SIZE_MAX, 0), ORC_INVALID, "larger than memory");
  REFUSED(orc_protect(s, "x", x, ORC_BYTES, SIZE_MAX / 2 + 1, 0), ORC_INVALID, "larger");
  REFUSED(orc_protect(s, "x", x, ORC_F64, 4, 8), ORC_INVALID, "flags");
  REFUSED(orc_protect(s, "x", x, ORC_F64, 4, -1), ORC_INVALID, "flags");
  OKAY(orc_protect(s, "nothing", NULL, ORC_F64, 0, 0));
  OKAY(orc_unprotect(s, "nothing"));

  REFUSED(orc_protect_array(s, "x", x, NULL, 0), ORC_INVALID, "array is NULL");
  REFUSED(orc_protect_array(s, "x", x, &a, 0), ORC_INVALID, "struct_size");
  good.struct_size = sizeof good;
  good.dtype = ORC_F64, good.ndim = 2;
  good.global[0] = good.global[1] = good.local[0] = good.local[1] = 2;
  a = good, a.ndim = 0;
  REFUSED(orc_protect_array(s, "x", x, &a, 0), ORC_INVALID, "ndim is 0");
  a = good, a.ndim = 9;
  REFUSED(orc_protect_array(s, "x", x, &a, 0), ORC_INVALID, "ndim is 9");
  a = good, a.ndim = INT_MIN;
  REFUSED(orc_protect_array(s, "x", x, &a, 0), ORC_INVALID, "ndim");
  a = good, a.dtype = 99;
  REFUSED(orc_protect_array(s, "x", x, &a, 0), ORC_INVALID, "dtype is 99");
  a = good, a.offset[1] = 1;
  REFUSED(orc_protect_array(s, "x", x, &a, 0), ORC_INVALID, "dimension 1");
  a = good, a.offset[0] = -1;
  REFUSED(orc_protect_array(s, "x", x, &a, 0), ORC_INVALID, "below zero");
  a = good, a.local[0] = INT64_MIN;
  REFUSED(orc_protect_array(s, "x", x, &a, 0), ORC_INVALID, "below zero");
  a = good, a.offset[0] = INT64_MAX, a.local[0] = INT64_MAX;
  REFUSED(orc_protect_array(s, "x", x, &a, 0), ORC_INVALID, "does not fit");
  a = good;
  for (int i = 0; i < 2; i++) a.global[i] = a.local[i] = INT64_MAX;
  REFUSED(orc_protect_array(s, "x", x, &a, 0), ORC_INVALID, "address space");
  a = good, a.stride[0] = 1, a.stride[1] = 1;
  REFUSED(orc_protect_array(s, "x", x, &a, 0), ORC_INVALID, "overlap");
  REFUSED(orc_protect_array(s, "x", NULL, &good, 0), ORC_INVALID, "address is NULL");

  orc_box boxes[2];
  memset(boxes, 0, sizeof boxes);
  boxes[0].address = boxes[1].address = x, boxes[0].array = boxes[1].array = good;
  REFUSED(orc_protect_boxes(s, "b", NULL, 1, 0), ORC_INVALID, "boxes is NULL");
  REFUSED(orc_protect_boxes(s, "b", boxes, 0, 0), ORC_INVALID, "no box is given");
  REFUSED(orc_protect_boxes(s, "b", boxes, SIZE_MAX, 0), ORC_INVALID, "boxes,");
  REFUSED(orc_protect_boxes(s, "b", boxes, 1, ORC_SAME), ORC_INVALID, "SAME");
  boxes[1].array.global[0] = 3;
  REFUSED(orc_protect_boxes(s, "b", boxes, 2, 0), ORC_INVALID, "box 1");
  boxes[1].array.struct_size = 1;
  REFUSED(orc_protect_boxes(s, "b", boxes, 2, 0), ORC_INVALID, "struct_size");
  OKAY(orc_protect_boxes(s, "b", boxes, 1, 0));
  OKAY(orc_unprotect(s, "b"));
  const int64_t item[8] = {2, -1, 1, 1, 1, 1, 1, 1}, vast = INT64_MAX;
  REFUSED(orc_protect_list(s, NULL, x, ORC_F64, NULL, 0, 1, 0), ORC_INVALID, "name is NULL");
  REFUSED(orc_protect_list(s, "l", x, 99, NULL, 0, 1, 0), ORC_INVALID, "dtype is 99");
  REFUSED(orc_protect_list(s, "l", x, ORC_F64, NULL, -1, 1, 0), ORC_INVALID, "item_ndim is -1");
  REFUSED(orc_protect_list(s, "l", x, ORC_F64, item, 8, 1, 0), ORC_INVALID, "item_ndim is 8");
  REFUSED(orc_protect_list(s, "l", x, ORC_F64, NULL, 1, 1, 0), ORC_INVALID, "item_shape is NULL");
  REFUSED(orc_protect_list(s, "l", x, ORC_F64, item, 2, 1, 0), ORC_INVALID, "below zero");
  REFUSED(orc_protect_list(s, "l", x, ORC_F64, &vast, 1, 9, 0), ORC_INVALID, "address space");
  REFUSED(orc_protect_list(s, "l", NULL, ORC_F64, NULL, 0, 1, 0), ORC_INVALID, "address is NULL");
  REFUSED(orc_protect_list(s, "l", x, ORC_F64, NULL, 0, 1, ORC_SAME), ORC_INVALID, "cannot be SAME");
  REFUSED(orc_protect_list(s, "l", x, ORC_F64, NULL, 0, 1, ORC_OVERLAP), ORC_INVALID, "OVERLAP");
  REFUSED(orc_protect(s, "l", x, ORC_F64, 1, 8), ORC_INVALID, "flags are 0x8");
  OKAY(orc_protect_list(s, "l", NULL, ORC_F64, item, 1, 0, 0));
  OKAY(orc_unprotect(s, "l"));

  REFUSED(orc_protect_codec(s, "c", NULL, 0), ORC_INVALID, "codec is NULL");
  REFUSED(orc_protect_codec(s, "c", &codec, 0), ORC_INVALID, "struct_size");
  codec.struct_size = sizeof codec;
  REFUSED(orc_protect_codec(s, "c", &codec, 0), ORC_INVALID, "NULL");

  REFUSED(orc_unprotect(s, NULL), ORC_INVALID, "name is NULL");
  REFUSED(orc_unprotect(s, "nobody"), ORC_NOT_FOUND, "nobody");
  REFUSED(orc_alloc(s, 4096, NULL), ORC_INVALID, "address is NULL");
  orc_status status = orc_alloc(s, SIZE_MAX, &p);
  CHECK((status == ORC_INVALID || status == ORC_NO_SPACE) && p == NULL && *orc_message());
  OKAY(orc_free(s, NULL));
  REFUSED(orc_free(s, x), ORC_INVALID, "orc_free");
}

static void wrong_order(orc_session *s) {
  static double x[4];
  uint64_t step;
  size_t len;
  char path[64];
  orc_array a = {0};
  orc_stats stats = {0};
  int due;
  REFUSED(orc_stored(s, "x", NULL, &len), ORC_INVALID, "find");
  REFUSED(orc_restart(s, &step), ORC_INVALID, "find");
  REFUSED(orc_find(s, NULL), ORC_INVALID, "step is NULL");
  REFUSED(orc_stored(s, NULL, NULL, NULL), ORC_INVALID, "name is NULL");
  REFUSED(orc_stored(s, "x", &a, NULL), ORC_INVALID, "struct_size");
  REFUSED(orc_due(s, 1, NULL), ORC_INVALID, "due is NULL");
  REFUSED(orc_route(s, "f", NULL, 10), ORC_INVALID, "path is NULL");
  REFUSED(orc_route(s, NULL, path, 10), ORC_INVALID, "name is NULL");
  REFUSED(orc_route(s, "f", path, 3), ORC_INVALID, "cap is 3");
  REFUSED(orc_route(s, "../f", path, sizeof path), ORC_INVALID, "../f");
  REFUSED(orc_route_file(s, "f", 0, NULL, 10), ORC_INVALID, "path is NULL");
  REFUSED(orc_route_file(s, "f/g", ORC_SAME, path, sizeof path), ORC_INVALID, "routed file 'f/g': flags 0x2");
  REFUSED(orc_route_file(s, "g", -1, path, sizeof path), ORC_INVALID, "flags are -1");
  orc_unprotect(s, "f");
  REFUSED(orc_stats_read(s, NULL), ORC_INVALID, "stats is NULL");
  REFUSED(orc_stats_read(s, &stats), ORC_INVALID, "struct_size");
  REFUSED(orc_lend(s, NULL), ORC_INVALID, "name is NULL");
  REFUSED(orc_lend(s, "nobody"), ORC_NOT_FOUND, "nobody");
  REFUSED(orc_lent_done(s, NULL, 0), ORC_INVALID, "name is NULL");
  REFUSED(orc_lent_done(s, "nobody", 0), ORC_NOT_FOUND, "nobody");
  REFUSED(orc_find(s, &step), ORC_NOT_FOUND, "orc_find");
  REFUSED(orc_checkpoint(s, 1), ORC_INVALID, "no region");
  OKAY(orc_protect(s, "x", x, ORC_F64, 4, 0));
  REFUSED(orc_lent_done(s, "x", NAN), ORC_INVALID, "timeout_s");
  REFUSED(orc_lent_done(s, "x", -1), ORC_INVALID, "timeout_s");
  CHECK(orc_wait(s, 99, ORC_GLOBAL, 0.1) != ORC_OK && *orc_message());
  REFUSED(orc_wait(s, 1, 0, 1), ORC_INVALID, "level is 0");
  REFUSED(orc_wait(s, 1, 5, 1), ORC_INVALID, "level is 5");
  REFUSED(orc_wait(s, 1, ORC_GLOBAL, NAN), ORC_INVALID, "timeout_s");
  OKAY(orc_due(s, 1, &due));
  OKAY(orc_checkpoint(s, 10));
  REFUSED(orc_checkpoint(s, 10), ORC_INVALID, "10");
  REFUSED(orc_checkpoint(s, 9), ORC_INVALID, "9");
  OKAY(orc_wait(s, 10, ORC_GLOBAL, INFINITY));
  OKAY(orc_wait(s, 10, ORC_PROCESS, 0));
  /* Older than the last one, but never taken. */
  CHECK(orc_wait(s, 5, ORC_GLOBAL, 1) != ORC_OK && *orc_message());
  REFUSED(orc_find(s, &step), ORC_INVALID, "find");
  REFUSED(orc_close(s, NAN), ORC_INVALID, "timeout_s");
}

/* A callback's failure is named; a call from inside one is refused. */
static void callbacks(orc_session *s) {
  orc_codec codec = {0};
  inner = s;
  codec.struct_size = sizeof codec;
  codec.size = calls_back, codec.pack = no_pack, codec.unpack = no_unpack;
  OKAY(orc_protect_codec(s, "c", &codec, 0));
  REFUSED(orc_checkpoint(s, 20), ORC_INVALID, "size of the program's orc_codec returned 9");
  OKAY(orc_unprotect(s, "c"));
}

int main(void) {
  static int solid;
  orc_session *s, *t, *many[100];
  int opened;
  orc_collective c = {0};
  none(NULL);
  none((orc_session *)&solid);
  none((orc_session *)(uintptr_t)0x10);
  none((orc_session *)(uintptr_t)UINTPTR_MAX);
  wrong_opens();

  OKAY(orc_open(&s, "misuse", NULL, test_options()));
  wrong_regions(s);
  wrong_order(s);
  callbacks(s);
  OKAY(orc_close(s, 30));
  none(s);
  /* A new session in the same place does not revive the old handle. */
  OKAY(orc_open(&t, "misuse2", NULL, test_options()));
  CHECK(t != s);
  none(s);
  orc_abandon(t);
  none(t);

  /* release: once, orderly at close and not at abandon. */
  c.struct_size = sizeof c, c.size = 1, c.release = release;
  c.bcast = bad_bcast, c.gather = bad_gather, c.allreduce_min = bad_allreduce;
  OKAY(orc_open(&t, "misuse3", &c, test_options()));
  OKAY(orc_close(t, 30));
  CHECK(released == 1 && released_orderly == 1);
  OKAY(orc_open(&t, "misuse3", &c, test_options()));
  orc_abandon(t);
  orc_abandon(t);
  CHECK(released == 2 && released_orderly == 1);

  CHECK(orc_refuse(ORC_CORRUPT, "made up") == ORC_CORRUPT && !strcmp(orc_message(), "made up"));
  CHECK(orc_refuse(0, NULL) == ORC_INTERNAL && orc_refuse(99, "x") == ORC_INTERNAL);

  /* The table of sessions has an end; what it refuses is given back. */
  for (opened = 0; getenv("ORC_TEST_MANY") && opened < 100; opened++) {
    char job[32];
    snprintf(job, sizeof job, "many%d", opened);
    if (orc_open(&many[opened], job, NULL, test_options()) != ORC_OK) {
      CHECK(many[opened] == NULL && strstr(orc_message(), "64 sessions"));
      CHECK(opened == 64);
      break;
    }
  }
  while (opened-- > 0) orc_abandon(many[opened]);
  puts("misuse: ok");
  return 0;
}

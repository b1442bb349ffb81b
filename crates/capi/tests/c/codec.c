/* A linked list as a codec region: packed into a stream, built again from it; failures are named.
 * One rank, no MPI. */
#include "check.h"
#include "orcheck.h"

typedef struct node {
  uint64_t value;
  struct node *next;
} node;

typedef struct {
  node *head;
  uint64_t partial; /* a number that has come in part */
  size_t have;
  int fail_pack, fail_unpack;
  size_t largest;
} list;

static void clear(list *l) {
  while (l->head) {
    node *n = l->head;
    l->head = n->next;
    free(n);
  }
}

static void append(list *l, uint64_t value) {
  node **at = &l->head, *n = malloc(sizeof *n);
  while (*at) at = &(*at)->next;
  n->value = value, n->next = NULL, *at = n;
}

static int size(void *ctx, size_t *len_bytes) {
  *len_bytes = 0;
  for (node *n = ((list *)ctx)->head; n; n = n->next) *len_bytes += sizeof n->value;
  return 0;
}

static int pack(void *ctx, size_t at, void *dst, size_t len_bytes) {
  list *l = ctx;
  size_t begin = 0;
  if (l->fail_pack) return l->fail_pack;
  if (len_bytes > l->largest) l->largest = len_bytes;
  for (node *n = l->head; n; n = n->next, begin += 8) {
    for (size_t b = 0; b < 8; b++)
      if (begin + b >= at && begin + b < at + len_bytes)
        ((unsigned char *)dst)[begin + b - at] = ((unsigned char *)&n->value)[b];
  }
  return at + len_bytes > begin ? 2 : 0;
}

static int unpack(void *ctx, size_t at, const void *src, size_t len_bytes) {
  list *l = ctx;
  if (l->fail_unpack) return l->fail_unpack;
  if (at == 0) clear(l), l->have = 0;
  for (size_t b = 0; b < len_bytes; b++) {
    ((unsigned char *)&l->partial)[l->have++] = ((const unsigned char *)src)[b];
    if (l->have == 8) append(l, l->partial), l->have = 0;
  }
  return 0;
}

int main(void) {
  list l = {0};
  orc_codec codec = {0};
  orc_session *s;
  uint64_t step, i = 0;
  size_t len;
  codec.struct_size = sizeof codec, codec.ctx = &l;
  codec.size = size, codec.pack = pack, codec.unpack = unpack;

  OKAY(orc_open(&s, "codec", NULL, test_options()));
  OKAY(orc_protect_codec(s, "list", &codec, 0));
  for (i = 0; i < 1000; i++) append(&l, i * i);
  OKAY(orc_checkpoint(s, 1));
  append(&l, 5);
  l.fail_pack = 77;
  /* Statuses are the same on all ranks: what only this one met is a warning, and the checkpoint is lost. */
  OKAY(orc_checkpoint(s, 2));
  CHECK(strstr(orc_message(), "checkpoint 2 will be lost at every level"));
  CHECK(strstr(orc_message(), "pack at byte 0 of the program's orc_codec returned 77"));
  CHECK(strstr(orc_message(), "list"));
  REFUSED(orc_wait(s, 2, ORC_GLOBAL, 30), ORC_UNAVAILABLE, "rank 0 gave its snapshot of step 2 up");
  CHECK(strstr(orc_message(), "returned 77"));
  l.fail_pack = 0;
  OKAY(orc_checkpoint(s, 3));
  OKAY(orc_close(s, 30));

  clear(&l);
  OKAY(orc_open(&s, "codec", NULL, test_options()));
  OKAY(orc_find(s, &step));
  CHECK(step == 3);
  OKAY(orc_stored(s, "list", NULL, &len));
  CHECK(len == 1001 * 8);
  OKAY(orc_protect_codec(s, "list", &codec, 0));
  OKAY(orc_restart(s, &step));
  i = 0;
  for (node *n = l.head; n; n = n->next, i++) CHECK(n->value == (i < 1000 ? i * i : 5));
  CHECK(i == 1001);
  OKAY(orc_close(s, 30));

  OKAY(orc_open(&s, "codec", NULL, test_options()));
  OKAY(orc_find(s, &step));
  l.fail_unpack = 78;
  OKAY(orc_protect_codec(s, "list", &codec, 0));
  REFUSED(orc_restart(s, &step), ORC_INVALID, "unpack at byte 0 of the program's orc_codec returned 78");
  orc_abandon(s);

  /* What no earlier call told, the last one does. */
  char options[4096], told[4096];
  snprintf(options, sizeof options, "%s\nheld_steps = 2", test_options());
  OKAY(orc_open(&s, "close", NULL, options));
  OKAY(orc_protect_codec(s, "list", &codec, 0));
  l.fail_pack = 77;
  OKAY(orc_checkpoint(s, 1));
  l.fail_pack = 0;
  OKAY(orc_checkpoint(s, 2));
  snprintf(told, sizeof told, "%s", orc_message());
  REFUSED(orc_wait(s, 1, ORC_GLOBAL, 30), ORC_UNAVAILABLE, "gave its snapshot of step 1 up");
  OKAY(orc_close(s, 30));
  CHECK(strstr(told, "checkpoint 1 is lost at level global") || strstr(orc_message(), "checkpoint 1 is lost at level global"));
  clear(&l);
  puts("codec: ok");
  return 0;
}

/* One rank without MPI: memory files by the functions of the C library, and what they hold after a restart.
 *
 * Breaks if: a position is not that of fopen(), a failure is no failure of the C library, or a memory file is not stored as
 * it was closed. */
#include "check.h"
#include "orcheck.h"
#include <errno.h>

enum { LINES = 30000 };

static void save(orc_session *s, int step) {
  FILE *f = orc_fopen(s, "out/state.txt", "w");
  CHECK(f);
  for (int line = 0; line < LINES; line++) CHECK(fprintf(f, "%d %d %.17g\n", step, line, line / 7.0) > 0);
  /* The first line again. */
  CHECK(fseek(f, 0, SEEK_SET) == 0 && fprintf(f, "%d", step + 4) == 1);
  CHECK(fseek(f, 0, SEEK_END) == 0 && fputs("end\n", f) >= 0);
  CHECK(fclose(f) == 0);
  f = orc_fopen(s, "history", "a");
  CHECK(f && fprintf(f, "step %d\n", step) > 0);
  CHECK(fclose(f) == 0);
}

static void load(orc_session *s, int step) {
  char text[64];
  int first, line;
  double value;
  FILE *f = orc_fopen(s, "out/state.txt", "r");
  CHECK(f);
  for (int expected = 0; expected < LINES; expected++) {
    CHECK(fscanf(f, "%d %d %lf\n", &first, &line, &value) == 3);
    CHECK(first == (expected == 0 ? step + 4 : step) && line == expected && value == expected / 7.0);
  }
  CHECK(fgets(text, sizeof text, f) && strcmp(text, "end\n") == 0);
  CHECK(!fgets(text, sizeof text, f) && feof(f) && !ferror(f));
  CHECK(fputc('x', f) == EOF && ferror(f));
  CHECK(fclose(f) == 0);
  f = orc_fopen(s, "history", "r");
  CHECK(f);
  for (int expected = 1; expected <= step; expected++) CHECK(fscanf(f, "step %d\n", &first) == 1 && first == expected);
  CHECK(feof(f) || fgetc(f) == EOF);
  CHECK(fclose(f) == 0);
}

static void fails(orc_session *s, const char *name, const char *mode, int code, const char *piece) {
  errno = 0;
  CHECK(!orc_fopen(s, name, mode));
  CHECK(errno == code && strstr(orc_message(), piece));
}

int main(void) {
  orc_session *s;
  FILE *f;
  uint64_t step = 0;
  static char large[1 << 20];
  OKAY(orc_open(&s, "memory-files", NULL, test_options()));
  fails(s, "history", "r", ENOENT, "no memory file 'history'");
  fails(s, "history", "rw", EINVAL, "mode");
  fails(s, "../history", "w", EINVAL, "relative path");
  fails(s, NULL, "w", EINVAL, "name is NULL");
  fails(NULL, "history", "w", EINVAL, "session");
  for (int n = 1; n <= 5; n++) {
    save(s, n);
    load(s, n);
    OKAY(orc_checkpoint(s, (uint64_t)n));
  }
  f = orc_fopen(s, "history", "w");
  CHECK(f && fputs("half", f) >= 0);
  fails(s, "history", "r", EBUSY, "open already");
  REFUSED(orc_checkpoint(s, 6), ORC_INVALID, "memory file 'history' is open");
  CHECK(fclose(f) == 0);
  /* The pool has 64 MiB. */
  f = orc_fopen(s, "large", "w");
  CHECK(f);
  int wrote = 0;
  while (wrote < 100 && fwrite(large, sizeof large, 1, f) == 1) wrote++;
  CHECK(wrote >= 16 && wrote < 64 && errno == ENOSPC && strstr(orc_message(), "pool"));
  fclose(f);
  REFUSED(orc_checkpoint(s, 6), ORC_NO_SPACE, "memory file 'large' was not written completely");
  OKAY(orc_unprotect(s, "large"));
  OKAY(orc_close(s, 30));

  OKAY(orc_open(&s, "memory-files", NULL, test_options()));
  OKAY(orc_find(s, &step));
  CHECK(step == 5);
  OKAY(orc_restart(s, &step));
  load(s, 5);
  f = orc_fopen(s, "late", "w");
  CHECK(f && fputs("late", f) >= 0);
  OKAY(orc_close(s, 30));
  CHECK(strstr(orc_message(), "memory file 'late' was open"));
  /* The session has ended: nothing takes what the buffer still holds. */
  CHECK(fclose(f) == EOF);
  return 0;
}

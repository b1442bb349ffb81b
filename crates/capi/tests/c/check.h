/* Checks for the test programs: a failed one names file, line and the library's text, and ends the
 * program with status 1. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAIL(...)                                                     \
  do {                                                                \
    fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                   \
    fprintf(stderr, __VA_ARGS__);                                     \
    fprintf(stderr, "\n");                                            \
    fflush(stderr);                                                   \
    _Exit(1);                                                         \
  } while (0)

#define CHECK(condition)                                              \
  do {                                                                \
    if (!(condition)) FAIL("not true: %s [%s]", #condition, orc_message()); \
  } while (0)

/* The call succeeds. */
#define OKAY(call)                                                    \
  do {                                                                \
    orc_status status_ = (call);                                      \
    if (status_ != ORC_OK) FAIL("%s gave %d: %s", #call, (int)status_, orc_message()); \
  } while (0)

/* The call fails with this status and a text that contains this piece. */
#define REFUSED(call, expected, piece)                                \
  do {                                                                \
    orc_status status_ = (call);                                      \
    if (status_ != (expected))                                        \
      FAIL("%s gave %d, expected %s: %s", #call, (int)status_, #expected, orc_message()); \
    if (!strstr(orc_message(), piece))                                \
      FAIL("%s: text without \"%s\": %s", #call, piece, orc_message()); \
  } while (0)

/* Options of the session: the test script puts fresh directories here. */
static inline const char *test_options(void) { return getenv("ORC_TEST_OPTIONS"); }

/* The element of a region that every program can recognise again. */
static inline double element(int rank, unsigned long long step, size_t index) {
  return (double)rank * 1e9 + (double)step * 1e6 + (double)index;
}

#endif

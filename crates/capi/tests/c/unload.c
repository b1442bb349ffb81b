/* The library is closed with dlclose() by the host of a plug-in, after the thread that used it has ended: a signal that
 * it was asked to listen to does not run into unmapped code. Not linked with the library.
 *
 * Breaks if: build.rs lets the library be unmapped. */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "orcheck.h"

#define CHECK(condition)                                                                  \
  do {                                                                                    \
    if (!(condition)) fprintf(stderr, "line %d: " #condition "\n", __LINE__), _Exit(1); \
  } while (0)

static void *library;
static orc_status (*open_it)(int, orc_session **, const char *, const orc_collective *, const char *);
static orc_status (*close_it)(orc_session *, double);

static void *plug_in(void *nothing) {
  static char options[8192];
  orc_session *s = NULL;
  snprintf(options, sizeof options, "%s\nsignal = \"USR1\"\n", getenv("ORC_TEST_OPTIONS"));
  CHECK(open_it(ORC_API, &s, "unload", NULL, options) == ORC_OK);
  CHECK(close_it(s, 60) == ORC_OK);
  return nothing;
}

int main(void) {
  pthread_t thread;
  library = dlopen("liborcheck.so.1", RTLD_NOW | RTLD_LOCAL);
  CHECK(library);
  *(void **)&open_it = dlsym(library, "orc_open_v");
  *(void **)&close_it = dlsym(library, "orc_close");
  CHECK(open_it && close_it);
  signal(SIGUSR1, SIG_IGN);
  CHECK(!pthread_create(&thread, NULL, plug_in, NULL) && !pthread_join(thread, NULL));
  CHECK(dlclose(library) == 0);
  CHECK(raise(SIGUSR1) == 0);
  puts("unload: ok");
  return 0;
}

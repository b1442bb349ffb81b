// A child that just returns from main, with a Session on its stack and one that is destroyed at exit: no crash, and the
// parent continues. Options may be nullptr, as in C.
//
// Breaks if: registry.rs hands the parent's session to the destructor in the child.
#include <orcheck.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include "../c/check.h"

static std::unique_ptr<orcheck::Session> at_exit;

int main() {
  const char *none = nullptr;
  // The environment alone names no directory.
  for (int kind = 0; kind < 2; kind++) {
    orc_status status = ORC_OK;
    try {
      orcheck::Session nothing = kind ? orcheck::Session("nullptr", nullptr) : orcheck::Session("nullptr", none);
    } catch (const orcheck::Error &error) {
      status = error.status();
    }
    CHECK(status == ORC_INVALID);
  }
  double x[100] = {1, 2, 3};
  at_exit = std::make_unique<orcheck::Session>("forked-exit", test_options());
  at_exit->protect("x", x, 100);
  at_exit->checkpoint(1);
  orcheck::Session s("forked-main", test_options());
  s.protect("x", x, 100);
  for (std::uint64_t step = 1; step <= 10; step++) {
    s.checkpoint(step);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) return 0;
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    if (status != 0) FAIL("the child that returned from main ended with status %#x", static_cast<unsigned>(status));
    s.wait(step, ORC_GLOBAL, 60);
  }
  s.close(60);
  puts("forked: ok");
  return 0;
}

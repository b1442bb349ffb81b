#!/usr/bin/env python3
"""Follows README.md of a fresh clone line by line, in a clean root, as root and as somebody else.

What a new user does: build, compile a program with the lines that the README shows, run it under
`orcheck run`, lose a rank, restart, look at the checkpoints, start the servers of docs/servers.md.
The programs are the README's own examples (C, C of changing size, Fortran) with what they leave
out. The root is an overlay over this machine's without homes, temporary files, this repository's
directory and networks; nothing of it stays.

`cargo build` is not repeated: a stand-in takes the programs that were built in TARGET/release.

usage: tools/first-hour.py [TARGET]        (default: CARGO_TARGET_DIR or target)
`make check` has built TARGET. Needs root and overlayfs, else it says SKIPPED. Last line:
'N passed, M failed'.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIMIT_S = 120
USERS = {"root": 0, "an ordinary user": 65534}
# What a machine with a compiler and make has; no MPI, no Fortran, no sudo.
FEW = """
awk basename bash cat cc chmod cmp cp cut date dirname env find gcc grep head id install ld as ln ls
make mkdir mv pwd rm sed sh sort tail tr uname
""".split()

DECLARATIONS = r"""
#include <orcheck_mpi.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static const size_t n = 1000;
static const uint64_t T = 60;
static const double *state;
static void initialise(double *u, size_t count) {
  for (size_t i = 0; i < count; i++) u[i] = (double)i;
}
static void finish(void) {
  double sum = 0;
  for (size_t i = 0; state && i < n; i++) sum += state[i];
  printf("sum %.17g\n", sum);
}
/* The first run under `orcheck run` loses its ranks in the middle. With LOSES its directory is away
   while step 20 is written. */
static void advance(double *u, size_t count) {
  static int turns;
  const char *directory = getenv("ORCHECK_GLOBAL");
  const char *run = getenv("ORCHECK_RUN_ATTEMPT");
  if (!state) { state = u; atexit(finish); }
  for (size_t i = 0; i < count; i++) u[i] = 0.999 * u[i] + 1;
  if (getenv("FORGETFUL")) u[17] += turns; /* which no checkpoint holds */
  usleep(20000);
  if (++turns == 45 && run && !strcmp(run, "1")) kill(getpid(), SIGKILL);
  if (getenv("LOSES") && turns == 10) rename(directory, "away");
  if (getenv("LOSES") && turns == 39) rename("away", directory);
}
"""

# A program whose arrays grow.
GROWS = r"""
#include <orcheck_mpi.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static const uint64_t T = 60;
static void initialise(double *p, size_t np) {
  for (size_t i = 0; i < np; i++) p[i] = (double)i;
}
static void advance(double **p, size_t *np) {
  static int turns;
  const char *run = getenv("ORCHECK_RUN_ATTEMPT");
  *p = realloc(*p, (*np + 10) * sizeof **p);
  for (size_t i = 0; i < 10; i++) (*p)[*np + i] = (double)*np;
  *np += 10;
  for (size_t i = 0; i < *np; i++) (*p)[i] = 0.999 * (*p)[i] + 1;
  usleep(20000);
  if (++turns == 45 && run && !strcmp(run, "1")) kill(getpid(), SIGKILL);
}
int main(int argc, char **argv) {
  size_t np = 1000;
  double *p = NULL;
  MPI_Init(&argc, &argv);
"""
# What the Fortran program calls.
CALLED = """
subroutine initialise(u)
  implicit none
  double precision, intent(out) :: u(1000)
  integer :: i
  u = [(i, i=1, 1000)]
end subroutine

subroutine advance(u)
  use, intrinsic :: iso_c_binding, only: c_int
  implicit none
  interface
    function c_usleep(us) bind(c, name='usleep') result(failed)
      import :: c_int
      integer(c_int), value :: us
      integer(c_int) :: failed
    end function
    function c_raise(number) bind(c, name='raise') result(failed)
      import :: c_int
      integer(c_int), value :: number
      integer(c_int) :: failed
    end function
  end interface
  double precision, intent(inout) :: u(1000)
  integer, save :: turns = 0
  character(len=8) :: run
  integer(c_int) :: failed
  u = 0.999d0 * u + 1
  failed = c_usleep(20000)
  turns = turns + 1
  call get_environment_variable('ORCHECK_RUN_ATTEMPT', run)
  if (turns == 45 .and. run == '1') failed = c_raise(9)
end subroutine
"""


def blocks(language: str, document: str = "README.md") -> list[str]:
    with open(os.path.join(ROOT, document)) as text:
        return re.findall(rf"^```{language}\n(.*?)^```$", text.read(), re.M | re.S)


def example() -> str:
    """The program of README's first diff, as it is after the change."""
    lines = [line[1:] for line in blocks("diff")[0].splitlines() if not line.startswith("-")]
    return DECLARATIONS + "\n".join(lines) + "\n"


def commands(fortran: bool = False) -> str:
    return "\n".join(block.strip() for block in blocks("sh") if fortran == ("solver.f90" in block))


def other(name: str, source: tuple[str, str], build: str) -> None:
    """Another program of the README, in a directory of its own: restarted after a failure, and
    proven.
    """
    directory = f"/home/new/{name}"
    os.mkdir(directory)
    with open(f"{directory}/{source[0]}", "w") as program:
        program.write(source[1])
    exports = "\n".join(line for line in commands().splitlines() if line.startswith("export PATH"))
    script = f"""
. tools/mpi-env.sh
{exports}
cd {directory}
set -x
{build}
mkdir checkpoints
export ORCHECK_EVERY_STEPS=20
orcheck run --dir checkpoints -- mpirun -n 2 ./solver
orcheck prove -- mpirun -n 2 ./solver
"""
    code, said = shell(script)
    must(
        code == 0, f"{name} to be built, and to run and be proven; the last line ended with {code}"
    )
    must(
        re.search(r"newest committed step (20|40); starting run 2", said),
        f"a restart of {name} from a checkpoint",
    )
    must("proven: " in said, f"orcheck prove to find nothing in {name}")


def clean_root(work: str, release: str) -> str:
    """A shell script that makes the root at WORK/root, in a mount namespace of its own."""
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, stdout=subprocess.PIPE
    ).stdout
    os.makedirs(f"{work}/hand")
    with open(f"{work}/hand/tracked", "wb") as listed:
        listed.write(
            b"\0".join(
                name
                for name in tracked.split(b"\0")
                if os.path.lexists(os.path.join(ROOT.encode(), name))
            )
        )
    return f"""
set -euo pipefail
ip link set lo up
mount -t tmpfs tmpfs {work}/layers
mkdir {work}/layers/upper {work}/layers/work
layers={work}/layers
mount -t overlay overlay -o lowerdir=/,upperdir=$layers/upper,workdir=$layers/work {work}/root
root={work}/root
mount --rbind /dev $root/dev
mount --rbind /sys $root/sys
mount -t proc proc $root/proc
for hidden in /root /home /tmp /srv; do mount -t tmpfs tmpfs $root$hidden; done
chmod 1777 $root/tmp
mkdir -p $root/home/new/orcheck $root/srv/target/release $root/srv/bin
tar -C {ROOT} -c --null -T {work}/hand/tracked | tar -C $root/home/new/orcheck -x
mount --bind {release} $root/srv/target/release
cp {work}/hand/first.py $root/srv/first.py
# Nothing of where this clone comes from can be seen.
[ ! -d $root{ROOT} ] || mount -t tmpfs tmpfs $root{ROOT}
"""


def outside(target: str) -> int:
    if os.geteuid() != 0:
        print(
            "SKIPPED: the README is followed in a clean root, which takes root. Next: sudo "
            "tools/first-hour.py"
        )
        print("0 passed, 0 failed")
        return 0
    release = os.path.join(target, "release")
    if not os.path.exists(os.path.join(release, "orcheck")):
        print(f"FAIL: {release}/orcheck is missing. Next: make build")
        return 1
    work = tempfile.mkdtemp(prefix="orcheck-first-hour-")
    passed = failed = 0
    try:
        os.makedirs(f"{work}/layers")
        os.makedirs(f"{work}/root")
        script = clean_root(work, os.path.realpath(release))
        shutil.copy(os.path.abspath(__file__), f"{work}/hand/first.py")
        apart = [
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "--net",
            "--pid",
            "--fork",
            "--kill-child",
            "bash",
            "-c",
        ]
        tried = subprocess.run([*apart, script], stderr=subprocess.PIPE, text=True)
        if tried.returncode:
            print(f"SKIPPED: no clean root can be made here: {tried.stderr.strip()}")
            print("0 passed, 0 failed")
            return 0
        for name, uid in USERS.items():
            enter = (
                f"chown -R {uid}:{uid} $root/home/new; exec chroot $root setpriv --reuid {uid} "
                f"--regid {uid} --clear-groups "
                "env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "
                "HOME=/home/new LANG=C.UTF-8 "
                "python3 /srv/first.py --inside"
            )
            enter = (
                "printf '#!/bin/sh\\nexit 0\\n' >$root/srv/bin/cargo; chmod 755 "
                "$root/srv/bin/cargo\n" + enter
            )
            try:
                done = subprocess.run(
                    [*apart, script + enter],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    stdin=subprocess.DEVNULL,
                    timeout=LIMIT_S,
                )
                code, said = done.returncode, done.stdout
            except subprocess.TimeoutExpired as late:
                code, said = (
                    1,
                    f"{(late.stdout or b'').decode(errors='replace')}\nno end after {LIMIT_S} s",
                )
            if code == 0:
                passed += 1
                print(f"ok    the README as {name}")
            else:
                failed += 1
                print(
                    f"FAIL  the README as {name}: exit {code}\n"
                    + re.sub("^", "      ", said.strip(), flags=re.M)
                )
    finally:
        # Mounts went with their namespaces.
        shutil.rmtree(work, ignore_errors=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def shell(script: str, **environment: str) -> tuple[int, str]:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd="/home/new/orcheck",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **environment},
    )
    print(done.stdout, end="", flush=True)
    return done.returncode, done.stdout


def must(holds: object, text: str) -> None:
    if not holds:
        sys.exit(f"expected: {text}")


def inside() -> None:
    """In the clean root, as the user."""
    global ROOT
    ROOT = "/home/new/orcheck"
    os.environ.update(CARGO="/srv/bin/cargo", CARGO_TARGET_DIR="/srv/target")
    mpi = ". tools/mpi-env.sh\n"
    with open(f"{ROOT}/solver.c", "w") as solver:
        solver.write(example())
    ordinary = os.geteuid() != 0
    if ordinary:
        few_programs()
    code, said = shell(mpi + "set -x\n" + commands())
    must(code == 0, f"every line of the README to succeed; the last one ended with {code}")
    must(
        re.search(r"newest committed step (20|40); starting run 2", said),
        "a restart from a checkpoint after the first run",
    )
    must("proven: " in said, "orcheck prove to find nothing")
    sums = re.findall(r"^sum (\S+)$", said, re.M)
    code, alone = shell(mpi + "ORCHECK_GLOBAL=$(mktemp -d) mpirun -n 2 ./solver")
    must(code == 0 and sums, "the program to run without orcheck run, and without LD_LIBRARY_PATH")
    must(
        set(sums) == set(re.findall(r"^sum (\S+)$", alone, re.M)),
        "the same result as that of a run which nobody killed",
    )
    code, said = shell(mpi + "FORGETFUL=1 build/prefix/bin/orcheck prove -- mpirun -n 2 ./solver")
    must(
        code == 14 and "region u of rank 1 differs in 1 element, first element 17:" in said,
        "orcheck prove to name what was forgotten",
    )
    code, said = shell(
        mpi
        + "export ORCHECK_GLOBAL=$(mktemp -d /home/new/XXXXXX) ORCHECK_EVERY_STEPS=20 LOSES=1\n"
        + "mpirun -n 2 ./solver"
    )
    must(
        code == 0 and "checkpoint 20 is lost at level global" in said,
        "a warning in orc_message() to be printed",
    )
    serve()
    grows = GROWS + blocks("c")[0] + "  MPI_Finalize();\n}\n"
    line = next(line for line in commands().splitlines() if line.startswith("mpicc "))
    other("growing", ("solver.c", grows), line)
    if shutil.which("mpif90") and shutil.which("gfortran"):
        other("fortran", ("solver.f90", blocks("fortran")[0] + CALLED), commands(fortran=True))
    else:
        print("SKIPPED: the Fortran program of the README; there is no Fortran compiler")
    # The other targets that the README names take longer than an hour together: that they are there
    # must do.
    named = re.findall(r"(?:^|`)make ([a-z-]+)", open(f"{ROOT}/README.md").read(), re.M)
    for target in sorted(set(named)):
        must(shell(f"make -n {target} >/dev/null")[0] == 0, f"the target {target} in the Makefile")


def serve() -> None:
    """The servers of docs/servers.md, together with what its comments leave to the reader: a
    program, and a look at its checkpoints.
    """
    exports = "\n".join(line for line in commands().splitlines() if line.startswith("export PATH"))
    lines = re.sub("^# (mpirun|orcheck)", r"\1", blocks("sh", "docs/servers.md")[0], flags=re.M)
    lines = lines.replace("./solver", f"{ROOT}/solver")
    code, said = shell(
        f". tools/mpi-env.sh\n{exports}\nset -x\n{lines}wait\n", ORCHECK_EVERY_STEPS="20"
    )
    must(code == 0, f"every line of docs/servers.md to succeed; the last one ended with {code}")
    before, asked, after = said.partition("+ orcheck doctor")
    ready = re.findall(r"^server of disk\d+ at orcheck:.*: ready$", before, re.M)
    must(
        asked and len(ready) == 3,
        f"three servers to be ready before they are used, not {len(ready)}",
    )
    must(
        re.search(r"^ *60 .*restartable", after, re.M),
        "the checkpoints of the program to lie on the servers",
    )


def path_of(program: str) -> str:
    path = shutil.which(program)
    must(path, f"{program} to be there")
    return path or ""


def few_programs() -> None:
    """`make build` with a compiler and make alone; what else is missing is one line."""
    os.makedirs("/tmp/few")
    for program in FEW:
        os.symlink(path_of(program), f"/tmp/few/{program}")
    code, said = shell(
        "make build PREFIX=/tmp/built && test -x /tmp/built/bin/orcheck", PATH="/tmp/few"
    )
    must(code == 0 and "missing" not in said, "make build to need a compiler, make and Rust only")
    code, said = shell("tools/install-deps.sh demo", PATH="/tmp/few")
    must(
        code == 2 and said.count("\n") == 1 and "openmpi-bin" in said,
        "one line with what the demo lacks",
    )
    os.symlink(path_of("python3"), "/tmp/few/python3")
    with open("/tmp/few/dpkg-query", "w") as nothing:
        nothing.write("#!/bin/sh\nexit 1\n")
    os.chmod("/tmp/few/dpkg-query", 0o755)
    code, said = shell("tools/install-deps.sh check", PATH="/tmp/few")
    must(
        code == 0 and said.count("missing") == 1 and "gfortran" in said and said.count("\n") <= 3,
        "check to say in one line which packages are missing, and to continue",
    )


if __name__ == "__main__":
    if sys.argv[1:] == ["--inside"]:
        inside()
    else:
        default = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
        sys.exit(outside(os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else default)))

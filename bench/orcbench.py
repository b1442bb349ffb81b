"""What all benchmarks share: building and running programs, statistics, facts, results.

A benchmark prints a table, writes bench/results/NAME.json and draws bench/results/NAME.svg. The
JSON has `ratios`, a flat object of the figures that have a goal (null: could not be measured here),
and with them the machine, the commit, the date, medians and spread.
"""
import argparse
import contextlib
import datetime
import json
import os
import random
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(1, os.path.join(ROOT, "testbed", "cluster"))
import disks

MIB = 1 << 20
READY_S = 60
# Above this share of all cores the processors were the limit, whatever disks and links could have done.
BUSY = 0.9
NO_FIO = "fio is missing. Next: tools/install-deps.sh bench"


def arguments(name, doc, more):
    """Parses the options that all benchmarks have, and those that more(parser) adds."""
    parser = argparse.ArgumentParser(prog=f"bench/{name}", description=doc,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", default=os.path.join(ROOT, "build", "bench"),
                        help="where checkpoints are written: a directory of a real disk (default build/bench)")
    parser.add_argument("--prefix", default=os.environ.get("PREFIX", os.path.join(ROOT, "build", "prefix")),
                        help="the installed library (default build/prefix, made by `make build`)")
    parser.add_argument("--results", default=os.path.join(ROOT, "bench", "results"))
    parser.add_argument("--full", action="store_true", help="the whole grid, more rounds: much longer")
    more(parser)
    parsed = parser.parse_args()
    os.makedirs(parsed.dir, exist_ok=True)
    parsed.dir, parsed.prefix = os.path.abspath(parsed.dir), os.path.abspath(parsed.prefix)
    if not os.path.exists(os.path.join(parsed.prefix, "include", "orcheck_mpi.h")):
        sys.exit(f"{parsed.prefix} holds no library. Next: make build, or --prefix DIR")
    return parsed


# ---- running --------------------------------------------------------------------------------------
def environment():
    """This environment with the settings of tools/mpi-env.sh; threads that wait give their core away."""
    text = subprocess.run(["bash", "-c", ". tools/mpi-env.sh && env -0"], cwd=ROOT, check=True,
                          capture_output=True).stdout.decode()
    found = dict(line.split("=", 1) for line in text.split("\0") if "=" in line)
    found.setdefault("OMP_WAIT_POLICY", "passive")
    return found


# What a program is made of, apart from its own source.
MORE_SOURCES = {"solver": ["examples/lbm/figures.c"], "waste": ["examples/lbm/figures.c"]}


def build(prefix, name, variant=None, flags=()):
    """Compiles bench/src/NAME.c against the library under prefix; returns the program's path.

    variant: a second program of the same source, with more flags.
    """
    out = os.path.join(ROOT, "build", "bench-bin", name + (f"-{variant}" if variant else ""))
    os.makedirs(os.path.dirname(out), exist_ok=True)
    sources = [os.path.join(ROOT, file) for file in (f"bench/src/{name}.c", *MORE_SOURCES.get(name, ()))]
    lib = os.path.join(prefix, "lib")
    subprocess.run([os.environ.get("MPICC", "mpicc"), "-std=c11", "-O3", "-march=native", "-ffp-contract=off",
                    "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-fopenmp", "-I" + os.path.join(prefix, "include"),
                    *sources, "-o", out, "-L" + lib, "-lorcheck", "-Wl,-rpath," + lib, "-lm", *flags], check=True)
    return out


def run(program, ranks, argv, threads=1):
    """Runs program under mpirun with --report FILE appended; returns what it wrote there."""
    env = dict(environment(), OMP_NUM_THREADS=str(threads))
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        command = [os.environ.get("MPIRUN", "mpirun"), "-n", str(ranks), program, *map(str, argv),
                   "--report", report.name]
        process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True)
        try:
            said = process.communicate()[0]
        except BaseException:
            process.terminate()  # mpirun ends its ranks
            process.wait()
            raise
        if process.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}\nended with {process.returncode}:\n{said[-4000:]}")
        return json.load(report)


def key_file(path):
    """A new key in a file that nobody else can read; its path."""
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(os.urandom(32))
    return path


def ready(process, what):
    """Waits until a process that was just started (stdout=PIPE) says that it is ready; the line."""
    there = select.select([process.stdout], [], [], READY_S)[0]
    said = process.stdout.readline() if there else ""
    said = said.decode(errors="replace") if isinstance(said, bytes) else said
    if not said.endswith("ready\n"):
        process.kill()
        raise RuntimeError(f"{what}: not ready within {READY_S} s: said {said!r}")
    return said


def serve(prefix, where, listen, key, *more, start=subprocess.Popen):
    """orcheck server before a directory: its process, and its place as the library has it. start: as Popen, on another node."""
    command = [os.path.join(prefix, "bin", "orcheck"), "server", "--dir", where, "--listen", listen, "--key", f"file:{key}",
               "--scrub-mib-s", "0", *more]
    process = start(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    place = ready(process, " ".join(command)).rsplit(" ", 2)[1].rstrip(":")
    return process, f"{place}?key=file:{key}"


def toml(text):
    """A TOML string."""
    return json.dumps(text)


@contextlib.contextmanager
def scratch(parent):
    """A directory of its own under parent, gone afterwards."""
    where = tempfile.mkdtemp(prefix="orcheck-", dir=parent)
    try:
        yield where
    finally:
        shutil.rmtree(where, ignore_errors=True)


def end_on_signals():
    """Signals that end the program end it as exceptions do: what was set is set back."""
    def end(number, _frame):
        sys.exit(128 + number)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)


# ---- a slow disk ----------------------------------------------------------------------------------
class Limit:
    """Limits the writes (or the reads) of the device that holds a directory, by the blkio controller of cgroup v1.

    The limit is set in the root group (writes of the page cache are nobody's in a child group), so
    it holds for the whole machine, and is taken back at the end, however that comes: a process of
    its own, in its own session, waits for the end of this one and takes the limit back.
    """
    CONTROL = "/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device"
    READ_CONTROL = "/sys/fs/cgroup/blkio/blkio.throttle.read_bps_device"

    def __init__(self, path, bytes_per_s, reads=False, check_mib=256):
        """check_mib: how much is written (and read) to see that the limit is there."""
        self.path, self.bytes_per_s, self.guard, self.reads = path, bytes_per_s, None, reads
        self.blocks = check_mib // 4
        self.CONTROL = self.READ_CONTROL if reads else self.CONTROL

    def __enter__(self):
        device = whole_disk(os.stat(self.path).st_dev)
        if os.geteuid() != 0:
            raise OSError("limiting a device takes root")
        if device is None or not os.path.exists(self.CONTROL):
            raise OSError(f"{self.path} is not on a disk of its own that {self.CONTROL} can limit")
        if any(line.split()[:1] == [device] for line in read(self.CONTROL).splitlines()):
            raise OSError(f"device {device} already has a limit in {self.CONTROL}")
        undo = f"trap '' INT TERM HUP; read -r _; echo '{device} 0' > {self.CONTROL}"
        self.guard = subprocess.Popen(["sh", "-c", undo], stdin=subprocess.PIPE, start_new_session=True)
        try:
            with open(self.CONTROL, "w") as control:
                control.write(f"{device} {self.bytes_per_s}\n")
            rate = self.measure()
            if not 0.5 * self.bytes_per_s < rate < 1.25 * self.bytes_per_s:
                raise OSError(f"limited to {self.bytes_per_s / 1e6:.0f} MB/s, {rate / 1e6:.0f} MB/s were measured")
            return rate
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_):
        self.guard.stdin.close()
        self.guard.wait()

    def measure(self):
        """Bytes/s of direct writes, or reads, as a check that the limit is there."""
        with scratch(self.path) as where:
            file = os.path.join(where, "x")
            dd = ["dd", "if=/dev/zero", "of=" + file, "bs=4M", f"count={self.blocks}", "oflag=direct"]
            if self.reads:
                subprocess.run(dd, check=True, capture_output=True)
                dd = ["dd", "if=" + file, "of=/dev/null", "bs=4M", "iflag=direct"]
                subprocess.run(dd, check=True, capture_output=True)  # what a limit that was idle lets through at once
            begin = time.monotonic()
            subprocess.run(dd, check=True, capture_output=True)
            return self.blocks * 4 * MIB / (time.monotonic() - begin)


def whole_disk(device):
    """"major:minor" of the disk behind a file system's device number; None if there is none."""
    name = f"{os.major(device)}:{os.minor(device)}"
    path = os.path.realpath(f"/sys/dev/block/{name}")
    if not os.path.exists(path) or os.major(device) == 0:
        return None
    if os.path.exists(os.path.join(path, "partition")):
        with open(os.path.join(os.path.dirname(path), "dev")) as file:
            return file.read().strip()
    return name


# ---- statistics -----------------------------------------------------------------------------------
def spread(values):
    """Median, quartiles and extremes."""
    if not values:
        return None
    ordered = sorted(values)
    quartiles = statistics.quantiles(ordered, n=4, method="inclusive") if len(ordered) > 1 else ordered * 3
    return {"median": statistics.median(ordered), "q1": quartiles[0], "q3": quartiles[2],
            "min": ordered[0], "max": ordered[-1], "n": len(ordered)}


def interval(values, of=statistics.median, resamples=4000):
    """Bootstrap 95 % confidence interval of a statistic; rows (tuples) are resampled as a whole."""
    if len(values) < 2:
        return None
    source = random.Random(1)
    found = sorted(of(source.choices(values, k=len(values))) for _ in range(resamples))
    return [found[int(0.025 * resamples)], found[int(0.975 * resamples)]]


def figure(values, of=statistics.median):
    """A figure from paired samples: its value, its interval and the number of samples."""
    if not values:
        return {"value": None, "interval": None, "n": 0}
    return {"value": of(values), "interval": interval(values, of), "n": len(values)}


# ---- facts ----------------------------------------------------------------------------------------
def read(path, otherwise=""):
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return otherwise


def output(*command, **more):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, **more).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def available_bytes():
    for line in read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def processor_times():
    fields = [int(x) for x in read("/proc/stat").splitlines()[0].split()[1:9]]
    return {"all": sum(fields), "idle": fields[3] + fields[4], "steal": fields[7]}


def busy(before, after=None):
    """The share of all processors that somebody had since processor_times() was before."""
    after = after or processor_times()
    return 1 - (after["idle"] - before["idle"]) / max(1, after["all"] - before["all"])


def percent(share):
    """A share of the processors for a table: LIMIT where they were it."""
    return f"{100 * share:.0f} %" + (" LIMIT" if share > BUSY else "")


class Machine:
    """What ran where, and how busy the machine was with other things."""

    def __init__(self, path):
        before = processor_times()
        time.sleep(1)
        self.begin, self.path = processor_times(), path
        self.busy = busy(before, self.begin)
        self.load = os.getloadavg()[0]
        if self.busy > 0.1:
            print(f"WARNING: other programs take {100 * self.busy:.0f} % of this machine (load {self.load:.1f}): "
                  "the figures below are doubtful", flush=True)
        kind = output("findmnt", "-n", "-o", "FSTYPE", "-T", path)
        if kind in ("tmpfs", "ramfs", "overlay"):
            print(f"WARNING: {path} is on {kind}, not on a disk. Next: --dir DIRECTORY", flush=True)

    def facts(self):
        info = read("/proc/cpuinfo")
        model = next((line.split(":", 1)[1].strip() for line in info.splitlines() if line.startswith("model name")), "")
        memory = next((int(line.split()[1]) * 1024 for line in read("/proc/meminfo").splitlines()
                       if line.startswith("MemTotal:")), 0)
        end = processor_times()
        return {
            "processor": model, "cores": len(os.sched_getaffinity(0)), "memory_bytes": memory,
            "kernel": os.uname().release, "system": next(
                (line.split("=", 1)[1].strip('"') for line in read("/etc/os-release").splitlines()
                 if line.startswith("PRETTY_NAME=")), ""),
            "transparent_huge_pages": read("/sys/kernel/mm/transparent_hugepage/enabled"),
            "file_system": output("findmnt", "-n", "-o", "FSTYPE,OPTIONS", "-T", self.path),
            "mpi": (output(os.environ.get("MPIRUN", "mpirun"), "--version").splitlines() or [""])[0],
            "compiler": (output("cc", "--version").splitlines() or [""])[0],
            "busy_before": round(self.busy, 3), "load_before": self.load,
            "steal_during": round((end["steal"] - self.begin["steal"]) / max(1, end["all"] - self.begin["all"]), 4),
        }


def commit():
    """The commit that was measured; "+" when files differ from it."""
    found = output("git", "rev-parse", "--short=12", "HEAD", cwd=ROOT)
    changed = output("git", "status", "--porcelain", "--untracked-files=no", cwd=ROOT)
    return (found or "unknown") + ("+" if changed else "")


# ---- results --------------------------------------------------------------------------------------
def table(head, rows):
    """Prints rows under a head; numbers right, text left."""
    cells = [[str(c) for c in row] for row in [head, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    for number, row in enumerate(cells):
        print("  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths))))
        if number == 0:
            print("  ".join("-" * w for w in widths))
    sys.stdout.flush()


def meets(value, sign, goal):
    return value <= goal if sign == "<=" else value >= goal


def result_path(args, name, ending):
    """Where results go; those of some parts only (--only, --way) to a file of their own: NAME-PARTS."""
    parts = []
    for chosen in (vars(args).get("only"), vars(args).get("way")):
        parts += [chosen] if isinstance(chosen, str) else chosen or []
    words = ["".join(c if c.isalnum() else "-" for c in part.replace(", ", "-")) for part in parts]
    return os.path.join(args.results, "-".join([name, *words]) + ending)


def not_measured(args, name, why, goals):
    """Says that nothing of a benchmark can be measured here; its keys are null."""
    print(f"NOT MEASURED: {why}", flush=True)
    finish(args, name, Machine(args.dir), {}, goals, {"not_measured": why})


def finish(args, name, machine, figures, goals, more):
    """Prints the figures beside their goals, writes the JSON, returns a footnote for the plot.

    figures: name -> figure(); goals: name -> ("<=" or ">=", number), each without a figure was not measured;
    more: what else to store.
    """
    figures = {**{key: figure([]) for key in goals}, **figures}
    facts, when, what = machine.facts(), datetime.datetime.now().astimezone().isoformat(timespec="seconds"), commit()
    rows = []
    for key, found in figures.items():
        value, between = found["value"], found["interval"]
        word = ""
        if key in goals:
            sign, goal = goals[key]
            word = f"{sign} {goal:.3g}"
            if value is None:
                word += ", not measured"
            else:
                word += ", met" if meets(value, sign, goal) else ", MISSED"
                if between and len({meets(x, sign, goal) for x in (value, *between)}) > 1:
                    word += " (not certain)"
        rows.append([key, "-" if value is None else f"{value:.4g}",
                     "" if between is None else f"{between[0]:.4g} to {between[1]:.4g}", found["n"], word])
    print()
    table(["ratio", "median", "95 % interval", "n", "goal"], rows)
    result = {"name": name, "commit": what, "date": when, "machine": facts,
              "arguments": {k: v for k, v in vars(args).items()},
              "ratios": {key: found["value"] for key, found in figures.items()},
              "intervals": {key: found["interval"] for key, found in figures.items()},
              "samples": {key: found["n"] for key, found in figures.items()},
              "goals": {key: list(goal) for key, goal in goals.items()}, **more}
    os.makedirs(args.results, exist_ok=True)
    path = result_path(args, name, ".json")
    with open(path + ".new", "w") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
    os.replace(path + ".new", path)
    print(f"\n{path}  (commit {what})")
    return f"{facts['processor']}, {facts['cores']} cores, Linux {facts['kernel']}; commit {what}; {when[:10]}"


def main():
    """Compiles every program of bench/src/, and the model disk of the testbed."""
    prefix = os.path.abspath(os.environ.get("PREFIX", os.path.join(ROOT, "build", "prefix")))
    names = sorted(file[:-2] for file in os.listdir(os.path.join(ROOT, "bench", "src")) if file.endswith(".c"))
    for name in names:
        build(prefix, name)
    if subprocess.run(["pkg-config", "--exists", "fuse3"]).returncode:
        print("SKIPPED: testbed/cluster/disk.c: libfuse3-dev is missing")
    else:
        disks.build()
        names.append("disk")
    print(f"{len(names)} passed, 0 failed")


if __name__ == "__main__":
    main()

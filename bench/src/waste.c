/* The solver of examples/lbm as a job that is killed again and again: steps, and after every this many of them a checkpoint
 * that it waits for. Started again it continues from the newest one. bench/orcbench/waste.py starts it, kills it, and reads what it says.
 *
 *   waste --cells EDGE --steps N --every K --dir DIR --report FILE [--node-dir DIR] [--first NUMBER] [--options TOML]
 *
 * With K = 0 the options say when a checkpoint is due, and where it goes: it waits for all levels of it. The state that
 * it begins with has the step NUMBER (1), and goes to all levels if that is a multiple of all paces.
 *
 * One rank, without mpirun. It begins with a checkpoint of the state that it begins with, as a job does that continues
 * another one: so every restart reads one. Each line of the report is written at once, because the program may not live
 * to see the next: a word, the time (CLOCK_MONOTONIC, seconds: that of all processes of a machine), the step, and for
 * `end` the state's hash, for `safe` how far it went (1: the node, 2: the file system):
 *
 *   ready      the session is open, a checkpoint is restored if there is one; the next step begins
 *   computed   K steps more
 *   safe       and their checkpoint: on the disk, and known to be
 *   done       all steps and their last checkpoint
 *   end        (after the clock) what the state is */
#define _GNU_SOURCE
#define main lbm_main
#include "../../examples/lbm/lbm.c"
#undef main
#define HAS_DIE /* lbm.c has one */
#include <fcntl.h>
#include "ranks.h"

static int report = -1;

static void say(const char *word, int64_t step, uint64_t hash) {
    char line[128];
    const int len = snprintf(line, sizeof line, "%s %.6f %" PRId64 " %016" PRIx64 "\n", word, now_s(), step, hash);
    if (write(report, line, (size_t)len) != len) die("nobody reads the report"); /* a pipe takes a short line whole */
}

/* Takes a checkpoint and waits until it is safe at all levels that it goes to; returns how far it went. */
static uint64_t take(const Block *b, const Settings *set, Run *run, uint64_t number) {
    checkpoint(b, set, run, number);
    const orc_status global = orc_wait(run->s, number, ORC_GLOBAL, 600);
    if (global == ORC_NOT_FOUND) {
        TRY(orc_wait(run->s, number, ORC_NODE, 600)); /* it goes no further */
        return 1;
    }
    if (global != ORC_OK) die("step %" PRIu64 ": %s", number, orc_message());
    return 2;
}

int main(int argc, char **argv) {
    int provided;
    char options[8192];
    MPI_TRY(MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided)); /* the solver talks to itself by MPI */
    const int64_t edge = number(argc, argv, "--cells", NULL), every = number(argc, argv, "--every", NULL),
                  first = number(argc, argv, "--first", "1");
    const char *node_dir = option(argc, argv, "--node-dir", "");
    Settings set = {.checkpoint = "async", .memory = "heap", .level = "global", .job = "waste", .options = options,
                    .nx = edge, .ny = edge, .nz = edge, .steps = number(argc, argv, "--steps", NULL), .re = 100,
                    .lid_velocity = 0.1, .die = -1};
    if (edge < 8 || edge > 1024 || first < 1 || (every && set.steps % every)) die("a value out of range, or a segment that is not full");
    Block b = {0};
    cut(&b, &set);
    if (b.size != 1) die("%d ranks: expected 1", b.size);
    if (snprintf(options, sizeof options, "global = [\"%s\"]\npool = %zu\n%s%s%s%s", option(argc, argv, "--dir", NULL),
                 b.count * sizeof(double) + (24u << 20), *node_dir ? "node_dir = \"" : "", node_dir, *node_dir ? "\"\n" : "",
                 option(argc, argv, "--options", "")) >= (int)sizeof options)
        die("--options: too long");
    if ((report = open(option(argc, argv, "--report", NULL), O_WRONLY | O_CLOEXEC)) < 0) die("no report");

    Run run = {.level = ORC_GLOBAL};
    int64_t step = open_and_resume(&b, &set, &run) - first; /* a checkpoint after n steps has the number n + first */
    if (step < 0) step = 0, take(&b, &set, &run, (uint64_t)first);
    say("ready", step, 0);
    if (step == set.steps && !every) { /* killed before the last one had gone all the way: the next one goes there */
        say("computed", step, 0);
        say("safe", step, take(&b, &set, &run, (uint64_t)(step + first + 1)));
    }
    while (step < set.steps) {
        advance(&b, run.src, run.dst);
        toggle(&run);
        int due = every && ++step % every == 0;
        if (!every) TRY(orc_due(run.s, (uint64_t)(++step + first), &due));
        if (!due) continue;
        say("computed", step, 0);
        say("safe", step, take(&b, &set, &run, (uint64_t)(step + first)));
    }
    say("done", step, 0);
    say("end", step, hash_state(&b, run.src));
    TRY(orc_close(run.s, 600));
    MPI_Finalize();
    return 0;
}

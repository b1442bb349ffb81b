/* SCR, which reads its settings from the environment. The program writes its file where SCR_Route_file says, and does not sync it: SCR
 * makes it safe by what it does in SCR_Complete_output. SCR tells nodes apart by their host name, and wants the same paths on all of
 * them. Virtual nodes share a file system: each rank works in a directory of its own, and the paths begin with /proc/self/cwd. */
#include <scr.h>

static void scr_open(const Setup *setup) {
    (void)setup;
    char path[4096];
    snprintf(path, sizeof path, "%s/node%d", getenv("ORCBENCH_NODES"), rank);
    if (virtual_nodes && chdir(path)) die("cannot work in %s: %s", path, strerror(errno));
    if (SCR_Init() != SCR_SUCCESS) die("SCR_Init failed");
}
/* The absolute path below SCR_PREFIX at which SCR would have the file; routed: where it is to be written or read now. */
static void scr_route(int version, char *routed) {
    char file[4096];
    snprintf(file, sizeof file, "%s/step.%d/rank.%d", getenv("SCR_PREFIX"), version, rank);
    if (SCR_Route_file(file, routed) != SCR_SUCCESS) die("SCR_Route_file %s failed", file);
}
static void scr_take(int version) {
    char name[SCR_MAX_FILENAME], routed[SCR_MAX_FILENAME];
    snprintf(name, sizeof name, "step.%d", version);
    if (SCR_Start_output(name, SCR_FLAG_CHECKPOINT) != SCR_SUCCESS) die("SCR_Start_output failed");
    scr_route(version, routed);
    write_file(routed, false);
    if (SCR_Complete_output(1) != SCR_SUCCESS) die("SCR_Complete_output failed");
}
static int scr_find(void) {
    int there = 0, version = -1;
    char name[SCR_MAX_FILENAME];
    if (SCR_Have_restart(&there, name) != SCR_SUCCESS || !there) return -1;
    if (sscanf(name, "step.%d", &version) != 1) die("SCR_Have_restart gave %s", name);
    return version;
}
static void scr_restore(int version) {
    char name[SCR_MAX_FILENAME], routed[SCR_MAX_FILENAME];
    if (SCR_Start_restart(name) != SCR_SUCCESS) die("SCR_Start_restart failed");
    scr_route(version, routed);
    read_file(routed);
    if (SCR_Complete_restart(1) != SCR_SUCCESS) die("SCR_Complete_restart failed");
}
static void scr_close(void) { SCR_Finalize(); }

static const Adapter ADAPTERS[] = {{"scr", scr_open, scr_take, NULL, NULL, scr_find, scr_restore, scr_close}};

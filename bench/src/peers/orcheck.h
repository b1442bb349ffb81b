/* Orcheck, which reads its options from the file that ORCHECK_CONFIG names; and write + fsync, without a library. */
static orc_session *session;
static orc_level orcheck_level;

static void orcheck_open(const Setup *setup) {
    static const char *const LEVELS[] = {[ORC_PROCESS] = "process", [ORC_NODE] = "node", [ORC_PEERS] = "peers", [ORC_GLOBAL] = "global"};
    for (int level = ORC_PROCESS; level <= ORC_GLOBAL; level++)
        if (strcmp(setup->level, LEVELS[level]) == 0) orcheck_level = (orc_level)level;
    TRY(orc_mpi_open(&session, MPI_COMM_WORLD, "peers", ""));
    TRY(orc_protect(session, "state", state, ORC_U64, size / 8, 0));
}
static void orcheck_take(int version) { TRY(orc_checkpoint(session, (uint64_t)version)); }
static void orcheck_lend(int version) {
    TRY(orc_lend(session, "state"));
    orcheck_take(version);
}
static void orcheck_wait(int version) { TRY(orc_wait(session, (uint64_t)version, orcheck_level, 600)); }
static void orcheck_finish(int version) { /* what is safe in an agent is still on its way to the disk */
    if (orcheck_level == ORC_PROCESS) TRY(orc_wait(session, (uint64_t)version, ORC_NODE, 600));
}
static void orcheck_give(int version) {
    (void)version;
    TRY(orc_lent_done(session, "state", 600));
}
static int orcheck_find(void) {
    uint64_t step = 0;
    TRY(orc_find(session, &step));
    return (int)step;
}
static void orcheck_restore(int version) {
    uint64_t step = (uint64_t)version;
    TRY(orc_restart(session, &step));
    orc_stats stats = {.struct_size = sizeof stats};
    TRY(orc_stats_read(session, &stats));
    kept_bytes = (double)stats.memory_bytes;
}
static void orcheck_close(void) { TRY(orc_close(session, 600)); }

/* Two files in turn, so that an old one is there while the new one is written; the newest is the one that is named. */
static char posix_dir[4096];
static bool posix_syncs;
static void posix_open(const Setup *setup) {
    snprintf(posix_dir, sizeof posix_dir, "%s", setup->dir);
    posix_syncs = strcmp(setup->level, "synced") == 0;
}
static void posix_path(char *path, size_t len, int version) { snprintf(path, len, "%s/%d.%d", posix_dir, version % 2, rank); }
static void posix_take(int version) {
    char path[5000];
    posix_path(path, sizeof path, version);
    write_file(path, posix_syncs);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        snprintf(path, sizeof path, "%s/newest", posix_dir);
        FILE *file = fopen(path, "w");
        if (!file || fprintf(file, "%d\n", version) < 0 || (posix_syncs && fsync(fileno(file))) || fclose(file))
            die("cannot write %s", path);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}
static int posix_find(void) {
    char path[5000];
    int version = -1;
    snprintf(path, sizeof path, "%s/newest", posix_dir);
    FILE *file = fopen(path, "r");
    if (!file || fscanf(file, "%d", &version) != 1) die("cannot read %s", path);
    fclose(file);
    return version;
}
static void posix_restore(int version) {
    char path[5000];
    posix_path(path, sizeof path, version);
    read_file(path);
}
static void posix_close(void) {}

static const Adapter ADAPTERS[] = {
    {"orcheck", orcheck_open, orcheck_take, orcheck_wait, orcheck_finish, orcheck_find, orcheck_restore, orcheck_close},
    {"lent", orcheck_open, orcheck_lend, orcheck_wait, orcheck_give, orcheck_find, orcheck_restore, orcheck_close},
    {"posix", posix_open, posix_take, NULL, NULL, posix_find, posix_restore, posix_close},
};

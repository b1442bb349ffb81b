/* Orcheck, which reads its options from the file that ORCHECK_CONFIG names; and without a library: write + fsync, and files in memory
 * that a thread copies to the disk, as Open MPI's "stage" did. */
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

static char stage_disk[4096];
static pthread_t stage_thread;
static bool stage_runs;
static void stage_open(const Setup *setup) {
    posix_open(setup);
    const char *end = strrchr(setup->conf, '/');
    if (!end) die("%s has no directory", setup->conf);
    snprintf(stage_disk, sizeof stage_disk, "%.*s", (int)(end - setup->conf), setup->conf);
}
static void *stage_copy(void *version) {
    enum { BLOCK = 4 << 20 };
    char from[5000], to[5000], *block = malloc(BLOCK);
    posix_path(from, sizeof from, (int)(intptr_t)version);
    snprintf(to, sizeof to, "%s%s", stage_disk, strrchr(from, '/'));
    const int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (!block || in < 0 || out < 0) die("cannot copy %s to %s", from, to);
    for (ssize_t got; (got = read(in, block, BLOCK)) != 0;)
        if (got < 0 || write(out, block, (size_t)got) != got) die("cannot copy %s to %s: %s", from, to, strerror(errno));
    if (fsync(out) || close(out) || close(in)) die("cannot finish %s: %s", to, strerror(errno));
    free(block);
    return NULL;
}
static void stage_join(void) {
    if (stage_runs && pthread_join(stage_thread, NULL)) die("a thread cannot be joined");
    stage_runs = false;
}
static void stage_finish(int version) {
    (void)version;
    stage_join();
}
static void stage_take(int version) {
    stage_join(); /* one at a time, as everywhere */
    posix_take(version);
    if (pthread_create(&stage_thread, NULL, stage_copy, (void *)(intptr_t)version)) die("no thread");
    stage_runs = true;
}

static const Adapter ADAPTERS[] = {
    {"orcheck", orcheck_open, orcheck_take, orcheck_wait, orcheck_finish, orcheck_find, orcheck_restore, orcheck_close},
    {"lent", orcheck_open, orcheck_lend, orcheck_wait, orcheck_give, orcheck_find, orcheck_restore, orcheck_close},
    {"stage", stage_open, stage_take, stage_finish, NULL, posix_find, posix_restore, stage_join},
    {"posix", posix_open, posix_take, NULL, NULL, posix_find, posix_restore, posix_close},
};

/* Orcheck in a program of one rank: four regions, a checkpoint every step, waited for until it is committed.
 *
 *   orcheck save DIR STATES FIRST LAST ACK
 *   orcheck restore DIR INTO
 *
 * TORTURE_OPTIONS: further options of the session, TOML; TORTURE_FLAGS: flags of the regions. */
#include <fcntl.h>
#include <orcheck.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { REGIONS = 4 };
static orc_session *session;
static char *region[REGIONS];
static size_t len_bytes[REGIONS];

static _Noreturn void die(const char *what) {
    fprintf(stderr, "orcheck: %s: %s\n", what, orc_message());
    orc_abandon(session);
    exit(1);
}
#define TRY(call) do { if ((call) != ORC_OK) die(#call); } while (0)
#define NEED(condition) do { if (!(condition)) { perror("orcheck: " #condition); exit(1); } } while (0)

static void warn(void) {
    if (*orc_message()) fprintf(stderr, "orcheck: %s\n", orc_message());
}

static void open_job(const char *dir) {
    char options[4096];
    const char *more = getenv("TORTURE_OPTIONS");
    snprintf(options, sizeof options, "global = [\"%s\"]\nchunk = '64 KiB'\npool = '2 MiB'\n%s\n", dir, more ? more : "");
    TRY(orc_open(&session, "torture", NULL, options));
    warn();
}

static void protect(int i, size_t len) {
    const char *flags = getenv("TORTURE_FLAGS");
    char name[8];
    snprintf(name, sizeof name, "u%d", i);
    /* Touched and aligned, as a program's arrays are; the same memory for all steps. */
    if (!region[i]) NEED(!posix_memalign((void **)&region[i], 4096, len ? len : 1));
    len_bytes[i] = len;
    TRY(orc_protect(session, name, region[i], ORC_U64, len / 8, flags ? atoi(flags) : 0));
}

/* Brings the newest checkpoint back; 0 when there is none. */
static uint64_t resume(void) {
    uint64_t step = 0;
    char name[8];
    orc_status found = orc_find(session, &step);
    if (found == ORC_NOT_FOUND) return 0;
    if (found != ORC_OK) die("orc_find");
    warn();
    do {
        for (int i = 0; i < REGIONS; i++) {
            size_t len = 0;
            snprintf(name, sizeof name, "u%d", i);
            TRY(orc_stored(session, name, NULL, &len));
            protect(i, len);
        }
    } while ((found = orc_restart(session, &step)) == ORC_AGAIN);
    if (found != ORC_OK) die("orc_restart");
    warn();
    return step;
}

static void save(const char *states, uint64_t step) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%llu", states, (unsigned long long)step);
    FILE *file = fopen(path, "rb");
    NEED(file && !fseek(file, 0, SEEK_END));
    size_t len = (size_t)ftell(file) / REGIONS;
    rewind(file);
    for (int i = 0; i < REGIONS; i++) {
        protect(i, len);
        NEED(fread(region[i], 1, len, file) == len);
    }
    fclose(file);
    TRY(orc_checkpoint(session, step));
    TRY(orc_wait(session, step, ORC_GLOBAL, 20));
}

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[1], "restore") == 0) {
        open_job(argv[2]);
        uint64_t step = resume();
        if (step) {
            FILE *file = fopen(argv[3], "wb");
            NEED(file);
            for (int i = 0; i < REGIONS; i++) NEED(fwrite(region[i], 1, len_bytes[i], file) == len_bytes[i]);
            NEED(!fclose(file));
        }
        TRY(orc_close(session, 20));
        if (step) printf("restored %llu\n", (unsigned long long)step);
        else puts("nothing");
        return 0;
    }
    if (argc != 7 || strcmp(argv[1], "save")) return 64;
    open_job(argv[2]);
    resume();
    for (uint64_t step = strtoull(argv[4], NULL, 10); step <= strtoull(argv[5], NULL, 10); step++) {
        char line[32];
        save(argv[3], step);
        int n = snprintf(line, sizeof line, "%llu\n", (unsigned long long)step), fd = open(argv[6], O_WRONLY | O_APPEND);
        NEED(fd >= 0 && write(fd, line, (size_t)n) == n && !close(fd));
    }
    TRY(orc_close(session, 20));
    return 0;
}

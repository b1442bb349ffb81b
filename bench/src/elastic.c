/* Restarts of a global array, on any number of ranks and in any cut.
 *
 *   mpirun ... elastic --job NAME --do write|restart --rows N --columns N --cut rows|blocks|columns --options TOML --report FILE
 *
 * The array is f64[rows][columns]. rows and columns: parts that lie side by side along one dimension; blocks: a grid that
 * is as square as the number of ranks allows. restart: find_s until a step is found, s until its bytes are in place, both from orc_find on;
 * needed: the bytes of all parts; read: what all ranks asked the kernel for between orc_find and the end of orc_restart
 * (/proc/self/io, rchar). Then every element is compared. */
#define _GNU_SOURCE
#include "ranks.h"

static double element(int64_t row, int64_t column, int64_t columns) {
    uint64_t x = (uint64_t)(row * columns + column) * 0x9E3779B97F4A7C15u;
    x ^= x >> 29, x *= 0xBF58476D1CE4E5B9u;
    return (double)(x >> 12); /* an integer below 2^52: exact */
}

static double bytes_read(void) {
    char text[512];
    FILE *file = fopen("/proc/self/io", "r");
    if (!file) die("no /proc/self/io");
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    const char *found = strstr(text, "rchar: ");
    if (!found) die("/proc/self/io has no rchar");
    return strtod(found + 7, NULL);
}

static void cut(int64_t len, int parts, int at, int64_t *offset, int64_t *local) {
    *offset = len * at / parts;
    *local = len * (at + 1) / parts - *offset;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const char *what = option(argc, argv, "--do", NULL), *how = option(argc, argv, "--cut", NULL);
    const int64_t rows = number(argc, argv, "--rows", NULL), columns = number(argc, argv, "--columns", NULL);
    int grid[2] = {ranks, 1};
    if (!strcmp(how, "columns")) grid[0] = 1, grid[1] = ranks;
    else if (!strcmp(how, "blocks")) {
        for (int side = 1; side * side <= ranks; side++)
            if (ranks % side == 0) grid[0] = ranks / side, grid[1] = side;
    } else if (strcmp(how, "rows")) die("--cut %s: rows, columns or blocks", how);
    orc_array part = {.struct_size = sizeof part, .dtype = ORC_F64, .ndim = 2, .global = {rows, columns}};
    cut(rows, grid[0], rank / grid[1], &part.offset[0], &part.local[0]);
    cut(columns, grid[1], rank % grid[1], &part.offset[1], &part.local[1]);
    const size_t count = (size_t)(part.local[0] * part.local[1]);
    double *u = memory(count * sizeof *u, false, 1);
    uint64_t step = 0;
    FILE *report = NULL;
    if (rank == 0 && !(report = fopen(option(argc, argv, "--report", NULL), "w"))) die("cannot create the report");

    orc_session *session;
    TRY(orc_mpi_open(&session, MPI_COMM_WORLD, option(argc, argv, "--job", NULL), option(argc, argv, "--options", NULL)));
    TRY(orc_protect_array(session, "u", u, &part, 0));
#define EACH(i, j) \
    for (int64_t i = 0; i < part.local[0]; i++) \
        for (int64_t j = 0; j < part.local[1]; j++)
    if (strcmp(what, "write") == 0) {
        EACH(i, j) u[i * part.local[1] + j] = element(part.offset[0] + i, part.offset[1] + j, columns);
        TRY(orc_checkpoint(session, 1));
        if (report) fputs("{}\n", report);
    } else if (strcmp(what, "restart") == 0) {
        memset(u, 0xee, count * sizeof *u); /* the program's pages are there before the clock runs */
        MPI_Barrier(MPI_COMM_WORLD);
        const double before = bytes_read(), begin_s = now_s();
        TRY(orc_find(session, &step));
        const double open_s = now_s();
        TRY(orc_restart(session, &step));
        const double end_s = now_s(), read = reduced(bytes_read() - before, MPI_SUM);
        EACH(i, j) if (u[i * part.local[1] + j] != element(part.offset[0] + i, part.offset[1] + j, columns))
            die("wrong element [%lld, %lld]", (long long)(part.offset[0] + i), (long long)(part.offset[1] + j));
        const double found_s = from_first_to_last_s(begin_s, open_s), all_s = from_first_to_last_s(begin_s, end_s);
        const double needed = reduced((double)count * sizeof *u, MPI_SUM);
        if (report) fprintf(report, "{\"find_s\": %.9f, \"s\": %.9f, \"needed\": %.0f, \"read\": %.0f}\n", found_s, all_s, needed, read);
    } else die("--do %s: write or restart", what);
    if (report && fclose(report)) die("cannot write the report");
    TRY(orc_close(session, 600));
    MPI_Finalize();
    return 0;
}

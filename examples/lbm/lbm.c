/* Lid-driven cavity with the lattice Boltzmann method (D3Q19, BGK) under MPI and OpenMP,
 * checkpointed with Orcheck. A box of nx * ny * nz cells is full of fluid at rest; the lid at the
 * top (y = ny) moves in x and drags the fluid along. The walls lie half a cell outside of the
 * outermost cells ("half-way bounce-back"); in z the box is periodic (a slab), or closed.
 *
 *     mpirun -n 2 lbm --nx 128 --ny 128 --nz 128 --steps 1000 --every 100 --checkpoint async \
 *                     --job cavity --options 'global = ["/scratch/me"]' --picture cavity.ppm
 *
 * A cell holds 19 numbers, the populations f[q]: how much fluid travels along direction q. A step
 * gathers the populations that arrive at a cell, relaxes them towards equilibrium, and writes them
 * to the other one of two grids ("toggle grids"); then it fills the rim around the new grid: what
 * the walls throw back, what the neighbouring ranks hold. So a grid with its rim is the complete
 * state after a step, and a step reads one grid and writes another. Therefore:
 *
 *   --checkpoint sync   stage a copy, then wait until it is safe: what most programs do today
 *   --checkpoint async  stage a copy and compute on while Orcheck writes it
 *   --checkpoint lent   hand over the grid itself. The next step only reads it, and the step after
 *                       that writes to a third grid instead: only pointers change, and the copy
 *                       costs nothing (F. Shahzad et al., "An Evaluation of Different I/O
 *                       Techniques for Checkpoint/Restart").
 *
 * With --elastic the cells without their rim are this rank's part of a global array f[q][z][y][x]: the run
 * can be continued on any number of ranks, which cut the box otherwise, and fill the rims again.
 *
 * The arithmetic of a cell is the same wherever it is computed (and the Makefile forbids fused
 * multiply-add, which a compiler applies here and not there): the result does not depend on
 * threads, on ranks, or on how often the run was killed and resumed, bit by bit. */
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif
#include <mpi.h>
#include <orcheck.h>
#include <orcheck_mpi.h>
#include "figures.h"

/* ---- the lattice: directions 2k-1 and 2k are opposite to each other ------------------------ */
enum { Q = 19, X = 0, Y = 1, Z = 2, LINE = 8 /* doubles in a cache line */, BLOCK = 128 };
static const int C[Q][3] = {
    {0, 0, 0},  {1, 0, 0},   {-1, 0, 0}, {0, 1, 0},  {0, -1, 0}, {0, 0, 1},  {0, 0, -1},
    {1, 1, 0},  {-1, -1, 0}, {1, -1, 0}, {-1, 1, 0}, {1, 0, 1},  {-1, 0, -1}, {1, 0, -1},
    {-1, 0, 1}, {0, 1, 1},   {0, -1, -1}, {0, 1, -1}, {0, -1, 1}};
static double weight(int q) { return q == 0 ? 1.0 / 3 : q < 7 ? 1.0 / 18 : 1.0 / 36; }
static int opposite(int q) { return q == 0 ? 0 : q % 2 ? q + 1 : q - 1; }

typedef struct {
    const char *checkpoint, *memory, *level, *job, *options, *final, *picture, *profile, *report;
    int64_t nx, ny, nz, steps, every, die;
    double re, lid_velocity;
    int dims[3];                        /* --cut; 0: the best */
    bool closed, elastic;
} Settings;

typedef struct {                        /* this rank's block of the box */
    MPI_Comm comm;
    int rank, size;
    int box[3], dims[3], at[3], n[3];   /* whole box, ranks per axis; first cell and cells of ours */
    int neighbour[3][2];                /* MPI_PROC_NULL: a wall */
    ptrdiff_t row, slice, stride;       /* doubles from y to y+1, z to z+1, f[q] to f[q+1] */
    ptrdiff_t shift[Q];                 /* where a population comes from */
    size_t count;                       /* doubles in a grid */
    double omega, lid;
    bool streaming;                     /* grids too large for the caches: write around them */
    double *out, *in;                   /* halo messages, both sides */
    size_t face;
} Block;

static _Noreturn void die(const char *format, ...) {
    char text[2048]; /* one write a line: the other ranks may have something to say too */
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    fprintf(stderr, "lbm: %s\n", text);
    MPI_Abort(MPI_COMM_WORLD, 1);
    abort();
}

static ptrdiff_t cell(const Block *b, int x, int y, int z) { /* -1 <= x <= n: with the rim */
    return (z + 1) * b->slice + (y + 1) * b->row + x + LINE;
}
static int split(int cells, int parts, int i) { return (int)((int64_t)cells * i / parts); }

static void cut(Block *b, const Settings *set) { /* ranks -> blocks with the least halo traffic */
    MPI_Comm_size(MPI_COMM_WORLD, &b->size);
    b->box[X] = (int)set->nx, b->box[Y] = (int)set->ny, b->box[Z] = (int)set->nz;
    double best = INFINITY;
    for (int px = 1; px <= b->size; px++)
        for (int py = 1; px * py <= b->size; py++) {
            int pz = b->size / (px * py);
            if (px * py * pz != b->size || px > b->box[X] || py > b->box[Y] || pz > b->box[Z])
                continue;
            if (set->dims[X] && (px != set->dims[X] || py != set->dims[Y] || pz != set->dims[Z])) continue;
            double nx = b->box[X], ny = b->box[Y], nz = b->box[Z]; /* faces in x are slow to pack */
            double cost = 4 * (px - 1) * ny * nz + (py - 1) * nx * nz + (pz - 1) * nx * ny;
            if (cost < best)
                best = cost, b->dims[X] = px, b->dims[Y] = py, b->dims[Z] = pz;
        }
    if (best == INFINITY) die("%d ranks are too many for the box, or not those of --cut", b->size);
    int periodic[3] = {0, 0, !set->closed};
    MPI_Cart_create(MPI_COMM_WORLD, 3, b->dims, periodic, 0, &b->comm);
    MPI_Comm_rank(b->comm, &b->rank);
    int at[3];
    MPI_Cart_coords(b->comm, b->rank, 3, at);
    for (int a = 0; a < 3; a++) {
        b->at[a] = split(b->box[a], b->dims[a], at[a]);
        b->n[a] = split(b->box[a], b->dims[a], at[a] + 1) - b->at[a];
        MPI_Cart_shift(b->comm, a, 1, &b->neighbour[a][0], &b->neighbour[a][1]);
    }
    /* Rows begin on a cache line: a line with the rim in it, then the cells. Grids of different q
     * begin on different sets of the caches, or 38 streams of a step would evict each other. */
    b->row = (b->n[X] + LINE - 1) / LINE * LINE + LINE;
    b->slice = b->row * (b->n[Y] + 2);
    b->stride = b->slice * (b->n[Z] + 2) + LINE;
    while (b->stride / LINE % 64 != 17) b->stride += LINE;
    b->count = (size_t)b->stride * Q;
    for (int q = 0; q < Q; q++)
        b->shift[q] = C[q][X] + C[q][Y] * b->row + C[q][Z] * b->slice;
    b->streaming = 2 * b->count * sizeof(double) > (8u << 20);
    for (int a = 0; a < 3; a++) {
        size_t cells = 5;
        for (int o = 0; o < 3; o++) cells *= o == a ? 1 : (size_t)b->n[o] + 2;
        if (cells > b->face) b->face = cells;
    }
    b->out = calloc(4 * b->face, sizeof(double));
    if (!b->out) die("no memory for halos");
    b->in = b->out + 2 * b->face;
    b->lid = set->lid_velocity;
    b->omega = 1 / (3 * set->lid_velocity * (double)set->ny / set->re + 0.5); /* Re = U H / nu */
}

/* ---- one step ------------------------------------------------------------------------------- */
static void put(double *restrict to, const double *restrict from, int n, bool streaming) {
    int x = 0;
#ifdef __SSE2__ /* a normal store would first read the line that it is about to overwrite */
    if (streaming)
        for (; x + 2 <= n; x += 2) _mm_stream_pd(to + x, _mm_load_pd(from + x));
#else
    (void)streaming;
#endif
    for (; x < n; x++) to[x] = from[x];
}

/* A piece of a row: density and velocity first, which brings all 19 streams into the first-level
 * cache, then pair after pair of directions, so that memory sees two streams of writes at a time. */
static void collide(const Block *b, const double *src, double *dst, ptrdiff_t first, int n) {
    _Alignas(64) double rho[BLOCK], ux[BLOCK], uy[BLOCK], uz[BLOCK], rest[BLOCK], there[BLOCK],
        back[BLOCK];
    const double *f[Q];
    const double omega = b->omega;
    for (int q = 0; q < Q; q++) f[q] = src + q * b->stride + first - b->shift[q];
#pragma omp simd
    for (int x = 0; x < n; x++) {
        double px = f[1][x] + f[7][x] + f[9][x] + f[11][x] + f[13][x];
        double mx = f[2][x] + f[8][x] + f[10][x] + f[12][x] + f[14][x];
        double py = f[3][x] + f[15][x] + f[17][x], my = f[4][x] + f[16][x] + f[18][x];
        double r = f[0][x] + f[5][x] + f[6][x] + px + mx + py + my, inverse = 1 / r;
        double u = (px - mx) * inverse;
        double v = (py - my + (f[7][x] - f[8][x]) - (f[9][x] - f[10][x])) * inverse;
        double w = ((f[5][x] - f[6][x]) + (f[11][x] - f[12][x]) - (f[13][x] - f[14][x]) +
                    (f[15][x] - f[16][x]) - (f[17][x] - f[18][x])) * inverse;
        rho[x] = r, ux[x] = u, uy[x] = v, uz[x] = w;
        rest[x] = r - 1.5 * r * (u * u + v * v + w * w);
        there[x] = f[0][x] + omega * (rest[x] / 3 - f[0][x]);
    }
    put(dst + first, there, n, b->streaming);
    for (int q = 1; q < Q; q += 2) {
        const double *restrict a = f[q], *restrict o = f[q + 1];
        const double cx = C[q][X], cy = C[q][Y], cz = C[q][Z], wq = weight(q);
#pragma omp simd
        for (int x = 0; x < n; x++) {
            double cu = cx * ux[x] + cy * uy[x] + cz * uz[x];
            double odd = 3 * wq * rho[x] * cu, even = wq * rest[x] + 1.5 * odd * cu;
            there[x] = a[x] + omega * (even + odd - a[x]);
            back[x] = o[x] + omega * (even - odd - o[x]);
        }
        put(dst + q * b->stride + first, there, n, b->streaming);
        put(dst + (q + 1) * b->stride + first, back, n, b->streaming);
    }
}

/* Walls: what would come out of a wall is what went into it, plus the push of the moving lid. The
 * lid is first: in its corners the walls at rest have the last word. */
static void bounce(const Block *b, double *f) {
    static const int walls[6][2] = {{Y, 1}, {Y, 0}, {X, 0}, {X, 1}, {Z, 0}, {Z, 1}};
    for (int i = 0; i < 6; i++) {
        const int axis = walls[i][0], side = walls[i][1];
        if (b->neighbour[axis][side] != MPI_PROC_NULL) continue;
        int lo[3] = {0, 0, 0}, hi[3] = {b->n[X], b->n[Y], b->n[Z]};
        if (side) lo[axis] = hi[axis] - 1;
        else hi[axis] = 1;
        for (int q = 1; q < Q; q++) {
            if (C[q][axis] != (side ? -1 : 1)) continue;
            const double push = axis == Y && side ? 6 * weight(q) * C[q][X] * b->lid : 0;
            double *to = f + q * b->stride - b->shift[q];
            const double *from = f + opposite(q) * b->stride;
            for (int z = lo[Z]; z < hi[Z]; z++)
                for (int y = lo[Y]; y < hi[Y]; y++)
                    for (int x = lo[X]; x < hi[X]; x++)
                        to[cell(b, x, y, z)] = from[cell(b, x, y, z)] + push;
        }
    }
}

/* Copies a face with its five populations that travel across it, to or from a message. */
static void face(const Block *b, double *f, double *message, int axis, int layer, int direction,
                 bool pack) {
    int lo[3] = {0, 0, 0}, hi[3] = {b->n[X], b->n[Y], b->n[Z]};
    for (int a = 0; a < axis; a++) lo[a] = -1, hi[a]++; /* with the rims that are filled already */
    lo[axis] = layer, hi[axis] = layer + 1;
    const size_t n = (size_t)(hi[X] - lo[X]);
    for (int q = 1; q < Q; q++) {
        if (C[q][axis] != direction) continue;
        for (int z = lo[Z]; z < hi[Z]; z++)
            for (int y = lo[Y]; y < hi[Y]; y++, message += n) {
                double *here = f + q * b->stride + cell(b, lo[X], y, z);
                memcpy(pack ? message : here, pack ? here : message, n * sizeof *here);
            }
    }
}

/* The rim of a grid. Axis after axis, each time with the rims of the axes before: so a diagonal
 * neighbour's cells arrive by way of the neighbours between. */
static void fill_rim(const Block *b, double *f) {
    for (int axis = 0; axis < 3; axis++) {
        MPI_Request request[4];
        MPI_Status status[4];
        for (int side = 0; side < 2; side++) {
            int to = b->neighbour[axis][side];
            double *out = b->out + (size_t)side * b->face, *in = b->in + (size_t)side * b->face;
            MPI_Irecv(in, (int)b->face, MPI_DOUBLE, to, 1 - side, b->comm, &request[side]);
            if (to != MPI_PROC_NULL)
                face(b, f, out, axis, side ? b->n[axis] - 1 : 0, side ? 1 : -1, true);
            size_t cells = 5;
            for (int a = 0; a < 3; a++) cells *= a == axis ? 1 : (size_t)(b->n[a] + 2 * (a < axis));
            MPI_Isend(out, (int)cells, MPI_DOUBLE, to, side, b->comm, &request[2 + side]);
        }
        MPI_Waitall(4, request, status);
        for (int side = 0; side < 2; side++)
            if (b->neighbour[axis][side] != MPI_PROC_NULL)
                face(b, f, b->in + (size_t)side * b->face, axis, side ? b->n[axis] : -1,
                     side ? -1 : 1, false);
    }
    bounce(b, f);
}

static void advance(const Block *b, const double *src, double *dst) {
#pragma omp parallel
    {
#pragma omp for collapse(2) schedule(static)
        for (int z = 0; z < b->n[Z]; z++)
            for (int y = 0; y < b->n[Y]; y++)
                for (int x = 0; x < b->n[X]; x += BLOCK)
                    collide(b, src, dst, cell(b, x, y, z),
                            b->n[X] - x < BLOCK ? b->n[X] - x : BLOCK);
#ifdef __SSE2__
        _mm_sfence(); /* streaming stores are visible to the other threads from here */
#endif
    }
    fill_rim(b, dst);
}

static void set_at_rest(const Block *b, double *f) { /* all threads touch: pages near their cores */
    for (int q = 0; q < Q; q++) {
        double *fq = f + q * b->stride, w = weight(q);
#pragma omp parallel for schedule(static)
        for (ptrdiff_t i = 0; i < b->stride; i++) fq[i] = w;
    }
    fill_rim(b, f);
}

/* ---- results -------------------------------------------------------------------------------- */
static uint64_t mix(uint64_t h) { /* splitmix64 */
    h += 0x9e3779b97f4a7c15u;
    h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9u;
    h = (h ^ h >> 27) * 0x94d049bb133111ebu;
    return h ^ h >> 31;
}

static uint64_t hash_state(const Block *b, const double *f) { /* the same for any cut of the box */
    uint64_t sum = 0, all = 0;
#pragma omp parallel for schedule(static) reduction(+ : sum)
    for (int q = 0; q < Q; q++)
        for (int z = 0; z < b->n[Z]; z++)
            for (int y = 0; y < b->n[Y]; y++) {
                uint64_t row = (uint64_t)((q * b->box[Z] + b->at[Z] + z) * (int64_t)b->box[Y] +
                                          b->at[Y] + y) * (uint64_t)b->box[X];
                for (int x = 0; x < b->n[X]; x++) {
                    uint64_t bits;
                    memcpy(&bits, f + q * b->stride + cell(b, x, y, z), sizeof bits);
                    sum += mix(mix(row + (uint64_t)(b->at[X] + x)) ^ bits);
                }
            }
    MPI_Allreduce(&sum, &all, 1, MPI_UINT64_T, MPI_SUM, b->comm);
    return all;
}

static void write_state(const Block *b, const double *f, const char *path) { /* f[q][z][y][x] */
    int whole[3] = {b->box[Z], b->box[Y], b->box[X]}, part[3] = {b->n[Z], b->n[Y], b->n[X]};
    int at[3] = {b->at[Z], b->at[Y], b->at[X]};
    size_t cells = (size_t)b->n[X] * (size_t)b->n[Y] * (size_t)b->n[Z];
    double *plain = malloc(cells * sizeof *plain);
    MPI_Datatype view;
    MPI_File file;
    MPI_Type_create_subarray(3, whole, part, at, MPI_ORDER_C, MPI_DOUBLE, &view);
    MPI_Type_commit(&view);
    if (!plain || MPI_File_open(b->comm, path, MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL,
                                &file) != MPI_SUCCESS)
        die("cannot create %s", path);
    MPI_Offset volume = (MPI_Offset)whole[0] * whole[1] * whole[2] * (MPI_Offset)sizeof *plain;
    MPI_File_set_size(file, volume * Q);
    for (int q = 0; q < Q; q++) {
        double *to = plain;
        for (int z = 0; z < b->n[Z]; z++)
            for (int y = 0; y < b->n[Y]; y++, to += b->n[X])
                memcpy(to, f + q * b->stride + cell(b, 0, y, z), (size_t)b->n[X] * sizeof *to);
        MPI_File_set_view(file, volume * q, MPI_DOUBLE, view, "native", MPI_INFO_NULL);
        if (MPI_File_write_all(file, plain, (int)cells, MPI_DOUBLE, MPI_STATUS_IGNORE))
            die("cannot write %s", path);
    }
    if (MPI_File_close(&file)) die("cannot write %s", path);
    MPI_Type_free(&view);
    free(plain);
}

/* Rank 0 gets u and v / U of the middle slice in z; the others NULL. */
static double *middle_slice(const Block *b, const double *f) {
    const int nx = b->box[X], ny = b->box[Y], z = b->box[Z] / 2 - b->at[Z];
    double *uv = calloc(2 * (size_t)nx * (size_t)ny, sizeof *uv);
    if (!uv) die("no memory for a slice");
    for (int y = 0; z >= 0 && z < b->n[Z] && y < b->n[Y]; y++)
        for (int x = 0; x < b->n[X]; x++) {
            double r = 0, u = 0, v = 0;
            for (int q = 0; q < Q; q++) {
                double fq = f[q * b->stride + cell(b, x, y, z)];
                r += fq, u += C[q][X] * fq, v += C[q][Y] * fq;
            }
            double *to = uv + 2 * ((ptrdiff_t)(b->at[Y] + y) * nx + b->at[X] + x);
            to[0] = u / r / b->lid, to[1] = v / r / b->lid;
        }
    MPI_Reduce(b->rank ? uv : MPI_IN_PLACE, uv, 2 * nx * ny, MPI_DOUBLE, MPI_SUM, 0, b->comm);
    if (b->rank) free(uv), uv = NULL;
    return uv;
}

/* ---- checkpoints ---------------------------------------------------------------------------- */
typedef struct { double call_s, blocked_s, stage_s, wait_s, node_s, global_s, began_s; } Times;

typedef struct {
    orc_session *s;
    double *src, *dst, *third, *lent;  /* src: the newest state; lent: NULL or the grid lent */
    int64_t shape[7];                  /* what a checkpoint must agree with to be continued here */
    double physics[2];
    Times *times;
    uint64_t *steps;
    int taken, level;
} Run;

static double *new_grid(const Block *b, const Settings *set, Run *run) {
    void *memory = NULL;
    size_t len_bytes = b->count * sizeof(double);
    if (run->s && strcmp(set->memory, "pool") == 0) ORC_TRY(orc_alloc(run->s, len_bytes, &memory));
    else if (posix_memalign(&memory, 4096, len_bytes)) die("no memory for a grid of %zu bytes", len_bytes);
    set_at_rest(b, memory);
    return memory;
}

/* The newest state is now in another grid. Messages arrive in buffers of their own (b->in), so that only this
 * process's CPUs write to grids. */
static void protect(const Block *b, const Settings *set, Run *run) {
    if (!set->elastic) {
        ORC_TRY(orc_protect(run->s, "f", run->src, ORC_F64, b->count, ORC_CPU_WRITES_ONLY));
        return;
    }
    orc_array cells = {.struct_size = sizeof cells, .dtype = ORC_F64, .ndim = 4,
                       .global = {Q, b->box[Z], b->box[Y], b->box[X]},
                       .offset = {0, b->at[Z], b->at[Y], b->at[X]},
                       .local = {Q, b->n[Z], b->n[Y], b->n[X]},
                       .stride = {b->stride, b->slice, b->row, 1}};
    ORC_TRY(orc_protect_array(run->s, "f", run->src + cell(b, 0, 0, 0), &cells, 0));
}

/* Opens the session and brings back the newest checkpoint: returns the step to continue from. */
static int64_t open_and_resume(const Block *b, const Settings *set, Run *run) {
    char text[8192] = "";
    if (strcmp(set->checkpoint, "none") != 0) {
        int len = set->every ? snprintf(text, sizeof text, "every_steps = %" PRId64 "\n", set->every) : 0;
        if (strlen(set->options) >= sizeof text - (size_t)len) die("--options: too long");
        strcat(text, set->options);
        ORC_TRY(orc_mpi_open(&run->s, b->comm, set->job, text));
    }
    uint64_t step = 0;
    orc_status found = run->s ? orc_find(run->s, &step) : ORC_NOT_FOUND;
    if (found != ORC_NOT_FOUND) ORC_TRY(found);
    if (found == ORC_OK && !set->elastic) { /* ask for sizes before memory is filled */
        orc_array array = {.struct_size = sizeof array};
        size_t len_bytes = 0;
        ORC_TRY(orc_stored(run->s, "f", &array, &len_bytes));
        if (len_bytes != b->count * sizeof(double))
            die("step %" PRIu64 " of job %s holds %zu bytes for rank %d and not %zu: another box, "
                "or another number of ranks (which needs --elastic from the start). Next: choose another "
                "--job, or the same box",
                step, set->job, len_bytes, b->rank, b->count * sizeof(double));
    }
    run->src = new_grid(b, set, run), run->dst = new_grid(b, set, run);
    if (strcmp(set->checkpoint, "lent") == 0) run->third = new_grid(b, set, run);
    if (!run->s) return 0;
    int64_t shape[7] = {set->nx, set->ny, set->nz, b->dims[X], b->dims[Y], b->dims[Z], set->closed};
    if (set->elastic) shape[3] = shape[4] = shape[5] = 0; /* any cut */
    memcpy(run->shape, shape, sizeof shape);
    run->physics[0] = b->omega, run->physics[1] = b->lid;
    protect(b, set, run);
    ORC_TRY(ORC_PROTECT(run->s, {"shape", run->shape, ORC_I64, 7, ORC_SAME},
                        {"physics", run->physics, ORC_F64, 2, ORC_SAME}));
    if (found == ORC_NOT_FOUND) return 0;
    ORC_TRY(orc_restart(run->s, &step));   /* an older step if the newest is damaged: says a warning */
    const char *warning = orc_message();
    if (memcmp(shape, run->shape, sizeof shape) || run->physics[0] != b->omega ||
        run->physics[1] != b->lid)
        die("step %" PRIu64 " of job %s was computed with another box, cut, --re or "
            "--lid-velocity. Next: choose another --job", step, set->job);
    if (set->elastic) fill_rim(b, run->src);
    if (b->rank == 0)
        printf("%s%sresumed from step %" PRIu64 "\n", warning, *warning ? "\n" : "", step);
    fflush(stdout);                    /* seen even if the run is killed again */
    return (int64_t)step;
}

static void note_what_is_safe(Run *run) { /* resolution: one step */
    orc_stats stats = {.struct_size = sizeof stats};
    ORC_TRY(orc_stats_read(run->s, &stats));
    for (int i = run->taken - 1; i >= 0 && i > run->taken - 8; i--) {
        Times *t = &run->times[i];
        double since_s = MPI_Wtime() - t->began_s;
        if (t->node_s < 0 && stats.committed_node_step >= run->steps[i]) t->node_s = since_s;
        if (t->global_s < 0 && stats.committed_global_step >= run->steps[i]) t->global_s = since_s;
    }
}

static void checkpoint(const Block *b, const Settings *set, Run *run, uint64_t step) {
    Times t = {.node_s = -1, .global_s = -1, .began_s = MPI_Wtime()};
    if (run->lent) ORC_TRY(orc_lent_done(run->s, "f", 600)); /* one grid is lent at a time */
    run->lent = NULL;
    protect(b, set, run);
    if (strcmp(set->checkpoint, "lent") == 0) {
        ORC_TRY(orc_lend(run->s, "f"));
        run->lent = run->src;
    }
    ORC_TRY(orc_checkpoint(run->s, step));
    if ((int64_t)step == set->die && b->rank == b->size - 1) kill(getpid(), SIGKILL);
    if (strcmp(set->checkpoint, "sync") == 0) ORC_TRY(orc_wait(run->s, step, run->level, 600));
    t.call_s = MPI_Wtime() - t.began_s;
    orc_stats stats = {.struct_size = sizeof stats};
    ORC_TRY(orc_stats_read(run->s, &stats));
    t.blocked_s = stats.blocked_s, t.stage_s = stats.stage_s, t.wait_s = stats.wait_s;
    run->times = realloc(run->times, (size_t)(run->taken + 1) * sizeof t);
    run->steps = realloc(run->steps, (size_t)(run->taken + 1) * sizeof step);
    if (!run->times || !run->steps) die("no memory");
    run->times[run->taken] = t;
    run->steps[run->taken++] = step;
}

/* After the step that read the lent grid, that grid would be the next to be overwritten: it gives
 * its place to the third grid, which nobody needs (Orcheck returned it before this one was lent). */
static void toggle(Run *run) {
    double *old = run->src;
    run->src = run->dst;
    run->dst = old;
    if (run->dst == run->lent) run->dst = run->third, run->third = run->lent;
}

/* JSON. Times are the largest of all ranks (-1: not reached before the end), bytes and CPU time
 * the sum; call_s is what the checkpoint cost the solver, all calls and waits together. */
static void write_report(const Block *b, const Settings *set, Run *run, int64_t first, int64_t last,
                         double loop_s, double drain_s) {
    orc_stats stats = {.struct_size = sizeof stats};
    if (run->s) ORC_TRY(orc_stats_read(run->s, &stats));
    double mine[2] = {(double)stats.staged_bytes, stats.flush_cpu_s}, all[2] = {0, 0};
    int n = run->taken * (int)(sizeof(Times) / sizeof(double));
    MPI_Reduce(mine, all, 2, MPI_DOUBLE, MPI_SUM, 0, b->comm);
    MPI_Reduce(b->rank ? (void *)run->times : MPI_IN_PLACE, run->times, n, MPI_DOUBLE, MPI_MAX, 0, b->comm);
    if (b->rank) return;
    double cells = (double)set->nx * (double)set->ny * (double)set->nz;
    FILE *file = fopen(set->report, "w");
    if (!file) die("cannot create %s", set->report);
    fprintf(file, "{\"mode\": \"%s\", \"ranks\": %d, \"box\": [%d, %d, %d], \"first_step\": %" PRId64
            ", \"last_step\": %" PRId64 ",\n \"loop_s\": %.6f, \"drain_s\": %.6f, \"mlups\": %.3f,\n"
            " \"state_bytes\": %.0f, \"staged_bytes\": %.0f, \"flush_cpu_s\": %.6f,\n"
            " \"pool_bytes\": %" PRIu64 ", \"skipped\": %" PRIu64 ",\n \"checkpoints\": [",
            set->checkpoint, b->size, b->box[X], b->box[Y], b->box[Z], first, last, loop_s, drain_s,
            cells * (double)(last - first) / loop_s * 1e-6, cells * Q * 8, all[0], all[1],
            stats.pool_bytes, stats.skipped);
    for (int i = 0; i < run->taken; i++) {
        const Times *t = &run->times[i];
        fprintf(file, "%s\n  {\"step\": %" PRIu64 ", \"call_s\": %.6f, \"blocked_s\": %.6f, \"stage_s\": %.6f, "
                "\"wait_s\": %.6f, \"safe_node_s\": %.6f, \"safe_global_s\": %.6f}", i ? "," : "",
                run->steps[i], t->call_s, t->blocked_s, t->stage_s, t->wait_s, t->node_s, t->global_s);
    }
    if (fputs("]}\n", file) < 0 || fclose(file)) die("cannot write %s", set->report);
}

/* ---- main ----------------------------------------------------------------------------------- */
static const char usage[] =
    "usage: lbm [--nx N] [--ny N] [--nz N] [--re RE] [--lid-velocity U] [--steps N] [--closed]\n"
    "  --checkpoint none|sync|async|lent   --every N   --job NAME   --options TOML\n"
    "  --level node|peers|global   what sync, and the end of the run, waits for (default global)\n"
    "  --elastic                   store cells without rims: to be continued on any number of ranks\n"
    "  --cut PXxPYxPZ              ranks in x, y and z (default: what sends least)\n"
    "  --memory heap|pool          grids in private memory, or in Orcheck's pool (orc_alloc)\n"
    "  --final FILE --picture FILE.ppm --profile FILE.csv --report FILE.json\n"
    "  --die STEP   rehearsal: the last rank kills itself while checkpoint STEP is being flushed,\n"
    "               unless the run was resumed\n";

static bool one_of(const char *word, const char *words) { /* words: "|a|b|" */
    char quoted[16];
    return snprintf(quoted, sizeof quoted, "|%s|", word) < (int)sizeof quoted && strstr(words, quoted);
}

static void parse(Settings *set, int argc, char **argv) {
    const struct { const char *name, **text; int64_t *number; double *real; } table[] = {
        {"--checkpoint", &set->checkpoint, 0, 0}, {"--memory", &set->memory, 0, 0},
        {"--level", &set->level, 0, 0},           {"--job", &set->job, 0, 0},
        {"--options", &set->options, 0, 0},       {"--final", &set->final, 0, 0},
        {"--picture", &set->picture, 0, 0},       {"--profile", &set->profile, 0, 0},
        {"--report", &set->report, 0, 0},         {"--nx", 0, &set->nx, 0},
        {"--ny", 0, &set->ny, 0},                 {"--nz", 0, &set->nz, 0},
        {"--steps", 0, &set->steps, 0},           {"--every", 0, &set->every, 0},
        {"--die", 0, &set->die, 0},               {"--re", 0, 0, &set->re},
        {"--lid-velocity", 0, 0, &set->lid_velocity}};
    const size_t entries = sizeof table / sizeof table[0];
    for (int i = 1; i < argc; i++) {
        size_t k = 0;
        if (strcmp(argv[i], "--closed") == 0) {
            set->closed = true;
            continue;
        }
        if (strcmp(argv[i], "--elastic") == 0) {
            set->elastic = true;
            continue;
        }
        if (strcmp(argv[i], "--cut") == 0 && i + 1 < argc) {
            char end;
            int *d = set->dims;
            if (sscanf(argv[++i], "%dx%dx%d%c", &d[X], &d[Y], &d[Z], &end) != 3 || d[X] < 1 || d[Y] < 1 || d[Z] < 1)
                die("--cut: %s is not three numbers such as 2x2x1", argv[i]);
            continue;
        }
        while (k < entries && strcmp(argv[i], table[k].name) != 0) k++;
        if (k == entries || i + 1 == argc) die("%s: not an option, or no value\n%s", argv[i], usage);
        char *end = argv[++i];
        if (table[k].text) *table[k].text = argv[i];
        else if (table[k].number) *table[k].number = strtoll(argv[i], &end, 10);
        else *table[k].real = strtod(argv[i], &end);
        if (!table[k].text && (*end || end == argv[i])) die("%s: %s is not a number", table[k].name, argv[i]);
    }
    if (!one_of(set->checkpoint, "|none|sync|async|lent|") || !one_of(set->memory, "|heap|pool|") ||
        !one_of(set->level, "|node|peers|global|") || set->nx < 1 || set->ny < 1 || set->nz < 1 ||
        set->nx > 1 << 20 || set->ny > 1 << 20 || set->nz > 1 << 20 || set->steps < 0 ||
        set->every < 0 || !(set->re > 0) || !(set->lid_velocity > 0))
        die("a value out of range\n%s", usage);
    if (set->elastic && strcmp(set->checkpoint, "lent") == 0)
        die("--elastic: cells without their rim cannot be lent. Next: --checkpoint async");
}

int main(int argc, char **argv) {
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
    Settings set = {.checkpoint = "none", .memory = "heap", .level = "global", .job = "cavity",
                    .options = "", .nx = 64, .ny = 64, .nz = 64, .steps = 1000, .re = 100,
                    .lid_velocity = 0.1, .die = -1};
    parse(&set, argc, argv);
    Block b = {0};
    cut(&b, &set);
    Run run = {.level = set.level[0] == 'n' ? ORC_NODE : set.level[0] == 'p' ? ORC_PEERS : ORC_GLOBAL};
    const int64_t first = open_and_resume(&b, &set, &run);
    if (first > 0) set.die = -1;

    MPI_Barrier(b.comm);
    const double began_s = MPI_Wtime();
    int64_t step = first;
    while (step < set.steps && !(run.s && orc_should_stop(run.s))) {
        advance(&b, run.src, run.dst);
        toggle(&run);
        step++;
        if (!run.s) continue;
        int due = 0;
        ORC_TRY(orc_due(run.s, (uint64_t)step, &due));
        if (due) checkpoint(&b, &set, &run, (uint64_t)step);
        note_what_is_safe(&run);
    }
    MPI_Barrier(b.comm);
    const double loop_s = MPI_Wtime() - began_s;
    if (run.taken) { /* (orc_close would wait too; here we want to know how long) */
        ORC_TRY(orc_wait(run.s, run.steps[run.taken - 1], run.level, 600));
        note_what_is_safe(&run);
    }
    const double drain_s = MPI_Wtime() - began_s - loop_s;
    if (set.report) write_report(&b, &set, &run, first, step, loop_s, drain_s);

    const uint64_t hash = hash_state(&b, run.src);
    const double cells = (double)set.nx * (double)set.ny * (double)set.nz;
    if (b.rank == 0)
        printf("step %" PRId64 " of %" PRId64 "  %.2f s  %.1f MLUPS  %d checkpoints  state %016" PRIx64 "\n",
               step, set.steps, loop_s, cells * (double)(step - first) / loop_s * 1e-6, run.taken, hash);
    if (set.final) write_state(&b, run.src, set.final);
    double *uv = set.picture || set.profile ? middle_slice(&b, run.src) : NULL;
    if (uv && set.profile && write_profile(set.profile, b.box[X], b.box[Y], uv))
        die("cannot write %s", set.profile);
    if (uv && set.picture && draw_speed(set.picture, b.box[X], b.box[Y], uv))
        die("cannot write %s", set.picture);
    free(uv);

    const bool pool = run.s && strcmp(set.memory, "pool") == 0;
    if (run.s) ORC_TRY(orc_close(run.s, 600)); /* waits for what is on its way; ends orc_alloc's memory */
    if (!pool) free(run.src), free(run.dst), free(run.third);
    free(b.out), free(run.times), free(run.steps);
    MPI_Comm_free(&b.comm);
    MPI_Finalize();
    return 0;
}

/* Figures of a flow, for lbm.c: see figures.h. */
#include "figures.h"
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

enum { MIN_WIDTH = 600 };
static const double MAP[9][3] = {{0, 0, 4},       {28, 16, 68},   {79, 18, 123},
                                 {129, 37, 129},  {181, 54, 122}, {229, 80, 100},
                                 {251, 135, 97},  {254, 194, 135}, {252, 253, 191}};
/* Streamlines lie where the stream function passes a multiple of a step: a fine one in the weak
 * eddies of the corners, which turn the other way. */
static const double STEP = 0.01, FINE_STEP = 0.0001;

static double clamp(double x, double low, double high) { return x < low ? low : x > high ? high : x; }

/* Component k at (x, y) in cells, linear between the centres of cells. */
static double velocity(int nx, int ny, const double *uv, double x, double y, int k) {
    x = clamp(x - 0.5, 0, nx - 1), y = clamp(y - 0.5, 0, ny - 1);
    const int x0 = (int)x, y0 = (int)y, x1 = x0 + (x0 < nx - 1), y1 = y0 + (y0 < ny - 1);
    const double fx = x - x0, fy = y - y0;
    const double low = uv[2 * (y0 * nx + x0) + k] * (1 - fx) + uv[2 * (y0 * nx + x1) + k] * fx;
    const double high = uv[2 * (y1 * nx + x0) + k] * (1 - fx) + uv[2 * (y1 * nx + x1) + k] * fx;
    return low * (1 - fy) + high * fy;
}

int write_profile(const char *path, int nx, int ny, const double *uv) {
    FILE *file = fopen(path, "w");
    if (!file) return -1;
    fputs("line,position,velocity\n", file);
    for (int y = 0; y < ny; y++)
        fprintf(file, "u,%.8f,%.8f\n", (y + 0.5) / ny, velocity(nx, ny, uv, nx / 2.0, y + 0.5, 0));
    for (int x = 0; x < nx; x++)
        fprintf(file, "v,%.8f,%.8f\n", (x + 0.5) / nx, velocity(nx, ny, uv, x + 0.5, ny / 2.0, 1));
    int bad = ferror(file) != 0;
    bad |= fclose(file) != 0;
    return bad ? -1 : 0;
}

int draw_speed(const char *path, int nx, int ny, const double *uv) {
    const int zoom = nx < MIN_WIDTH ? (MIN_WIDTH + nx - 1) / nx : 1;
    const int width = nx * zoom, height = ny * zoom;
    double *psi = calloc((size_t)width, sizeof *psi);   /* stream function: u summed from the floor */
    int *below = calloc((size_t)width, sizeof *below);  /* the band that the pixel below lies in */
    unsigned char *image = calloc((size_t)width * (size_t)height, 3);
    FILE *file = psi && below && image ? fopen(path, "wb") : NULL;
    int bad = file == NULL;
    for (int j = 0; j < height && !bad; j++)
        for (int i = 0, left = 0; i < width; i++) {
            const double x = (i + 0.5) / zoom, y = (j + 0.5) / zoom;
            const double u = velocity(nx, ny, uv, x, y, 0), v = velocity(nx, ny, uv, x, y, 1);
            psi[i] += u / height;
            const int band = (int)floor(psi[i] < 0 ? psi[i] / STEP : psi[i] / FINE_STEP);
            const int line = (j && band != below[i]) || (i && band != left);
            below[i] = left = band;
            const double colour = clamp(8 * sqrt(hypot(u, v)), 0, 7.999), part = colour - (int)colour;
            unsigned char *pixel = image + 3 * ((ptrdiff_t)(height - 1 - j) * width + i);
            for (int k = 0; k < 3; k++) {
                double value = MAP[(int)colour][k] * (1 - part) + MAP[(int)colour + 1][k] * part;
                pixel[k] = (unsigned char)(line ? value + 0.35 * (255 - value) : value);
            }
        }
    if (!bad) {
        fprintf(file, "P6\n%d %d\n255\n", width, height);
        fwrite(image, 3, (size_t)width * (size_t)height, file);
        bad = ferror(file) != 0;
        bad |= fclose(file) != 0;
    }
    free(psi), free(below), free(image);
    return bad ? -1 : 0;
}

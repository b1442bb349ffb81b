/* Figures of a flow, for lbm.c. Both functions take nx * ny cells, the floor first, each with two
 * velocity components uv[2 * cell + 0..1] in units of the lid velocity, and return 0, or -1 if the
 * file could not be written. */
#ifndef LBM_FIGURES_H
#define LBM_FIGURES_H
/* CSV: u on the vertical and v on the horizontal centre line; positions in units of the side. */
int write_profile(const char *path, int nx, int ny, const double *uv);
/* A PPM picture at least 600 pixels wide. Colour: speed. Lines: streamlines. */
int draw_speed(const char *path, int nx, int ny, const double *uv);
#endif

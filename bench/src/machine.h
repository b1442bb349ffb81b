/* What programs with and without MPI measure by: the machine's clock, and what its processors did. One machine plays all nodes,
 * so both are the same for all of them. */
#ifndef ORCBENCH_MACHINE_H
#define ORCBENCH_MACHINE_H
#include <stdio.h>
#include <time.h>

typedef struct { double all, idle; } Processors; /* ticks since the machine was started; idle: waiting for disks too */

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Nothing but zeros where there is no /proc/stat. */
static Processors processors(void) {
    double field[8] = {0};
    FILE *file = fopen("/proc/stat", "r");
    const int found = file ? fscanf(file, "cpu %lf %lf %lf %lf %lf %lf %lf %lf", field, field + 1, field + 2, field + 3, field + 4,
                                    field + 5, field + 6, field + 7) : 0;
    Processors now = {0, found == 8 ? field[3] + field[4] : 0};
    if (file) fclose(file);
    for (int i = 0; found == 8 && i < 8; i++) now.all += field[i];
    return now;
}

/* The share of all processors that somebody had between the two. */
static double busy(Processors before, Processors after) {
    const double all = after.all - before.all;
    return all > 0 ? 1 - (after.idle - before.idle) / all : 0;
}

#endif

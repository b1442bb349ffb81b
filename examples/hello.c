/* The smallest program with checkpoints: it counts, can be killed, and counts on when it is started again.
 *     cc hello.c $(pkg-config --cflags --libs orcheck) -o hello && ORCHECK_GLOBAL=/scratch/me ./hello */
#include <orcheck.h>
#include <stdio.h>
#include <stdlib.h>

static void must(orc_status status) {
    if (status == ORC_OK) return;
    fprintf(stderr, "%s\n", orc_message());
    exit(1);
}

int main(void) {
    double sum = 0;
    uint64_t step = 0;
    int due;
    orc_session *s;
    must(orc_open(&s, "hello", NULL, "every_steps = 1000"));
    must(orc_protect(s, "sum", &sum, ORC_F64, 1, 0));
    orc_status found = orc_find(s, &step);
    must(found == ORC_NOT_FOUND ? ORC_OK : found);
    if (found == ORC_OK) must(orc_restart(s, &step));
    for (printf("from step %llu\n", (unsigned long long)step); step < 10000 && !orc_should_stop(s);) {
        sum += 1.0 / (double)(++step);
        must(orc_due(s, step, &due));
        if (due) must(orc_checkpoint(s, step));
    }
    must(orc_close(s, 60));
    printf("sum of 1/n up to %llu: %.12f\n", (unsigned long long)step, sum);
}

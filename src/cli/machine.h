/* What the tool measures and reads of the machine it runs on. */
#ifndef HEADWAY_MACHINE_H
#define HEADWAY_MACHINE_H

#include "cpu/kernels.h"

double seconds(void); /* monotonic */

/* Floating-point operations per second of the row's fused multiply-adds in `threads` threads at
 * once: the best of a few short measurements. */
double fma_peak(const struct headway_row *row, int threads);

/* Prints the lines `cpu NAME` and `caches ...`, as far as the system tells. */
void machine_print(void);

#endif

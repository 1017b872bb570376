#ifndef SERVE_CLOCK_H
#define SERVE_CLOCK_H

#include <time.h>

/* Seconds of the steady clock. */
static inline double clock_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

#endif

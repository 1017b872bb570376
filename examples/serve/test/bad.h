/* What bad clients do, and what may come of it. */
#ifndef SERVE_TEST_BAD_H
#define SERVE_TEST_BAD_H

#include "client.h"

#include <stdint.h>

int bad_count(void);

/* Case `index` against the server, whose layer is `width` wide. 0; -1: a FAIL line was printed. */
int bad_run(int index, int port, int64_t width, struct answer *answer);

/* Those that must be cut off: they send a byte now and then, or nothing. */
int slow_count(void);
int slow_run(int index, int port);

#endif

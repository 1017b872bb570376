#ifndef HEADWAY_INFO_H
#define HEADWAY_INFO_H

#include "cli/options.h"

/* headway info: prints rows, oneDNN, CPU and threads, or the layers of --weights. 0, or -1 with
 * error. */
int info_print(const struct options *options, char *error);

#endif

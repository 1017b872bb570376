/* What good clients say, and the one answer to it: computed here, each alone, by one call of the
 * layer on the whole sequence and without a cache. */
#ifndef SERVE_TEST_TALKS_H
#define SERVE_TEST_TALKS_H

#include "weights.h"

#include <stddef.h>
#include <stdint.h>

enum { PARTS = 4, NAME = 8 };

/* One request: text is all of it, headers too. */
struct part {
    char *text, *answer;
    size_t text_size, answer_size;
    int64_t tokens;
    size_t name; /* where in text the session's name of NAME characters stands; 0: no session */
};

/* A request alone, or several of one session. */
struct talk {
    int parts;
    struct part part[PARTS];
};

/* Sequences of 1 .. longest tokens. 0, or -1: a line was printed. */
int talks_make(const headway_engine *engine, const struct model *model, int64_t longest, int count,
               struct talk *talks);
void talks_free(struct talk *talks, int count);

#endif

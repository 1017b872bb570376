/* What the parts of check_api share. */
#ifndef HEADWAY_CHECK_API_H
#define HEADWAY_CHECK_API_H

#include "attend.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

extern headway_engine *engine;

/* The status, and that the engine's error text has `words` in it ("" allowed). */
void expect_error(headway_status got, headway_status status, const char *words);

void check_attention_arguments(void);
void check_overlaps(void);
void check_options(void);
void check_mha_arguments(void);
void check_sizes(void);
void check_plans(void);

#endif

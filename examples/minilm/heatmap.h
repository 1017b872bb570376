#ifndef MINILM_HEATMAP_H
#define MINILM_HEATMAP_H

#include <stdint.h>

/* A line of tokens.txt, split. */
struct tokens {
    char text[2048];
    const char *list[128];
    int count;
};

/* Line `sentence` of the file, from 0. 0 or -1. */
int tokens_read(const char *path, int sentence, struct tokens *tokens);

/* Rows are the tokens that look, columns those looked at. weights[i * stride + j]. Shades where the
 * terminal's LANG says UTF-8, else ASCII. */
void heatmap_print(const struct tokens *tokens, const float *weights, int64_t stride);

#endif

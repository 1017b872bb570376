/* One query tile at work: its rows as lanes, its blocks of keys, and what the parts of the core that
 * compute it share. */
#ifndef HEADWAY_TILE_H
#define HEADWAY_TILE_H

#include "core/attend.h"

/* The query rows of a tile, as lanes: lane l is query row (start + l) / group of head
 * `head` + (start + l) % group. Rows never fall from lane to lane. */
struct headway_lanes {
    const struct headway_row *row; /* whose kernels serve the tile */
    int64_t b, head, group, start;
    int64_t live;                     /* of the batch and head: query rows x group */
    struct headway_cut cut;           /* of these */
    int64_t tile;                     /* among them, in the order of the tasks */
    int64_t query_start, key_start;   /* the packed sequence's first rows; 0 */
    int n;                            /* live lanes */
    int width;                        /* lanes of the tile, n rounded up */
    int64_t first[HEADWAY_MAX_WIDTH]; /* allowed keys first <= j < last of each lane; 0, 0: none */
    int64_t last[HEADWAY_MAX_WIDTH];
    int64_t first_min, last_max; /* over the live lanes that see any key; 0, 0: none does */
    int64_t prefix;              /* keys below it may be seen beside the ranges: window_first; 0 */
    int64_t first_max, last_min; /* over all live lanes */
};

/* The query head of a lane. */
static inline int64_t headway_lane_head(const struct headway_lanes *l, int lane)
{
    return l->head + (l->start + lane) % l->group;
}

/* offset[lane] = b * batch + (row + shift) * `row` + head * `head` of every live lane. */
void headway_lane_offsets(const struct headway_lanes *l, int64_t shift, ptrdiff_t batch,
                          ptrdiff_t row, ptrdiff_t head, ptrdiff_t *offset);
/* The lanes' lines of a view of query rows. */
void headway_lane_lines(const struct headway_lanes *l, const struct headway_view *view,
                        float **lines);

/* Fills the ranges of l from causality, window, lengths and interval (mask.c). */
void headway_mask_ranges(const struct headway_problem *problem, struct headway_lanes *l);

/* The keys that a lane sees beside its range, first <= j < last, where the problem has window_first. */
void headway_mask_prefix(const struct headway_problem *problem, const struct headway_lanes *l,
                         int lane, int64_t *first, int64_t *last);

/* Keys start .. start + count - 1, at rows `row` and on of the views of key and value. What isn't
 * given excludes nothing. */
struct headway_block {
    int64_t start, row;
    int count;
    int ranged;              /* the lanes' ranges apply */
    const uint64_t *allowed; /* (count): bit `lane` of each, for n lanes */
    const float *bias;       /* (count, width), natural units */
};

/* Scratch for a block of a mask. */
struct headway_mask_room {
    uint64_t *allowed; /* (HEADWAY_KEY_BLOCK), bool masks and window_first */
    float *bias;       /* (HEADWAY_KEY_BLOCK, width), float masks */
    float *lines;      /* (width, HEADWAY_KEY_BLOCK), of the mask's type */
    float *next[HEADWAY_MAX_WIDTH];
    struct headway_ahead ahead; /* of the block after the last one looked at, where that is much */
};

/* The mask's lines of the live lanes from key `start` on; one where lanes don't differ. Returns how
 * many. */
int headway_mask_lines(const struct headway_problem *problem, const struct headway_lanes *l,
                       int64_t start, const unsigned char **lines);
/* Looks at the mask of the block's keys for all lanes: 0 when it excludes all of them, else allowed
 * or bias are set where it changes anything. Keys at both ends that every lane excludes are cut
 * off. Ranges are not looked at. */
int headway_mask_block(const struct headway_problem *problem, const struct headway_row *row,
                       const struct headway_lanes *l, struct headway_mask_room *room,
                       struct headway_block *block);

/* State of the online softmax. */
struct headway_state {
    float *sum, *top, *total; /* (value_size, width), (width), (width) */
};

/* Keys or values of a block, wherever they lie. */
enum { HEADWAY_KEYS, HEADWAY_VALUES };

/* What few lanes use beside a tile's own. */
struct headway_few {
    const struct headway_row *row; /* whose dot and mix serve; NULL: the tile's gemm does */
    const void **rows[2]; /* (2 * HEADWAY_KEY_BLOCK) of keys and values: a block's, those after */
    float *scale[2];      /* (HEADWAY_KEY_BLOCK) */
    float *scores;        /* (HEADWAY_KEY_BLOCK, width) of the later calls of a kernel */
    float *sum;           /* (n, pitch) of a segment */
    ptrdiff_t pitch;
    int64_t next_b, next_head, next_first; /* what the worker may come to next; next_b < 0: nothing */
};

struct headway_tile {
    const struct headway_problem *p;
    const struct headway_row *row;
    struct headway_lanes lanes;
    int vectors;
    int careful;  /* values behind a mask may be poison: look at each block of values first */
    float shrink; /* of the values, when careful */
    float *panel, *scores, *clean;
    float
        *widened[2]; /* (HEADWAY_KEY_BLOCK, size) of keys, of values: those that aren't in place */
    struct headway_few few;
    /* The states of all segments below `stored`, each (value_size + 3, width): sum, top, total, and
     * whether any lane saw a key; NULL: none has been computed. */
    float *segments;
    int64_t stored;
    struct headway_mask_room mask;
    struct headway_state whole, later;
    float inverse_cap;
    int32_t first[HEADWAY_MAX_WIDTH], last[HEADWAY_MAX_WIDTH]; /* ranges within a block */
    float slope[HEADWAY_MAX_WIDTH];                            /* with slopes */
    int32_t place[HEADWAY_MAX_WIDTH], distance[HEADWAY_MAX_WIDTH];
    float *out[HEADWAY_MAX_WIDTH];
    float *lines_ahead[4 * HEADWAY_MAX_WIDTH];
    struct headway_ahead ahead;
    int streams; /* keys and values pass by once: each block asks for the next one's */
};

/* The lanes' slopes and places, where the problem has slopes. */
void headway_tile_slopes(struct headway_tile *t);

/* Rows first .. first + count - 1 of a sequence's keys or values, and the scales of stored ones. */
void headway_tile_rows(const struct headway_tile *t, int which, int64_t b, int64_t head,
                       int64_t first, int count, const void **rows, float *scales);

/* The first block worth looking at, and the one after `begin` on. */
int64_t headway_tile_skip(const struct headway_tile *t, int64_t begin, int64_t step);

/* What the lanes see of the block of keys from `begin` on, a multiple of HEADWAY_KEY_BLOCK; 0 when
 * that is nothing. */
int headway_tile_block(struct headway_tile *t, int64_t begin, struct headway_block *block);
/* The appended keys. */
struct headway_block headway_tile_appended(const struct headway_tile *t);
int headway_block_sees(const struct headway_tile *t, const struct headway_block *block, int lane,
                       int j);

/* scores(count, width) = weights of the block's keys by the softmax's rule, which moves top and
 * total on and says by how much all before is to be rescaled. */
void headway_tile_weigh(struct headway_tile *t, const struct headway_block *block, float *top,
                        float *total, float *rescale);

/* Few lanes (attend_row.c): a block's scores as gemm gives them, and its values into the segment's
 * sum; then that sum as a state's. */
void headway_few_scores(struct headway_tile *t, const struct headway_block *block);
void headway_few_values(struct headway_tile *t, const struct headway_block *block, int fresh,
                        const float *rescale);
void headway_few_finish(struct headway_tile *t, float *sum);

/* Segments first .. last - 1 into t->segments. */
void headway_tile_segments(struct headway_tile *t, int64_t first, int64_t last);

/* All segments in order, then the appended keys and the sink, into t->whole; 0 when no lane sees a
 * key: t->whole means nothing then. */
int headway_tile_attend(struct headway_tile *t);

/* After headway_tile_attend(), which returned `seen`: the weights into the caller's lines, for a mean
 * over heads added to what is there. */
void headway_tile_weights(struct headway_tile *t, int seen);
/* The mean's lines before the first head, and after the last. */
void headway_mean_begin(const struct headway_problem *problem, const struct headway_lanes *l);
void headway_mean_end(const struct headway_problem *problem, const struct headway_lanes *l);

#endif

/* What the parts of check_metamorphic share: two problems that must have the same answer. */
#ifndef HEADWAY_CHECK_METAMORPHIC_H
#define HEADWAY_CHECK_METAMORPHIC_H

#include "drawn.h"

/* Makes `d` fit, then changes one of two equal inputs. */
struct relation {
    const char *name;
    void (*fit)(struct drawn *d);
    void (*change)(struct inputs *in);
};
/* Through caches, up to one without a name; what makes rows and batches of those fit to be apart. */
extern const struct relation cache_relations[];
void fit_cache_rows(struct drawn *d);
void fit_cache_batch(struct drawn *d);

/* Which of the old problem's batches, rows, keys and heads a new one is made of: new index n is the
 * old one's at[n]. */
struct selection {
    int64_t batches, rows, keys, heads, kv_heads;
    int64_t *batch, *row, *key, *head, *kv_head;
};
/* All of them in order; the arrays belong to the inputs. Of a packed problem: sequence b alone. */
struct selection select_all(struct inputs *in);
struct selection select_sequence(struct inputs *in, int64_t b);
/* Rows and keys must be in order and without gaps. A mask and intervals become full. */
struct inputs *select_inputs(struct inputs *old, const struct selection *s);
/* The new results are the old ones' where they were selected, bit for bit. */
void compare_selected(const struct inputs *old, const struct results *old_results,
                      const struct inputs *new, const struct results *new_results,
                      const struct selection *s);

/* Says in the mask instead what these say elsewhere. */
enum { SAY_CAUSAL = 1, SAY_WINDOW = 2, SAY_KEY_LENGTHS = 4, SAY_INTERVAL = 8 };
void say_in_mask(struct inputs *in, int what);
/* Where rows stand is then said by row offsets alone. */
void say_in_offsets(struct inputs *in);
/* The mask with all its extents. */
void expand_mask(struct inputs *in);

#endif

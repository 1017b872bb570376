/* Who has which slot of the cache, and how many pages are spoken for. A sequence's pages are all
 * reserved when it gets its slot, so that no step can run out of them. One thread at a time. */
#ifndef SERVE_SLOTS_H
#define SERVE_SLOTS_H

#include "scheduler.h"

struct slot {
    int used;
    int64_t length, pages;     /* tokens in the cache, pages reserved */
    struct sequence *sequence; /* that runs; NULL: an idle session */
    char session[65];
    double idle_since;
};

struct slots {
    headway_kv_cache *cache;
    int64_t capacity, count, page_size, pages, reserved;
    struct slot *slot; /* (count) */
};

enum slots_result { SLOTS_GIVEN, SLOTS_WAIT, SLOTS_REFUSED };

/* Gives the sequence a slot, a new one or its session's, taking idle sessions' from them where that
 * is needed. REFUSED: its status and error say why. */
enum slots_result slots_give(struct slots *slots, struct sequence *sequence);

/* The sequence is over; keep: its slot stays its session's. */
void slots_take(struct slots *slots, struct sequence *sequence, int keep, double now);

/* Ends sessions that have been idle since before `since`. */
void slots_expire(struct slots *slots, double since);

int64_t slots_used(const struct slots *slots);
int64_t slots_sessions(const struct slots *slots);

#endif

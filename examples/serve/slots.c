#include "slots.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void clear(struct slots *slots, int64_t at)
{
    struct slot *slot = &slots->slot[at];
    headway_kv_cache_truncate(slots->cache, at, 0);
    slots->reserved -= slot->pages;
    memset(slot, 0, sizeof *slot);
}

static int64_t find_session(const struct slots *slots, const char *session)
{
    for (int64_t i = 0; *session && i < slots->count; i++)
        if (slots->slot[i].used && strcmp(slots->slot[i].session, session) == 0)
            return i;
    return -1;
}

static int64_t find_free(const struct slots *slots)
{
    for (int64_t i = 0; i < slots->count; i++)
        if (!slots->slot[i].used)
            return i;
    return -1;
}

/* The session that has been idle longest, but not `but`. */
static int64_t find_idle(const struct slots *slots, int64_t but)
{
    int64_t found = -1;
    for (int64_t i = 0; i < slots->count; i++) {
        const struct slot *slot = &slots->slot[i];
        if (slot->used && !slot->sequence && i != but &&
            (found < 0 || slot->idle_since < slots->slot[found].idle_since))
            found = i;
    }
    return found;
}

static enum slots_result refuse(struct sequence *sequence, int status, const char *why,
                                int64_t number)
{
    sequence->status = status;
    snprintf(sequence->error, SEQUENCE_ERROR, why, number);
    return SLOTS_REFUSED;
}

static enum slots_result check(const struct slots *slots, int64_t own, struct sequence *sequence)
{
    int64_t length = own < 0 ? 0 : slots->slot[own].length;
    if (own >= 0 && slots->slot[own].sequence)
        return refuse(sequence, 409, "another request of the session is running", 0);
    if (sequence->past > length)
        return refuse(sequence, 409,
                      "\"past\" is more than the %" PRId64 " tokens that are kept of the session",
                      length);
    if (sequence->past + sequence->tokens + sequence->steps > slots->capacity)
        return refuse(sequence, 413, "the session would pass %" PRId64 " tokens", slots->capacity);
    return SLOTS_GIVEN;
}

enum slots_result slots_give(struct slots *slots, struct sequence *sequence)
{
    int64_t own = find_session(slots, sequence->session);
    int64_t length = sequence->past + sequence->tokens + sequence->steps;
    int64_t pages = (length + slots->page_size - 1) / slots->page_size;
    enum slots_result result = check(slots, own, sequence);
    if (result != SLOTS_GIVEN)
        return result;
    int64_t at = own < 0 ? find_free(slots) : own;
    int64_t more = pages - (own < 0 ? 0 : slots->slot[own].pages);
    while (at < 0 || slots->reserved + more > slots->pages) {
        int64_t idle = find_idle(slots, own);
        if (idle < 0)
            return SLOTS_WAIT;
        clear(slots, idle);
        at = at < 0 ? idle : at;
    }
    struct slot *slot = &slots->slot[at];
    headway_kv_cache_truncate(slots->cache, at, sequence->past);
    slots->reserved += more;
    slot->used = 1;
    slot->length = sequence->past;
    slot->pages = pages;
    slot->sequence = sequence;
    snprintf(slot->session, sizeof slot->session, "%s", sequence->session);
    sequence->slot = (int)at;
    return SLOTS_GIVEN;
}

void slots_take(struct slots *slots, struct sequence *sequence, int keep, double now)
{
    struct slot *slot = &slots->slot[sequence->slot];
    if (!keep) {
        clear(slots, sequence->slot);
        return;
    }
    slot->length += sequence->tokens + sequence->steps;
    slot->sequence = NULL;
    slot->idle_since = now;
}

void slots_expire(struct slots *slots, double since)
{
    for (int64_t i = 0; i < slots->count; i++) {
        const struct slot *slot = &slots->slot[i];
        if (slot->used && !slot->sequence && slot->idle_since < since)
            clear(slots, i);
    }
}

int64_t slots_used(const struct slots *slots)
{
    int64_t used = 0;
    for (int64_t i = 0; i < slots->count; i++)
        used += slots->slot[i].used;
    return used;
}

int64_t slots_sessions(const struct slots *slots)
{
    int64_t sessions = 0;
    for (int64_t i = 0; i < slots->count; i++)
        sessions += slots->slot[i].session[0] != 0;
    return sessions;
}

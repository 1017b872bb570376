/* Packed weights saved and mapped: a header, then the layer's parts as they lie in memory. Nothing in
 * it is a place: parts follow from the sizes, which are checked as create's are. */
#include <math.h>
#include <string.h>

#include "api/check.h"
#include "api/mha.h"

#define VERSION 1
#define ORDER 0x01020304u /* read with another byte order it is another number */
#define ALIGNMENT 64

enum { ROW_NAME = 16, MOST_SIZE = 1 << 30 };

/* A multiple of ALIGNMENT bytes without gaps. */
struct header {
    char magic[8];
    uint32_t order, version;
    uint64_t bytes; /* of all */
    uint64_t sum;   /* of all but this field */
    char row[ROW_NAME];
    int32_t lanes, vectors;
    int64_t heads, kv_heads, size, value_size;
    int64_t inputs[VALUE + 1], outputs;
    int64_t rope_size, rope_positions;
    int32_t rope_style, rope_scaling;
    double norm_eps;
    int32_t has_bias[PROJECTIONS], normed[2];
    int32_t appended, nothing[3];
};
_Static_assert(sizeof(struct header) == 192 && sizeof(struct header) % ALIGNMENT == 0,
               "the format is fixed");

static const char magic[8] = "HEADWAY";

/* Eight sums side by side, as many as keep a core's multiplier busy. Each step is one-to-one in the
 * sum and in the word: no change of a single word goes unseen. */
static uint64_t step(uint64_t sum, uint64_t word)
{
    const uint64_t x = (sum ^ word) * 0x9e3779b97f4a7c15u;
    return x << 29 | x >> 35;
}

uint64_t headway_mha_packed_sum(const void *memory, size_t bytes)
{
    const size_t lines = bytes / ALIGNMENT, own = offsetof(struct header, sum) / sizeof(uint64_t);
    uint64_t sums[8] = {0}, all = bytes;
    for (size_t line = 0; line < lines; line++) {
        uint64_t words[8];
        memcpy(words, (const char *)memory + line * ALIGNMENT, sizeof words);
        if (line == 0)
            words[own] = 0;
        for (int i = 0; i < 8; i++)
            sums[i] = step(sums[i], words[i]);
    }
    for (int i = 0; i < 8; i++)
        all = step(all, sums[i]);
    return all;
}

static struct header header_of(const struct headway_mha *layer, const int64_t at[PARTS + 1])
{
    const struct headway_row *row = headway_engine_machine(layer->engine).row;
    struct header h = {.order = ORDER,
                       .version = VERSION,
                       .bytes = sizeof h + (uint64_t)at[PARTS] * sizeof(float),
                       .lanes = row->lanes,
                       .vectors = row->vectors,
                       .heads = layer->heads,
                       .kv_heads = layer->kv_heads,
                       .size = layer->size,
                       .value_size = layer->value_size,
                       .outputs = layer->linear[OUT].size,
                       .rope_size = layer->rope.size,
                       .rope_positions = layer->rope.positions,
                       .rope_style = (int32_t)layer->rope.style,
                       .rope_scaling = (int32_t)layer->scaling,
                       .norm_eps = layer->norm_eps,
                       .normed = {layer->normed[QUERY], layer->normed[KEY]},
                       .appended = layer->appended};
    memcpy(h.magic, magic, sizeof magic);
    memcpy(h.row, row->name, strlen(row->name));
    for (int i = QUERY; i <= VALUE; i++)
        h.inputs[i] = layer->linear[i].inputs;
    for (int i = 0; i < PROJECTIONS; i++)
        h.has_bias[i] = layer->linear[i].has_bias;
    return h;
}

/* Parts of a layer that exists fit. */
static size_t bytes_of(const struct headway_mha *layer, int64_t at[PARTS + 1])
{
    struct headway_mha same = *layer;
    headway_mha_plan(&same, at);
    return sizeof(struct header) + (size_t)at[PARTS] * sizeof(float);
}

headway_status headway_mha_packed_bytes(const headway_mha *layer, size_t *bytes)
{
    int64_t at[PARTS + 1];
    if (!layer)
        return HEADWAY_ERROR_ARGUMENT;
    if (!bytes)
        return headway_fail(layer->engine, HEADWAY_ERROR_ARGUMENT,
                            "bytes: NULL, expected where to write them");
    *bytes = bytes_of(layer, at);
    return HEADWAY_OK;
}

static headway_status check_place(const headway_engine *engine, const void *memory, size_t bytes,
                                  size_t least)
{
    if (!memory)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT, "memory: NULL");
    if ((uintptr_t)memory % ALIGNMENT != 0)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "memory: not aligned, expected a multiple of %d bytes", ALIGNMENT);
    if (bytes < least)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT, "memory: %zu bytes, expected %zu",
                            bytes, least);
    return HEADWAY_OK;
}

headway_status headway_mha_save_packed(const headway_mha *layer, void *memory, size_t bytes)
{
    int64_t at[PARTS + 1];
    if (!layer)
        return HEADWAY_ERROR_ARGUMENT;
    const size_t needed = bytes_of(layer, at);
    HEADWAY_TRY(check_place(layer->engine, memory, bytes, needed));
    struct header h = header_of(layer, at);
    memcpy(memory, &h, sizeof h);
    memcpy((char *)memory + sizeof h, layer->linear[0].packed, needed - sizeof h);
    h.sum = headway_mha_packed_sum(memory, needed);
    memcpy(memory, &h, sizeof h);
    return HEADWAY_OK;
}

static headway_status fail_damaged(const headway_engine *engine)
{
    return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                        "memory: a packed layer that is damaged: its sizes or its sum don't hold");
}

/* Letters and digits, as rows are called: nothing else of a file goes into an error's text. */
static int is_name(const char name[ROW_NAME])
{
    return memchr(name, '\0', ROW_NAME) && name[0] &&
           name[strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789")] == '\0';
}

/* What can be told before the sum is worth its time. */
static headway_status check_header(const headway_engine *engine, const struct header *h,
                                   size_t bytes)
{
    const struct headway_row *row = headway_engine_machine(engine).row;
    if (memcmp(h->magic, magic, sizeof magic) != 0)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "memory: no packed layer, expected one that "
                            "headway_mha_save_packed() wrote");
    if (h->order != ORDER)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "memory: a packed layer of another byte order, expected this "
                            "machine's");
    if (h->version != VERSION)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "memory: a packed layer of format %lu, expected %d",
                            (unsigned long)h->version, VERSION);
    if (h->bytes > bytes || h->bytes < sizeof *h)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "memory: %zu bytes of a packed layer that says it has %llu", bytes,
                            (unsigned long long)h->bytes);
    if (!is_name(h->row))
        return fail_damaged(engine);
    if (strcmp(h->row, row->name) != 0)
        return headway_fail(engine, HEADWAY_ERROR_CANNOT_RUN,
                            "memory: a layer packed for row %s, expected the engine's row %s",
                            h->row, row->name);
    if (h->lanes != row->lanes || h->vectors != row->vectors)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT,
                            "memory: a layer in panels of %ld vectors of %ld, expected row %s's "
                            "%d of %d",
                            (long)h->vectors, (long)h->lanes, row->name, row->vectors, row->lanes);
    return HEADWAY_OK;
}

static int is_flag(int32_t x)
{
    return x == 0 || x == 1;
}

static int is_size(int64_t x)
{
    return x >= 1 && x <= MOST_SIZE;
}

/* Sizes within create's limits, so that nothing that is computed from them overflows. */
static int sizes_hold(const struct header *h)
{
    int ok = is_size(h->heads) && is_size(h->kv_heads) && is_size(h->size) &&
             is_size(h->value_size) && h->outputs >= 0 && h->heads % h->kv_heads == 0;
    for (int i = QUERY; i <= VALUE; i++)
        ok = ok && h->inputs[i] >= 1;
    for (int i = 0; i < PROJECTIONS; i++)
        ok = ok && is_flag(h->has_bias[i]);
    ok = ok && is_flag(h->normed[QUERY]) && is_flag(h->normed[KEY]) && h->nothing[0] == 0 &&
         h->nothing[1] == 0 && h->nothing[2] == 0 && h->appended >= 0 && h->appended <= 2 &&
         isfinite(h->norm_eps) && h->norm_eps > 0.0;
    if (h->rope_style == HEADWAY_ROPE_NONE)
        return ok && h->rope_size == 0 && h->rope_positions == 0;
    return ok &&
           (h->rope_style == HEADWAY_ROPE_HALF || h->rope_style == HEADWAY_ROPE_INTERLEAVED) &&
           h->rope_scaling >= HEADWAY_ROPE_PLAIN && h->rope_scaling <= HEADWAY_ROPE_LONGROPE &&
           h->rope_size >= 2 && h->rope_size <= h->size && h->rope_size % 2 == 0 &&
           h->rope_positions >= 1 && h->rope_positions <= HEADWAY_ROPE_MOST;
}

static struct headway_mha layer_of(const headway_engine *engine, const struct header *h)
{
    struct headway_mha layer = {.engine = engine,
                                .heads = h->heads,
                                .kv_heads = h->kv_heads,
                                .size = h->size,
                                .value_size = h->value_size,
                                .normed = {h->normed[QUERY], h->normed[KEY]},
                                .norm_eps = h->norm_eps,
                                .scaling = (headway_rope_scaling)h->rope_scaling,
                                .appended = h->appended};
    layer.rope.style = (headway_rope_style)h->rope_style;
    layer.rope.size = h->rope_size;
    layer.rope.positions = h->rope_positions;
    for (int i = 0; i < PROJECTIONS; i++) {
        layer.linear[i].inputs = i == OUT ? h->heads * h->value_size : h->inputs[i];
        layer.linear[i].has_bias = h->has_bias[i];
    }
    layer.linear[OUT].size = h->outputs;
    return layer;
}

headway_status headway_mha_map_packed(const headway_engine *engine, const void *memory,
                                      size_t bytes, headway_mha **layer)
{
    int64_t at[PARTS + 1];
    struct header h;
    if (!engine)
        return HEADWAY_ERROR_ARGUMENT;
    if (!layer)
        return headway_fail(engine, HEADWAY_ERROR_ARGUMENT, "layer: NULL");
    HEADWAY_TRY(check_place(engine, memory, bytes, sizeof h));
    memcpy(&h, memory, sizeof h);
    HEADWAY_TRY(check_header(engine, &h, bytes));
    if (!sizes_hold(&h))
        return fail_damaged(engine);
    struct headway_mha mapped = layer_of(engine, &h);
    if (headway_mha_plan(&mapped, at) != HEADWAY_OK ||
        h.bytes != sizeof h + (uint64_t)at[PARTS] * sizeof(float) ||
        h.sum != headway_mha_packed_sum(memory, (size_t)h.bytes))
        return fail_damaged(engine);
    headway_mha_attach(&mapped, at, (const float *)memory + sizeof h / sizeof(float));
    headway_mha *made = headway_allocate(headway_engine_memory(engine), sizeof mapped);
    if (!made)
        return headway_fail(engine, HEADWAY_ERROR_MEMORY, "layer: no memory for its %zu bytes",
                            sizeof mapped);
    memcpy(made, &mapped, sizeof mapped);
    *layer = made;
    return HEADWAY_OK;
}

/* Create functions take everything from the caller's memory, give back what they took, and survive
 * its end at every allocation. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "check_alloc.h"
#include "cpu/kernels.h"

enum { BLOCKS = 64, HEADS = 4, SIZE = 8, WIDTH = HEADS * SIZE };

/* A caller's memory that knows what it gave, each block between unreadable pages; every other one is
 * aligned to 16 and no more. */
static struct memory {
    int taken, fail_at; /* the allocation that fails; < 0: none */
    int blocks, wrong;
    struct {
        void *memory, *guarded;
        size_t bytes;
    } given[BLOCKS];
} memory;

static void *take(void *context, size_t bytes)
{
    struct memory *m = context;
    const size_t shift = m->taken % 2 ? 16 : 0;
    int at = 0;
    if (m->taken++ == m->fail_at)
        return NULL;
    while (at < BLOCKS && m->given[at].memory)
        at++;
    if (at == BLOCKS)
        abort();
    m->given[at].guarded = check_guard((bytes + 63) / 64 * 64 + shift, 1);
    m->given[at].memory = m->given[at].guarded;
    m->given[at].bytes = bytes;
    m->blocks++;
    return m->given[at].memory;
}

static void give(void *context, void *block, size_t bytes)
{
    struct memory *m = context;
    int at = 0;
    while (at < BLOCKS && (!block || m->given[at].memory != block))
        at++;
    if (at == BLOCKS || m->given[at].bytes != bytes) {
        m->wrong++;
        return;
    }
    check_guard_free(m->given[at].guarded);
    m->given[at].memory = NULL;
    m->blocks--;
}

/* One create function and its opposite. */
struct maker {
    const char *name;
    headway_status (*make)(void **made);
    void (*destroy)(void *made);
};

static const struct headway_row *used;
static headway_engine *engine;
static headway_mha *layer;
static void *saved;
static size_t saved_bytes;

static headway_engine_config config_of(void)
{
    headway_engine_config config = HEADWAY_ENGINE_CONFIG_INIT;
    config.isa = used->name;
    config.threads = 1;
    config.allocate = take;
    config.release = give;
    config.memory_context = &memory;
    return config;
}

static headway_status make_engine(void **made)
{
    const headway_engine_config config = config_of();
    return headway_engine_create(&config, (headway_engine **)made);
}

static void destroy_engine(void *made)
{
    headway_engine_destroy(made);
}

static headway_status make_layer(void **made)
{
    static float numbers[4 * WIDTH * WIDTH];
    const int64_t fused_shape[2] = {3 * WIDTH, WIDTH}, last_shape[2] = {WIDTH, WIDTH};
    const headway_tensor fused = headway_tensor_dense(numbers, HEADWAY_F32, 2, fused_shape);
    const headway_tensor last =
        headway_tensor_dense(numbers + 3 * WIDTH * WIDTH, HEADWAY_F32, 2, last_shape);
    headway_rope_config rope = HEADWAY_ROPE_CONFIG_INIT;
    headway_mha_config config = HEADWAY_MHA_CONFIG_INIT;
    headway_mha_weights weights = HEADWAY_MHA_WEIGHTS_INIT;
    rope.style = HEADWAY_ROPE_HALF;
    rope.positions = 50;
    config.heads = HEADS;
    config.rope = &rope;
    config.add_zero_attn = 1;
    weights.fused = &fused;
    weights.out = &last;
    return headway_mha_create(engine, &config, &weights, (headway_mha **)made);
}

static headway_status map_layer(void **made)
{
    return headway_mha_map_packed(engine, saved, saved_bytes, (headway_mha **)made);
}

static void destroy_layer(void *made)
{
    headway_mha_destroy(made);
}

static headway_kv_cache_config cache_config(void)
{
    headway_kv_cache_config config = HEADWAY_KV_CACHE_CONFIG_INIT;
    config.sequences = 3;
    config.kv_heads = 2;
    config.head_size = SIZE;
    config.capacity = 40;
    return config;
}

static headway_status make_cache(void **made)
{
    const headway_kv_cache_config config = cache_config();
    return headway_kv_cache_create(engine, &config, (headway_kv_cache **)made);
}

static headway_status make_pages(void **made)
{
    headway_kv_cache_config config = cache_config();
    config.key_dtype = config.value_dtype = HEADWAY_I8;
    config.page_size = 4;
    return headway_kv_cache_create(engine, &config, (headway_kv_cache **)made);
}

static headway_status make_on_elements(void **made)
{
    static float elements[2][3 * 2 * 40 * SIZE];
    const int64_t shape[4] = {3, 2, 40, SIZE};
    const headway_tensor key = headway_tensor_dense(elements[0], HEADWAY_F32, 4, shape);
    const headway_tensor value = headway_tensor_dense(elements[1], HEADWAY_F32, 4, shape);
    headway_kv_cache_config config = cache_config();
    config.key = &key;
    config.value = &value;
    return headway_kv_cache_create(engine, &config, (headway_kv_cache **)made);
}

static void destroy_cache(void *made)
{
    headway_kv_cache_destroy(made);
}

/* Fails at the first allocation, the second ... until none is left to fail. */
static void run_out(const struct maker *m)
{
    static char mark;
    const int before = memory.blocks;
    char text[300] = "";
    void *made = &mark;
    headway_status status = HEADWAY_ERROR_MEMORY;
    int n = 0;
    for (; n < BLOCKS && status != HEADWAY_OK; n++) {
        memory.taken = 0;
        memory.fail_at = n;
        status = m->make(&made);
        if (status == HEADWAY_OK)
            break;
        CHECK(status == HEADWAY_ERROR_MEMORY, "%s, allocation %d fails: %s", m->name, n,
              headway_status_text(status));
        CHECK(made == &mark, "%s, allocation %d fails: the result was written", m->name, n);
        CHECK(memory.blocks == before, "%s, allocation %d fails: %d blocks leak", m->name, n,
              memory.blocks - before);
        headway_engine_error(engine, text, sizeof text);
        CHECK(m->make == make_engine || strstr(text, "memory"), "%s: \"%s\"", m->name, text);
    }
    CHECK(status == HEADWAY_OK && n > 0, "%s: %s behind %d failures", m->name,
          headway_status_text(status), n);
    memory.fail_at = -1;
    if (status == HEADWAY_OK)
        m->destroy(made);
    CHECK(memory.blocks == before, "%s: %d blocks leak", m->name, memory.blocks - before);
    m->destroy(NULL);
}

/* And nothing comes from anywhere else: the guards have been there before. */
static void check_maker(const struct maker *m)
{
    void *made = NULL;
    run_out(m);
    memory.taken = 0;
    watch_begin();
    const headway_status status = m->make(&made);
    if (status == HEADWAY_OK)
        m->destroy(made);
    const long calls = watch_end();
    CHECK(status == HEADWAY_OK && memory.taken > 0, "%s: %d allocations", m->name, memory.taken);
    CHECK(calls == 0, "%s: the C library's allocator was called %ld times", m->name, calls);
    CHECK(memory.wrong == 0, "%s: %d blocks came back as others, or with other sizes", m->name,
          memory.wrong);
}

void check_caller(const struct headway_row *row)
{
    static const struct maker engines = {"engine", make_engine, destroy_engine};
    static const struct maker makers[] = {
        {"layer", make_layer, destroy_layer},
        {"saved layer", map_layer, destroy_layer},
        {"cache", make_cache, destroy_cache},
        {"cache in pages", make_pages, destroy_cache},
        {"cache on the caller's elements", make_on_elements, destroy_cache}};
    void *made = NULL;
    used = row;
    memset(&memory, 0, sizeof memory);
    memory.fail_at = -1;
    if (check_case("%s: an engine on a caller's memory", row->name))
        check_maker(&engines);
    CHECK(make_engine(&made) == HEADWAY_OK, "no engine");
    engine = made;
    CHECK(make_layer(&made) == HEADWAY_OK, "no layer");
    layer = made;
    CHECK(headway_mha_packed_bytes(layer, &saved_bytes) == HEADWAY_OK, "packed bytes");
    saved = aligned_alloc(64, (saved_bytes + 63) / 64 * 64);
    CHECK(headway_mha_save_packed(layer, saved, saved_bytes) == HEADWAY_OK, "saving");
    for (size_t i = 0; i < sizeof makers / sizeof *makers; i++)
        if (check_case("%s: a %s on a caller's memory", row->name, makers[i].name))
            check_maker(&makers[i]);
    headway_mha_destroy(layer);
    headway_engine_destroy(engine);
    free(saved);
    engine = NULL;
}

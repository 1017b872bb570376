/* Calls that compute allocate nothing and free nothing: the allocator is interposed and counts.
 * Create functions use the caller's memory alone, as far as it goes. */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "attend.h"
#include "check_alloc.h"
#include "cpu/kernels.h"
#include "guest.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

static atomic_int watching;
static atomic_long calls;

static void count(void)
{
    if (atomic_load_explicit(&watching, memory_order_relaxed))
        atomic_fetch_add(&calls, 1);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

#ifdef SANITIZED
int __sanitizer_install_malloc_and_free_hooks(void (*allocated)(const volatile void *, size_t),
                                              void (*freed)(const volatile void *));

static void on_malloc(const volatile void *memory, size_t size)
{
    (void)memory;
    (void)size;
    count();
}

static void on_free(const volatile void *memory)
{
    if (memory)
        count();
}

static void interpose(void)
{
    CHECK(__sanitizer_install_malloc_and_free_hooks(on_malloc, on_free) > 0, "no hooks");
}
#else
/* glibc's allocator under its other names, and ours for the OpenMP runtime too. */
#pragma GCC visibility push(default)
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t number, size_t size);
extern void *__libc_realloc(void *memory, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);
extern void __libc_free(void *memory);

void *malloc(size_t size)
{
    count();
    return __libc_malloc(size);
}

void *calloc(size_t number, size_t size)
{
    count();
    return __libc_calloc(number, size);
}

void *realloc(void *memory, size_t size)
{
    count();
    return __libc_realloc(memory, size);
}

void *memalign(size_t alignment, size_t size);
void *memalign(size_t alignment, size_t size)
{
    count();
    return __libc_memalign(alignment, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    return memalign(alignment, size);
}

int posix_memalign(void **memory, size_t alignment, size_t size);
int posix_memalign(void **memory, size_t alignment, size_t size)
{
    void *got = memalign(alignment, size);
    if (!got)
        return ENOMEM;
    *memory = got;
    return 0;
}

void free(void *memory)
{
    if (memory)
        count();
    __libc_free(memory);
}
#pragma GCC visibility pop

static void interpose(void) {}
#endif

void watch_begin(void)
{
    atomic_store(&calls, 0);
    atomic_store(&watching, 1);
}

long watch_end(void)
{
    atomic_store(&watching, 0);
    return atomic_load(&calls);
}

/* ---- the interposition itself -----------------------------------------------------------------
 */

static void check_counter(void)
{
    headway_engine *engine = NULL;
    if (!check_case("the allocator is watched"))
        return;
    watch_begin();
    void *volatile memory = malloc(100);
    free(memory);
    long seen = watch_end();
    CHECK(seen == 2, "malloc and free count as %ld", seen);
    watch_begin();
    CHECK(headway_engine_create(NULL, &engine) == HEADWAY_OK, "engine");
    headway_engine_destroy(engine);
    seen = watch_end();
    CHECK(seen >= 2, "an engine made and destroyed counts as %ld", seen);
}

/* ---- attention --------------------------------------------------------------------------------
 */

struct call {
    headway_attention_params params;
    headway_tensor query, key, value, out, mask, lse, weights, interval;
    float slopes[8];
    int64_t starts[3];
    void *workspace;
    size_t bytes;
};

/* PLAIN: causality, a float mask and lse. */
enum options { PLAIN, OPTIONS, PACKED };

headway_tensor guarded(int rank, const int64_t *shape, float value)
{
    int64_t count = 1;
    for (int i = 0; i < rank; i++)
        count *= shape[i];
    float *memory = check_guard((size_t)count * sizeof(float), 1);
    for (int64_t i = 0; i < count; i++)
        memory[i] = value * (float)(i % 13 - 6);
    return headway_tensor_dense(memory, HEADWAY_F32, rank, shape);
}

/* Everything but causality and mask; as two sequences on top of that when packed. */
static void add_options(struct call *c, const struct shape *s, int packed)
{
    const int64_t weights_shape[4] = {s->batch, s->heads, s->queries, s->keys};
    const int64_t interval_shape[2] = {s->queries, 2};
    c->weights = guarded(4, weights_shape, 1);
    c->interval = guarded(2, interval_shape, 0);
    c->interval.dtype = HEADWAY_I32;
    for (int64_t i = 0; i < s->queries; i++)
        ((int32_t *)c->interval.data)[2 * i + 1] = (int32_t)(s->keys - i % 3);
    c->params.interval = &c->interval;
    c->params.window_left = s->keys / 2;
    c->params.window_right = 1;
    c->params.softcap = 20;
    c->params.sinks = c->params.alibi_slopes = c->slopes;
    CHECK(headway_alibi_slopes(s->heads, c->slopes) == HEADWAY_OK, "slopes");
    if (!packed) {
        c->params.weights = &c->weights;
        return;
    }
    c->params.mask = NULL;
    c->params.sequences = 2;
    c->params.query_starts = c->params.key_starts = c->starts;
    c->starts[1] = s->queries / 3;
    c->starts[2] = s->queries;
}

static void run_attention(const headway_engine *engine, const struct shape *s, enum options options,
                          const char *isa)
{
    const int64_t query_shape[4] = {s->batch, s->queries, s->heads, s->size};
    const int64_t key_shape[4] = {s->batch, s->keys, s->kv_heads, s->size};
    const int64_t value_shape[4] = {s->batch, s->keys, s->kv_heads, s->value_size};
    const int64_t out_shape[4] = {s->batch, s->queries, s->heads, s->value_size};
    const int64_t mask_shape[4] = {1, 1, s->queries, s->keys};
    const int64_t lse_shape[3] = {s->batch, s->heads, s->queries};
    struct call c = {.params = HEADWAY_ATTENTION_PARAMS_INIT};
    c.query = guarded(4, query_shape, 0.1f);
    c.key = guarded(4, key_shape, 0.1f);
    c.value = guarded(4, value_shape, 1);
    c.out = guarded(4, out_shape, 1);
    c.mask = guarded(4, mask_shape, 0.01f);
    c.lse = guarded(3, lse_shape, 1);
    c.params.causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
    c.params.mask = &c.mask;
    c.params.lse = &c.lse;
    if (options != PLAIN)
        add_options(&c, s, options == PACKED);
    headway_status status =
        headway_attention_workspace(engine, &c.params, &c.query, &c.key, &c.value, &c.bytes);
    c.workspace = check_guard(c.bytes, 0);
    /* The first call makes OpenMP's threads. */
    for (int n = 0; n < 2 && status == HEADWAY_OK; n++)
        status = headway_attention(engine, &c.params, &c.query, &c.key, &c.value, &c.out,
                                   c.workspace, c.bytes);
    char text[2000];
    size_t bytes;
    watch_begin();
    for (int n = 0; n < 3 && status == HEADWAY_OK; n++)
        status = headway_attention(engine, &c.params, &c.query, &c.key, &c.value, &c.out,
                                   c.workspace, c.bytes);
    const long computing = watch_end();
    watch_begin();
    headway_attention_workspace(engine, &c.params, &c.query, &c.key, &c.value, &bytes);
    headway_attention_explain(engine, &c.params, &c.query, &c.key, &c.value, text, sizeof text);
    headway_attention(engine, &c.params, &c.query, &c.key, &c.value, &c.out, NULL, 0);
    headway_engine_error(engine, text, sizeof text);
    const long asking = watch_end();
    CHECK(status == HEADWAY_OK, "%s", headway_status_text(status));
    CHECK(computing == 0, "%s: headway_attention called the allocator %ld times", isa, computing);
    CHECK(asking == 0, "%s: workspace, explain and a failing call called the allocator %ld times",
          isa, asking);
    check_guard_free(c.query.data);
    check_guard_free(c.key.data);
    check_guard_free(c.value.data);
    check_guard_free(c.out.data);
    check_guard_free(c.mask.data);
    check_guard_free(c.lse.data);
    if (options != PLAIN) {
        check_guard_free(c.weights.data);
        check_guard_free(c.interval.data);
    }
    check_guard_free(c.workspace);
}

/* ---- the layer --------------------------------------------------------------------------------
 */

static void run_layer(const headway_engine *engine, int64_t batch, int64_t rows, int64_t heads,
                      const char *isa)
{
    const int64_t width = heads * 32;
    const int64_t fused_shape[2] = {3 * width, width}, out_shape[2] = {width, width};
    const int64_t bias_shape[1] = {3 * width}, token_shape[3] = {batch, rows, width};
    headway_mha_config config = HEADWAY_MHA_CONFIG_INIT;
    headway_mha_weights weights = HEADWAY_MHA_WEIGHTS_INIT;
    headway_tensor fused = guarded(2, fused_shape, 0.01f), bias = guarded(1, bias_shape, 0.1f);
    headway_tensor last = guarded(2, out_shape, 0.01f);
    headway_tensor x = guarded(3, token_shape, 1), y = guarded(3, token_shape, 1);
    headway_mha *mha = NULL;
    size_t bytes = 0;

    headway_rope_config rope = HEADWAY_ROPE_CONFIG_INIT;
    rope.style = HEADWAY_ROPE_HALF;
    rope.positions = rows;
    config.heads = heads;
    config.rope = &rope;
    config.add_zero_attn = 1;
    weights.fused = &fused;
    weights.fused_bias = &bias;
    weights.out = &last;
    headway_status status = headway_mha_create(engine, &config, &weights, &mha);
    CHECK(status == HEADWAY_OK, "create: %s", headway_status_text(status));
    if (status == HEADWAY_OK)
        status = headway_mha_workspace(mha, NULL, &x, NULL, NULL, &bytes);
    void *workspace = check_guard(bytes, 0);
    for (int n = 0; n < 2 && status == HEADWAY_OK; n++)
        status = headway_mha_forward(mha, NULL, &x, NULL, NULL, &y, workspace, bytes);
    watch_begin();
    for (int n = 0; n < 3 && status == HEADWAY_OK; n++)
        status = headway_mha_forward(mha, NULL, &x, NULL, NULL, &y, workspace, bytes);
    const long computing = watch_end();
    watch_begin();
    if (mha)
        headway_mha_forward(mha, NULL, &x, NULL, NULL, &y, workspace, 0);
    const long failing = watch_end();
    CHECK(status == HEADWAY_OK, "%s", headway_status_text(status));
    CHECK(computing == 0, "%s: headway_mha_forward called the allocator %ld times", isa, computing);
    CHECK(failing == 0, "%s: a failing forward called the allocator %ld times", isa, failing);
    headway_mha_destroy(mha);
    check_guard_free(fused.data);
    check_guard_free(bias.data);
    check_guard_free(last.data);
    check_guard_free(x.data);
    check_guard_free(y.data);
    check_guard_free(workspace);
}

/* On a pool's threads. */
static void check_pool(const struct headway_row *row)
{
    static const struct shape shape = {1, 70, 700, 4, 2, 64, 64};
    headway_engine_config config = HEADWAY_ENGINE_CONFIG_INIT;
    headway_engine *engine = NULL;
    config.isa = row->name;
    config.threads = 3;
    config.parallel_for = pool_for;
    config.parallel_context = pool_make(2);
    CHECK(headway_engine_create(&config, &engine) == HEADWAY_OK, "no engine");
    if (check_case("%s: attention on a pool's threads", row->name))
        run_attention(engine, &shape, OPTIONS, row->name);
    if (check_case("%s: layer on a pool's threads", row->name))
        run_layer(engine, 2, 150, 8, row->name);
    check_caches(engine, row->name);
    headway_engine_destroy(engine);
    pool_free(config.parallel_context);
}

int main(int argc, char **argv)
{
    static const struct shape shapes[] = {{1, 5, 7, 2, 1, 8, 8},      {1, 70, 700, 4, 2, 64, 64},
                                          {1, 1, 1300, 8, 8, 64, 64}, {1, 260, 513, 1, 1, 64, 64},
                                          {3, 70, 70, 3, 3, 128, 40}, {1, 70, 130, 1, 1, 72, 576},
                                          {1, 90, 90, 2, 1, 32, 32}};
    static const char *const names[] = {"few options", "all options", "packed"};
    static const int threads[] = {1, 2, 3, 7};
    static const int64_t rows[] = {1, 60, 45, 150};
    const struct headway_row *rows_here[8];
    int count_here = 0, index = 0;

    check_begin(argc, argv);
    const int step = check_option("--quick", 0) ? 2 : 1;
    interpose();
    check_counter();
    while (count_here < COUNT(rows_here) &&
           (rows_here[count_here] = check_next_row(&index)) != NULL)
        count_here++;
    /* More threads from engine to engine: those that a smaller team sends home free memory as they
     * go. */
    for (int t = 0; t < COUNT(threads); t += step)
        for (int r = 0; r < count_here; r++) {
            const char *isa = rows_here[r]->name;
            headway_engine *engine = engine_make(isa, threads[t]);
            for (int n = 0; n < COUNT(shapes); n += step)
                for (int o = PLAIN; o <= PACKED; o++)
                    if ((o != PACKED ||
                         (shapes[n].batch == 1 && shapes[n].queries == shapes[n].keys)) &&
                        check_case("%s: attention %d, %s, %d threads", isa, n, names[o],
                                   threads[t]))
                        run_attention(engine, &shapes[n], (enum options)o, isa);
            /* On 60 rows projections keep more threads busy than attention does. */
            for (int n = 0; n < COUNT(rows); n += step)
                for (int64_t heads = 1; heads <= 8; heads += 7)
                    if (check_case("%s: layer of %lld heads on %lld rows, %d threads", isa,
                                   (long long)heads, (long long)rows[n], threads[t]))
                        run_layer(engine, 1 + n % 2, rows[n], heads, isa);
            if (t % 3 == 0)
                check_caches(engine, isa);
            headway_engine_destroy(engine);
        }
    for (int r = 0; r < count_here; r++) {
        check_caller(rows_here[r]);
        check_pool(rows_here[r]);
    }
    return check_end();
}

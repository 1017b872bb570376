/* Random operations on a cache against a model: what every slot holds as numbers of tokens, and
 * which of its entries is which page, told by the rules alone. A failing sequence is made shorter
 * and smaller for as long as it still fails, and printed so that it can be run again. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "check_cache.h"

enum {
    SLOTS,
    HEADS,
    SIZE,
    VALUE_SIZE,
    CAPACITY,
    PAGE,
    PAGES,
    ROLLING,
    PINNED,
    KEY,
    VALUE,
    CALLER,
    HANDED, /* caller_pages */
    FIELDS
};
enum {
    MAX_OPS = 40,
    MAX_SLOTS = 4,
    MAX_PARTS = 3,
    MAX_LENGTH = 8192,
    MAX_ENTRIES = 640,
    MAX_PLACES = 4096,
    ENOUGH_FAILURES = 3
};

static const struct field {
    const char *name;
    int64_t plain;
} fields[FIELDS] = {{"slots", 2},       {"heads", 1},    {"size", 1},       {"value_size", 1},
                    {"capacity", 4},    {"page", 0},     {"pages", 0},      {"rolling", 0},
                    {"pinned", 0},      {"key_type", 0}, {"value_type", 0}, {"caller", 0},
                    {"caller_pages", 0}};

/* Append part[i].slot's next part[i].count; fork part[0].slot to .count; truncate it to .count;
 * reset; get tokens .count and on; query .count rows; set part[0].slot's pages for .count tokens: the
 * first part[1].count pages of part[1].slot, then part[2].count from number part[2].slot on. */
struct operation {
    char kind; /* a f t r g q s */
    int parts;
    struct {
        int64_t slot, count;
    } part[MAX_PARTS];
};

struct script {
    int64_t f[FIELDS];
    int count;
    struct operation ops[MAX_OPS];
};

static int planted;

/* ---- text -------------------------------------------------------------------------------------
 */

static const char *text_of(const struct script *s)
{
    static char text[4000];
    int used = 0;
    for (int i = 0; i < FIELDS; i++)
        if (s->f[i] != fields[i].plain)
            used += snprintf(text + used, sizeof text - (size_t)used, "%s=%lld ", fields[i].name,
                             (long long)s->f[i]);
    used += snprintf(text + used, sizeof text - (size_t)used, "ops=");
    for (int n = 0; n < s->count; n++) {
        const struct operation *op = &s->ops[n];
        used += snprintf(text + used, sizeof text - (size_t)used, "%s%c", n ? "," : "", op->kind);
        for (int i = 0; i < op->parts; i++)
            used += snprintf(text + used, sizeof text - (size_t)used, "%s%lld.%lld", i ? "+" : "",
                             (long long)op->part[i].slot, (long long)op->part[i].count);
    }
    return text;
}

static int parse_ops(struct script *s, const char *at)
{
    for (s->count = 0; *at && s->count < MAX_OPS; at += *at == ',') {
        struct operation *op = &s->ops[s->count++];
        char *end;
        op->kind = *at++;
        for (op->parts = 0; op->parts < MAX_PARTS; at++) {
            op->part[op->parts].slot = strtoll(at, &end, 10);
            if (end == at || *end != '.')
                return 0;
            op->part[op->parts].count = strtoll(end + 1, &end, 10);
            op->parts++;
            at = end;
            if (*at != '+')
                break;
        }
        if (*at && *at != ',')
            return 0;
    }
    return *at == '\0';
}

static int parse(struct script *s, const char *text)
{
    for (int i = 0; i < FIELDS; i++)
        s->f[i] = fields[i].plain;
    while (*text) {
        const size_t name = strcspn(text, "=");
        int i = 0;
        if (strncmp(text, "ops=", 4) == 0)
            return parse_ops(s, text + 4);
        while (i < FIELDS &&
               (strlen(fields[i].name) != name || strncmp(fields[i].name, text, name) != 0))
            i++;
        if (i == FIELDS || text[name] != '=')
            return 0;
        s->f[i] = strtoll(text + name + 1, NULL, 10);
        text += strcspn(text, " ");
        text += strspn(text, " ");
    }
    return 0;
}

/* ---- the model --------------------------------------------------------------------------------
 */

/* Where the caller hands out the pages they are real ones, number + 1, and a token is what was last
 * written in its place, whoever wrote it; else pages are told apart only, and each slot has its own
 * tokens. */
static struct model {
    const int64_t *f;
    int64_t length[MAX_SLOTS], first[MAX_SLOTS];
    int token[MAX_SLOTS][MAX_LENGTH];
    int page[MAX_SLOTS][MAX_ENTRIES]; /* 0: none */
    int place[MAX_PLACES];            /* the token in each place of the caller's pages; 0: none */
    int tokens, pages;                /* numbers given so far */
    int64_t entries, page_size, ring, all_pages;
} model, next;

static int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static void model_begin(const struct script *s)
{
    memset(&model, 0, sizeof model);
    model.f = s->f;
    model.page_size = s->f[PAGE] ? s->f[PAGE] : s->f[CAPACITY];
    model.entries = divide_up(s->f[CAPACITY], model.page_size);
    model.ring = s->f[CAPACITY] - s->f[PINNED];
    model.all_pages = s->f[PAGES] ? s->f[PAGES] : s->f[SLOTS] * model.entries;
    for (int i = 0; i < MAX_SLOTS; i++)
        model.first[i] = s->f[PINNED];
}

static int is_kept(const struct model *m, int64_t slot, int64_t token)
{
    return token < m->length[slot] && (token < m->f[PINNED] || token >= m->first[slot]);
}

/* Behind the pinned ones entries come round. */
static int64_t entry_of(const struct model *m, int64_t token)
{
    while (m->f[ROLLING] && token >= m->f[CAPACITY])
        token -= m->ring;
    return token / m->page_size;
}

static int *token_at(struct model *m, int64_t slot, int64_t token)
{
    const int64_t page = m->page[slot][entry_of(m, token)] - 1;
    return m->f[HANDED] ? &m->place[page * m->page_size + token % m->page_size]
                        : &m->token[slot][token];
}

static int users(const struct model *m, int page)
{
    int count = 0;
    for (int64_t s = 0; s < m->f[SLOTS]; s++)
        for (int64_t e = 0; e < m->entries; e++)
            count += m->page[s][e] == page;
    return count;
}

static int64_t free_pages(const struct model *m)
{
    int64_t used = 0;
    for (int64_t s = 0; s < m->f[SLOTS]; s++)
        for (int64_t e = 0; e < m->entries; e++) {
            int before = m->page[s][e] == 0;
            for (int64_t t = 0; t <= s && !before; t++)
                for (int64_t d = 0; d < (t < s ? m->entries : e) && !before; d++)
                    before = m->page[t][d] == m->page[s][e];
            used += !before;
        }
    return m->f[PAGE] && !m->f[HANDED] ? m->all_pages - used : 0;
}

static void drop_pages(struct model *m, int64_t slot)
{
    int needed[MAX_ENTRIES] = {0};
    for (int64_t t = 0; t < m->length[slot]; t++)
        if (is_kept(m, slot, t))
            needed[entry_of(m, t)] = 1;
    for (int64_t e = 0; e < m->entries; e++)
        if (!needed[e])
            m->page[slot][e] = 0;
}

/* The tokens of one more append; *clash: two of them in one place, which a caller must not do. */
static void put_tokens(struct model *m, const struct operation *op, int *clash)
{
    const int before = m->tokens;
    for (int i = 0; i < op->parts; i++) {
        const int64_t slot = op->part[i].slot;
        for (int64_t k = 0; k < op->part[i].count; k++) {
            const int64_t t = m->length[slot]++;
            int *page = &m->page[slot][entry_of(m, t)];
            if (!m->f[HANDED] &&
                (*page == 0 || (users(m, *page) > 1 && !(planted && t % m->page_size))))
                *page = ++m->pages;
            int *token = token_at(m, slot, t);
            *clash |= m->f[HANDED] && *token > before;
            *token = ++m->tokens;
        }
        if (m->f[ROLLING] && m->length[slot] - m->ring > m->first[slot])
            m->first[slot] = m->length[slot] - m->ring;
    }
}

static headway_status model_append(struct model *m, const struct operation *op, int *clash)
{
    for (int i = 0; i < op->parts; i++) {
        const int64_t slot = op->part[i].slot, count = op->part[i].count;
        if (slot >= m->f[SLOTS])
            return HEADWAY_ERROR_ARGUMENT;
        for (int k = 0; k < i; k++)
            if (op->part[k].slot == slot)
                return HEADWAY_ERROR_ARGUMENT;
        const int64_t from = m->length[slot] > m->f[PINNED] ? m->length[slot] : m->f[PINNED];
        if (m->f[ROLLING] ? m->length[slot] + count - from > m->ring
                          : m->length[slot] + count > m->f[CAPACITY])
            return HEADWAY_ERROR_ARGUMENT;
    }
    for (int i = 0; m->f[HANDED] && i < op->parts; i++)
        for (int64_t k = 0; k < op->part[i].count; k++) {
            const int64_t slot = op->part[i].slot;
            if (m->page[slot][entry_of(m, m->length[slot] + k)] == 0)
                return HEADWAY_ERROR_MEMORY;
        }
    put_tokens(m, op, clash);
    return free_pages(m) < 0 ? HEADWAY_ERROR_MEMORY : HEADWAY_OK;
}

static headway_status model_fork(struct model *m, int64_t from, int64_t to)
{
    if (from >= m->f[SLOTS] || to >= m->f[SLOTS] || from == to)
        return HEADWAY_ERROR_ARGUMENT;
    m->length[to] = m->length[from];
    m->first[to] = m->first[from];
    memcpy(m->token[to], m->token[from], sizeof m->token[to]);
    memcpy(m->page[to], m->page[from], sizeof m->page[to]);
    return HEADWAY_OK;
}

static headway_status model_cut(struct model *m, int64_t slot, int64_t length, int reset)
{
    if (slot >= m->f[SLOTS] || length > m->length[slot])
        return HEADWAY_ERROR_ARGUMENT;
    m->length[slot] = length;
    if (m->first[slot] > length || reset)
        m->first[slot] = length > m->f[PINNED] ? length : m->f[PINNED];
    if (!m->f[HANDED])
        drop_pages(m, slot);
    else if (reset)
        memset(m->page[slot], 0, sizeof m->page[slot]);
    return HEADWAY_OK;
}

/* The numbers that the operation hands to its slot. */
static int64_t handed_pages(const struct model *m, const struct operation *op, int32_t *pages)
{
    int64_t count = 0;
    if (op->parts > 1 && op->part[1].slot < m->f[SLOTS])
        while (count < op->part[1].count && count < m->entries &&
               m->page[op->part[1].slot][count] != 0) {
            pages[count] = m->page[op->part[1].slot][count] - 1;
            count++;
        }
    for (int64_t k = 0; op->parts > 2 && k < op->part[2].count && count <= m->entries; k++) {
        const int64_t page = op->part[2].slot;
        pages[count++] = (int32_t)(page < m->all_pages ? (page + k) % m->all_pages : page);
    }
    return count;
}

/* All tokens that would be kept have been written. */
static int all_written(struct model *m, int64_t slot)
{
    for (int64_t t = 0; t < m->length[slot]; t++)
        if (is_kept(m, slot, t) && *token_at(m, slot, t) == 0)
            return 0;
    return 1;
}

/* *length becomes what is written of it, as a caller would say. */
static headway_status model_set(struct model *m, int64_t slot, const int32_t *pages, int64_t count,
                                int64_t *length)
{
    const int goes_round = m->f[ROLLING] && count == m->entries;
    const int64_t held = count * m->page_size;
    if (!m->f[HANDED] || slot >= m->f[SLOTS] || count > m->entries)
        return HEADWAY_ERROR_ARGUMENT;
    for (int64_t e = 0; e < count; e++)
        if (pages[e] >= m->all_pages)
            return HEADWAY_ERROR_ARGUMENT;
    if (!goes_round && *length > (held < m->f[CAPACITY] ? held : m->f[CAPACITY]))
        return HEADWAY_ERROR_ARGUMENT;
    for (int64_t e = 0; e < m->entries; e++)
        m->page[slot][e] = e < count ? pages[e] + 1 : 0;
    do {
        const int64_t behind = *length - m->ring;
        m->length[slot] = *length;
        m->first[slot] = behind > m->f[PINNED] ? behind : m->f[PINNED];
    } while (!all_written(m, slot) && (*length)--);
    return HEADWAY_OK;
}

/* ---- the cache --------------------------------------------------------------------------------
 */

static float *floats(int64_t count)
{
    float *memory = malloc((size_t)(count > 0 ? count : 1) * sizeof *memory);
    if (!memory) {
        perror("test");
        exit(1);
    }
    return memory;
}

/* One of a slot's tokens as it is appended, or stored. */
static void token_of(const struct model *m, int number, int value, int stored, float *line)
{
    static const headway_dtype dtypes[] = {HEADWAY_F32, HEADWAY_F16, HEADWAY_BF16, HEADWAY_I8};
    const int64_t heads = m->f[HEADS], size = m->f[value ? VALUE_SIZE : SIZE];
    tokens_fill(line, (uint64_t)value, 0, number, 1, heads, size);
    for (int64_t h = 0; stored && h < heads; h++)
        stored_values(line + h * size, size, dtypes[m->f[value ? VALUE : KEY]]);
}

static headway_status cache_append(headway_kv_cache *cache, const struct model *after,
                                   const struct operation *op)
{
    int64_t slots[MAX_PARTS], lengths[MAX_PARTS], longest = 0;
    headway_tensor t[2];
    float *data[2];
    for (int i = 0; i < op->parts; i++) {
        slots[i] = op->part[i].slot;
        lengths[i] = op->part[i].count;
        longest = lengths[i] > longest ? lengths[i] : longest;
    }
    for (int v = 0; v < 2; v++) {
        const int64_t heads = after->f[HEADS], size = after->f[v ? VALUE_SIZE : SIZE];
        const int64_t shape[4] = {op->parts, longest, heads, size};
        int number = model.tokens;
        data[v] = floats(op->parts * longest * heads * size);
        check_poison(data[v], op->parts * longest * heads * size);
        for (int i = 0; i < op->parts; i++)
            for (int64_t k = 0; k < lengths[i]; k++)
                token_of(after, ++number, v, 0, data[v] + (i * longest + k) * heads * size);
        t[v] = headway_tensor_dense(data[v], HEADWAY_F32, 4, shape);
    }
    const headway_status status = headway_kv_cache_append(cache, slots, lengths, &t[0], &t[1]);
    free(data[0]);
    free(data[1]);
    return status;
}

/* The slot's tokens `first` and on as the model has them stored; those that are gone are NaN. */
static float *expected_lines(int64_t slot, int64_t first, int64_t count, int value)
{
    const int64_t width = model.f[HEADS] * model.f[value ? VALUE_SIZE : SIZE];
    float *lines = floats(count * width);
    check_poison(lines, count * width);
    for (int64_t i = 0; i < count; i++)
        if (is_kept(&model, slot, first + i))
            token_of(&model, *token_at(&model, slot, first + i), value, 1, lines + i * width);
    return lines;
}

static void expect_part(headway_kv_cache *cache, int64_t slot, int64_t first, int64_t count)
{
    headway_status expected = slot >= model.f[SLOTS] || first + count > model.length[slot]
                                  ? HEADWAY_ERROR_ARGUMENT
                                  : HEADWAY_OK;
    headway_tensor t[2];
    for (int64_t i = 0; expected == HEADWAY_OK && i < count; i++)
        if (!is_kept(&model, slot, first + i))
            expected = HEADWAY_ERROR_ARGUMENT;
    for (int v = 0; v < 2; v++) {
        const int64_t shape[3] = {count, model.f[HEADS], model.f[v ? VALUE_SIZE : SIZE]};
        t[v] = headway_tensor_dense(floats(count * shape[1] * shape[2]), HEADWAY_F32, 3, shape);
    }
    const headway_status got = headway_kv_cache_read(cache, slot, first, &t[0], &t[1]);
    CHECK(got == expected, "read of %lld from %lld of slot %lld: %s", (long long)count,
          (long long)first, (long long)slot, headway_status_text(got));
    for (int v = 0; v < 2; v++) {
        if (got == HEADWAY_OK && expected == HEADWAY_OK) {
            float *lines = expected_lines(slot, first, count, v);
            check_bits(t[v].data, lines, count * t[v].shape[1] * t[v].shape[2],
                       v ? "values" : "keys");
            free(lines);
        }
        free(t[v].data);
    }
}

/* All slots: their states, and all that is kept. */
static void expect_all(headway_kv_cache *cache)
{
    const int64_t free_now = free_pages(&model), pinned = model.f[PINNED];
    for (int64_t s = 0; s < model.f[SLOTS]; s++) {
        const headway_kv_cache_state state = state_of(cache, s);
        int64_t pages = 0;
        for (int64_t e = 0; model.f[PAGE] && e < model.entries; e++)
            pages += model.page[s][e] != 0;
        CHECK(state.length == model.length[s] && state.first == model.first[s] &&
                  state.pages == pages && state.pages_free == free_now,
              "slot %lld: length %lld, first %lld, pages %lld, free %lld; expected %lld %lld %lld "
              "%lld",
              (long long)s, (long long)state.length, (long long)state.first, (long long)state.pages,
              (long long)state.pages_free, (long long)model.length[s], (long long)model.first[s],
              (long long)pages, (long long)free_now);
        if (state.length != model.length[s] || state.first != model.first[s])
            continue;
        expect_part(cache, s, 0, model.length[s] < pinned ? model.length[s] : pinned);
        if (model.length[s] > model.first[s])
            expect_part(cache, s, model.first[s], model.length[s] - model.first[s]);
    }
}

/* The last rows of a slot, as far back as it keeps keys, against a plain call. */
static void query_slot(headway_kv_cache *cache, int64_t slot, int64_t count, int n)
{
    if (slot >= model.f[SLOTS] || model.length[slot] - model.first[slot] < count)
        return;
    const int64_t heads = 2 * model.f[HEADS], size = model.f[SIZE], width = model.f[VALUE_SIZE],
                  length = model.length[slot];
    const int64_t query[4] = {1, count, heads, size}, out[4] = {1, count, heads, width},
                  key[4] = {1, length, model.f[HEADS], size},
                  value[4] = {1, length, model.f[HEADS], width};
    static _Alignas(64) unsigned char workspace[1 << 22];
    const headway_engine *engine = rows[n % row_count].engine[n / 2 % THREADS];
    headway_attention_params params = HEADWAY_ATTENTION_PARAMS_INIT;
    headway_tensor t[2];
    params.causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
    if (model.first[slot] > model.f[PINNED]) {
        params.window_left = length - count - model.first[slot];
        params.window_first = model.f[PINNED];
    }
    const headway_tensor q =
        headway_tensor_dense(floats(count * heads * size), HEADWAY_F32, 4, query);
    tokens_fill(q.data, 9, n, 0, count, heads, size);
    for (int i = 0; i < 2; i++)
        t[i] = headway_tensor_dense(floats(count * heads * width), HEADWAY_F32, 4, out);
    const headway_tensor keys =
        headway_tensor_dense(expected_lines(slot, 0, length, 0), HEADWAY_F32, 4, key);
    const headway_tensor values =
        headway_tensor_dense(expected_lines(slot, 0, length, 1), HEADWAY_F32, 4, value);
    CHECK(headway_attention(engine, &params, &q, &keys, &values, &t[0], workspace,
                            sizeof workspace) == HEADWAY_OK,
          "plain");
    params.cache = cache;
    params.cache_slots = &slot;
    params.shared_prefix = length;
    const headway_status status =
        headway_attention(engine, &params, &q, NULL, NULL, &t[1], workspace, sizeof workspace);
    CHECK(status == HEADWAY_OK, "attention on slot %lld: %s", (long long)slot,
          headway_status_text(status));
    check_bits(t[1].data, t[0].data, count * heads * width, "attention");
    free(q.data);
    free(keys.data);
    free(values.data);
    free(t[0].data);
    free(t[1].data);
}

static headway_kv_cache_config config_of(const struct script *s)
{
    static const headway_dtype dtypes[] = {HEADWAY_F32, HEADWAY_F16, HEADWAY_BF16, HEADWAY_I8};
    headway_kv_cache_config config = config_make(s->f[SLOTS], s->f[CAPACITY], s->f[PAGE],
                                                 dtypes[s->f[KEY] & 3], dtypes[s->f[VALUE] & 3]);
    config.kv_heads = s->f[HEADS];
    config.head_size = s->f[SIZE];
    config.value_head_size = s->f[VALUE_SIZE];
    config.pages = s->f[PAGES];
    config.rolling = (int)s->f[ROLLING];
    config.pinned = s->f[PINNED];
    config.caller_pages = (int)s->f[HANDED];
    return config;
}

static void step(headway_kv_cache *cache, const struct operation *op, int n)
{
    const int64_t a = op->part[0].slot, b = op->part[0].count;
    struct bytes before = bytes_of(cache);
    headway_status expected = HEADWAY_OK, got = HEADWAY_OK;
    int32_t pages[MAX_ENTRIES + 2];
    int64_t count, length = b;
    int clash = 0;
    next = model;
    switch (op->kind) {
    case 'a':
        expected = model_append(&next, op, &clash);
        if (clash)
            next = model;
        else
            got = cache_append(cache, &next, op);
        break;
    case 's':
        count = handed_pages(&model, op, pages);
        expected = model_set(&next, a, pages, count, &length);
        got = headway_kv_cache_set_pages(cache, a, pages, count, length);
        break;
    case 'f':
        expected = model_fork(&next, a, b);
        got = headway_kv_cache_fork(cache, a, b);
        break;
    case 't':
        expected = model_cut(&next, a, b, 0);
        got = headway_kv_cache_truncate(cache, a, b);
        break;
    case 'r':
        expected = model_cut(&next, a, 0, 1);
        got = headway_kv_cache_reset(cache, a);
        break;
    case 'g':
        expect_part(cache, a, b, a < model.f[SLOTS] ? model.length[a] / 2 : 0);
        break;
    default:
        query_slot(cache, a, b, n);
    }
    CHECK(got == expected, "operation %d: %s, expected %s", n, headway_status_text(got),
          headway_status_text(expected));
    if (expected == HEADWAY_OK) {
        model = next;
        bytes_free(&before);
    } else {
        bytes_same(&before, cache, "an error");
    }
    expect_all(cache);
}

static void run(const struct script *s)
{
    headway_kv_cache_config config = config_of(s);
    struct caller memory = {.arena = {.used = 0}};
    if (s->f[CALLER])
        caller_make(&memory, &config, (int)s->f[CALLER] - 1, s->count % 2);
    headway_kv_cache *cache = cache_make(rows[0].engine[THREADS - 1], &config);
    model_begin(s);
    for (int n = 0; n < s->count; n++)
        step(cache, &s->ops[n], n);
    headway_kv_cache_destroy(cache);
    arena_release(&memory.arena);
}

/* ---- drawing ----------------------------------------------------------------------------------
 */

static int64_t below(uint64_t *state, int64_t n)
{
    return n > 0 ? (int64_t)(check_random(state) % (uint64_t)n) : 0;
}

static int64_t pages_of(const struct script *s)
{
    return s->f[PAGES] ? s->f[PAGES] : s->f[SLOTS] * divide_up(s->f[CAPACITY], s->f[PAGE]);
}

static int is_valid(const struct script *s)
{
    const int64_t *f = s->f, page = f[PAGE];
    int64_t appended = 0; /* a slot's tokens stay within the model's */
    if (f[SLOTS] < 1 || f[SLOTS] > MAX_SLOTS || f[HEADS] < 1 || f[SIZE] < 1 || f[VALUE_SIZE] < 1 ||
        f[CAPACITY] < 1 || page < 0 || page > 256 || (page & (page - 1)) != 0 || f[PAGES] < 0 ||
        (!page && (f[PAGES] || f[PINNED])) || f[KEY] < 0 || f[VALUE] < 0 || f[CALLER] < 0 ||
        f[CAPACITY] > MAX_ENTRIES || f[HANDED] < 0 || (f[HANDED] && !page) ||
        (f[HANDED] && pages_of(s) * page > MAX_PLACES) || (!f[ROLLING] && f[PINNED]) ||
        f[PINNED] < 0 || f[PINNED] >= f[CAPACITY] || (f[ROLLING] && page && f[CAPACITY] % page) ||
        (page && f[PINNED] % page))
        return 0;
    for (int n = 0; n < s->count; n++)
        for (int i = 0; i < s->ops[n].parts; i++) {
            if (s->ops[n].part[i].slot < 0 || s->ops[n].part[i].count < 0)
                return 0;
            if (s->ops[n].kind == 'a' || (s->ops[n].kind == 's' && i == 0))
                appended += s->ops[n].part[i].count;
        }
    return f[ROLLING] >= 0 && appended <= MAX_LENGTH;
}

/* Pages that a slot has, grown, shared or given up, and any others behind them. */
static void draw_pages(uint64_t *r, const struct script *s, struct operation *op)
{
    const int64_t capacity = s->f[CAPACITY], pages = s->f[PAGE] ? pages_of(s) : 1;
    const int64_t entries = s->f[PAGE] ? divide_up(capacity, s->f[PAGE]) : 1;
    op->part[0].count = below(r, s->f[ROLLING] ? 3 * capacity : capacity + 2);
    op->part[1].slot = below(r, s->f[SLOTS]);
    op->part[1].count = below(r, entries + 1);
    op->part[2].slot = below(r, pages + (below(r, 40) == 0));
    op->part[2].count = below(r, 2) ? entries - op->part[1].count : below(r, entries + 2);
    op->parts = 3;
}

static void draw_operation(uint64_t *r, const struct script *s, struct operation *op)
{
    static const char kinds[] = "aaaaaaaaffttrgqq";
    const int64_t slots = s->f[SLOTS] + (below(r, 40) == 0), capacity = s->f[CAPACITY];
    op->kind = below(r, s->f[HANDED] ? 4 : 60) == 0 ? 's' : kinds[below(r, COUNT(kinds) - 1)];
    op->parts = op->kind == 'a' ? 1 + (int)below(r, MAX_PARTS) : 1;
    for (int i = 0; i < op->parts; i++) {
        op->part[i].slot = below(r, slots);
        op->part[i].count = op->kind == 'f'   ? below(r, slots)
                            : op->kind == 'q' ? 1 + below(r, 4)
                            : op->kind == 'r' ? 0
                            : op->kind == 'a' ? below(r, below(r, 2) ? capacity + 2 : 5)
                                              : below(r, capacity + 2);
    }
    if (op->kind == 's')
        draw_pages(r, s, op);
}

static struct script draw(uint64_t seed)
{
    struct script s = {.count = 0};
    uint64_t r = seed;
    do {
        const int64_t page = below(&r, 4) ? (int64_t)1 << below(&r, below(&r, 3) ? 4 : 9) : 0;
        s.f[SLOTS] = 1 + below(&r, MAX_SLOTS);
        s.f[HEADS] = 1 + below(&r, 2);
        s.f[SIZE] = 1 + below(&r, 5);
        s.f[VALUE_SIZE] = 1 + below(&r, 5);
        s.f[PAGE] = page;
        s.f[CAPACITY] = 1 + (page > 8 ? below(&r, 2 * page + 9) : below(&r, 24));
        s.f[ROLLING] = below(&r, 3) == 0;
        if (s.f[ROLLING] && page)
            s.f[CAPACITY] = divide_up(s.f[CAPACITY], page) * page;
        s.f[PINNED] = s.f[ROLLING] && page ? below(&r, s.f[CAPACITY] / page) * page : 0;
        s.f[PAGES] =
            page && below(&r, 2) ? 1 + below(&r, s.f[SLOTS] * divide_up(s.f[CAPACITY], page)) : 0;
        s.f[KEY] = below(&r, 4);
        s.f[VALUE] = below(&r, 4);
        s.f[CALLER] = below(&r, 4);
        s.f[HANDED] = page && below(&r, 3) == 0;
        s.count = 3 + (int)below(&r, MAX_OPS - 2);
        for (int n = 0; n < s.count; n++)
            draw_operation(&r, &s, &s.ops[n]);
    } while (!is_valid(&s));
    return s;
}

/* ---- shrinking --------------------------------------------------------------------------------
 */

static char current[4200];

static void say_where(int number)
{
    (void)!write(STDOUT_FILENO, current, strlen(current));
    signal(number, SIG_DFL);
    raise(number);
}

static int fails(const struct script *s, const char **text)
{
    snprintf(current, sizeof current, "ended in: check_cache --seconds 1 --case \"%s\"\n",
             text_of(s));
    check_trial_begin();
    run(s);
    return check_trial_end(text);
}

static void remove_op(struct script *s, int n, int count)
{
    memmove(&s->ops[n], &s->ops[n + count], (size_t)(s->count - n - count) * sizeof *s->ops);
    s->count -= count;
}

/* A smaller number in place of x; the n-th try. */
static int64_t smaller(int64_t x, int n)
{
    return n == 0 ? 0 : n == 1 ? 1 : n == 2 ? x / 2 : x - 1;
}

/* The n-th simpler script than s; 0 when there are no more. */
static int simpler(const struct script *s, int n, struct script *to)
{
    *to = *s;
    for (int count = s->count; count >= 1; count = count == 1 ? 0 : (count + 1) / 2) {
        const int places = s->count - count + 1;
        if (n < places) {
            remove_op(to, n, count);
            return 1;
        }
        n -= places;
    }
    if (n < s->count * MAX_PARTS * 9) {
        struct operation *op = &to->ops[n / (MAX_PARTS * 9)];
        const int part = n / 9 % MAX_PARTS, what = n % 9;
        if (part >= op->parts)
            return 1;
        if (what == 8 && op->parts > 1)
            op->part[part] = op->part[--op->parts];
        else if (what < 4)
            op->part[part].slot = smaller(op->part[part].slot, what);
        else if (what < 8)
            op->part[part].count = smaller(op->part[part].count, what - 4);
        return 1;
    }
    n -= s->count * MAX_PARTS * 9;
    if (n >= FIELDS * 4)
        return 0;
    to->f[n / 4] = n % 4 == 0 ? fields[n / 4].plain : smaller(s->f[n / 4], n % 4);
    return 1;
}

/* Of two scripts, the sum of all that makes one large. */
static int64_t weight(const struct script *s)
{
    int64_t sum = (int64_t)s->count * 1000;
    for (int n = 0; n < s->count; n++)
        for (int i = 0; i < s->ops[n].parts; i++)
            sum += 10 + s->ops[n].part[i].slot + s->ops[n].part[i].count;
    for (int i = 0; i < FIELDS; i++)
        sum += 20 * (s->f[i] != fields[i].plain) + (s->f[i] > 0 ? s->f[i] : 0);
    return sum;
}

static struct script shrink(struct script s)
{
    struct script to;
    const char *text;
    for (int improved = 1; improved;) {
        improved = 0;
        for (int n = 0; simpler(&s, n, &to); n++)
            while (weight(&to) < weight(&s) && is_valid(&to) && fails(&to, &text)) {
                s = to;
                improved = 1;
                if (!simpler(&s, n, &to))
                    break;
            }
    }
    return s;
}

static void report(const struct script *found, const char *text)
{
    printf("found (%s):\n  check_cache --seconds 1 --case \"%s\"\n", text, text_of(found));
    const struct script s = shrink(*found);
    printf("shrunk:\n  check_cache --seconds 1 --case \"%s\"\n", text_of(&s));
    if (planted) {
        check_case("plant");
        /* One token, a fork, one more token in the page that both have: any two slots. */
        CHECK(s.count == 3 && strncmp(text_of(&s), "page=2 ops=a", 12) == 0 &&
                  s.ops[0].part[0].count == 1 && s.ops[1].kind == 'f' && s.ops[2].kind == 'a' &&
                  s.ops[2].part[0].count == 1 && s.ops[2].parts == 1,
              "not shrunk as far as it goes");
    } else if (check_case("%s", text_of(&s))) {
        run(&s);
    }
}

void check_random_operations(int64_t seconds, int plant)
{
    static const int signals[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL};
    const time_t begun = time(NULL), end = begun + (plant ? 600 : seconds);
    int64_t count = 0, operations = 0;
    int failures = 0;
    struct script s;
    const char *text;
    planted = plant;
    for (int i = 0; i < COUNT(signals); i++)
        signal(signals[i], say_where);
    if (check_only()) {
        if (!parse(&s, check_only()) || !is_valid(&s)) {
            fprintf(stderr, "check_cache: no such operations: %s\n", check_only());
            exit(2);
        }
        if (check_case("%s", check_only()))
            run(&s);
        return;
    }
    while (failures < ENOUGH_FAILURES && time(NULL) < end) {
        s = draw(check_seed * 1000003 + (uint64_t)count++);
        operations += s.count;
        if (!fails(&s, &text))
            continue;
        report(&s, text);
        failures++;
        if (planted)
            return;
    }
    check_case("drawn from seed %llu", (unsigned long long)check_seed);
    CHECK(!planted, "the planted fault was not found");
    printf("%lld operations in %lld sequences drawn from seed %llu in %lld seconds\n",
           (long long)operations, (long long)count, (unsigned long long)check_seed,
           (long long)(time(NULL) - begun));
}

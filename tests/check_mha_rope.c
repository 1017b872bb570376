/* Rotary embedding, norms and appended keys: the tables against known answers and the C library,
 * layers against what they must be equal to. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check_mha.h"
#include "core/rope.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

/* ---- tables ------------------------------------------------------------------------------------
 */

static const double short_factors[8] = {1, 1.02, 1.05, 1.1, 1.2, 1.5, 2, 3};
static const double long_factors[8] = {1, 1.5, 2.5, 4, 7, 12, 20, 32};

/* Rotary size 16. The answers are those of modeling_rope_utils.py of transformers 5.24.0, its
 * functions run on numpy's doubles. */
static const struct {
    const char *name;
    headway_rope_config c;
    double factor, frequency[8];
} known[] = {
    {"linear",
     {.positions = 2048, .scaling = HEADWAY_ROPE_LINEAR, .factor = 4},
     1,
     {0.25, 0.079056941504209485, 0.025, 0.0079056941504209478, 0.0025, 0.00079056941504209496,
      0.00025, 7.9056941504209485e-05}},
    {"dynamic",
     {.positions = 8192, .scaling = HEADWAY_ROPE_DYNAMIC, .factor = 4, .original_positions = 2048},
     1,
     {1, 0.21921245982043136, 0.048054102540524245, 0.01053405802237156, 0.0023091967709752185,
      0.00050620470437487495, 0.00011096637841869062, 2.4325212770525999e-05}},
    {"dynamic, not longer",
     {.positions = 2048, .scaling = HEADWAY_ROPE_DYNAMIC, .factor = 4, .original_positions = 2048},
     1,
     {1, 0.31622776601683794, 0.1, 0.031622776601683791, 0.01, 0.0031622776601683798, 0.001,
      0.00031622776601683794}},
    {"llama3",
     {.theta = 500000,
      .positions = 131072,
      .scaling = HEADWAY_ROPE_LLAMA3,
      .factor = 8,
      .original_positions = 8192,
      .low_freq_factor = 1,
      .high_freq_factor = 4},
     1,
     {1, 0.19392274474868576, 0.037606030930863933, 0.0072926647372171085, 0.00052484616099295468,
      3.4281021959525912e-05, 6.6478698711812362e-06, 1.2891731721515574e-06}},
    {"yarn",
     {.positions = 16384, .scaling = HEADWAY_ROPE_YARN, .factor = 4, .original_positions = 4096},
     1.1386294361119891,
     {1, 0.31622776601683794, 0.1, 0.02569350598886808, 0.00625, 0.0013834964763236662, 0.00025,
      7.9056941504209485e-05}},
    {"yarn, not truncated",
     {.theta = 150000,
      .positions = 16384,
      .scaling = HEADWAY_ROPE_YARN,
      .factor = 32,
      .original_positions = 4096,
      .no_truncate = 1},
     1.3465735902799727,
     {1, 0.22541800020287081, 0.050813274815461475, 0.0067949594897322189, 0.00045648391922324086,
      1.818833668168956e-05, 4.0999784818029795e-06, 9.242089502428301e-07}},
    {"yarn, mscale and betas",
     {.positions = 16384,
      .scaling = HEADWAY_ROPE_YARN,
      .factor = 40,
      .original_positions = 4096,
      .beta_fast = 16,
      .beta_slow = 2,
      .mscale = 1,
      .mscale_all_dim = 0.707},
     1.0857263992561355,
     {1, 0.31622776601683794, 0.1, 0.031622776601683791, 0.0067500000000000017,
      0.0011067971810589331, 2.5e-05, 7.9056941504209471e-06}},
    {"yarn, attention factor",
     {.positions = 16384,
      .scaling = HEADWAY_ROPE_YARN,
      .factor = 40,
      .original_positions = 4096,
      .attention_factor = 1.25},
     1.25,
     {1, 0.31622776601683794, 0.1, 0.023914724805023366, 0.005125, 0.00084986212117025206, 2.5e-05,
      7.9056941504209471e-06}},
    {"longrope, short",
     {.positions = 4096,
      .scaling = HEADWAY_ROPE_LONGROPE,
      .factor = 32,
      .original_positions = 4096,
      .short_factors = short_factors,
      .long_factors = long_factors},
     1.1902380714238083,
     {1, 0.31002722158513518, 0.095238095238095233, 0.028747978728803449, 0.0083333333333333332,
      0.0021081851067789197, 0.0005, 0.00010540925533894597}},
    {"longrope, long",
     {.positions = 4097,
      .scaling = HEADWAY_ROPE_LONGROPE,
      .factor = 32,
      .original_positions = 4096,
      .short_factors = short_factors,
      .long_factors = long_factors},
     1.1902380714238083,
     {1, 0.21081851067789195, 0.04, 0.0079056941504209478, 0.0014285714285714286,
      0.00026352313834736497, 5e-05, 9.8821176880261856e-06}}};

static void check_known(void)
{
    for (int n = 0; n < COUNT(known); n++) {
        const headway_rope_config *c = &known[n].c;
        if (!check_case("rotary tables: %s", known[n].name))
            continue;
        const double factor = headway_rope_factor(c);
        CHECK(fabs(factor / known[n].factor - 1) < 1e-14, "factor %.17g, expected %.17g", factor,
              known[n].factor);
        for (int64_t k = 0; k < 8; k++) {
            const double f = headway_rope_frequency(c, 16, k);
            CHECK(fabs(f / known[n].frequency[k] - 1) < 1e-13, "frequency %.17g, expected %.17g", f,
                  known[n].frequency[k]);
        }
        headway_rope_config few = *c;
        float cosine[100 * 8], sine[100 * 8];
        if (c->scaling == HEADWAY_ROPE_DYNAMIC || c->scaling == HEADWAY_ROPE_LONGROPE)
            continue; /* fewer positions are another table */
        few.positions = 100;
        headway_rope_tables(&few, 16, cosine, sine);
        for (int x = 0; x < 100 * 8; x++) {
            const double angle = x / 8 * known[n].frequency[x % 8];
            CHECK(fabs(cosine[x] - known[n].factor * cos(angle)) < 0x1p-24 &&
                      fabs(sine[x] - known[n].factor * sin(angle)) < 0x1p-24,
                  "%g and %g for an angle of %g", (double)cosine[x], (double)sine[x], angle);
        }
    }
}

/* How far rounded is from exact, in units in its last place. */
static double ulps(float rounded, long double exact)
{
    const float size = fabsf(rounded) < 0x1p-126f ? 0x1p-126f : fabsf(rounded);
    return (double)(fabsl(rounded - exact) / (nextafterf(size, INFINITY) - size));
}

/* Frequencies of 40 bits times positions of 20 are exact in the C library's long double. */
static void check_turns(void)
{
    uint64_t random = check_seed;
    double worst = 0, length = 0;
    if (!check_case("rotary tables: sine and cosine against the C library"))
        return;
    for (int n = 0; n < 200000; n++) {
        const double f = ldexp((double)(check_random(&random) >> 24), -40 - n % 20);
        const int64_t t = (int64_t)(check_random(&random) >> (44 + n % 3 * 6));
        double c, s;
        headway_rope_turn(t, f, &c, &s);
        worst = fmax(worst, ulps((float)c, cosl((long double)t * f)));
        worst = fmax(worst, ulps((float)s, sinl((long double)t * f)));
        length = fmax(length, fabs(c * c + s * s - 1));
    }
    CHECK(worst < 0.501, "%g ulp", worst);
    CHECK(length < 0x1p-50, "a rotation is off a length of 1 by %g", length);
}

void check_tables(void)
{
    check_known();
    check_turns();
}

/* ---- layers ------------------------------------------------------------------------------------
 */

static struct layer *rotated(const struct shape *shape, headway_rope_style style, uint64_t seed)
{
    struct layer *l = layer_make(shape, NULL, seed);
    l->rope.style = style;
    l->rope.positions = 200;
    return l;
}

/* Frees the second. */
static void same_bits(const struct subject *s, const struct layer *l, struct layer *other,
                      const char *what)
{
    struct answer a = forward_once(s->engines[0], l), b = forward_once(s->engines[1], other);
    check_bits(a.out, b.out, a.outs, what);
    check_bits(a.lse, b.lse, a.lses, what);
    answer_free(&a);
    answer_free(&b);
    layer_free(other);
}

/* The same mathematics by another order: both references say the same, both answers are theirs. */
static void same_meaning(const struct subject *s, const struct layer *l, const struct layer *other)
{
    const struct layer *both[2] = {l, other};
    struct expected e[2];
    int64_t outs = 0;
    for (int n = 0; n < 2; n++) {
        struct answer a = forward_once(s->engines[n], both[n]);
        e[n] = expect_layer(both[n]);
        compare_layer(both[n], &a, &e[n]);
        outs = a.outs;
        answer_free(&a);
    }
    for (int64_t x = 0; x < outs; x++)
        CHECK(fabs(e[0].out[x] - e[1].out[x]) < 1e-9, "element %lld: %.17g and %.17g", (long long)x,
              e[0].out[x], e[1].out[x]);
    expected_free(&e[0]);
    expected_free(&e[1]);
}

static void check_given_tables(const struct subject *s)
{
    const struct shape shape = {2, 40, 40, 2, 1, 12, 8};
    float tables[2][200 * 6];
    headway_tensor cosine = {tables[0], HEADWAY_F32, 2, {200, 6}, {1, 200}}, sine = cosine;
    sine.data = tables[1] + 199;
    sine.stride[0] = -1;
    if (!check_case("%s: tables given are tables made", s->isa))
        return;
    struct layer *l = rotated(&shape, HEADWAY_ROPE_INTERLEAVED, 1);
    struct layer *other = rotated(&shape, HEADWAY_ROPE_INTERLEAVED, 1);
    for (int64_t k = 0; k < 6; k++)
        for (int64_t t = 0; t < 200; t++) {
            double c, n;
            headway_rope_turn(t, headway_rope_frequency(&l->rope, 12, k), &c, &n);
            tables[0][k * 200 + t] = (float)c;
            tables[1][k * 200 + 199 - t] = (float)n;
        }
    other->rope.positions = 0;
    other->rope.cos = &cosine;
    other->rope.sin = &sine;
    same_bits(s, l, other, "given");
    layer_free(l);
}

/* Channels of every query and key head, channel d of which becomes order[d]. */
static void permute_heads(struct layer *l, const int *order)
{
    const int64_t size = l->options->shape.size;
    for (int i = QUERY; i <= KEY; i++) {
        const int64_t inputs = inputs_of(l, i), outputs = outputs_of(l, i);
        float *weight = malloc((size_t)(outputs * inputs) * sizeof(float));
        float *bias = malloc((size_t)outputs * sizeof(float));
        for (int64_t c = 0; c < outputs; c++) {
            const int64_t to = c / size * size + order[c % size];
            memcpy(weight + to * inputs, l->weight[i] + c * inputs, (size_t)inputs * sizeof(float));
            bias[to] = l->bias[i][c];
        }
        free(l->weight[i]);
        free(l->bias[i]);
        l->weight[i] = weight;
        l->bias[i] = bias;
    }
}

static void check_styles(const struct subject *s)
{
    static const int order[8] = {0, 2, 4, 1, 3, 5, 6, 7}, identity[2] = {0, 1};
    const struct shape shape = {1, 9, 21, 4, 2, 8, 8}, pair = {1, 9, 21, 3, 3, 2, 4};
    if (check_case("%s: interleaved pairs are half pairs of permuted channels", s->isa)) {
        struct layer *l = rotated(&shape, HEADWAY_ROPE_HALF, 2);
        struct layer *other = rotated(&shape, HEADWAY_ROPE_INTERLEAVED, 2);
        l->rope.rotary_size = other->rope.rotary_size = 6;
        permute_heads(other, order);
        same_meaning(s, l, other);
        layer_free(other);
        layer_free(l);
        l = rotated(&pair, HEADWAY_ROPE_HALF, 3);
        other = rotated(&pair, HEADWAY_ROPE_INTERLEAVED, 3);
        permute_heads(other, identity);
        same_bits(s, l, other, "one pair");
        layer_free(l);
    }
    if (check_case("%s: a partial rotation is one whose other angles are 0", s->isa)) {
        float tables[2][200 * 4];
        const int64_t extents[2] = {200, 4};
        const headway_tensor cosine = headway_tensor_dense(tables[0], HEADWAY_F32, 2, extents);
        const headway_tensor sine = headway_tensor_dense(tables[1], HEADWAY_F32, 2, extents);
        struct layer *l = rotated(&shape, HEADWAY_ROPE_INTERLEAVED, 4);
        struct layer *other = rotated(&shape, HEADWAY_ROPE_INTERLEAVED, 4);
        l->rope.rotary_size = 4;
        for (int x = 0; x < 200 * 4; x++) {
            double c = 1, n = 0;
            if (x % 4 < 2)
                headway_rope_turn(x / 4, headway_rope_frequency(&l->rope, 4, x % 4), &c, &n);
            tables[0][x] = (float)c;
            tables[1][x] = (float)n;
        }
        other->rope.positions = 0;
        other->rope.cos = &cosine;
        other->rope.sin = &sine;
        same_bits(s, l, other, "partial");
        layer_free(l);
    }
}

static void place_at(struct layer *l, int projection, int64_t first)
{
    const struct shape *shape = &l->options->shape;
    const int64_t rows = projection == QUERY ? shape->queries : shape->keys;
    l->positions_batch = 0;
    l->positions[projection] = malloc((size_t)rows * sizeof(int32_t));
    for (int64_t i = 0; i < rows; i++)
        l->positions[projection][i] = (int32_t)(first + i);
}

static void check_positions(const struct subject *s)
{
    const struct shape shape = {2, 9, 21, 4, 2, 8, 8};
    if (check_case("%s: positions given are positions by default", s->isa)) {
        struct layer *l = rotated(&shape, HEADWAY_ROPE_HALF, 5);
        struct layer *other = rotated(&shape, HEADWAY_ROPE_HALF, 5);
        l->options->has_offsets = other->options->has_offsets = 1;
        for (int b = 0; b < 2; b++)
            l->options->offsets[b] = other->options->offsets[b] = 12;
        place_at(other, QUERY, 12);
        place_at(other, KEY, 0);
        same_bits(s, l, other, "offset 12");
        layer_free(l);
        l = rotated(&shape, HEADWAY_ROPE_HALF, 6);
        other = rotated(&shape, HEADWAY_ROPE_HALF, 6);
        l->options->causal = other->options->causal = HEADWAY_CAUSAL_BOTTOM_RIGHT;
        place_at(other, QUERY, 12);
        same_bits(s, l, other, "bottom-right");
        layer_free(l);
    }
    if (check_case("%s: keys have the queries' positions in self-attention", s->isa)) {
        const struct shape self = {1, 9, 9, 4, 2, 8, 8};
        struct layer *l = rotated(&self, HEADWAY_ROPE_HALF, 7);
        struct layer *other = rotated(&self, HEADWAY_ROPE_HALF, 7);
        layer_share(l, 1);
        layer_share(other, 1);
        place_at(l, QUERY, 50);
        place_at(other, QUERY, 50);
        place_at(other, KEY, 50);
        same_bits(s, l, other, "self");
        layer_free(l);
    }
    if (check_case("%s: distances count, not positions", s->isa)) {
        struct layer *l = rotated(&shape, HEADWAY_ROPE_HALF, 8);
        struct layer *other = rotated(&shape, HEADWAY_ROPE_HALF, 8);
        place_at(other, QUERY, 77);
        place_at(other, KEY, 77);
        same_meaning(s, l, other);
        layer_free(other);
        layer_free(l);
    }
}

/* Keys and values are the tokens themselves. */
static void make_identity(struct layer *l)
{
    for (int i = KEY; i <= VALUE; i++) {
        const int64_t size = outputs_of(l, i);
        memset(l->weight[i], 0, (size_t)(size * size) * sizeof(float));
        for (int64_t c = 0; c < size; c++)
            l->weight[i][c * size + c] = 1;
        layer_drop_bias(l, i);
    }
}

static void check_appended(const struct subject *s)
{
    const struct shape shape = {1, 9, 21, 2, 2, 8, 8}, longer = {1, 9, 23, 2, 2, 8, 8};
    if (check_case("%s: appended keys are keys", s->isa)) {
        struct layer *l = layer_make(&shape, NULL, 9), *other = layer_make(&longer, NULL, 9);
        make_identity(l);
        layer_more(l);
        l->zero = 1;
        make_identity(other);
        l->options->weights = other->options->weights = WEIGHTS_HEADS;
        for (int i = 0; i < PROJECTIONS; i += OUT) {
            memcpy(other->weight[i], l->weight[i], 16 * 16 * sizeof(float));
            memcpy(other->bias[i], l->bias[i], 16 * sizeof(float));
        }
        memcpy(other->tokens[QUERY], l->tokens[QUERY], 9 * 16 * sizeof(float));
        for (int i = KEY; i <= VALUE; i++) {
            memcpy(other->tokens[i], l->tokens[i], 21 * 16 * sizeof(float));
            memcpy(token(other, i, 0, 21), l->more[i], 16 * sizeof(float));
            memset(token(other, i, 0, 22), 0, 16 * sizeof(float));
        }
        same_meaning(s, l, other);
        layer_free(other);
        layer_free(l);
    }
    if (check_case("%s: a row that sees no key sees the appended one", s->isa)) {
        for (int zero = 0; zero < 2; zero++) {
            struct layer *l = layer_make(&shape, NULL, 10);
            if (zero)
                l->zero = 1;
            else
                layer_more(l);
            l->options->weights = WEIGHTS_HEADS;
            l->options->has_key_lengths = 1;
            l->options->key_lengths[0] = 0;
            struct answer a = forward_once(s->engines[0], l);
            for (int64_t line = 0; line < 2 * 9; line++)
                CHECK(a.weights[line * 22 + 21] == 1 && a.weights[line * 22 + 20] == 0,
                      "line %lld of the weights ends in %g, %g", (long long)line,
                      (double)a.weights[line * 22 + 20], (double)a.weights[line * 22 + 21]);
            for (int64_t i = 0; i < 9; i++)
                check_bits(a.out + i * 16, zero ? l->bias[OUT] : a.out, 16, "the row");
            CHECK(!zero || a.lse[5] == 0, "lse of a zero key is %g", (double)a.lse[5]);
            answer_free(&a);
            layer_free(l);
        }
    }
}

/* Norms of numbers whose squares a float can't hold. */
static void check_norm_range(const struct subject *s)
{
    const struct shape shape = {1, 7, 11, 2, 1, 20, 8};
    const float sizes[2] = {1e28f, 1e-28f};
    for (int n = 0; n < 2; n++) {
        if (!check_case("%s: norms of numbers about %g", s->isa, (double)sizes[n]))
            continue;
        struct layer *l = rotated(&shape, HEADWAY_ROPE_HALF, 11);
        layer_norms(l);
        layer_drop_bias(l, QUERY);
        layer_drop_bias(l, KEY);
        for (int64_t x = 0; x < 7 * l->widths.in[QUERY]; x++)
            l->tokens[QUERY][x] *= sizes[n];
        for (int64_t x = 0; x < 11 * l->widths.in[KEY]; x++)
            l->tokens[KEY][x] *= sizes[n];
        struct answer a = forward_once(s->engines[0], l);
        struct expected e = expect_layer(l);
        compare_layer(l, &a, &e);
        CHECK(n || e.out_bound[0] < 1e-2, "the bound says nothing: %g", e.out_bound[0]);
        answer_free(&a);
        expected_free(&e);
        layer_free(l);
    }
}

/* ---- calls that the layer's tests don't make ---------------------------------------------------
 */

struct call {
    headway_tensor query, key, value, out;
    headway_attention_params params;
    float *result;
};

static void call_layer(const struct subject *s, const struct layer *l, struct call *c)
{
    size_t bytes = 0;
    headway_mha *mha = layer_create(s->engines[2], l, STORED_PLAIN);
    headway_status status =
        headway_mha_workspace(mha, &c->params, &c->query, &c->key, &c->value, &bytes);
    void *workspace = check_guard(bytes, 0);
    if (status == HEADWAY_OK)
        status = headway_mha_forward(mha, &c->params, &c->query, &c->key, &c->value, &c->out,
                                     workspace, bytes);
    CHECK(status == HEADWAY_OK, "%s", headway_status_text(status));
    check_guard_free(workspace);
    headway_mha_destroy(mha);
}

static void check_leading_axes(const struct subject *s)
{
    const struct shape shape = {6, 5, 7, 2, 2, 8, 8};
    if (!check_case("%s: leading batch axes", s->isa))
        return;
    struct layer *l = rotated(&shape, HEADWAY_ROPE_HALF, 12);
    layer_more(l);
    struct answer a = forward_once(s->engines[0], l);
    for (int rank = 2; rank <= 5; rank += rank == 2 ? 2 : 1) {
        float *out = check_guard((size_t)a.outs * sizeof(float), 1);
        struct call c = {.params = HEADWAY_ATTENTION_PARAMS_INIT};
        headway_tensor *t[4] = {&c.query, &c.key, &c.value, &c.out};
        float *data[4] = {l->tokens[QUERY], l->tokens[KEY], l->tokens[VALUE], out};
        for (int i = 0; i < 4; i++) {
            const int64_t rows = i == KEY || i == VALUE ? 7 : 5;
            const int64_t extents[6] = {1, 2, 3, rows, 16};
            *t[i] = headway_tensor_dense(data[i], HEADWAY_F32, rank, extents + 5 - rank);
        }
        call_layer(s, l, &c);
        check_bits(out, a.out, rank == 2 ? 5 * 16 : a.outs, "leading axes");
        check_guard_free(out);
    }
    answer_free(&a);
    layer_free(l);
}

/* Every packed sequence gives the bits it gives alone. */
static void check_packed(const struct subject *s)
{
    const struct shape shape = {1, 70, 90, 2, 1, 16, 8};
    for (int n = 0; n < 2; n++) {
        if (!check_case("%s: packed sequences as each alone, causal %d", s->isa, n * 2))
            continue;
        struct layer *l = rotated(&shape, HEADWAY_ROPE_HALF, (uint64_t)(13 + n));
        struct problem *p = l->options;
        layer_norms(l);
        layer_more(l);
        layer_pack(l, 5);
        p->causal = n ? HEADWAY_CAUSAL_TOP_LEFT : HEADWAY_CAUSAL_NONE;
        struct answer a = forward_once(s->engines[0], l);
        for (int64_t b = 0; b < p->sequences; b++) {
            const int64_t from = p->query_starts[b], key_from = p->key_starts[b];
            const int64_t queries[3] = {1, p->query_starts[b + 1] - from, l->widths.in[0]};
            const int64_t keys[3] = {1, p->key_starts[b + 1] - key_from, l->widths.in[0]};
            float *out = check_guard((size_t)(queries[1] * l->widths.out) * sizeof(float), 1);
            struct call c = {.params = HEADWAY_ATTENTION_PARAMS_INIT};
            c.params.causal = p->causal;
            c.query = headway_tensor_dense(token(l, QUERY, 0, from), HEADWAY_F32, 3, queries);
            c.key = headway_tensor_dense(token(l, KEY, 0, key_from), HEADWAY_F32, 3, keys);
            c.value = headway_tensor_dense(token(l, VALUE, 0, key_from), HEADWAY_F32, 3, keys);
            c.out = headway_tensor_dense(out, HEADWAY_F32, 3, queries);
            call_layer(s, l, &c);
            check_bits(out, a.out + from * l->widths.out, queries[1] * l->widths.out, "alone");
            check_guard_free(out);
        }
        answer_free(&a);
        layer_free(l);
    }
}

void check_layer_extras(const struct subject *s)
{
    check_given_tables(s);
    check_styles(s);
    check_positions(s);
    check_appended(s);
    check_norm_range(s);
    check_leading_axes(s);
    check_packed(s);
}

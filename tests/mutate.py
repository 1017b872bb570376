#!/usr/bin/env python3
"""Do the tests notice? Applies small faults to a copy of the tree, one at a time, builds the quick
tests and runs them until one fails:

    tests/mutate.py [--only WORDS] [--jobs N] [--keep DIRECTORY]

Prints a table: fault, file, caught by. Exit status 0 when every fault is caught, 1 when one survives
or no longer fits the source. Needs cmake and ninja; takes some 10 minutes.
"""

import argparse
import collections
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TIMEOUT = 120

Fault = collections.namedtuple("Fault", "name file old new")

# The text must stand in the file exactly once.
FAULTS = [
    Fault(*fault)
    for fault in [
        # which keys a row sees
        ("a row does not see its own key", "src/core/mask.c",
         "last = clamp(row + 1 + high, keys)", "last = clamp(row + high, keys)"),
        ("the window is one key narrower to the left", "src/core/mask.c",
         "place_of(offset, -left)", "place_of(offset, 1 - left)"),
        ("the window is one key wider to the right", "src/core/mask.c",
         "place_of(offset, right)", "place_of(offset, right + 1)"),
        ("causality is forgotten", "src/core/mask.c",
         "problem->causal ? 0 : problem->window_right", "problem->window_right"),
        ("bottom right by the longest key length", "src/core/mask.c",
         "return headway_key_length(problem, b) - headway", "return problem->keys - headway"),
        ("key lengths are ignored", "src/core/mask.c",
         "return problem->key_lengths[b];", "return problem->keys;"),
        ("an interval ends one key later", "src/core/mask.c",
         "headway_at_most(end, *last)", "headway_at_most(end + 1, *last)"),
        ("intervals of the first batch for all", "src/core/mask.c",
         "l->b * p->interval.batch + ", ""),
        ("intervals of packed sequences start over", "src/core/mask.c",
         "(l->query_start + row) * p->interval.row", "row * p->interval.row"),
        ("the first key's range is not looked at", "src/core/attend_block.c",
         "l->first_max > block->start ||", "l->first_max > block->start + 1 ||"),
        ("a range's end is not looked at in a block's last key", "src/core/attend_block.c",
         "l->last_min < block->start + block->count);",
         "l->last_min + 1 < block->start + block->count);"),
        # masks
        ("a shared line of a bool mask the wrong way round", "src/core/mask.c",
         "at[0][j * stride] ? live : 0", "at[0][j * stride] ? 0 : live"),
        ("a mask's stride along the keys is taken as 1", "src/core/mask.c",
         "line[j] = at[lane][j * stride];", "line[j] = at[lane][j];"),
        ("a bias that was cut is read from its start", "src/core/mask.c",
         "line[lane] += low;", "line[lane] += 0;"),
        ("infinities of binary16 are numbers", "src/cpu/widen.h",
         "(large & (UINT32_C(112) << 23))", "(large & (UINT32_C(111) << 23))"),
        ("the mask of the first batch for all", "src/core/mask.c",
         "headway_lane_offsets(l, 0, m->batch,", "headway_lane_offsets(l, 0, 0,"),
        # rows, heads, batches
        ("the next row's first head is taken for the next head", "src/core/attend_tile.c",
         "at += row - l->group * head;", "at += row;"),
        ("key starts of packed sequences are the query's", "src/core/attend_tile.c",
         "p->key_starts ? p->key_starts[l->b]", "p->key_starts ? p->query_starts[l->b]"),
        ("rows beyond a query length are written", "src/core/attend_tile.c",
         "l->live = headway_query_length(p, l->b) * l->group;", "l->live = p->query_rows * l->group;"),
        ("the last tile is taken for a full one", "src/core/attend_tile.c",
         "(int)headway_at_most(l->live - l->start, l->width)", "l->width"),
        ("values of the first batch for all", "src/core/attend_block.c",
         "view->data + t->lanes.b * view->batch +", "view->data +"),
        ("keys by query heads", "src/core/attend_block.c",
         "t->lanes.head / t->p->group * view->head", "t->lanes.head * view->head"),
        ("room for later segments is left out where only a layer's keys need it", "src/core/plan.c",
         "p->keys > HEADWAY_SEGMENT_KEYS || p->appended", "p->keys > HEADWAY_SEGMENT_KEYS"),
        # sums
        ("sums are not rescaled", "src/core/attend_block.c",
         "g.scale = rescale;", "g.scale = NULL;"),
        ("a later segment goes on with the state of the one before", "src/core/attend_block.c",
         "    begin_segment(t, s);\n    for (", "    for ("),
        ("a NaN behind a mask is left alone", "src/core/attend_tile.c",
         "t->careful = 1;", "t->careful = 0;"),
        ("what is taken out of values is added for all rows", "src/core/attend_block.c",
         "if (headway_block_sees(t, block, lane, j))", "if (lane >= 0)"),
        ("sums that overflow stay small", "src/core/attend_tile.c",
         "lines[lane][d] / SHRINK;", "lines[lane][d];"),
        ("the merge weighs the later sum as the earlier", "arch/scalar/merge_scalar.c",
         "g->later_sum[lane] * y", "g->later_sum[lane] * x"),
        # scores
        ("ALiBi turns round", "src/core/attend_block.c",
         "(int32_t)(block->start - t->place[lane])", "(int32_t)(t->place[lane] - block->start)"),
        ("ALiBi leaves out the offset", "src/core/attend_block.c",
         "(int32_t)(at / l->group + offset)", "(int32_t)(at / l->group)"),
        ("ALiBi of a layer's own keys", "src/core/attend_block.c",
         "sloped = t->p->slopes && block->start < t->p->keys;", "sloped = t->p->slopes != NULL;"),
        ("sinks of the first group of heads for all", "src/core/attend_block.c",
         "t->p->sinks[headway_lane_head(l, lane)] * HEADWAY",
         "t->p->sinks[headway_lane_head(l, lane) - l->head] * HEADWAY"),
        ("a sink lets values show in a row of scores of -inf", "src/core/attend_block.c",
         "t->whole.top[lane] == -INFINITY && d <", "lane < 0 && d <"),
        ("the bias is inside the softcap", "arch/scalar/softmax_scalar.c",
         "tanh_scalar(score * s->inverse_cap)",
         "tanh_scalar((score + (s->bias ? s->bias[at] : 0.0f)) * s->inverse_cap)"),
        ("default slopes of head counts that are no power of two", "src/api/alibi.c",
         "slope_at(2 * (h - n) + 1, k + 1)", "slope_at(2 * (h - n) + 2, k + 1)"),
        # further outputs
        ("lse in the wrong unit", "src/core/lse.c", "(2.0 * LN2)", "LN2"),
        ("lse of an empty row with a sink", "src/core/attend_tile.c",
         "alone ? sink :", "alone ? -INFINITY :"),
        ("weights divided by the sum so far", "src/core/attend_weights.c",
         "block->count, t->whole.total);", "block->count, t->later.total);"),
        ("a weight behind the last seen key is left as it was", "src/core/attend_weights.c",
         "clear(lines, l->n, done, p->keys);", "clear(lines, l->n, done + 1, p->keys);"),
        ("weights of keys that a row with a NaN does not see", "src/core/attend_weights.c",
         "? NAN : 0.0f", "? NAN : NAN"),
        ("the mean counts one head more", "src/core/attend_weights.c",
         "/= heads;", "/= heads + 1.0f;"),
        # kernels
        ("the last column of an output", "arch/avx2/transpose_avx2.c",
         "first_lanes(k - p);", "first_lanes(k - p - 1);"),
        ("the scale of a head size's tail", "arch/avx2/transpose_avx2.c",
         "lines[j][p] * scale : 0.0f", "lines[j][p] : 0.0f"),
        ("the last key of a mask's tail", "arch/avx2/bits_avx2.c",
         "bits_of(allowed, lines, n, at, k - at);", "bits_of(allowed, lines, n, at, k - at - 1);"),
        ("an edge accumulates its first row", "arch/avx2/gemm_avx2.c",
         "edge[v][r * LANES + l] = g->c[v][(i + r) * g->c_row + l];",
         "edge[v][r * LANES + l] = g->c[v][i * g->c_row + l];"),
        ("a range holds its end", "arch/avx2/softmax_avx2.c",
         "_mm256_andnot_si256(_mm256_cmpgt_epi32(load_ints(first), key),",
         "_mm256_andnot_si256(_mm256_cmpgt_epi32(key, load_ints(last)),"),
        # the layer
        ("half turns the other way", "src/core/rope.c",
         "x[k] = a * cos[k] - b * sin[k];", "x[k] = a * cos[k] + b * sin[k];"),
        ("interleaved leaves the second channel", "src/core/rope.c",
         "x[2 * k + 1] = a * sin[k] + b * cos[k];", "x[2 * k + 1] = b;"),
        ("the norm leaves out eps", "src/core/rope.c", "(double)size) + eps)", "(double)size))"),
        ("llama3 blends the wrong way", "src/core/rope.c",
         "(1.0 - smooth) * frequency / c->factor + smooth * frequency",
         "smooth * frequency / c->factor + (1.0 - smooth) * frequency"),
        ("yarn's ramp ends a dimension early", "src/core/rope.c", "ceil(high)", "floor(high)"),
        ("long factors at the original length", "src/core/rope.c",
         "longer = c->positions > c->original", "longer = c->positions >= c->original"),
        ("a layer's own value is its own key", "src/api/mha.c",
         "{(float *)layer->more[i], 0,", "{(float *)layer->more[KEY], 0,"),
        ("a projection's bias is added with every piece", "src/core/linear.c",
         "end == linear->inputs && linear->bias ?", "linear->bias ?"),
        # caches
        ("the ring begins at the first page", "src/core/cache.h",
         "store->fixed + (page - store->fixed) %", "(page - store->fixed) %"),
        ("tokens lie in the pages of the first slot", "src/core/cache.c",
         "const int32_t *table = store->tables + slot * store->entries;",
         "const int32_t *table = store->tables;"),
        ("rows of a page that begins in its middle", "src/core/cache.c",
         "page++, at = 0", "page++"),
        ("the scales of the first head for all", "src/core/cache.c",
         "pool->scale[number * pool->scale_page + head * pool->scale_head +",
         "pool->scale[number * pool->scale_page +"),
        ("a shared page is written where it lies", "src/api/kv_cache_pages.c",
         "if (page >= 0 && c->shares[page] < 2)\n        return;",
         "if (page >= 0)\n        return;"),
        ("a shared page is not copied before it is written", "src/api/kv_cache_pages.c",
         "copy_place(c, page, *entry, at);", "(void)page;"),
        ("a fork is not counted", "src/api/kv_cache_pages.c",
         "cache->shares[page]++;", "cache->shares[page] += 0;"),
        ("lengths stay after an append", "src/api/kv_cache_pages.c",
         "cache->lengths[slot] += headway_more(grow, b);", "cache->lengths[slot] += 0;"),
        ("the ring forgets a token too late", "src/api/kv_cache_pages.c",
         "headway_more(grow, b) - ring_of(cache);", "headway_more(grow, b) - ring_of(cache) - 1;"),
        ("truncation leaves the length", "src/api/kv_cache.c",
         "cache->lengths[slot] = length;\n    if (cache->first[slot] > length)",
         "if (cache->first[slot] > length)"),
        ("one token more than the capacity", "src/api/kv_cache_pages.c",
         "!c->rolling && more > c->capacity - length)",
         "!c->rolling && more > c->capacity - length + 1)"),
        ("the slots of the caller are not looked at", "src/core/mask.c",
         "return cached->slots ? cached->slots[b] : b;", "return b;"),
        ("new tokens are not counted among a row's keys", "src/core/mask.c",
         "headway_slot(cached, b)] + headway_more(cached, b);", "headway_slot(cached, b)];"),
        ("keys that lie in every window end a key early", "src/core/mask.c",
         "headway_at_most(problem->window_first, keys)",
         "headway_at_most(problem->window_first - 1, keys)"),
        ("causality is forgotten beside a window", "src/core/mask.c",
         "clamp(place_of(headway_row_offset(problem, l->b), row + 1), keys));", "keys);"),
        ("more keys than a cached sequence has may be seen", "src/api/check_cache.c",
         "params->key_lengths[b] > most)", "params->key_lengths[b] > most + 1)"),
        ("a row of a ring may see what is gone", "src/api/check_cache.c",
         "return from >= end || end <= c->pinned || from >= first;", "return 1;"),
        ("lanes that are not there are scored", "arch/scalar/few_scalar.c",
         "l < g->n ? sum[l] : 0.0f", "sum[0]"),
        ("an int8 is not scaled", "src/cpu/widen.h",
         "return (float)((const int8_t *)row)[p] * scale;", "return (float)((const int8_t *)row)[p];"),
        ("positions of a cached sequence start over", "src/api/mha.c",
         "f->places[KEY].cached = &p->cached;", "f->places[KEY].cached = NULL;"),
        ("of split keys a piece's first segment alone is computed", "src/core/attend_tile.c",
         "(piece + 1) * plan->stored / plan->pieces;", "first + 1;"),
        # checks
        ("a window of -2", "src/api/check_params.c", "if (given < -1)", "if (given < -2)"),
        ("a length one too large", "src/api/check_params.c",
         "lengths[b] > most)", "lengths[b] > most + 1)"),
        ("a NaN as a sink", "src/api/check_params.c",
         "!(p->sinks[h] < INFINITY)", "p->sinks[h] == INFINITY"),
        ("packed sequences that end early", "src/api/check_params.c",
         "starts[sequences] != packed", "starts[sequences] > packed"),
        ("outputs that share memory with each other", "src/api/check_memory.c",
         "if (i >= outputs || i < o)", "if (i >= outputs)"),
        ("a workspace one byte short", "src/api/check_memory.c", "given < needed)", "given + 1 < needed)"),
    ]
]

ROWS = ["avx2", "scalar"]
TESTS = (
    [["check_kernels", "--isa", row, "--quick"] for row in ROWS]
    + [["check_api"], ["check_cache", "--quick"]]
    + [["check_attention", "--isa", row, "--quick"] for row in ROWS]
    + [["check_mha", "--isa", row, "--quick"] for row in ROWS]
    + [["check_reference"], ["check_cases", "--quick"], ["check_property", "--seconds", "20"]]
)


def run(command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", check=False, **options)


class Copy:
    """A copy of the tree that is built in place, again and again."""

    def __init__(self, folder, jobs):
        self.source = folder / "source"
        self.build = folder / "build"
        self.jobs = str(jobs)
        shutil.copytree(ROOT, self.source, ignore=shutil.ignore_patterns("build", ".git"),
                        dirs_exist_ok=True)
        configured = run(["cmake", "-G", "Ninja", "-S", self.source, "-B", self.build,
                          "-DCMAKE_BUILD_TYPE=Release", "-DHEADWAY_BENCH=OFF",
                          "-DHEADWAY_ONEDNN=OFF"])
        if configured.returncode:
            sys.exit(configured.stdout)

    def make(self):
        """"" or the end of what the compiler said."""
        made = run(["ninja", "-C", self.build, "-j", self.jobs, *sorted({t[0] for t in TESTS})])
        return made.stdout[-2000:] if made.returncode else ""

    def caught_by(self, file):
        """The first test that fails, with how it does; None when all pass."""
        first = "check_cache" if "cache" in file else \
            "check_kernels" if file.startswith("arch") else \
            "check_api" if "api/check" in file else \
            "check_mha" if "rope" in file or "mha" in file or "linear" in file else "check_attention"
        for test in sorted(TESTS, key=lambda test: test[0] != first):
            try:
                ran = run([self.build / "tests" / test[0], *test[1:]], timeout=TIMEOUT)
            except subprocess.TimeoutExpired:
                return " ".join(test) + ": does not end"
            if ran.returncode == 0 or ran.returncode == 77:
                continue
            if ran.returncode < 0:
                return f"{' '.join(test)}: signal {-ran.returncode}"
            return " ".join(test)
        return None

    def judge(self, fault):
        path = self.source / fault.file
        text = path.read_text()
        if text.count(fault.old) != 1:
            return False, f"the text stands there {text.count(fault.old)} times, expected once"
        path.write_text(text.replace(fault.old, fault.new))
        try:
            wrong = self.make()
            if wrong:
                return False, "does not compile: " + wrong
            caught = self.caught_by(fault.file)
            return caught is not None, caught or "SURVIVES"
        finally:
            path.write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--only", default="", help="faults whose name or file holds these words")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", type=pathlib.Path, help="work there and leave it")
    arguments = parser.parse_args()
    folder = arguments.keep or pathlib.Path(tempfile.mkdtemp(prefix="headway-mutate-"))
    bad = 0
    try:
        copy = Copy(folder, arguments.jobs)
        wrong = copy.make() or copy.caught_by("")
        if wrong:
            sys.exit(f"without a fault: {wrong}")
        chosen = [f for f in FAULTS if arguments.only in f.name or arguments.only in f.file]
        print("| fault | file | caught by |\n|---|---|---|", flush=True)
        for fault in chosen:
            good, how = copy.judge(fault)
            bad += not good
            print(f"| {fault.name} | {fault.file} | {how} |", flush=True)
        print(f"\n{len(chosen) - bad} of {len(chosen)} faults caught")
    finally:
        if not arguments.keep:
            shutil.rmtree(folder)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

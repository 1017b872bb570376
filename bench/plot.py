#!/usr/bin/env python3
"""The pictures in docs/ from what the benchmark programs and the peers' script printed.

usage: plot.py BENCH.json... [--peers PEERS.txt] [--out DIR]     pictures; needs matplotlib
       plot.py --trim OUT.json BENCH.json...                     one small file with the medians

BENCH.json: Google Benchmark's output, or a file made by --trim. PEERS.txt: lines `PEER T=THREADS
DTYPE SHAPE MS ms GFLOPS GF ...`; others are ignored.
"""
import argparse
import json
import os
import re
import statistics

KEPT = ("median_seconds", "GFLOPS", "peak_share", "GBps", "read_share")
NOT_ABOUT = ("executable", "host_name", "load_avg", "json_schema_version", "library_build_type")

# Okabe and Ito's colours; shapes tell the lines apart without any.
STYLE = {
    "headway": ("Headway", "#0072B2", "o"),
    "onednn": ("oneDNN (best of graph and primitives)", "#D55E00", "s"),
    "unfused": ("unfused (Headway's kernels)", "#777777", "^"),
    "torch": ("PyTorch", "#009E73", "D"),
    "ort": ("ONNX Runtime", "#CC79A7", "v"),
    "openvino": ("OpenVINO", "#E69F00", "P"),
}
# The peers' script names some shapes differently, and counts what a mask excludes.
PEER_SHAPE = {"d128_1024": "d128", "mini128d32": "mini128", "d80_512": "d80"}
COUNTED = {"bert512mask": 462 / 512, "gqa512c": 513 / 512, "gqa2048c": 2049 / 2048}

LAYERS = ("tiny", "mini", "base128", "base512", "base512b8", "large")
SHAPES = ("bert128", "bert512", "bert512mask", "bert512bias", "bert1024", "long16k", "vit197",
          "mini128", "d80", "d128", "gqa512c", "gqa2048c")


def read(paths):
    """The context of the first file, and {name: {counter: median}} of all."""
    context, values = {}, {}
    for path in paths:
        with open(path) as file:
            data = json.load(file)
        context = context or {k: v for k, v in data["context"].items() if k not in NOT_ABOUT}
        for run in data["benchmarks"]:
            if run.get("error_occurred") or run.get("skipped"):
                continue
            if run.get("aggregate_name", "median") != "median":
                continue
            if run.get("repetitions", 1) > 1 and "aggregate_name" not in run:
                continue
            values.setdefault(run.get("run_name", run["name"]), []).append(run)
    return context, {
        name: {k: statistics.median(r[k] for r in runs) for k in KEPT if all(k in r for r in runs)}
        for name, runs in values.items()
    }


def trim(paths, out):
    context, values = read(paths)
    lines = [json.dumps({"name": n, **{k: float(f"{v:.5g}") for k, v in c.items()}})
             for n, c in values.items()]
    with open(out, "w") as file:
        file.write('{"context": %s,\n"benchmarks": [\n%s\n]}\n'
                   % (json.dumps(context, indent=1), ",\n".join(lines)))


def read_peers(path):
    """{(peer, shape, threads): GFLOP/s of the pairs that are allowed}, layers with their names."""
    found = {}
    line_form = re.compile(r"(\w+)\s+T=(\d+)\s+f32\s+(\w+)\s+[\d.]+ ms\s+([\d.]+) GF")
    with open(path) as file:
        for line in file:
            match = line_form.match(line)
            if match:
                peer, threads, shape, rate = match.groups()
                layer = shape.startswith("mha_")
                shape = shape[4:] if layer else PEER_SHAPE.get(shape, shape)
                key = (peer, "layer" if layer else "attention", shape, int(threads))
                found[key] = float(rate) * COUNTED.get(shape, 1)
    return found


class Results:
    def __init__(self, values, peers):
        self.values, self.peers = values, peers

    def of(self, kind, who, shape, threads):
        return self.values.get(f"{kind}/{who}/f32/{shape}/threads:{threads}", {})

    def peak(self, kind, shape, threads):
        ours = self.of(kind, "headway", shape, threads)
        return ours["GFLOPS"] / ours["peak_share"] if "peak_share" in ours else None

    def rate(self, kind, who, shape, threads):
        if who == "onednn":
            rates = [self.of(kind, f"onednn-{path}", shape, threads).get("GFLOPS")
                     for path in ("graph", "primitives")]
            return max((r for r in rates if r), default=None)
        if (who, kind, shape, threads) in self.peers:
            return self.peers[who, kind, shape, threads]
        return self.of(kind, who, shape, threads).get("GFLOPS")

    def share(self, kind, who, shape, threads):
        rate, peak = self.rate(kind, who, shape, threads), self.peak(kind, shape, threads)
        return rate / peak if rate and peak else None

    def sweep(self):
        """All (D, L) that the sweep measured."""
        form = re.compile(r"attention/headway/f32/sweep-d(\d+)-l(\d+)/threads:1$")
        return sorted(tuple(map(int, m.groups())) for m in map(form.match, self.values) if m)


def caption(figure, context, peers_note=""):
    parts = [context.get("cpu"), context.get("compiler"), "headway " + context["headway"]
             if "headway" in context else None, (context.get("onednn") or "").split(":")[0] or None,
             "commit " + context["commit"] if context.get("commit") else None,
             context.get("date", "")[:10] or None]
    lines = " · ".join(p for p in parts if p) + (f"\n{peers_note}" if peers_note else "")
    figure.text(0.01, 0.008, lines, fontsize=7.5, color="#555555", va="bottom")


def tidy(axes):
    axes.grid(True, color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8.5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def legend(figure, axes_list, y):
    found = {}
    for axes in axes_list:
        for handle, label in zip(*axes.get_legend_handles_labels()):
            found.setdefault(label, handle)
    labels = [name for name, _, _ in STYLE.values() if name in found]
    figure.legend([found[label] for label in labels], labels, loc="upper left", ncol=len(labels),
                  frameon=False, bbox_to_anchor=(0.005, y), fontsize=9, columnspacing=1.6,
                  handletextpad=0.5, borderaxespad=0)


def sweep_panel(axes, results, title, points, label, ticks=None):
    """points: [(x, shape)]."""
    for who in ("unfused", "onednn", "headway"):
        name, colour, marker = STYLE[who]
        line = [(x, results.share("attention", who, shape, 1)) for x, shape in points]
        line = [(x, y) for x, y in line if y is not None]
        if line:
            axes.plot(*zip(*line), color=colour, marker=marker, markersize=3.5, label=name,
                      linewidth=2 if who == "headway" else 1.2)
    axes.set_xscale("log", base=2)
    if ticks:
        axes.set_xticks(ticks, [str(t) for t in ticks])
    axes.minorticks_off()
    axes.set_ylim(0, 1)
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel(label, fontsize=9)
    tidy(axes)


def picture_lengths(plt, results, context, path):
    sizes = results.sweep()
    if not sizes:
        return
    figure, grid = plt.subplots(2, 2, figsize=(10, 7.4), sharey=True)
    axes = list(grid.flat)
    for panel, D in zip(axes, (32, 64, 128)):
        lengths = [L for d, L in sizes if d == D]
        sweep_panel(panel, results, f"head size {D}", [(L, f"sweep-d{D}-l{L}") for L in lengths],
                    "query and key rows L", [1, 4, 16, 64, 256, 1024])
    heads = [d for d, L in sizes if L == 512]
    sweep_panel(axes[3], results, "512 rows, all head sizes",
                [(d, f"sweep-d{d}-l512") for d in heads], "head size D",
                [1, 3, 17, 32, 64, 128, 256, 576])
    for panel in axes[::2]:
        panel.set_ylabel("share of the core's FMA peak", fontsize=9)
    peak = statistics.median(results.peak("attention", f"sweep-d{d}-l{L}", 1) for d, L in sizes)
    figure.suptitle(f"Attention, f32, 12 heads, one thread: share of the FMA peak "
                    f"({peak:.0f} GFLOP/s)", x=0.01, ha="left", fontsize=12)
    legend(figure, axes, 0.95)
    figure.tight_layout(rect=(0, 0.03, 1, 0.94))
    caption(figure, context)
    figure.savefig(path, dpi=130)


def dots(axes, results, kind, shapes, threads, people):
    shapes = [s for s in shapes if results.peak(kind, s, threads)]
    for i, shape in enumerate(shapes):
        shares = {who: results.share(kind, who, shape, threads) for who in people}
        shares = {who: s for who, s in shares.items() if s is not None}
        axes.plot([min(shares.values()), max(shares.values())], [i, i], color="#cccccc",
                  linewidth=1.2, zorder=1)
        for who, share in shares.items():
            name, colour, marker = STYLE[who]
            ours = who == "headway"
            axes.scatter(share, i, color=colour, marker=marker, s=64 if ours else 36, label=name,
                         zorder=4 if ours else 3, edgecolor="white", linewidth=0.5, clip_on=False)
    axes.set_yticks(range(len(shapes)), shapes)
    axes.set_ylim(len(shapes) - 0.5, -0.5)
    axes.set_xlim(0, 1)
    tidy(axes)
    axes.grid(False, axis="y")


def picture_peers(plt, results, context, path, note):
    counts = sorted({int(n.rsplit(":", 1)[1]) for n in results.values if n.startswith("layer/")})
    if not counts:
        return
    people = [who for who in STYLE if who != "unfused"]
    layers = [s for s in LAYERS if results.peak("layer", s, counts[0])]
    shapes = [s for s in SHAPES if results.peak("attention", s, counts[0])]
    figure, grid = plt.subplots(2, len(counts), figsize=(11, 8), squeeze=False, sharey="row",
                                sharex=True, height_ratios=[len(layers) + 1, len(shapes) + 1]) \
        if shapes else plt.subplots(1, len(counts), figsize=(11, 4), squeeze=False, sharey="row")
    for column, threads in enumerate(counts):
        plural = "" if threads == 1 else "s"
        dots(grid[0][column], results, "layer", layers, threads, people)
        grid[0][column].set_title(f"whole layer, {threads} thread{plural}", loc="left", fontsize=10)
        if shapes:
            dots(grid[1][column], results, "attention", shapes, threads, people)
            grid[1][column].set_title(f"attention alone, {threads} thread{plural}", loc="left",
                                      fontsize=10)
        grid[-1][column].set_xlabel("share of the FMA peak of these threads", fontsize=9)
    figure.suptitle("f32: share of the FMA peak, further right is faster", x=0.01, ha="left",
                    fontsize=12)
    legend(figure, grid.flat, 0.955)
    figure.tight_layout(rect=(0, 0.045, 1, 0.945))
    caption(figure, context, note)
    figure.savefig(path, dpi=130)


def picture_threads(plt, results, context, path):
    counts = sorted({int(n.rsplit(":", 1)[1]) for n in results.values
                     if n.startswith(("layer/", "attention/headway/")) and "sweep" not in n})
    rows = [("layer", s) for s in LAYERS] + [("attention", s) for s in SHAPES]
    rows = [r for r in rows if all(results.rate(r[0], "headway", r[1], c) for c in counts)]
    if len(counts) < 2 or not rows:
        return
    most = counts[-1]
    figure, axes = plt.subplots(figsize=(8, 0.32 * len(rows) + 2))
    for i, (kind, shape) in enumerate(rows):
        for who in ("onednn", "headway"):
            one, all_ = (results.rate(kind, who, shape, c) for c in (1, most))
            if one and all_:
                name, colour, marker = STYLE[who]
                axes.scatter(all_ / one, i, color=colour, marker=marker,
                             s=64 if who == "headway" else 36, label=name, edgecolor="white",
                             linewidth=0.5, zorder=4 if who == "headway" else 3, clip_on=False)
    axes.axvline(most, color="#333333", linewidth=1)
    axes.axvline(1, color="#333333", linewidth=1, linestyle=":")
    axes.set_yticks(range(len(rows)), [f"{'layer ' if k == 'layer' else ''}{s}" for k, s in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(left=0, right=max(most * 1.06, axes.get_xlim()[1]))
    axes.set_xlabel(f"times as fast on {most} threads as on one (solid: {most}, dotted: no gain)",
                    fontsize=9)
    tidy(axes)
    figure.suptitle(f"f32: scaling from 1 to {most} threads", x=0.01, ha="left", fontsize=12)
    height = figure.get_size_inches()[1]
    legend(figure, [axes], 1 - 0.38 / height)
    figure.tight_layout(rect=(0, 0.25 / height, 1, 1 - 0.42 / height))
    caption(figure, context)
    figure.savefig(path, dpi=130)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--trim", metavar="OUT.json")
    parser.add_argument("--peers", metavar="PEERS.txt")
    parser.add_argument("--out", default=os.path.join(os.path.dirname(__file__), "..", "docs"))
    arguments = parser.parse_args()
    if arguments.trim:
        trim(arguments.files, arguments.trim)
        return
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    context, values = read(arguments.files)
    note, peers = "", {}
    if arguments.peers:
        peers = read_peers(arguments.peers)
        with open(arguments.peers) as file:
            note = " · ".join(line[1:].strip() for line in file if line.startswith("#"))
    results = Results(values, peers)
    place = lambda name: os.path.join(arguments.out, name)
    picture_lengths(plt, results, context, place("share-of-peak.png"))
    picture_peers(plt, results, context, place("peers.png"), note)
    picture_threads(plt, results, context, place("threads.png"))


if __name__ == "__main__":
    main()

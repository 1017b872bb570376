#!/bin/sh
# Measures what the pictures and the README's table show, about eight minutes on two cores:
#     sh bench/run.sh [NAME [BUILD_DIR]]
# writes docs/bench-NAME.json (medians) and, where python3 has matplotlib, the pictures. Environment:
#     RUNNER  a command to put before every program (taskset, nice, another system's loader)
#     PEERS   a command that takes `PEER THREADS SECONDS DTYPE` and prints the other libraries' speed on
#             the same shapes; its output goes to docs/peers.txt
#     QUICK   not empty: a moment for every measurement, to see that all of it works
#     COMMIT  what is measured, where there is no git to ask
cd "$(dirname "$0")/.." || exit 1
name=${1:-local}
build=${2:-build/release}
commit=${COMMIT:-$(git rev-parse --short HEAD 2>/dev/null)}
long=0.15 short=0.03 repetitions=3 peer_seconds=0.3
[ -z "$QUICK" ] || { long=0.001 short=0.001 repetitions=1 peer_seconds=0.01; }

# Whichever python3 has it; the trimming does without.
python=python3
for candidate in python3 /usr/bin/python3; do
    "$candidate" -c 'import matplotlib' 2>/dev/null && python=$candidate && break
done
results=$(mktemp -d) || exit 1
trap 'rm -rf "$results"' EXIT
trap 'exit 1' HUP INT TERM

# measure FILE PROGRAM MIN_TIME FILTER FLAG... : one repetition's output is read like a median of several.
measure() {
    file=$1 program=$2 min_time=$3 filter=$4
    shift 4
    echo "headway: $program $filter"
    $RUNNER "$build/bench/$program" "--benchmark_filter=$filter" "--benchmark_min_time=$min_time" \
        "--benchmark_repetitions=$repetitions" --benchmark_report_aggregates_only=true \
        "--benchmark_context=commit=${commit:-unknown}" --benchmark_out_format=json \
        "--benchmark_out=$results/$file.json" "$@" >"$results/log" 2>&1 || {
        cat "$results/log"
        echo "headway: $program failed" >&2
        exit 1
    }
}

all='(headway|onednn-graph|onednn-primitives|unfused)/f32/[a-z0-9]+/threads:|headway-avx2/f32/[a-z0-9]+/threads:1$'
measure layer bench_layer $long "^layer/($all)"
measure attention bench_attention $long "^attention/($all)"
measure options bench_attention $long \
    '^attention/headway/f32/(bert512-[a-z0-9-]+|w256|w256full)/threads:1$'
measure caches bench_attention $long '^attention/headway-(cache|paged16)/[a-z0-9]+/dec'
measure linear bench_kernels $long '^linear/'
measure sweep bench_attention $short \
    '^attention/(headway|onednn-graph|onednn-primitives|unfused)/f32/sweep-' --sweep --threads=1
mkdir -p docs
"$python" bench/plot.py --trim "docs/bench-$name.json" "$results/layer.json" \
    "$results/attention.json" "$results/options.json" "$results/caches.json" "$results/linear.json" "$results/sweep.json" || exit 1
echo "headway: wrote docs/bench-$name.json"

if [ -n "$PEERS" ]; then
    for peer in torch ort openvino; do
        for threads in 1 2; do
            echo "headway: $peer, $threads"
            $PEERS $peer $threads $peer_seconds f32 >>"$results/peers" || exit 1
        done
    done
    { "${PEERS%% *}" -c 'from importlib.metadata import version
print("#", ", ".join(n + " " + version(n) for n in ("torch", "onnxruntime", "openvino")))' 2>/dev/null
      grep GF "$results/peers"; } >docs/peers.txt
    echo "headway: wrote docs/peers.txt"
fi
if ! "$python" -c 'import matplotlib' 2>/dev/null; then
    echo "headway: no matplotlib (Debian: python3-matplotlib), so no pictures"
    exit 0
fi
[ ! -f docs/peers.txt ] || peers="--peers docs/peers.txt"
"$python" bench/plot.py "docs/bench-$name.json" $peers --out docs && echo "headway: drew docs/*.png"

#!/bin/sh
# The example server as a stranger builds it, on what is installed: by find_package, then under load with
# two models; and by pkg-config alone.  check_serve.sh SOURCE_DIR BUILD_DIR CMAKE C_COMPILER SANITIZERS
source=$1 build=$2 cmake=$3 cc=$4 sanitize=$5
serve=$source/examples/serve
for package in libmicrohttpd libcjson; do
    pkg-config --exists $package 2>/dev/null || {
        echo "check_serve - skipped: pkg-config finds no $package (Debian's $package-dev)"
        exit 77
    }
done
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failed=0
fail() {
    echo "FAIL $*"
    failed=1
}
# quietly COMMAND... : its output only where it fails.
quietly() {
    "$@" >"$work/log" 2>&1 && return 0
    cat "$work/log"
    return 1
}
flags="-O2 -g"
[ -z "$sanitize" ] || flags="$flags -fsanitize=$sanitize -fno-sanitize-recover=all"

quietly "$cmake" --install "$build" --prefix "$work/installed" || fail "install"
quietly "$cmake" -S "$serve" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/installed" \
    -DCMAKE_C_COMPILER="$cc" -DCMAKE_C_FLAGS="$flags -Werror" -DCMAKE_BUILD_TYPE=None &&
    quietly "$cmake" --build "$work/build" --parallel 2 || {
    fail "it does not build by find_package"
    exit 1
}

# load NAME SERVER WEIGHTS argument...
load() {
    name=$1
    shift
    echo "$name"
    "$work/build/serve-load" "$@" || fail "$name"
}
llama=$source/tests/data/models/llama-gqa-rope/model.safetensors
minilm=$source/examples/minilm/layer0.safetensors
# A sanitizer keeps memory that was freed.
memory=
[ -z "$sanitize" ] || memory=--no-memory
many=10000 some=200
[ -z "$sanitize" ] || many=500 some=100
# Prompts in small pieces, so that many sequences meet in a step.
load "by find_package, Llama's layer:" "$work/build/headway-serve" "$llama" --requests $many $memory \
    -- --chunk 3 --step-tokens 80 --workers 4 --packed "$work/packed"
# Under the same prefix, where this layer's weights must not be taken for that one's.
load "by find_package, MiniLM's layer:" "$work/build/headway-serve" "$minilm" --requests $some \
    --clients 50 --no-memory --no-slow -- --packed "$work/packed"

libraries=$(dirname "$(find "$work/installed" -name headway.pc)")
PKG_CONFIG_PATH=$libraries:$PKG_CONFIG_PATH
export PKG_CONFIG_PATH
if quietly "$cc" -std=c11 $flags -D_GNU_SOURCE "$serve"/*.c -o "$work/server" \
    -Wl,-rpath,"$(pkg-config --variable=libdir headway)" \
    $(pkg-config --cflags --libs headway libmicrohttpd libcjson) -lm -lpthread; then
    load "by pkg-config, on the weights that were packed before:" "$work/server" "$minilm" \
        --requests 100 --clients 20 --no-memory --no-slow -- --packed "$work/packed" 2>"$work/said"
    grep "weights mapped" "$work/said" || fail "the packed weights were not mapped: $(cat "$work/said")"
else
    fail "it does not build by pkg-config"
fi
[ $failed = 0 ] && echo "passed: check_serve"
exit $failed

#!/bin/sh
# Builds Headway and runs a real attention layer, from any directory: sh cmake/demo.sh
set -eu
cd -- "$(dirname -- "$0")/.."
. cmake/needs.sh

needs $needs_build
cmake --preset release
cmake --build --preset demo --parallel "$(nproc)"
echo
exec build/release/examples/minilm/minilm "$@"

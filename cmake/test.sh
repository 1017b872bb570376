#!/bin/sh
# Builds Headway and runs every test this machine can run, from any directory: sh cmake/test.sh
#
# HEADWAY_REQUIRE=avx2,scalar in the environment makes a skip of one of these rows a failure.
set -eu
cd -- "$(dirname -- "$0")/.."
. cmake/needs.sh
. cmake/skips.sh

needs $needs_test
cmake --preset release -DHEADWAY_REQUIRE="${HEADWAY_REQUIRE:-}"
cmake --build --preset release --parallel "$(nproc)"
failed=0
ctest --preset release --parallel "$(nproc)" || failed=1
print_skips build/release
exit $failed

#!/bin/sh
# What is installed serves another project: find_package(headway), shared and static.
# check_install.sh BUILD_DIR CMAKE C_COMPILER
build=$1
cmake=$2
cc=$3
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
"$cmake" --install "$build" --prefix "$work/installed" >"$work/log" 2>&1 || {
    cat "$work/log"
    echo "FAIL install"
    exit 1
}
mkdir "$work/user"
cat >"$work/user/user.c" <<'END'
#include <headway/headway.h>
#include <stdio.h>
int main(void)
{
    headway_engine *engine;
    if (headway_engine_create(NULL, &engine) != HEADWAY_OK)
        return 1;
    printf("%s on %s\n", headway_version(), headway_engine_isa(engine));
    headway_engine_destroy(engine);
    return 0;
}
END
cat >"$work/user/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(user C)
find_package(headway REQUIRED)
add_executable(with_shared user.c)
target_link_libraries(with_shared headway::headway)
add_executable(with_static user.c)
target_link_libraries(with_static headway::static)
END
if "$cmake" -S "$work/user" -B "$work/user/build" -DCMAKE_C_COMPILER="$cc" \
    -DCMAKE_PREFIX_PATH="$work/installed" >"$work/log" 2>&1 &&
    "$cmake" --build "$work/user/build" >>"$work/log" 2>&1; then
    for kind in shared static; do
        said=$("$work/user/build/with_$kind") || { echo "FAIL with_$kind: exit status $?"; exit 1; }
        echo "passed: with_$kind says $said"
    done
else
    cat "$work/log"
    echo "FAIL the other project does not build"
    exit 1
fi

#!/bin/sh
# The public header alone, as C11 and C++17, with every compiler here.  check_header.sh SOURCE_DIR
cd "$1" || exit 1
failed=0
tried=0
strict="-Wall -Wextra -Wpedantic -Werror -fsyntax-only -I include"
try() {
    command=$1
    if ! command -v "${command%% *}" >/dev/null 2>&1; then
        echo "${command%% *} - skipped: not installed"
        return
    fi
    tried=$((tried + 1))
    if echo '#include <headway/headway.h>' | $command $strict -; then
        echo "passed: $command"
    else
        echo "FAIL $command"
        failed=1
    fi
}
try "gcc -std=c11 -x c"
try "clang -std=c11 -x c"
try "g++ -std=c++17 -x c++"
try "clang++ -std=c++17 -x c++"
[ $tried != 0 ] || exit 77
exit $failed

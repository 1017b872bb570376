#!/bin/sh
# What the libraries export and need.  check_library.sh SOURCE_DIR libheadway.so libheadway.a
header=$1/include/headway/headway.h
shared=$2
static=$3
failed=0
fail() {
    echo "FAIL $*"
    failed=1
}

declared=$(tr '\n' ' ' <"$header" | sed 's/HEADWAY_API/\n&/g' |
    sed -n 's/^HEADWAY_API *[^(;#]*[ *]\(headway_[a-z0-9_]*\)(.*/\1/p' | sort)
exported=$(nm -D --defined-only "$shared" | awk '$2 != "A" { print $3 }' | sed 's/@.*//' | sort)
[ -n "$declared" ] || fail "no declaration found in the header"
[ "$declared" = "$exported" ] || {
    fail "declared (<) and exported (>) differ:"
    echo "$declared" >"${TMPDIR:-/tmp}/declared.$$"
    echo "$exported" | diff "${TMPDIR:-/tmp}/declared.$$" -
    rm -f "${TMPDIR:-/tmp}/declared.$$"
}

listed=$(sed -n 's/^ *\(headway_[a-z0-9_]*\);.*/\1/p' "$1/src/api/headway.map" | sort)
[ "$declared" = "$listed" ] || fail "src/api/headway.map lists other names than the header"
bare=$(nm -D --defined-only --with-symbol-versions "$shared" |
    awk '$2 != "A" && $3 !~ /@@HEADWAY_[0-9]+\.[0-9]+$/ { print $3 }')
[ -z "$bare" ] || fail "symbols without a version:" $bare

# Internal symbols with external linkage carry the prefix too: a static link shares one name space.
stray=$(nm --defined-only -g "$static" | awk 'NF == 3 { print $3 }' | grep -v '^headway_' | sort -u)
[ -z "$stray" ] || fail "symbols of libheadway.a without the prefix:" $stray

for library in $(readelf -d "$shared" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
    case $library in
    libc.so.* | libm.so.* | libgomp.so.* | libomp.so.* | ld-linux*) ;;
    *) fail "libheadway.so needs $library" ;;
    esac
done
readelf -d "$shared" | grep -q 'SONAME.*\[libheadway\.so\.0\]' || fail "SONAME is not libheadway.so.0"
readelf -d "$shared" | grep -q 'NODELETE' || fail "libheadway.so can be unloaded under OpenMP's threads"
readelf -lW "$shared" | grep 'GNU_STACK' | grep -q 'RWE' && fail "the stack is executable"

# Never prints, aborts or exits; no function whose bits depend on the machine's libm.
forbidden='printf|vprintf|fprintf|vfprintf|puts|fputs|putchar|fputc|putc|perror|syslog|abort|exit|_exit|
__assert_fail|__printf_chk|__fprintf_chk|expf|exp2f|exp|exp2|logf|log|log2f|log2|tanhf|tanh|powf|pow|sinf|cosf|sin|cos|
erff|erf|fesetround|fesetenv|setenv|srand|rand'
bad=$(nm -u "$static" | awk '$1 == "U" { print $2 }' | sed 's/@.*//' |
    grep -Ex "$(echo "$forbidden" | tr -d '\n')" | sort -u)
[ -z "$bad" ] || fail "the library calls:" $bad
# nm names members: "memory.c.o:". The allocator has one door.
bad=$(nm -u "$static" | awk '/:$/ { member = $1 }
    $1 == "U" && $2 ~ /^(malloc|calloc|realloc|free|aligned_alloc|posix_memalign|strdup)(@|$)/ {
        if (member != "memory.c.o:") print member $2 }')
[ -z "$bad" ] || fail "the allocator is called by:" $bad

[ $failed = 0 ] && echo "passed: $(echo "$exported" | wc -l) exported symbols, dependencies, calls"
exit $failed

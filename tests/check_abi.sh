#!/bin/sh
# The binary interface is the one recorded in tests/abi/headway.abi, and what would break a program built
# before is found.  check_abi.sh SOURCE_DIR libheadway.so C_COMPILER
source=$1
shared=$2
cc=$3
for tool in abidw abidiff; do
    command -v $tool >/dev/null 2>&1 || {
        echo "check_abi - skipped: no $tool (abigail-tools)"
        exit 77
    }
done
. "$source/tests/abi/build.sh"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
recorded=$source/tests/abi/headway.abi
failed=0
fail() {
    echo "FAIL $*"
    failed=1
}

# compare SOURCE_DIR: "same", "added" or "changed" against what is recorded; the report is in $work/report.
compare() {
    rm -f "$work/now.so" "$work/now.abi"
    abi_build "$1" "$cc" "$work/now.so" >"$work/report" 2>&1 &&
        abi_describe "$1" "$work/now.so" "$work/now.abi" >>"$work/report" 2>&1 || {
        echo "not built"
        return
    }
    abidiff "$recorded" "$work/now.abi" >"$work/report" 2>&1
    status=$?
    if [ $status = 0 ]; then
        echo same
    elif [ $((status & 3)) = 0 ] && abidiff --no-added-syms "$recorded" "$work/now.abi" >/dev/null; then
        echo added
    else
        echo changed
    fi
}

case $(compare "$source") in
same) ;;
added)
    cat "$work/report"
    fail "functions were added. After a release they go into a version node of their own in" \
        "src/api/headway.map; then: sh tests/abi/record.sh"
    ;;
*)
    cat "$work/report"
    fail "a program built before would break, unless a struct grew at its end and accepts its old" \
        "size (then: sh tests/abi/record.sh). What breaks programs needs another soname."
    ;;
esac
symbols() { nm -D --defined-only --with-symbol-versions "$1" | awk '{ print $3 }' | sort; }
[ "$(symbols "$shared")" = "$(symbols "$work/now.so")" ] ||
    fail "libheadway.so exports other symbols than its public functions"

# planted NAME EXPECTED SED-SCRIPT FILE... : a change of the files is seen for what it is.
planted() {
    name=$1 expected=$2 script=$3
    shift 3
    mkdir -p "$work/planted"
    cp -r "$source/include" "$source/src" "$work/planted"
    for file; do
        sed -i "$script" "$work/planted/$file"
        cmp -s "$source/$file" "$work/planted/$file" && fail "planted: $name: nothing in $file"
    done
    verdict=$(compare "$work/planted")
    [ "$verdict" = "$expected" ] || fail "planted: $name: $verdict, expected $expected"
    rm -rf "$work/planted"
}
header=include/headway/headway.h
map=src/api/headway.map
planted "a field within a struct" changed 's/^    int64_t pages_free;/    int64_t planted;\n&/' $header
planted "another parameter" changed 's/\(headway_kv_cache_truncate(headway_kv_cache \*cache, int\)64_t/\1/' \
    $header src/api/kv_cache.c
planted "a function is gone" changed '/headway_alibi_slopes;/d' $map
planted "a function is new" added 's/headway_tensor_dense;/&headway_planted;/
    /^headway_tensor headway_tensor_dense/i HEADWAY_API int headway_planted(void);\
    int headway_planted(void) { return 0; }' $map src/api/tensor.c
[ $failed = 0 ] && echo "passed: as recorded; four planted changes are found"
exit $failed

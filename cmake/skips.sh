# Sourced by test.sh and .ci/run. print_skips BUILD: every skip of the last ctest run there, by name.
print_skips() {
    log=$1/Testing/Temporary/LastTest.log
    [ -f "$log" ] || return 0
    awk '
        / Testing: / { test = $0; sub(/.* Testing: /, "", test) }
        /^skip/ { line = $0; sub(/^skip(ped)?:? */, "", line); print "  " test ": " line; n++ }
        END { if (n) print n " skipped, named above"; else print "nothing skipped" }
    ' "$log"
}

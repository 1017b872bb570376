# Sourced by test.sh and .ci/run. print_skips BUILD: every skip of the last ctest run there, by name.
print_skips() {
    [ -f "$1/Testing/Temporary/LastTest.log" ] || return 0
    awk '
        / Testing: / { test = $0; sub(/.* Testing: /, "", test) }
        / - skipped: / { print "  " test ": " $0; n++ }
        END { print n + 0 " skipped, by name above" }
    ' "$1/Testing/Temporary/LastTest.log"
}

#!/bin/sh
# One door each, file lengths, no flag that changes arithmetic.  check_source.sh SOURCE_DIR
cd "$1" || exit 1
failed=0
fail() {
    echo "FAIL $*"
    failed=1
}

# only WHAT ALLOWED PATTERN DIR... : files whose code (not comments) matches are ALLOWED alone.
only() {
    what=$1 allowed=$2 pattern=$3
    shift 3
    hits=$(find "$@" -name '*.[ch]' | sort | while read -r file; do
        # Comments go: /* ... */ over lines, and to the end of a line after //.
        sed -e 's://.*::' "$file" | awk '
            { line = $0; out = ""
              while (line != "") {
                  if (inside) { at = index(line, "*/"); if (!at) { line = ""; break }
                                line = substr(line, at + 2); inside = 0 }
                  else { at = index(line, "/*"); if (!at) { out = out line; line = "" }
                         else { out = out substr(line, 1, at - 1) " "; line = substr(line, at + 2); inside = 1 } } }
              print out }' | grep -Eq "$pattern" && echo "$file"
    done)
    [ "$hits" = "$allowed" ] || fail "$what: expected in '$allowed' alone, found in:" $hits
}

only "OpenMP" src/system/parallel.c 'omp_|pragma +omp|omp\.h|_OPENMP' src arch
only "the allocator" src/system/memory.c \
    '(^|[^A-Za-z0-9_])(malloc|calloc|realloc|free|aligned_alloc|posix_memalign|strdup|alloca) *\(' \
    src/api src/core src/cpu src/system arch
only "oneDNN's header" src/oracle/onednn.c 'include *[<"].*dnnl' src arch
only "intrinsics outside arch" "" '_mm[0-9]*_|immintrin\.h|arm_neon\.h' src
only "floating-point modes" src/system/float_mode.c \
    'fenv\.h|fesetround|fesetenv|_mm_setcsr|_MM_SET_|ldmxcsr|stmxcsr|fpcr' \
    src/api src/core src/cpu src/system arch

# The brackets keep this file from finding itself.
flags=$(grep -rlE -e '-march=nati[v]e|-ffast-mat[h]|-Ofas[t]|-funsafe-mat[h]|-mdaz-ft[z]' \
    CMakeLists.txt CMakePresets.json cmake arch src tests bench examples .ci 2>/dev/null)
[ -z "$flags" ] || fail "a flag that changes arithmetic or the baseline in:" $flags

for file in $(find src include bench examples -name '*.[ch]' -o -name '*.cpp'); do
    lines=$(wc -l <"$file")
    # What is public is in one header.
    most=500
    [ "$file" != include/headway/headway.h ] || most=700
    [ "$lines" -le $most ] || fail "$file has $lines lines, at most $most are allowed"
done
for file in $(find arch tests -name '*.[ch]'); do
    lines=$(wc -l <"$file")
    [ "$lines" -le 900 ] || fail "$file has $lines lines, at most 900 are allowed"
done
[ $failed = 0 ] && echo "passed: doors, lengths, flags"
exit $failed

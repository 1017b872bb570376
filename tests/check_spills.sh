#!/bin/sh
# No vector register goes to the stack in a kernel's innermost multiply-add loop, with every compiler.
# In the GEMM none comes from there either; in the softmax a constant of the loop may be an operand.
# A dot of few lanes on x86 is spared: beside its sums it transposes more than the registers hold.
# check_spills.sh SOURCE_DIR ROW FLAG...
source=$1
row=$2
shift 2
[ -n "$(ls "$source/arch/$row"/gemm_*.c 2>/dev/null)" ] || { echo "$row - skipped: no kernel"; exit 77; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failed=0
tried=0

# Innermost loop: a backward jump whose range holds no other one. %rbp is the frame only if set so.
find_spills() {
    awk -v constants="$1" -v spared="$2" '
    function pad(h) { sub(/^0x/, "", h); return substr("0000000000000000", 1, 16 - length(h)) h }
    function finish(  i, j, k, inner, fma, bad, frame) {
        frame = 0
        if (spared != "" && name ~ spared) n = 0
        for (i = 1; i <= n; i++)
            if (text[i] ~ /mov +%rsp,%rbp/) frame = 1
        for (i = 1; i <= n; i++) {
            if (target[i] == "" || target[i] > addr[i] || target[i] < addr[1]) continue
            inner = 1
            for (k = i - 1; inner && k > 0 && addr[k] >= target[i]; k--)
                if (target[k] != "" && target[k] <= addr[k] && target[k] >= target[i]) inner = 0
            if (!inner) continue
            fma = 0; bad = ""
            for (j = i; j > 0 && addr[j] >= target[i]; j--) {
                if (text[j] ~ /vfn?m(add|sub)[0-9]*ps|fml[as]/) fma++
                if (constants && text[j] !~ /[xyz]mm[0-9]+,[^ ]*\([^ ]*\)$/ && text[j] ~ /[xyz]mm/) continue
                if (text[j] ~ /[xyz]mm/ && (text[j] ~ /\(%rsp/ || (frame && text[j] ~ /\(%rbp/)))
                    bad = bad "\n    " text[j]
                if (text[j] ~ /[ \t](ldr|str|ldp|stp|ldur|stur|ld1|st1)/ && text[j] ~ /[ \t{][qvds][0-9]/ &&
                    text[j] ~ /\[(sp|x29)/) bad = bad "\n    " text[j]
            }
            if (fma >= 4) {
                loops++
                if (bad != "") { printf "FAIL %s, loop at %s:%s\n", name, target[i], bad; failed = 1 }
            }
        }
        n = 0
    }
    /^[0-9a-f]+ <.*>:$/ { finish(); name = $2; next }
    /^ *[0-9a-f]+:\t/ {
        n++
        a = $1; sub(/:$/, "", a); addr[n] = pad(a)
        text[n] = $0; target[n] = ""
        if ($2 ~ /^(j[a-z]+|b\.[a-z]+|b|cbn?z|tbn?z)$/)
            for (f = 3; f <= NF; f++)
                if ($(f + 1) ~ /^</) { t = $f; target[n] = pad(t); break }
    }
    END { finish(); print loops + 0 " multiply-add loops"; exit failed || !loops }'
}

try() {
    compiler=$1
    objdump=$2
    shift 2
    for tool in "$compiler" "$objdump"; do
        command -v "$tool" >/dev/null 2>&1 || { echo "$row with $compiler - skipped: no $tool"; return; }
    done
    if ! echo 'int x;' | "$compiler" "$@" -x c -fsyntax-only - 2>/dev/null; then
        echo "$row with $compiler - skipped: does not take $*"
        return
    fi
    tried=1
    for file in "$source/arch/$row"/gemm_*.c "$source/arch/$row"/softmax_*.c \
        "$source/arch/$row"/few_*.c; do
        constants=
        spared=
        [ "${file##*/}" != "softmax_$row.c" ] || constants=1
        case ${file##*/} in
        few_avx*.c) spared='^<dot' ;;
        esac
        if "$compiler" -std=c11 -O2 -ffp-contract=off -fPIC "$@" -I "$source/include" -I "$source/src" \
            -c "$file" -o "$work/k.o" &&
            found=$("$objdump" -d --no-show-raw-insn "$work/k.o" | find_spills "$constants" "$spared"); then
            echo "passed: $compiler ${file##*/}: $found, none spills"
        else
            echo "FAIL $compiler ${file##*/}: $found"
            failed=1
        fi
    done
}

case $row in
neon)
    if [ "$(uname -m)" = aarch64 ]; then
        try gcc objdump "$@"
        try clang objdump "$@"
    else
        try aarch64-linux-gnu-gcc aarch64-linux-gnu-objdump "$@"
    fi
    ;;
*)
    case $(uname -m) in
    x86_64)
        try gcc objdump "$@"
        try clang objdump "$@"
        ;;
    *) echo "$row - skipped: this machine is $(uname -m)" ;;
    esac
    ;;
esac
[ $tried = 1 ] || exit 77
exit $failed

#!/bin/sh
# The README's C program compiles against the shared library and runs.
# check_readme.sh SOURCE_DIR LIBRARY_DIR C_COMPILER
source=$1
library=$2
cc=$3
[ -f "$source/README.md" ] || { echo "README - skipped: not there"; exit 77; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
awk '/^```c$/ { inside = 1; block = ""; next }
     /^```/ { if (inside && block ~ /int main/) { printf "%s", block; exit } inside = 0 }
     inside { block = block $0 "\n" }' "$source/README.md" >"$work/readme.c"
[ -s "$work/readme.c" ] || { echo "FAIL no C program in README.md"; exit 1; }
"$cc" -std=c11 -Wall -Wextra -Wpedantic -Werror -O2 -I "$source/include" "$work/readme.c" \
    -o "$work/readme" -L "$library" -lheadway -lm || { echo "FAIL it does not compile"; exit 1; }
LD_LIBRARY_PATH=$library $HEADWAY_EMULATOR "$work/readme" || { echo "FAIL exit status $?"; exit 1; }
echo "passed: README's program, $(wc -l <"$work/readme.c") lines"

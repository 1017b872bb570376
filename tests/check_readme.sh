#!/bin/sh
# The README's C program compiles against the shared library and runs, and so do its lines of the
# command.  check_readme.sh SOURCE_DIR LIBRARY_DIR C_COMPILER [COMMAND]
source=$1
library=$2
cc=$3
command=$4
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

[ -n "$command" ] || exit 0
headway() { $HEADWAY_EMULATOR "$command" "$@"; }
# Its files go elsewhere, and nobody looks at its times.
sed -n '/^## The command/,/^## In /p' "$source/README.md" | awk '/^```/ { inside = !inside; next } inside' |
    sed -e "s:/tmp/:$work/:g" -e 's/--repeat [0-9]*/--repeat 1/' >"$work/lines"
count=0
cd "$source" || exit 1
while read -r line; do
    case $line in
    cd\ * | headway\ *) ;;
    PATH=*) continue ;;
    *) echo "FAIL neither headway nor cd: $line"; exit 1 ;;
    esac
    case $line in
    *onednn*) if headway info | grep -q '^onednn absent'; then continue; fi ;;
    esac
    eval "$line" >"$work/said" 2>&1 || { cat "$work/said"; echo "FAIL exit status: $line"; exit 1; }
    count=$((count + 1))
done <"$work/lines"
[ $count -gt 5 ] || { echo "FAIL $count lines of the command in README.md"; exit 1; }
echo "passed: README's command, $count lines"

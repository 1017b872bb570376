# Sourced by record.sh and check_abi.sh. POSIX sh.

# abi_build SOURCE_DIR C_COMPILER OUT: what the public functions' DWARF says is in src/api alone, so that
# is what is compiled for abidw; what it calls stays undefined.
abi_build() {
    "$2" -std=c11 -D_POSIX_C_SOURCE=200809L -g -gdwarf-4 -O1 -fPIC -shared -fvisibility=hidden \
        -I "$1/include" -I "$1/src" "$1"/src/api/*.c -Wl,-soname,libheadway.so.0 \
        -Wl,--version-script="$1/src/api/headway.map" -o "$3"
}

# abi_describe SOURCE_DIR LIBRARY OUT: only the types that the public header defines.
abi_describe() {
    abidw --headers-dir "$1/include" --drop-private-types --exported-interfaces-only \
        --no-corpus-path --no-comp-dir-path --no-show-locs \
        --type-id-style hash --out-file "$3" "$2"
}

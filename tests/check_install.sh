#!/bin/sh
# Another project uses Headway: from an installed and then moved prefix, from Debian packages, and as
# sources within its own; in C and C++, shared and static, by CMake and by pkg-config.
# check_install.sh SOURCE_DIR BUILD_DIR CMAKE C_COMPILER
source=$1
build=$2
cmake=$3
cc=$4
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
# Of the same family: the archive needs its OpenMP library.
case ${cc##*/} in
clang*) cxx=clang++${cc##*clang} ;;
gcc*) cxx=g++${cc##*gcc} ;;
*) cxx=c++ ;;
esac
failed=0
fail() {
    echo "FAIL $*"
    failed=1
}
have() { command -v "$1" >/dev/null 2>&1; }
# quietly COMMAND... : its output only where it fails.
quietly() {
    "$@" >"$work/log" 2>&1 && return 0
    cat "$work/log"
    return 1
}
number() { sed -n "s/^#define HEADWAY_VERSION_$1 //p" "$source/include/headway/headway.h"; }
version=$(number MAJOR).$(number MINOR).$(number PATCH)

# runs NAME KIND PROGRAM: it says the numbers, and loads libheadway.so where KIND is shared alone.
runs() {
    [ -f "$3" ] || return
    said=$("$3" 2>&1)
    loads=static
    readelf -d "$3" | grep -q 'NEEDED.*libheadway\.so\.0' && loads=shared
    if [ "$said" != "$version: 2.5 2.5 3 -1" ]; then
        fail "$1: it says: $said"
    elif [ $loads != "$2" ]; then
        fail "$1: it is linked as $loads"
    else
        echo "passed: $1"
    fi
}

# by_cmake NAME cmake-argument...
by_cmake() {
    name=$1
    shift
    rm -rf "$work/user"
    quietly "$cmake" -S "$source/tests/install" -B "$work/user" -DCMAKE_C_COMPILER="$cc" \
        -DCMAKE_CXX_COMPILER="$cxx" "$@" &&
        quietly "$cmake" --build "$work/user" --parallel 2 || {
        fail "$name: the other project does not build"
        return
    }
    ls "$work/user/cpp_shared" >/dev/null 2>&1 || echo "$name in C++ - skipped: no $cxx"
    for program in "$work/user/c"*_shared "$work/user/c"*_static; do
        kind=${program##*_}
        runs "$name, ${program##*/}" "$kind" "$program"
    done
}

# by_pkg_config NAME PREFIX
by_pkg_config() {
    have pkg-config || {
        echo "$1 by pkg-config - skipped: no pkg-config"
        return
    }
    PKG_CONFIG_PATH=$(dirname "$(find "$2" -name headway.pc)")
    export PKG_CONFIG_PATH
    [ "$(pkg-config --modversion headway)" = "$version" ] || fail "$1: headway.pc's version"
    LD_LIBRARY_PATH=$(pkg-config --variable=libdir headway)
    export LD_LIBRARY_PATH
    c11="$cc -std=c11"
    for compiler in "$c11" "$cxx -std=c++17"; do
        have "${compiler%% *}" || {
            echo "$1 by pkg-config and ${compiler%% *} - skipped: not installed"
            continue
        }
        user=$source/tests/install/user.cpp
        [ "$compiler" = "$c11" ] && user=$source/tests/install/user.c
        flags=$(pkg-config --cflags --libs headway)
        archive=$(pkg-config --static --cflags --libs headway | sed 's/-lheadway/-l:libheadway.a/')
        quietly $compiler "$user" -o "$work/shared" $flags || fail "$1 by pkg-config: $compiler"
        quietly $compiler "$user" -o "$work/static" $archive ||
            fail "$1 by pkg-config, static: $compiler"
        runs "$1 by pkg-config, ${compiler##*=}" shared "$work/shared"
        runs "$1 by pkg-config, ${compiler##*=}, static" static "$work/static"
        rm -f "$work/shared" "$work/static"
    done
    unset PKG_CONFIG_PATH LD_LIBRARY_PATH
}

quietly "$cmake" --install "$build" --prefix "$work/installed" || {
    fail "install"
    exit 1
}
mv "$work/installed" "$work/moved"
grep -rlE "$work/installed|$build|$source/" "$work/moved" --include='*.cmake' --include='*.pc' &&
    fail "a file of the prefix names a folder of the build"
by_cmake "find_package" -DCMAKE_PREFIX_PATH="$work/moved"
by_pkg_config "the prefix" "$work/moved"
by_cmake "FetchContent" -DHEADWAY_SOURCE="$source" -DCMAKE_BUILD_TYPE=Debug

# field PACKAGE FIELD PATTERN
field() {
    dpkg-deb --field "$work/packages/$1"_*.deb "$2" | grep -Eq -- "$3" ||
        fail "$1: $2 is not '$3': $(dpkg-deb --field "$work/packages/$1"_*.deb "$2")"
}
if have dpkg-deb && have dpkg-shlibdeps && have file; then
    # Of Make, cpack would build everything once more.
    quietly "${cmake%cmake}cpack" -G DEB -D CPACK_CMAKE_GENERATOR=Ninja -B "$work/packages" \
        --config "$build/CPackConfig.cmake" ||
        fail "cpack"
    rm -rf "$work/packages/_CPack_Packages"
    mkdir "$work/root"
    packages=0
    for package in "$work/packages/"*.deb; do
        quietly dpkg-deb -x "$package" "$work/root" || fail "dpkg-deb: ${package##*/}"
        name=${package##*/}
        name=${name%%_*}
        field "$name" Version "^$version-1\$"
        field "$name" Maintainer '.+ <.+@.+>'
        field "$name" Architecture "^$(dpkg --print-architecture)\$"
        [ -s "$work/root/usr/share/doc/$name/copyright" ] || fail "$name has no copyright file"
        gzip -t "$work/root/usr/share/doc/$name/changelog.Debian.gz" || fail "$name: changelog"
        packages=$((packages + 1))
    done
    [ $packages -ge 2 ] || fail "$packages packages"
    field libheadway0 Depends 'libc6 \(>= '
    field libheadway0 Section '^libs$'
    field libheadway-dev Depends "libheadway0 \\(= $version-1\\)"
    dpkg-deb --info "$work/packages/libheadway0_"*.deb shlibs |
        grep -q '^libheadway 0 libheadway0 (>= ' || fail "libheadway0: shlibs"
    [ -f "$work/packages/headway_$version-1_$(dpkg --print-architecture).deb" ] &&
        field headway Depends 'libcjson1' && {
        "$work/root/usr/bin/headway" info >"$work/log" 2>&1 && grep -q '^isa scalar' "$work/log" ||
            fail "headway info: $(cat "$work/log")"
    }
    echo "passed: $packages packages, their fields and documents"
    by_cmake "Debian packages" -DCMAKE_PREFIX_PATH="$work/root/usr"
    by_pkg_config "Debian packages" "$work/root"
else
    echo "Debian packages - skipped: no dpkg-deb, dpkg-shlibdeps (dpkg-dev) or file"
fi
exit $failed

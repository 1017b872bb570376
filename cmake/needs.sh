# Sourced by demo.sh, test.sh and .ci/run. What a script needs, and from which Debian package it comes.
# POSIX sh.

# needs THING... : THING is command=package or header.h=package. Installs the packages of what is
# missing (root with apt-get), or names them and returns 1.
needs() {
    missing=
    for need; do
        thing=${need%%=*}
        package=${need#*=}
        case $thing in
        *.h)
            command -v cc >/dev/null 2>&1 &&
                printf '#if !__has_include(<%s>)\n#error\n#endif\n' "$thing" |
                cc -E -o /dev/null - >/dev/null 2>&1 || missing="$missing $package"
            ;;
        *)
            command -v "$thing" >/dev/null 2>&1 || missing="$missing $package"
            ;;
        esac
    done
    [ -n "$missing" ] || return 0
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "headway: missing, and there is no apt-get to install it; Debian's names are:$missing" >&2
        return 1
    fi
    if [ "$(id -u)" != 0 ]; then
        echo "headway: missing:$missing" >&2
        echo "headway: as root: apt-get install$missing" >&2
        return 1
    fi
    echo "headway: installing with apt-get:$missing"
    install_packages $missing
}

# install_packages PACKAGE... : quiet unless it fails.
install_packages() {
    install_log=$(mktemp) || return 1
    if apt-get -q update >"$install_log" 2>&1 &&
        DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install "$@" \
            >>"$install_log" 2>&1; then
        rm -f "$install_log"
        return 0
    fi
    cat "$install_log" >&2
    rm -f "$install_log"
    echo "headway: apt-get failed" >&2
    return 1
}

# What every build here needs, and what it leaves out without.
needs_build="cmake=cmake make=make cc=gcc stdio.h=libc6-dev cjson/cJSON.h=libcjson-dev
    oneapi/dnnl/dnnl.h=libdnnl-dev"
needs_test="$needs_build c++=g++ benchmark/benchmark.h=libbenchmark-dev readelf=binutils
    qemu-x86_64=qemu-user valgrind=valgrind pkg-config=pkg-config dpkg-shlibdeps=dpkg-dev file=file
    abidiff=abigail-tools microhttpd.h=libmicrohttpd-dev"

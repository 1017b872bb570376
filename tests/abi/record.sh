#!/bin/sh
# Records the binary interface that check_abi.sh holds the library to: sh tests/abi/record.sh
set -eu
cd -- "$(dirname -- "$0")/../.."
. tests/abi/build.sh
library=$(mktemp)
trap 'rm -f "$library"' EXIT
abi_build . "${CC:-gcc}" "$library"
abi_describe . "$library" tests/abi/headway.abi
echo "recorded: tests/abi/headway.abi"

#!/bin/sh
# A test that can't run in this build.  skip.sh NAME REASON
echo "$1 - skipped: $2"
exit 77

#!/bin/sh
# A test that can't run in this build.  skip.sh NAME REASON
echo "skip: $1: $2"
exit 77

#!/bin/sh
# run.sh - every scenario of this folder does what it says.
exec ./lagan-sim script "${srcdir:-.}"/tests/scenarios/*.txt

#!/bin/sh
# soak.sh - a few worlds of lagan-sim soak; check_long.sh lives through ten million requests.
exec ./lagan-sim soak --requests 30000 --each 1000 --seed "${LAGAN_TEST_SEED:-1}"

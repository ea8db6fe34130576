#!/bin/sh
# layout.sh - print SHM_LAYOUT_SUM and MIRROR_LAYOUT_SUM; ipc/layout.h says when they are needed.
#
# Run in the build directory, which has config.h.
src=${srcdir:-$(dirname "$0")/..}
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT
cat >"$tmp/sums.c" <<'SUMS'
#include "daemon/recall.h"

#include <stdio.h>

int
main(void)
{
    printf("SHM_LAYOUT    UINT64_C(%llu)\n", (unsigned long long)SHM_LAYOUT_SUM);
    printf("MIRROR_LAYOUT UINT64_C(%llu)\n", (unsigned long long)MIRROR_LAYOUT_SUM);
    return 0;
}
SUMS
${CC:-cc} -std=gnu11 -I. -I"$src" -include config.h "$tmp/sums.c" -o "$tmp/sums" && "$tmp/sums"

#!/bin/sh
# layout.sh - print SHM_LAYOUT_SUM and LEDGER_LOG_LAYOUT_SUM; ipc/layout.h says when they are
# needed.
#
# Run in the build directory, which has config.h.
src=${srcdir:-$(dirname "$0")/..}
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT
cat >"$tmp/sums.c" <<'SUMS'
#include "daemon/ledger/ledger_save.h"

#include <stdio.h>

int
main(void)
{
    printf("SHM_LAYOUT      UINT64_C(%llu)\n", (unsigned long long)SHM_LAYOUT_SUM);
    printf("LOG_FILE_LAYOUT UINT64_C(%llu)\n", (unsigned long long)LEDGER_LOG_LAYOUT_SUM);
    return 0;
}
SUMS
${CC:-cc} -std=gnu11 -I. -I"$src" -include config.h "$tmp/sums.c" -o "$tmp/sums" && "$tmp/sums"

#!/bin/bash
# reconfigured.sh - a second configure with other directories in the same build folder changes the
# paths in the programs. Compiles lagand and laganctl twice: `make check-long` runs it.
set -u
top=$(cd "${srcdir:-$(dirname "$0")/../..}" && pwd)
dir=$(mktemp -d) || exit 99
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 99

build() { # directories for configure
  { "$top/configure" -q --without-cuda "$@" && make -s -j"$(nproc)" lagand laganctl libgpu.a; } \
    >out 2>&1 || { tail -n 30 out; exit 1; }
}
has() { # PROGRAM TEXT
  grep -qaF "$2" "$1" || { echo "$1 does not contain $2"; exit 1; }
}
build
has lagand /usr/local/etc/lagan/lagan.yaml
build --prefix=/usr --sysconfdir=/etc
./lagand --help | tr -s ' \n' ' ' | grep -qF 'default: /etc/lagan/lagan.yaml' ||
  { ./lagand --help | grep -A2 'config FILE'; echo "lagand reads another file"; exit 1; }
has lagand /usr/libexec/lagan
has laganctl /usr/libexec/lagan
has libgpu.a /usr/lib/lagan
! grep -qaF /usr/local/etc lagand || { echo "lagand contains the first prefix"; exit 1; }

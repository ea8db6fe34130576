/* curve.h - key files for tcp: which clients may connect, and with which keys. Both ends use one
 * format.
 *
 *     # lagand: api.keys                          # client: --keys, lagan_open_keys()
 *     secret 9c..40 characters                    secret rq..40 characters
 *     client Yk..40 characters alice              server 0d..40 characters
 *     client 3v..40 characters batch max_inflight=64 max_tokens=100000
 *
 * Keys are Z85 text, as `laganctl keygen` writes them; each side lists the public key of the other
 * side. Because the file holds a secret, it must be owned by root or by the user of the program,
 * and its mode must grant nothing to group and others. */
#pragma once

#include "base/base.h"
#include "base/err.h"

enum { CURVE_KEY = 40, CURVE_NAME = 32, CURVE_MAX_PEERS = 512, CURVE_MAX_FILE = 128 << 10 };

struct curve_peer {
    char key[CURVE_KEY + 1]; /* public */
    char name[CURVE_NAME + 1];
    uint32_t max_inflight; /* 0: no limit given */
    uint64_t max_tokens;
};

struct curve_file {
    char secret[CURVE_KEY + 1], server[CURVE_KEY + 1]; /* "": not in the file */
    uint32_t n_peers;
    struct curve_peer peer[CURVE_MAX_PEERS];
};

/* -EINVAL: names the line and the fault. Names and keys of peers are unique. */
int curve_parse(struct curve_file *f, const char *text, size_t n, struct err *e) MUST_USE;
/* -EACCES: other users may read the file or own it. -EINVAL, -ENOENT, -E2BIG. */
int curve_read(struct curve_file *f, const char *path, struct err *e) MUST_USE;
/* s is 40 characters of Z85 that encode 32 bytes. */
bool curve_key_fits(const char *s, size_t n);
/* NULL: no client has this key */
const struct curve_peer *curve_find(const struct curve_file *f, const char *key);

/* curve.h - keys files: who may talk over tcp, and with which keys. One format for both ends.
 *
 *     # lagand's: api.keys                        # a client's: --keys, lagan_open_keys()
 *     secret 9c..40 characters                    secret rq..40 characters
 *     client Yk..40 characters alice              server 0d..40 characters
 *     client 3v..40 characters batch max_inflight=64 max_tokens=100000
 *
 * Keys are Z85 text, as `laganctl keygen` makes them; a secret's public half is what the other side
 * writes down. The file holds a secret: its mode leaves nothing to group and others, and it belongs to
 * whoever runs the program, or to root.
 */
#ifndef WIRE_CURVE_H
#define WIRE_CURVE_H

#include "base/base.h"
#include "base/err.h"

enum { CURVE_KEY = 40, CURVE_NAME = 32, CURVE_MAX_PEERS = 512, CURVE_MAX_FILE = 128 << 10 };

struct curve_peer {
    char key[CURVE_KEY + 1]; /* public */
    char name[CURVE_NAME + 1];
    uint32_t max_inflight; /* 0: not said */
    uint64_t max_tokens;
};

struct curve_file {
    char secret[CURVE_KEY + 1], server[CURVE_KEY + 1]; /* "": not in it */
    uint32_t n_peers;
    struct curve_peer peer[CURVE_MAX_PEERS];
};

/* -EINVAL: the line and what is wrong with it. Names and keys of peers differ. */
int curve_parse(struct curve_file *f, const char *text, size_t n, struct err *e) MUST_USE;
/* -EACCES: others may read it, or it is another's. -EINVAL, -ENOENT, -E2BIG. */
int curve_read(struct curve_file *f, const char *path, struct err *e) MUST_USE;
/* 40 characters of Z85 that stand for 32 bytes. */
bool curve_key_fits(const char *s, size_t n);
const struct curve_peer *curve_find(const struct curve_file *f, const char *key); /* NULL: nobody */

#endif

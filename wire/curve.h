/* curve.h - reads the key file of lagand or of a client: the CURVE keys of ZeroMQ for tcp. lagand's
 * file also lists the clients that may connect. Both files have one format:
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
    char key[CURVE_KEY + 1]; /* public key of the client */
    char name[CURVE_NAME + 1];
    uint32_t max_inflight; /* limits of open requests and of their tokens; 0: not in the file */
    uint64_t max_tokens;
};

struct curve_file {
    /* Secret key of the file's owner; lagand's public key (client's file). "": not in the file. */
    char secret[CURVE_KEY + 1], server[CURVE_KEY + 1];
    uint32_t n_peers;
    struct curve_peer peer[CURVE_MAX_PEERS];
};

/* Parses n bytes of a key file into *f. -EINVAL: e names the line and the fault, for example a
 * client name or key that occurs twice. */
int curve_parse(struct curve_file *f, const char *text, size_t n, struct err *e) MUST_USE;
/* Reads and parses the key file at path. -EACCES: another user owns the file, or other users may
 * read it. -EINVAL as curve_parse(), -ENOENT, -E2BIG: more than CURVE_MAX_FILE bytes. */
int curve_read(struct curve_file *f, const char *path, struct err *e) MUST_USE;
/* Returns true if the n characters at s are a key: 40 characters of Z85 that encode 32 bytes. */
bool curve_key_fits(const char *s, size_t n);
/* Returns the client with this public key; NULL: the file lists no such client. */
const struct curve_peer *curve_find(const struct curve_file *f, const char *key);

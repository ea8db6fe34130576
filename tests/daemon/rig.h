/* rig.h - fixture: the real lagand with fake_worker, and clients that send raw frames. */
#pragma once

#include "base/base.h"
#include "tests/systemd.h"
#include "tests/test.h"
#include "wire/msg.h"

#include <sys/types.h>

struct rig {
    char dir[64], run[80], model[160], log[96]; /* all paths are below dir */
    pid_t pid;
    struct systemd systemd;
    void *zmq;
};

/* Starts lagand with fake_worker in that mode; args: ends with NULL, or NULL. Does not wait. */
void rig_start(struct rig *r, const char *mode, const char *const *args);
/* kill -9, then a start with the descriptors of the fd store, like systemd after the workers have
 * ended. */
void rig_crash(struct rig *r, const char *mode, const char *const *args);
void rig_ready(struct rig *r); /* waits for READY=1 */
/* rig_start() and rig_ready(). */
void rig_begin(struct rig *r, const char *mode, const char *const *args);
#define ARGS(...) ((const char *const[]){ __VA_ARGS__, NULL })
/* Times in ms; 0: now. A wait for an expected event is extended, so that only a hang fails. */
bool rig_told(struct rig *r, const char *word, int ms); /* a datagram to systemd had that text */
bool rig_logged(struct rig *r, const char *words, int ms);
int rig_wait(struct rig *r, int ms); /* exit code of lagand; 256 + signal; -1: it runs */
int rig_stop(struct rig *r);         /* SIGTERM and wait; checks that no file or process is left */
void rig_clean(struct rig *r);       /* the directory and all in it */
int rig_tear_down(void **state);     /* rig_clean() of the one that was started last */
#define rig_test(f) cmocka_unit_test_teardown(f, rig_tear_down)
uint32_t rig_n_workers(const struct rig *r); /* processes of its run, by their parent */
void rig_await_workers(const struct rig *r, uint32_t n);

struct dealer; /* one client */

struct dealer *dial(struct rig *r, const char *listener);
/* Between two questions of a client that waits for something: after half a MiB of answers lagand
 * sends it a PING. */
enum { ASK_MS = 100 };
/* One that takes so many frames and no more until it hears them, and does not connect twice. */
struct dealer *dial_narrow(struct rig *r, const char *listener, int frames);
void hang_up(struct dealer *c);
void hang_up_all(void); /* rig_clean() does */
void send_bytes(struct dealer *c, const void *p, size_t n);

/* A frame with up to 8 integer keys; "ids" makes a prompt of so many ids from 0 on, capped at
 * vocab. */
#define FALSE_KEY INT64_MIN /* false, not a number */
struct key {
    const char *key;
    int64_t v;
};
void say(struct dealer *c, uint32_t type, uint64_t rid, const struct key *keys, uint32_t n);
#define SAY(c, type, rid, ...) \
    say(c, type, rid, (const struct key[]){ __VA_ARGS__ }, \
        sizeof((const struct key[]){ __VA_ARGS__ }) / sizeof(struct key))
void call(struct dealer *c, uint64_t rid, const char *verb, const char *key, const char *value);

/* The next frame within so long; fails the test when there is none. Valid until the next hear(). */
const struct msg *hear(struct dealer *c, int ms);
bool silent(struct dealer *c, int ms);                                /* nothing came for so long */
const struct msg *hear_type(struct dealer *c, uint32_t type, int ms); /* this type, or it fails */
/* An ERROR with that code and words in its message. */
void hear_error(struct dealer *c, uint64_t rid, uint32_t code, const char *words, int ms);
/* SUBMIT of n ids and so many tokens, and its ACCEPT. */
void submit(struct dealer *c, uint64_t rid, uint32_t n_ids, uint32_t max_tokens, uint64_t seed);
/* Check one CHUNK against what the stand-in says; the position after it. */
uint32_t take_chunk(const struct msg *m, uint32_t at, uint64_t seed);
/* Chunks, acknowledged, until DONE; how many chunks. */
uint32_t take_all(struct dealer *c, uint64_t rid, uint32_t max_tokens, uint64_t seed);
uint32_t open_requests(struct dealer *c, uint64_t rid); /* that lagand has, by its status */
uint64_t number(const msgpack_object *map, const char *key);
const char *text_of(const msgpack_object *map, const char *key); /* NUL-ended; static */

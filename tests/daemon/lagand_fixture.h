/* lagand_fixture.h - the real lagand with fake_worker, and clients that send raw frames. */
#pragma once
#include "base/base.h"
#include "tests/systemd.h"
#include "tests/test.h"
#include "wire/msg.h"

#include <sys/types.h>

struct lagand_fixture {
    char dir[64], run[80], model[160], log[96]; /* all paths are below dir */
    pid_t pid;
    struct systemd systemd;
    void *zmq;
};

/* Starts lagand with fake_worker in that mode; args: ends with NULL, or NULL. Does not wait. */
void lagand_start(struct lagand_fixture *r, const char *mode, const char *const *args);
/* kill -9, then a start with the descriptors of the fd store, like systemd after the workers have
 * ended. */
void lagand_crash(struct lagand_fixture *r, const char *mode, const char *const *args);
void lagand_ready(struct lagand_fixture *r); /* waits for READY=1 */
/* lagand_start() and lagand_ready(). */
void lagand_begin(struct lagand_fixture *r, const char *mode, const char *const *args);
#define ARGS(...) ((const char *const[]){ __VA_ARGS__, NULL })
/* Times in ms; 0: now. A wait for an expected event is extended, so that only a hang fails. */
bool lagand_notified(struct lagand_fixture *r, const char *text, int ms); /* see systemd_notified */
bool lagand_logged(struct lagand_fixture *r, const char *text, int ms);
/* Returns how often the log has the text. */
int lagand_count(struct lagand_fixture *r, const char *text);
int lagand_wait(struct lagand_fixture *r, int ms); /* exit code; 256 + signal; -1: still running */
int lagand_stop(
    struct lagand_fixture *r); /* SIGTERM and wait; checks that no file or process is left */
void lagand_clean(struct lagand_fixture *r); /* removes the directory */
int lagand_tear_down(void **state); /* lagand_clean() of the fixture that was started last */
#define lagand_test(f) cmocka_unit_test_teardown(f, lagand_tear_down)
uint32_t lagand_n_workers(const struct lagand_fixture *r); /* processes of this fixture's lagand */
void lagand_await_workers(const struct lagand_fixture *r, uint32_t n);

struct dealer; /* one client */

struct dealer *dealer_open(struct lagand_fixture *r, const char *listener);
/* Between two calls of a client that polls a state. After half a MiB of replies lagand sends the
 * client a PING. */
enum { ASK_MS = 100 };
/* Its socket holds that many frames until receive() takes one. It does not reconnect. */
struct dealer *dealer_open_small(struct lagand_fixture *r, const char *listener, int frames);
void dealer_close(struct dealer *c);
void dealers_close(void); /* lagand_clean() does */
void send_bytes(struct dealer *c, const void *p, size_t n);

/* A frame with up to 8 integer keys. "ids": v makes a prompt of the v ids 0, 1, 2, …, modulo the
 * vocabulary. */
#define FALSE_KEY INT64_MIN /* false, not a number */
struct key {
    const char *key;
    int64_t v;
};
void send_keys(struct dealer *c, uint32_t type, uint64_t rid, const struct key *keys, uint32_t n);
#define SEND(c, type, rid, ...) \
    send_keys(c, type, rid, (const struct key[]){ __VA_ARGS__ }, \
              sizeof((const struct key[]){ __VA_ARGS__ }) / sizeof(struct key))
void call(struct dealer *c, uint64_t rid, const char *verb, const char *key, const char *value);

/* Returns the next frame, valid until the next receive(); fails the test if none arrives. */
const struct msg *receive(struct dealer *c, int ms);
const struct msg *receive_type(struct dealer *c, uint32_t type, int ms); /* fails on another type */
/* Receives an ERROR with that code and that text in its message. */
void receive_error(struct dealer *c, uint64_t rid, uint32_t code, const char *text, int ms);
bool silent(struct dealer *c, int ms); /* no frame arrived within ms */
/* Sends SUBMIT with n_ids prompt tokens and receives its ACCEPT. */
void submit(struct dealer *c, uint64_t rid, uint32_t n_ids, uint32_t max_tokens, uint64_t seed);
/* Checks one CHUNK against the tokens of fake_worker. Returns the position after it. */
uint32_t take_chunk(const struct msg *m, uint32_t at, uint64_t seed);
/* Receives and acknowledges chunks until DONE. Returns their number. */
uint32_t take_all(struct dealer *c, uint64_t rid, uint32_t max_tokens, uint64_t seed);
uint32_t open_requests(struct dealer *c, uint64_t rid); /* `requests` of lagand's status */
uint64_t number(const msgpack_object *map, const char *key);
const char *text_of(const msgpack_object *map, const char *key); /* NUL-terminated; static */

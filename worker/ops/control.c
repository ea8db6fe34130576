/* control.c - the control thread and its commands: see control.h. */
#include "worker/ops/control.h"

#include "base/failpoint.h"
#include "base/log.h"
#include "ipc/channel.h"
#include "ipc/stat.h"
#include "wire/msg.h"
#include "worker/ops/cache_flush.h"
#include "worker/ops/cache_pin.h"
#include "worker/ops/partition_ctl.h"
#include "worker/ops/tuning.h"

#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

enum { TUNE_RESULTS = 64 }; /* tuning results per reply, because lagand accepts 64 KiB */

struct control {
    pthread_t thread;
    struct worker *w;
    void *context, *socket; /* used by the thread once it runs; control_stop() terminates context */
    int wake;               /* eventfd of control_fd() */
};

static void
send_buffer(struct control *c, const msgpack_sbuffer *b)
{
    while (zmq_send(c->socket, b->data, b->size, ZMQ_DONTWAIT) < 0 && errno == EINTR) continue;
}

static void
send_hello(struct control *c, const char *token)
{
    CLEAN(msgpack_sbuffer_destroy) msgpack_sbuffer b = { 0 };
    msgpack_packer p;

    msgpack_packer_init(&p, &b, msgpack_sbuffer_write);
    msg_begin(&p, LAGAN_MSG_HELLO, 0, 2);
    msg_key(&p, "token");
    msg_text(&p, token);
    msg_key(&p, "pid");
    msgpack_pack_uint32(&p, (uint32_t)getpid());
    send_buffer(c, &b);
}

static bool
span_is(const struct msg_span *s, const char *word)
{
    return s->n == strlen(word) && !memcmp(s->p, word, s->n);
}

static void
wake_engine(struct control *c)
{
    uint64_t one = 1;

    while (write(c->wake, &one, sizeof one) < 0 && errno == EINTR) continue;
}

/* ---- verbs: the function of a verb packs its result and returns 0, or returns an error code and
 * sets the reason in e; then the packed result is dropped */

struct control_call {
    const msgpack_object *args; /* NULL: the command has no arguments */
    msgpack_packer *p;
    struct err *e;
};

/* Returns the argument, or UINT32_MAX if it is greater. 0: it is absent. */
static uint32_t
arg_u32(const struct control_call *k, const char *key)
{
    uint64_t v = 0;

    if (k->args) msg_u64(k->args, key, &v);
    return (uint32_t)MIN(v, (uint64_t)UINT32_MAX);
}

static uint32_t
verb_loglevel(struct control *c, struct control_call *k)
{
    struct msg_span level = { 0 };

    (void)c;
    if (k->args) msg_str(k->args, "level", &level);
    for (uint32_t i = 0; i < N_LOG_LEVELS; i++) {
        if (!span_is(&level, log_level_name(log_level_choice(i)))) continue;
        log_level_set(log_level_choice(i));
        msgpack_pack_map(k->p, 0);
        return 0;
    }
    err_set(k->e, -EINVAL, "loglevel: level is \"%.*s\"; expected err, warn, info or debug",
            (int)MIN(level.n, (size_t)40), level.n ? level.p : "");
    return LAGAN_E_INVALID_REQUEST;
}

static uint32_t
verb_tune(struct control *c, struct control_call *k)
{
    int n = tuning_start(c->w->tuning, k->e);

    if (n < 0) return LAGAN_E_UNSUPPORTED;
    wake_engine(c);
    msgpack_pack_map(k->p, 1);
    msg_key_u64(k->p, "total", (uint64_t)n);
    return 0;
}

static void
put_us(msgpack_packer *p, const char *key, float us)
{
    msg_key(p, key);
    msgpack_pack_double(p, (double)us);
}

static uint32_t
verb_tune_status(struct control *c, struct control_call *k)
{
    struct tune_result result[TUNE_RESULTS];
    struct tuning_state s;
    uint32_t n = tuning_read(c->w->tuning, &s, arg_u32(k, "from"), result, TUNE_RESULTS);

    msgpack_pack_map(k->p, 5);
    msg_key_u64(k->p, "done", s.done);
    msg_key_u64(k->p, "total", s.total);
    msg_key(k->p, "running");
    s.running ? msgpack_pack_true(k->p) : msgpack_pack_false(k->p);
    msg_key(k->p, "why");
    msg_any_text(k->p, s.why);
    msg_key(k->p, "rows");
    msgpack_pack_array(k->p, n);
    for (uint32_t i = 0; i < n; i++) {
        msgpack_pack_map(k->p, 6);
        msg_key_u64(k->p, "n", result[i].n);
        msg_key_u64(k->p, "k", result[i].k);
        msg_key_u64(k->p, "rows", result[i].rows);
        put_us(k->p, "first_us", result[i].first);
        put_us(k->p, "best_us", result[i].best);
        msg_key_u64(k->p, "tried", result[i].n_tried);
    }
    return 0;
}

static uint32_t
verb_split_show(struct control *c, struct control_call *k)
{
    static const char *const modes[] = { "off", "auto", "fixed" };
    struct partition_ctl_state s = partition_ctl_state(c->w->partition_ctl);
    const struct partition_list *l = &s.partition_list;
    const struct partition *now = &l->partition[s.partition];
    struct stats stats = { { 0 } };

    stat_read(shm_ctl(&c->w->channel->w), &stats);
    msgpack_pack_map(k->p, 15);
    msg_key(k->p, "mode");
    msg_text(k->p, modes[s.mode]);
    msg_key_u64(k->p, "units", l->units);
    msg_key_u64(k->p, "min_units", l->least);
    msg_key_u64(k->p, "granularity", l->grain);
    msg_key_u64(k->p, "target_ns", (uint64_t)s.target);
    msg_key_u64(k->p, "prefill_units", s.partition ? now->prefill_units : 0);
    msg_key_u64(k->p, "decode_units", s.partition ? now->decode_units : 0);
    msg_key_u64(k->p, "changes", s.n_changes);
    for (unsigned i = STAT_prefill_steps; i <= STAT_mixed_ns; i++)
        msg_key_u64(k->p, stat_rows[i].name, stats.v[i]);
    msg_key(k->p, "partitions");
    msgpack_pack_array(k->p, l->n - 1);
    for (unsigned i = 1; i < l->n; i++) {
        msgpack_pack_array(k->p, 2);
        msgpack_pack_uint32(k->p, l->partition[i].prefill_units);
        msgpack_pack_uint32(k->p, l->partition[i].decode_units);
    }
    return 0;
}

static uint32_t
select_partition(struct control *c, struct control_call *k, uint32_t mode)
{
    int r = partition_ctl_select(c->w->partition_ctl, mode, arg_u32(k, "prefill_units"),
                                 arg_u32(k, "decode_units"), k->e);

    if (r < 0) return r == -ENOTSUP ? LAGAN_E_UNSUPPORTED : LAGAN_E_INVALID_REQUEST;
    wake_engine(c);
    msgpack_pack_map(k->p, 0);
    return 0;
}

static uint32_t
verb_split_auto(struct control *c, struct control_call *k)
{
    return select_partition(c, k, SPLIT_AUTO);
}

static uint32_t
verb_split_off(struct control *c, struct control_call *k)
{
    return select_partition(c, k, SPLIT_OFF);
}

static uint32_t
verb_split_set(struct control *c, struct control_call *k)
{
    return select_partition(c, k, SPLIT_FIXED);
}

/* Lets the engine thread flush the prefix cache, and waits for the result. */
static uint32_t
verb_kv_flush(struct control *c, struct control_call *k)
{
    struct kv_flushed went;
    int r;

    cache_flush_request(c->w->cache_flush);
    wake_engine(c);
    r = cache_flush_wait(c->w->cache_flush, &went, k->e);
    if (r < 0) return r == -ETIMEDOUT ? LAGAN_E_DEADLINE : LAGAN_E_DRAINING;
    msgpack_pack_map(k->p, 4);
    msg_key_u64(k->p, "blocks", went.blocks);
    msg_key_u64(k->p, "bytes", went.bytes);
    msg_key_u64(k->p, "host_blocks", went.host_blocks);
    msg_key_u64(k->p, "host_bytes", went.host_bytes);
    return 0;
}

/* Writes the salt of the user's requests (ipc/records.h). */
static int
read_salt(const struct control *c, const struct control_call *k, struct cache_pin *p)
{
    bool one_user = c->w->keys->kv_reuse_scope == REUSE_SCOPE_USER;
    struct msg_span user = { 0 }, salt = { 0 };

    if (k->args) msg_str(k->args, "user", &user);
    if (k->args) msg_str(k->args, "cache_salt", &salt);
    if (one_user && !user.n)
        return err_set(k->e, -EINVAL,
                       "user is missing: kv.reuse_scope is user, so the cache has a part for each "
                       "user, for example uid:1000 or key:alice");
    if (!one_user) user.n = 0;
    if (user.n + salt.n + 1 > sizeof p->salt)
        return err_set(k->e, -EINVAL, "user and cache_salt have %u bytes, the limit is %zu",
                       user.n + salt.n, sizeof p->salt - 1);
    if (!user.n && !salt.n) return 0;
    if (user.n) memcpy(p->salt, user.p, user.n);
    p->salt[user.n] = 0;
    if (salt.n) memcpy(p->salt + user.n + 1, salt.p, salt.n);
    p->salt_bytes = user.n + 1 + salt.n;
    return 0;
}

static uint32_t
pin_error(int r)
{
    static const struct {
        int r;
        uint32_t code;
    } codes[] = { { -ETIMEDOUT, LAGAN_E_DEADLINE },  { -ECANCELED, LAGAN_E_DRAINING },
                  { -EAGAIN, LAGAN_E_QUEUE_FULL },   { -ENOSPC, LAGAN_E_QUEUE_FULL },
                  { -ENOENT, LAGAN_E_NOT_FOUND },    { -EMSGSIZE, LAGAN_E_TOO_LONG },
                  { -ENOMEM, LAGAN_E_OUT_OF_MEMORY } };

    for (size_t i = 0; i < ARRAY_LEN(codes); i++)
        if (codes[i].r == r) return codes[i].code;
    return LAGAN_E_INVALID_REQUEST;
}

/* Starts a pin or unpin. Returns its fields to fill in; NULL: refused, e says why. */
static struct cache_pin *
begin_pin(struct control *c, struct control_call *k, int *r)
{
    struct cache_pin *p = NULL;

    if (!c->w->keys->kv_reuse)
        *r = err_set(k->e, -EINVAL, "kv.reuse is false: there is no prefix cache to pin");
    else if (!(p = cache_pin_begin(c->w->cache_pin)))
        *r = err_set(k->e, -EAGAIN, "an earlier pin is not finished; retry later");
    return p;
}

static int
take_ids(const struct control_call *k, struct cache_pin *p, uint32_t most)
{
    struct msg_ids ids = { 0 };

    if (!k->args || msg_ids(k->args, "ids", &ids, k->e) < 0 || !ids.n)
        return err_set(k->e, -EINVAL, "ids is missing: a list of token ids");
    if (ids.n > most)
        return err_set(k->e, -EMSGSIZE, "ids has %u tokens, the limit of the model is %u", ids.n,
                       most);
    p->ids = malloc((ids.n + 1) * sizeof *p->ids);
    if (!p->ids) return err_set(k->e, -ENOMEM, "no host memory for %u token ids", ids.n);
    msg_ids_copy(&ids, p->ids);
    p->ids[ids.n] = 0;
    p->n_ids = ids.n;
    return 0;
}

static uint32_t
verb_kv_pin(struct control *c, struct control_call *k)
{
    uint32_t most = c->w->max_source ? c->w->max_source : c->w->limits->max_len;
    int r = 0;
    struct cache_pin *p = begin_pin(c, k, &r);

    if (p) r = read_salt(c, k, p);
    if (r == 0) r = take_ids(k, p, most);
    if (r < 0) return pin_error(r);
    cache_pin_request(p);
    wake_engine(c);
    r = cache_pin_wait(p, k->e);
    if (r < 0) return pin_error(r);
    msgpack_pack_map(k->p, 2);
    msg_key_u64(k->p, "pin", (uint64_t)r);
    msg_key_u64(k->p, "tokens", p->n_tokens);
    return 0;
}

static uint32_t
verb_kv_unpin(struct control *c, struct control_call *k)
{
    uint32_t pin = arg_u32(k, "pin");
    int r = 0;
    struct cache_pin *p = begin_pin(c, k, &r);

    if (!p) return pin_error(r);
    p->unpin = pin ? pin : UINT32_MAX;
    cache_pin_request(p);
    wake_engine(c);
    r = cache_pin_wait(p, k->e);
    if (r < 0) return pin_error(r);
    msgpack_pack_map(k->p, 1);
    msg_key_u64(k->p, "pins", (uint64_t)r);
    return 0;
}

enum verb {
#define X(id, name, operators, args, result) VERB_##id,
    LAGAN_VERBS(X)
#undef X
};

static const char *const verb_names[] = {
#define X(id, name, operators, args, result) [VERB_##id] = name,
    LAGAN_VERBS(X)
#undef X
};

/* The verbs whose arguments and results lagand passes on unchanged. NULL: lagand runs the verb. */
static uint32_t (*const verbs[ARRAY_LEN(verb_names)])(struct control *c, struct control_call *k) = {
    [VERB_loglevel] = verb_loglevel,
    [VERB_kv_flush] = verb_kv_flush,
    [VERB_kv_pin] = verb_kv_pin,
    [VERB_kv_unpin] = verb_kv_unpin,
    [VERB_tune] = verb_tune,
    [VERB_tune_status] = verb_tune_status,
    [VERB_split_show] = verb_split_show,
    [VERB_split_auto] = verb_split_auto,
    [VERB_split_off] = verb_split_off,
    [VERB_split_set] = verb_split_set,
};

static void
reply_to_call(struct control *c, const struct msg *m)
{
    struct msg_span verb = { 0 };
    struct err e = { 0 };
    msgpack_packer p;
    struct control_call call = { .args = msg_get(&m->map, "args"), .p = &p, .e = &e };
    uint32_t code = LAGAN_E_NOT_FOUND;
    CLEAN(msgpack_sbuffer_destroy) msgpack_sbuffer b = { 0 };

    msgpack_packer_init(&p, &b, msgpack_sbuffer_write);
    msg_str(&m->map, "verb", &verb);
    msg_begin(&p, LAGAN_MSG_REPLY, m->rid, 1);
    msg_key(&p, "result");
    for (unsigned i = 0; i < ARRAY_LEN(verbs); i++)
        if (verbs[i] && span_is(&verb, verb_names[i])) code = verbs[i](c, &call);
    if (code) {
        msgpack_sbuffer_clear(&b);
        msg_begin(&p, LAGAN_MSG_ERROR, m->rid, 1 + (e.text[0] != 0));
        msg_key(&p, "code");
        msgpack_pack_uint32(&p, code);
        if (e.text[0]) {
            msg_key(&p, "message");
            msg_text(&p, e.text);
        }
    }
    FP(control_sending);
    send_buffer(c, &b);
}

static void *
control_run(void *arg)
{
    struct control *c = arg;
    const char *token = getenv("LAGAN_TOKEN");

    send_hello(c, token ? token : "");
    for (;;) {
        zmq_msg_t frame;
        struct msg m;
        int r;

        zmq_msg_init(&frame);
        r = zmq_msg_recv(&frame, c->socket, 0);
        if (r >= 0 && msg_decode(&m, zmq_msg_data(&frame), zmq_msg_size(&frame), NULL) == 0) {
            if (m.type == LAGAN_MSG_CALL) reply_to_call(c, &m);
            msg_done(&m);
        }
        zmq_msg_close(&frame);
        if (r < 0 && errno != EINTR) break; /* ETERM: stop */
    }
    return NULL;
}

static struct control *
control_free(struct control *c)
{
    if (c->socket) zmq_close(c->socket);
    if (c->context) zmq_ctx_term(c->context);
    if (c->wake >= 0) close(c->wake);
    free(c);
    return NULL;
}

struct control *
control_start(struct worker *w)
{
    const char *endpoint = getenv("LAGAN_CONTROL");
    struct control *c = endpoint ? calloc(1, sizeof *c) : NULL;
    int linger = 0;

    if (!c) return NULL;
    c->w = w;
    c->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    c->context = zmq_ctx_new();
    c->socket = c->context ? zmq_socket(c->context, ZMQ_DEALER) : NULL;
    if (c->socket) zmq_setsockopt(c->socket, ZMQ_LINGER, &linger, sizeof linger);
    if (c->wake >= 0 && c->socket && zmq_connect(c->socket, endpoint) == 0 &&
        pthread_create(&c->thread, NULL, control_run, c) == 0)
        return c;
    log_warn("cannot open the control channel %s: %s; serving without operator commands", endpoint,
             zmq_strerror(errno));
    return control_free(c);
}

struct control *
control_stop(struct control *c)
{
    if (!c) return NULL;
    cache_flush_close(c->w->cache_flush);
    cache_pin_close(c->w->cache_pin);
    zmq_ctx_shutdown(c->context);
    pthread_join(c->thread, NULL);
    return control_free(c);
}

int
control_fd(const struct control *c)
{
    return c ? c->wake : -1;
}

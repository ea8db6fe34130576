/* receive_fixture.c - see receive_fixture.h. */
#include "tests/daemon/receive_fixture.h"

#include "daemon/ledger/quarantine.h"
#include "daemon/request/receive.h"
#include "daemon/request/worker_calls.h"

struct config config;
struct daemon d;
struct worker w;
struct request *request;
union receive_buf buf;

static const struct daemon_events events = { .worker_record = receive_record };

static int
nothing(void *arg)
{
    (void)arg;
    return 0;
}

static void
nothing_kill(void *arg, int sig)
{
    (void)arg;
    (void)sig;
}

static void
nothing_moved(void *arg, enum super_state from, enum super_state to)
{
    (void)arg;
    (void)from;
    (void)to;
}

static const struct super_ops ops = { .spawn = nothing,
                                      .kill = nothing_kill,
                                      .moved = nothing_moved };

struct request *
dispatched(uint64_t rid, uint32_t logprobs, uint8_t flags)
{
    struct rec_submit *s = calloc(1, sizeof *s);
    struct request *r;

    s->max_tokens = MAX_TOKENS;
    s->n_prompt = 3;
    s->logprobs = s->prompt_logprobs = logprobs;
    s->flags = flags;
    assert_int_equal(ledger_take(d.ledger, 1, rid, s, sizeof *s, &r), 0);
    request_move(d.ledger, r, REQUEST_DISPATCHED);
    r->dispatch.held = true;
    r->delivery.ack_window = 4;
    w.requests.n++, w.requests.n_seqs++;
    w.requests.tokens += r->dispatch.load = r->accounting.n_tokens;
    return r;
}

int
set_up(void **state)
{
    (void)state;
    memset(&d, 0, sizeof d);
    memset(&w, 0, sizeof w);
    opt_defaults(daemon_opts, &config.o);
    d.config = &config;
    d.events = &events;
    d.n_workers = 1;
    d.worker[0] = &w;
    d.ledger = ledger_new(16, 1);
    d.sessions = sessions_new(1);
    d.calls = worker_calls_new();
    d.quarantine = quarantine_new();
    d.facts[0] =
        (struct model_facts){ .known = true, .vocab = VOCAB, .n_slots = 4, .max_request_seqs = 4 };
    w.d = &d;
    w.info.vocab = VOCAB;
    w.requests.sending = w.requests.alone = REQUEST_NONE;
    super_init(&w.super, &ops, &w, 1);
    w.super.state = SUPER_READY;
    request = dispatched(1, 0, 0);
    return 0;
}

int
tear_down(void **state)
{
    (void)state;
    ledger_check(d.ledger);
    d.ledger = ledger_free(d.ledger);
    d.sessions = sessions_free(d.sessions);
    d.calls = worker_calls_free(d.calls);
    d.quarantine = quarantine_free(d.quarantine);
    return 0;
}

int
record(uint16_t type, size_t n, struct err *e)
{
    const struct ring_record rec = { type, 0, (uint32_t)n, buf.b };

    return receive_record(&w, &rec, e);
}

struct rec_out *
step(const struct request *r, uint8_t n_tokens, const char *text, size_t *bytes)
{
    struct rec_step *s = (struct rec_step *)buf.b;
    struct rec_out *o = (struct rec_out *)(s + 1);
    bool lp = r->submit->flags & SUBMIT_LOGPROBS;
    size_t tails = 4u * n_tokens + (lp ? n_tokens * (4 + 8 * (size_t)r->submit->logprobs) : 0);

    memset(&buf, 0, sizeof buf);
    s->n_ent = 1;
    *o = (struct rec_out){ .ledger_index = r->index,
                           .gen = r->gen,
                           .n_tokens = n_tokens,
                           .has_logprobs = lp,
                           .first = r->outputs.n_received,
                           .text_bytes = (uint32_t)strlen(text),
                           .text_first = r->outputs.n_text_received,
                           .n_top = lp ? r->submit->logprobs : 0 };
    for (int32_t i = 0; i < n_tokens; i++) memcpy((char *)(o + 1) + 4 * i, &(int32_t){ 10 + i }, 4);
    memcpy((char *)(o + 1) + tails, text, strlen(text));
    *bytes = sizeof *s + sizeof *o + ROUND_UP(tails + strlen(text), (size_t)8);
    return o;
}

/* submit.c - requests and calls of lagand that are open, and whom their events belong to. */
#include "gateway/api/api_internal.h"

#include "include/lagan_wire.h"

/* Tenants number their requests alone, so the key of an entry has both. */
static uint64_t
key_of(uint32_t tenant, uint64_t id)
{
    return id ^ (uint64_t)tenant << 48;
}

/* Returns a free entry of a->open in the map, or API_MAX_OPEN. */
static uint32_t
take_entry(struct api *a, uint32_t tenant, uint64_t id)
{
    uint32_t i = a->first_free;

    if (i == API_MAX_OPEN || map_put(a->map, key_of(tenant, id), i) < 0) return API_MAX_OPEN;
    a->first_free = a->open[i].next_free;
    a->open[i] = (struct open){ .tenant = tenant, .id = id };
    return i;
}

static void
give_entry(struct api *a, uint32_t i)
{
    map_take(a->map, key_of(a->open[i].tenant, a->open[i].id));
    a->open[i] = (struct open){ .next_free = a->first_free };
    a->first_free = i;
}

void
exchange_forget(struct exchange *e)
{
    for (uint32_t i = 0; i < e->n_prompts; i++) {
        struct prompt *p = &e->prompt[i];

        if (p->open == API_MAX_OPEN) continue;
        e->a->b.cancel(e->a->b.ctx, e->tenant, p->id);
        give_entry(e->a, p->open);
        p->open = API_MAX_OPEN;
    }
    if (e->call != API_MAX_OPEN) give_entry(e->a, e->call);
    e->call = API_MAX_OPEN;
}

int
exchange_prompts(struct exchange *e, uint32_t n_prompts, uint32_t n)
{
    e->prompt = calloc(n_prompts, sizeof *e->prompt);
    e->choice = calloc((size_t)n_prompts * n, sizeof *e->choice);
    if (!e->prompt || !e->choice) return -ENOMEM;
    for (uint32_t i = 0; i < n_prompts; i++) e->prompt[i].open = API_MAX_OPEN;
    e->n_prompts = n_prompts;
    e->n = n;
    for (uint32_t i = 0; i < n_prompts; i++)
        if (!(e->prompt[i].request = lagan_request_new())) return -ENOMEM;
    return 0;
}

/* The fault of a request or call that the backend did not take. */
static int
backend_fault(int r, const struct err *err, struct fault *f)
{
    if (r == -ENOMEM) return r;
    if (r == -EMSGSIZE)
        return fault_set(f, API_E_TOO_LONG, NULL,
                         "the request is too long for a message to lagand: %s", err->text);
    if (r == -EAGAIN)
        return fault_set(f, API_E_QUEUE_FULL, NULL, "too many messages wait for lagand; try again");
    return fault_set(f, API_E_UNREACHABLE, NULL, "lagand is not reachable: %s", err->text);
}

int
exchange_submit(struct exchange *e, struct fault *f)
{
    struct api *a = e->a;

    exchange_close_body(e);
    for (uint32_t i = 0; i < e->n_prompts; i++) {
        struct prompt *p = &e->prompt[i];
        struct err err = { .text = "" };
        int r;

        if (a->first_free == API_MAX_OPEN)
            return fault_set(f, API_E_QUEUE_FULL, NULL,
                             "the gateway has %d open requests, which is its limit", API_MAX_OPEN);
        r = a->b.submit(a->b.ctx, e->tenant, p->request, &p->id, &err);
        if (r < 0) return backend_fault(r, &err, f);
        lagan_request_free(TAKE(p->request));
        p->open = take_entry(a, e->tenant, p->id);
        if (p->open == API_MAX_OPEN) {
            a->b.cancel(a->b.ctx, e->tenant, p->id);
            return fault_set(f, API_E_INTERNAL, NULL, "request number %llu of lagand is used twice",
                             (unsigned long long)p->id);
        }
        a->open[p->open].e = e;
        a->open[p->open].prompt = i;
    }
    if (e->stream) a->due = MIN(a->due, clock_after(e->begun, a->c.header_hold));
    return 0;
}

/* Starts a call and returns its entry in *ret. */
static int
start_call(struct api *a, uint32_t tenant, const char *verb, const char *args, uint32_t *ret,
           struct err *err)
{
    uint64_t id;

    if (a->first_free == API_MAX_OPEN) return err_set(err, -EAGAIN, "too many open requests");
    TRY(a->b.call(a->b.ctx, tenant, verb, args, &id, err));
    *ret = take_entry(a, tenant, id);
    return *ret == API_MAX_OPEN
               ? err_set(err, -EAGAIN, "call number %llu is used twice", (unsigned long long)id)
               : 0;
}

int
exchange_call(struct exchange *e, const char *verb, struct out *args,
              void (*replied)(struct exchange *e, const char *json), struct fault *f)
{
    struct err err = { .text = "" };
    int r;

    out_bytes(args, "", 1);
    if (args->failed) return -ENOMEM;
    r = start_call(e->a, e->tenant, verb, args->p, &e->call, &err);
    if (r < 0) return backend_fault(r, &err, f);
    e->replied = replied;
    e->a->open[e->call].e = e;
    e->a->open[e->call].prompt = OPEN_CALL;
    return 0;
}

int
api_call(struct api *a, uint32_t tenant, const char *verb, const char *args,
         void (*result)(struct api *a, void *owner, const struct lagan_event *ev), void *owner,
         struct err *err)
{
    uint32_t i;

    TRY(start_call(a, tenant, verb, args, &i, err));
    a->open[i].result = result;
    a->open[i].owner = owner;
    return 0;
}

/* The fault of an ERROR event. */
static void
lagand_fault(const struct exchange *e, const struct lagan_event *ev, struct fault *f)
{
    enum api_error error = error_of_lagan(ev->reason);
    const char *message = ev->message ? ev->message : "";
    bool connected, draining;
    uint32_t n;

    /* liblagan no longer waits for lagand */
    e->a->b.models(e->a->b.ctx, &n, &connected, &draining);
    if (error == API_E_INTERNAL && !connected) error = API_E_UNREACHABLE;
    if (error == API_E_TOO_LONG)
        (void)fault_set(f, error, NULL, "This model's maximum context length is %u tokens. %s",
                        ev->max_len ? ev->max_len : e->model.max_len, message);
    else
        (void)fault_set(f, error, error == API_E_MODEL_NOT_FOUND ? "model" : NULL, "%s", message);
}

static void
call_result(struct exchange *e, const struct lagan_event *ev)
{
    struct fault f;

    if (ev->kind == LAGAN_EVENT_REPLY) {
        e->replied(e, ev->text);
        return;
    }
    lagand_fault(e, ev, &f);
    exchange_fail(e, &f);
}

void
api_event(struct api *a, uint32_t tenant, const struct lagan_event *ev)
{
    uint32_t i = map_find(a->map, key_of(tenant, ev->id));
    bool last = ev->kind == LAGAN_EVENT_DONE || ev->kind == LAGAN_EVENT_ERROR ||
                ev->kind == LAGAN_EVENT_REPLY;
    struct open open;
    struct fault f;

    if (i == MAP_NONE) return;
    open = a->open[i];
    if (last) {
        give_entry(a, i);
        if (open.e && open.prompt == OPEN_CALL)
            open.e->call = API_MAX_OPEN;
        else if (open.e)
            open.e->prompt[open.prompt].open = API_MAX_OPEN;
    }
    if (!open.e)
        open.result(a, open.owner, ev);
    else if (open.prompt == OPEN_CALL)
        call_result(open.e, ev);
    else if (ev->kind == LAGAN_EVENT_ERROR && ev->reason == LAGAN_E_SLOW_READER)
        exchange_cut(open.e, "slow_reader");
    else if (ev->kind == LAGAN_EVENT_ERROR) {
        lagand_fault(open.e, ev, &f);
        exchange_fail(open.e, &f);
    } else {
        events_take(open.e, &open.e->prompt[open.prompt], ev);
    }
}

/* fake_worker.c - a worker without a model: lagand's tests run it instead of lagan-worker.
 *
 * It uses the rings like the real worker. A token is a hash of the request's seed and its position,
 * so that a test knows every output; an output ends at max_tokens. The name of the "model"
 * directory selects the misbehaviour: good, slow, slow-once (as slow; its replacement never becomes
 * ready), brisk (a token each millisecond), segv, bus, check, hang, deaf, overdue, storm, exit,
 * bad-token, bad-row, bad-first, bad-text, bad-finish, bad-seq, bad-fd-channel, shut-doorbell,
 * shut-fd-channel, asked-early, loading, die-config, die-model, die-once, poison; oom (killed after
 * 2 tokens, as by the kernel), oom-restart (as oom; its replacements are killed while they load).
 */
#include "base/clock.h"
#include "include/lagan_wire.h"
#include "ipc/fd_channel.h"
#include "ipc/heritage.h"
#include "ipc/stat.h"
#include "tests/daemon/fake.h"
#include "tests/plain_worker.h"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_ACTIVE = 1024, MISBEHAVE_AT = 3 };

struct active {
    bool used;
    struct rec_submit s;
    uint32_t n;
    bool prompt_reported, suspended;
    uint32_t last_id; /* of the prompt: shows that the whole prompt has arrived */
};

static struct channel l;
static struct active active[MAX_ACTIVE];
static struct stats stats;
static const char *mode = "good";
static char *whole;
static size_t n_whole;
static uint64_t n_step_records, n_steps;
static bool draining;
static bool is_standby; /* waits until its worker has ended */
static bool may_begin;  /* a standby may open the device before its worker has ended */
static int fd_socket;
static const char *cgroup_root = "";

static bool
is(const char *word)
{
    return strcmp(mode, word) == 0;
}

static void
report_phase(void)
{
    struct rec_phase *p = plain_text_buffer(&l, REC_PHASE, sizeof *p);

    *p = (struct rec_phase){ .phase = PHASE_LOAD, .done = 1 << 20, .total = 2 << 20 };
    channel_publish(&l);
}

static void
finish(struct active *a, uint16_t reason)
{
    struct rec_finish *f = plain_text_buffer(&l, REC_FINISH, sizeof *f);

    *f = (struct rec_finish){ .ledger_index = a->s.ledger_index,
                              .gen = a->s.gen,
                              .reason = reason,
                              .score = -1.5f,
                              .n_tokens = is("bad-finish") ? a->n + 1 : a->n,
                              .cached = a->last_id,
                              .n_prompt_tokens = a->s.n_prompt };
    a->used = false;
}

static void
report_prompt(struct active *a)
{
    uint32_t n = a->s.n_prompt, k = a->s.prompt_logprobs;
    struct rec_prompt *p = plain_text_buffer(&l, REC_PROMPT_LOGPROBS,
                                             (uint32_t)sizeof *p + n * 8 + n * k * 8);
    float *lp = (float *)(p + 1) + n;

    *p = (struct rec_prompt){
        .ledger_index = a->s.ledger_index, .gen = a->s.gen, .n = n, .n_top = k
    };
    for (uint32_t i = 0; i < n; i++) lp[i] = i ? -(float)i : 0.0f / 1.0f;
    a->prompt_reported = true;
}

/* Ends the process as an OOM kill does: the kernel counts it in memory.events, then sends SIGKILL.
 */
static void
be_killed_for_memory(void)
{
    unsigned n = 0;
    char path[300];
    FILE *f;

    channel_publish(&l);
    snprintf(path, sizeof path, "%s/memory.events", cgroup_root);
    f = fopen(path, "r+");
    check(f && fscanf(f, "oom_kill %u", &n) == 1);
    rewind(f);
    fprintf(f, "oom_kill %u\n", n + 1);
    fclose(f);
    raise(SIGKILL);
}

/* Writes one token of one request as a STEP record of its own. */
static void
report_token(struct active *a)
{
    bool lp = a->s.flags & SUBMIT_LOGPROBS, bad = a->n == MISBEHAVE_AT;
    uint32_t k = lp ? a->s.logprobs : 0;
    uint32_t tails = 4 + (lp ? 4 + 8 * k : 0) + 1;
    struct rec_step *s = plain_text_buffer(
        &l, REC_STEP, (uint32_t)(sizeof *s + sizeof(struct rec_out)) + ROUND_UP(tails, 8u));
    struct rec_out *o = (struct rec_out *)(s + 1);
    char *to = (char *)(o + 1);
    token_id t = fake_token(a->s.seed, a->n);
    float f = fake_logprob(a->n);

    *s = (struct rec_step){ .step = ++n_step_records, .n_ent = 1 };
    *o = (struct rec_out){ .ledger_index = a->s.ledger_index,
                           .gen = a->s.gen,
                           .n_tokens = 1,
                           .has_logprobs = lp,
                           .first = a->n,
                           .text_bytes = 1,
                           .text_first = a->n,
                           .n_top = k };
    if (bad && is("bad-token")) t = FAKE_VOCAB;
    if (bad && is("bad-row")) o->ledger_index = 4000000;
    if (bad && is("bad-first")) o->first++;
    memcpy(to, &t, 4);
    to += 4;
    if (lp) {
        memcpy(to, &f, 4);
        to += 4;
        for (uint32_t i = 0; i < k; i++, to += 8) {
            token_id id = (token_id)i;

            memcpy(to, &id, 4);
            memcpy(to + 4, &f, 4);
        }
    }
    *to = bad && is("bad-text") ? (char)0xff : fake_letter(t);
    a->n++;
    if (bad && is("bad-seq")) {
        struct ring_header *h = (struct ring_header *)((char *)s - RING_HEADER);

        h->seq++;
    }
}

static void
misbehave(void)
{
    struct shm_ctl *c = shm_ctl(&l.w);
    struct panic_message *words = shm_panic_message(&l.w);

    ring_publish(&l.out);
    if (is("segv")) {
        signal(SIGSEGV, SIG_DFL); /* with the handler of a sanitizer the process would exit */
        raise(SIGSEGV);
    }
    if (is("bus")) { /* a page beyond the end of its file */
        int fd = memfd_create("short", MFD_CLOEXEC);
        char *p = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);

        signal(SIGBUS, SIG_DFL);
        whole = p + *(volatile char *)p;
    }
    if (is("exit")) _exit(3);
    if (is("check")) {
        words->signal = SIGABRT;
        words->text_bytes = (uint32_t)snprintf(words->text, sizeof words->text,
                                               "fake.c:7: check(sky is blue) failed");
        atomic_store(&words->state, 2);
        raise(SIGABRT);
    }
    if (is("deaf")) signal(SIGUSR2, SIG_DFL);
    if (is("hang") || is("deaf")) poll(NULL, 0, -1);
    if (is("overdue")) {
        atomic_store(&c->phase_deadline_ns, clock_now() + 100 * NSEC_MS);
        for (;;) {
            atomic_fetch_add(&c->hb_count, 1);
            poll(NULL, 0, 10);
        }
    }
    if (is("storm")) {
        for (;;) {
            atomic_fetch_add(&c->hb_count, 1);
            if (send(l.doorbell.fd, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) sched_yield();
        }
    }
    if (is("shut-fd-channel")) close(fd_socket); /* continues after the violation */
    if (is("shut-doorbell")) {
        shutdown(l.doorbell.fd, SHUT_RDWR);
        for (;;) {
            atomic_fetch_add(&c->hb_count, 1);
            poll(NULL, 0, 10);
        }
    }
}

static void
text_call(const char *data)
{
    const struct rec_text *t = (const struct rec_text *)data;
    const char *p = data + sizeof *t;
    uint32_t n_ids = t->op == 1 ? t->text_bytes : 0, n_text = t->op == 1 ? 0 : t->n_ids;
    struct rec_text_done *d = plain_text_buffer(
        &l, REC_TEXT_DONE, (uint32_t)sizeof *d + ROUND_UP(n_ids * 4 + n_text, 8u));
    char *to = (char *)(d + 1);

    *d = (struct rec_text_done){
        .call = t->call, .gen = t->gen, .n_ids = n_ids, .text_bytes = n_text
    };
    for (uint32_t i = 0; i < n_ids; i++) ((int32_t *)(void *)to)[i] = (uint8_t)p[i];
    for (uint32_t i = 0; i < n_text; i++) to[i] = (char)p[4 * i];
}

static void
submit(const struct ring_record *rec)
{
    char *more = realloc(whole, n_whole + rec->len);

    check(more);
    whole = more;
    memcpy(whole + n_whole, rec->data, rec->len);
    n_whole += rec->len;
    if (rec->flags & RING_MORE) return;
    n_whole = 0;
    for (uint32_t i = 0; i < MAX_ACTIVE; i++) {
        struct active *a = &active[i];

        if (a->used) continue;
        *a = (struct active){ .used = true };
        memcpy(&a->s, whole, sizeof a->s);
        a->n = a->s.n_done;
        a->suspended = a->s.flags & SUBMIT_SUSPENDED;
        stats.v[STAT_requests]++;
        if (a->s.n_prompt)
            memcpy(&a->last_id, whole + sizeof a->s + 4 * (size_t)(a->s.n_prompt - 1), 4);
        if (a->s.n_prompt && *(int32_t *)(void *)(whole + sizeof a->s) == FAKE_REJECT) {
            struct rec_reject *j = plain_text_buffer(&l, REC_REJECT, sizeof *j + 16);

            *j = (struct rec_reject){ a->s.ledger_index, a->s.gen, LAGAN_E_TOO_LONG, 13, 0 };
            memcpy(j + 1, "fake says no.", 13);
            a->used = false;
        }
        return;
    }
    abort();
}

static struct active *
active_of(const struct rec_notice *c)
{
    for (struct active *a = active; a < active + MAX_ACTIVE; a++)
        if (a->used && a->s.ledger_index == c->ledger_index && a->s.gen == c->gen) return a;
    return NULL;
}

static void
intake(void)
{
    struct ring_record rec;
    int n = 0;

    while (ring_peek(&l.in, &rec) > 0) {
        const struct rec_notice *c = rec.data;
        struct active *a;

        n++;
        if (rec.type == REC_SUBMIT) submit(&rec);
        if (rec.type == REC_TEXT) text_call(rec.data);
        if (rec.type == REC_DRAIN) draining = true;
        if (rec.type == REC_CANCEL && (a = active_of(c)))
            finish(a, c->flags ? (uint16_t)c->flags : LAGAN_FINISH_CANCELLED);
        if (rec.type == REC_SUSPEND && (a = active_of(c))) a->suspended = c->flags;
    }
    if (!n) return;
    channel_release(&l);
}

/* Traces the requests of a step before its launch, like the real worker. */
static void
launch(void)
{
    struct step_trace *t = shm_trace(&l.w);
    struct step_entry *e = &t->entry[n_steps % TRACE_ENTRIES];

    atomic_store(&t->n, n_steps + 1);
    atomic_store(&e->seq, 2 * n_steps + 1);
    e->step = n_steps + 1;
    e->n_ids = 0;
    for (uint32_t i = 0; i < MAX_ACTIVE; i++) {
        if (active[i].used && e->n_ids < TRACE_IDS) e->id[e->n_ids++] = active[i].s.id;
    }
    atomic_store(&e->seq, 2 * n_steps + 2);
}

/* Writes the record of the step, as the real worker does after it. */
static void
record_step(uint32_t n)
{
    struct step_records *all = shm_steps(&l.w);
    struct step_record *r = &all->entry[n_steps % STEP_RECORDS];

    atomic_store(&r->seq, 2 * n_steps + 1);
    r->step = n_steps + 1;
    r->decode_tokens = r->running = n;
    r->n_pools = 1;
    r->free[0] = 100 - n;
    atomic_store(&r->seq, 2 * n_steps + 2);
    atomic_store(&all->n, n_steps + 1);
}

static uint32_t
step(void)
{
    uint32_t n = 0;

    launch();
    for (uint32_t i = 0; i < MAX_ACTIVE; i++) {
        struct active *a = &active[i];

        if (!a->used || a->suspended) continue;
        n++;
        if (is("poison") && a->s.n_prompt == FAKE_POISON && a->n == MISBEHAVE_AT) {
            signal(SIGSEGV, SIG_DFL);
            raise(SIGSEGV);
        }
        if ((a->s.flags & SUBMIT_PROMPT_LOGPROBS) && !a->prompt_reported) report_prompt(a);
        report_token(a);
        if ((is("oom") || is("oom-restart")) && n_step_records == 2) be_killed_for_memory();
        if (a->n == MISBEHAVE_AT + 1) misbehave();
        if (a->n == a->s.max_tokens) finish(a, LAGAN_FINISH_LENGTH);
    }
    record_step(n);
    stats.v[STAT_running] = n;
    stats.v[STAT_blocks] = 100;
    stats.v[STAT_blocks_used] = n;
    stats.group[0][GROUP_STAT_kind] = 1;
    stats.group[0][GROUP_STAT_allocated] += n;
    atomic_store(&shm_trace(&l.w)->retired[0], ++n_steps);
    return n;
}

/* Sends an arena with its own epoch; checks the arena of the previous worker. */
static void
give(const char *name, uint64_t epoch)
{
    struct fd_channel_note note = { .bytes = 4096, .version = 1, .flags = FD_CHANNEL_COMPLETE };
    int fd = memfd_create("fake arena", MFD_CLOEXEC);

    snprintf(note.name, sizeof note.name, "%s", name);
    check(fd >= 0 && ftruncate(fd, 4096) == 0);
    check(pwrite(fd, &(char){ (char)epoch }, 1, 0) == 1);
    check(fd_channel_give(fd_socket, &note, fd, NULL) == 0);
    close(fd);
}

static void
take_over(void)
{
    struct fd_channel_note got;
    int have;

    while (fd_channel_take(fd_socket, &got, &have, NULL) == 1) {
        char byte = 0;

        if (!strcmp(got.name, "go")) {
            is_standby = false;
        } else if (!strcmp(got.name, "begin")) {
            may_begin = true;
        } else {
            check(pread(have, &byte, 1, 0) == 1);
            fprintf(stderr, "<6>fake: adopted %s of epoch %d%s\n", got.name, byte,
                    got.flags & FD_CHANNEL_VERIFY ? ", verified" : "");
        }
        close(have);
    }
}

static void
exchange_arenas(uint64_t epoch)
{
    struct pollfd p[] = { { .fd = fd_socket, .events = POLLIN },
                          { .fd = l.doorbell.fd, .events = POLLIN } };
    struct shm_ctl *c = shm_ctl(&l.w);
    bool begun = false;

    take_over();
    if (is_standby) fprintf(stderr, "<6>fake: epoch %llu waits\n", (unsigned long long)epoch);
    while (is_standby) {
        if (may_begin && !begun)
            fprintf(stderr, "<6>fake: epoch %llu begins\n", (unsigned long long)epoch);
        begun = may_begin;
        atomic_store(&c->phase, begun ? PHASE_STANDBY : PHASE_BEGUN);
        atomic_fetch_add(&c->hb_count, 1);
        poll(p, ARRAY_LEN(p), 100);
        if (doorbell_drain(&l.doorbell) == -EPIPE) exit(0);
        take_over();
    }
    give("weights", epoch);
    give("kv", epoch);
    if (is("bad-fd-channel")) check(send(fd_socket, "nonsense", 8, 0) == 8);
}

static void
die_early(const char *path, uint64_t epoch)
{
    char once[1100];
    FILE *f;

    if (is("die-config")) {
        fprintf(stderr, "<3>worker w0: kv.memory is not what it should be\n");
        exit(78);
    }
    if (is("die-model")) {
        fprintf(stderr, "<3>fake: %s/config.json: no such file\n", path);
        exit(78);
    }
    if (is("oom-restart") && epoch > 1) be_killed_for_memory();
    if (!is("die-once")) return;
    snprintf(once, sizeof once, "%s/died", path);
    if (access(once, F_OK) == 0) return;
    f = fopen(once, "w");
    check(f);
    fclose(f);
    exit(70);
}

/* --inspect refuses the model if its directory has a file "bad". */
static int
inspect_model(const char *path)
{
    char bad[1100];

    snprintf(bad, sizeof bad, "%s/bad", path);
    if (access(bad, F_OK) < 0) return 0;
    fprintf(stderr, "<3>lagan-worker: %s: the weights are cut short\n", path);
    return 78;
}

int
main(int argc, char **argv)
{
    const char *path = "";
    bool inspect = false;
    struct heritage h;
    struct shm_ctl *c;

    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--path=", 7) == 0) path = argv[i] + 7;
        if (strncmp(argv[i], "--cgroup_root=", 14) == 0) cgroup_root = argv[i] + 14;
        if (strncmp(argv[i], "--kv_max=", 9) == 0)
            fprintf(stderr, "<6>fake: at most %s bytes of KV\n", argv[i] + 9);
        is_standby |= !strcmp(argv[i], "--as_standby");
        inspect |= !strcmp(argv[i], "--inspect");
    }
    if (strrchr(path, '/')) mode = strrchr(path, '/') + 1;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (inspect) return inspect_model(path);
    if (is("asked-early")) raise(SIGUSR2);
    check(heritage_take(&h, NULL) == 0);
    check(channel_attach(&l, heritage_fd(&h, "d"), heritage_fd(&h, "w"),
                         heritage_fd(&h, "doorbell"), h.epoch, NULL) == 0);
    fprintf(stderr, "<6>fake: mode %s, epoch %llu\n", mode, (unsigned long long)h.epoch);
    c = shm_ctl(&l.w);
    atomic_fetch_add(&c->hb_count, 1);
    report_phase();
    die_early(path, h.epoch);
    fd_socket = heritage_fd(&h, "fd_channel");
    exchange_arenas(h.epoch);
    while (is("loading") || (is("slow-once") && h.epoch > 1)) {
        atomic_fetch_add(&c->hb_count, 1);
        poll(NULL, 0, 20);
    }
    plain_ready(&l, "fake",
                (struct rec_ready){ .vocab = FAKE_VOCAB,
                                    .max_len = FAKE_MAX_LEN,
                                    .n_slots = 64,
                                    .has_text = 1,
                                    .max_text_bytes = FAKE_TEXT });
    for (;;) {
        uint32_t busy;

        atomic_fetch_add(&c->hb_count, 1);
        intake();
        busy = step();
        stat_publish(c, &stats);
        channel_publish(&l);
        if (draining && !busy) return 0;
        if (busy && (is("slow") || is("slow-once"))) poll(NULL, 0, 20);
        if (busy && is("brisk")) poll(NULL, 0, 1);
        if (busy) continue;
        if (!plain_rest(&l, 200 * NSEC_MS)) return 0;
    }
}

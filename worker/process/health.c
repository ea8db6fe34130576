/* health.c - heartbeat, statistics, step trace and panic message: see health.h.
 *
 * A signal handler writes the panic message with async-signal-safe calls only: it copies text into
 * the mapped page. backtrace() is called once at start, because its first call loads a library. */
#include "worker/process/health.h"

#include "base/failpoint.h"
#include "base/log.h"
#include "ipc/channel.h"
#include "ipc/stat.h"
#include "worker/exec/exec.h"
#include "worker/kv/kv_reuse.h"
#include "worker/sched/scheduler.h"

#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

static struct panic_message *words; /* static, because signal handlers have no argument */
static struct step_trace *trace;

static void
append_text(const char *text)
{
    uint32_t n = words->text_bytes;

    while (*text && n < sizeof words->text - 1) words->text[n++] = *text++;
    words->text_bytes = n;
}

/* ---- frames, by module and offset */

/* Parses a hexadecimal number at *s and moves *s behind it. */
static uint64_t
take_hex(const char **s)
{
    uint64_t v = 0;

    for (;; ++*s) {
        if (**s >= '0' && **s <= '9')
            v = v << 4 | (uint64_t)(**s - '0');
        else if (**s >= 'a' && **s <= 'f')
            v = v << 4 | (uint64_t)(**s - 'a' + 10);
        else
            return v;
    }
}

/* Returns the index of a file name in module_name, which it may add; PANIC_MODULES: no space. */
static uint8_t
module_index(const char *name)
{
    size_t n = MIN(strlen(name), (size_t)PANIC_NAME - 1);
    uint8_t i = 0;

    while (i < PANIC_MODULES && *words->module_name[i] &&
           (strlen(words->module_name[i]) != n || memcmp(words->module_name[i], name, n)))
        i++;
    if (i < PANIC_MODULES && !*words->module_name[i]) memcpy(words->module_name[i], name, n);
    return i;
}

/* Replaces the addresses of a mapping, which is a line of /proc/self/maps, by offsets. *base: where
 * the file of the line before, *file, is mapped. */
static void
take_mapping(const char *line, char *file, uint64_t *base)
{
    const char *s = line, *slash = strrchr(line, '/');
    uint64_t start = take_hex(&s), end;

    s++;
    end = take_hex(&s);
    if (!slash || strlen(slash) >= 256) return;
    if (strcmp(file, slash + 1)) {
        strcpy(file, slash + 1);
        *base = start;
    }
    for (uint32_t i = 0; i < words->n_frames; i++) {
        if (words->module[i] < PANIC_MODULES || words->frame[i] < start || words->frame[i] >= end)
            continue;
        words->module[i] = module_index(file);
        if (words->module[i] < PANIC_MODULES) words->frame[i] -= *base;
    }
}

/* Calls take_mapping() for each mapping. open() and read() are async-signal-safe. */
static void
find_modules(void)
{
    static char line[512], file[256];
    char buf[1024];
    uint64_t base = 0;
    size_t used = 0;
    ssize_t n;
    int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);

    *file = 0;
    while (fd >= 0 && (n = read(fd, buf, sizeof buf)) > 0)
        for (ssize_t i = 0; i < n; i++) {
            if (buf[i] == '\n') {
                line[used] = 0;
                take_mapping(line, file, &base);
                used = 0;
            } else if (used < sizeof line - 1) {
                line[used++] = buf[i];
            }
        }
    if (fd >= 0) close(fd);
}

/* Writes the panic message, with a sentence, a signal or both. Keeps a message that was written
 * before, except that a fatal error replaces a message requested with SIGUSR2. */
static void
write_panic(int sig, const void *address, const char *sentence)
{
    void *frame[ARRAY_LEN(words->frame)];
    uint32_t none = 0;
    int n;

    if (!words) return;
    if (!atomic_compare_exchange_strong_explicit(&words->state, &none, 1, memory_order_acq_rel,
                                                 memory_order_relaxed) &&
        (none != 2 || words->signal != SIGUSR2 || sig == SIGUSR2))
        return;
    atomic_store_explicit(&words->state, 1, memory_order_relaxed);
    words->signal = sig;
    words->address = (uint64_t)(uintptr_t)address;
    words->text_bytes = 0;
    if (trace) {
        uint64_t i = atomic_load_explicit(&trace->n, memory_order_relaxed);

        if (i) words->step = trace->entry[(i - 1) % TRACE_ENTRIES].step;
    }
    if (sentence) append_text(sentence);
    FP(panic_writing);
    n = backtrace(frame, ARRAY_LEN(words->frame));
    for (int i = 0; i < n; i++) words->frame[i] = (uint64_t)(uintptr_t)frame[i];
    words->n_frames = (uint32_t)n;
    memset(words->module, PANIC_MODULES, sizeof words->module);
    memset(words->module_name, 0, sizeof words->module_name);
    find_modules();
    atomic_store_explicit(&words->state, 2, memory_order_release);
}

static void
on_check(const char *sentence)
{
    write_panic(SIGABRT, NULL, sentence);
    log_err("%s", sentence);
}

static void
on_fatal(int sig, siginfo_t *info, void *context)
{
    (void)context;
    write_panic(sig, info->si_code > 0 ? info->si_addr : NULL, NULL);
    raise(sig); /* SA_RESETHAND: ends the process, with a core dump if enabled */
}

static void
on_request(int sig, siginfo_t *info, void *context)
{
    (void)info;
    (void)context;
    write_panic(sig, NULL, "requested by lagand (SIGUSR2)");
}

void
health_arm(const struct shm *w)
{
    static char stack[64 << 10];
    const stack_t alternate = { .ss_sp = stack, .ss_size = sizeof stack };
    const int fatal[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT };
    void *frame[2];
    struct sigaction a = { .sa_sigaction = on_fatal,
                           .sa_flags = (int)(SA_SIGINFO | SA_ONSTACK | SA_RESETHAND) };

    words = shm_panic_message(w);
    trace = shm_trace(w);
    check_panic_message = on_check;
    backtrace(frame, 2);
    sigaltstack(&alternate, NULL);
    sigemptyset(&a.sa_mask);
    for (size_t i = 0; i < ARRAY_LEN(fatal); i++) sigaction(fatal[i], &a, NULL);
    a.sa_sigaction = on_request;
    a.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    sigaction(SIGUSR2, &a, NULL);
    signal(SIGPIPE, SIG_IGN);
}

void
health_phase(struct worker *w, enum worker_phase phase, nsec deadline)
{
    struct shm_ctl *c = shm_ctl(&w->channel->w);

    atomic_store_explicit(&c->phase_deadline_ns, deadline, memory_order_relaxed);
    atomic_store_explicit(&c->phase, phase, memory_order_relaxed);
}

static void
count_blocks(struct worker *w)
{
    uint64_t *v = w->stats->v;
    struct kv_count n;

    v[STAT_blocks] = v[STAT_blocks_used] = v[STAT_blocks_cached] = 0;
    for (uint32_t i = 0; i < kv_n_pools(w->kv); i++) {
        kv_count(w->kv, i, &n);
        v[STAT_blocks] += n.blocks;
        v[STAT_blocks_used] += n.used;
        v[STAT_blocks_cached] += n.cached;
    }
    v[STAT_blocks_pinned] = 0;
    kv_count_host(w->kv, &n);
    v[STAT_host_blocks] = n.blocks;
    v[STAT_host_blocks_loading] = n.used;
    v[STAT_host_cached] = n.cached;
    v[STAT_blocks_offloaded] = v[STAT_blocks_onboarded] = v[STAT_host_blocks_evicted] = 0;
    for (uint32_t g = 0; g < w->kv_config->n_groups; g++) {
        const struct kv_group *k = &w->kv_config->group[g];
        uint64_t *of = w->stats->group[g];
        struct kv_stats s;

        kv_stats(w->kv, g, &s);
        v[STAT_blocks_offloaded] += s.offloaded;
        v[STAT_blocks_onboarded] += s.onboarded;
        v[STAT_host_blocks_evicted] += s.host_evicted;
        of[GROUP_STAT_kind] = (uint64_t)k->kind + 1;
        of[GROUP_STAT_window] = k->window;
        of[GROUP_STAT_pool] = k->pool;
        of[GROUP_STAT_bytes] = kv_block_bytes(k);
        kv_count(w->kv, k->pool, &n);
        of[GROUP_STAT_blocks] = n.blocks;
        of[GROUP_STAT_pinned] = kv_n_pinned(w->kv, g);
        v[STAT_blocks_pinned] += of[GROUP_STAT_pinned];
        of[GROUP_STAT_used] = s.held;
        of[GROUP_STAT_cached] = s.cached;
        of[GROUP_STAT_allocated] = s.allocated;
        of[GROUP_STAT_allocated_new] = s.allocated_new;
        of[GROUP_STAT_reused_full] = s.shared;
        of[GROUP_STAT_reused_copied] = s.copied;
        of[GROUP_STAT_reused_moved] = s.moved;
        of[GROUP_STAT_missed] = s.missed;
        of[GROUP_STAT_evicted] = s.evicted;
        of[GROUP_STAT_offloaded] = s.offloaded;
        of[GROUP_STAT_onboarded] = s.onboarded;
        of[GROUP_STAT_host_evicted] = s.host_evicted;
        of[GROUP_STAT_trimmed] = s.trimmed;
    }
}

void
health_heartbeat(struct worker *w, nsec now)
{
    struct shm_ctl *c = shm_ctl(&w->channel->w);

    atomic_fetch_add_explicit(&c->hb_count, 1, memory_order_relaxed);
    atomic_store_explicit(&c->hb_mono_ns, (uint64_t)now, memory_order_relaxed);
    if (w->loaded && w->sched) {
        const struct scheduler_counts n = scheduler_counts(w->sched);

        w->stats->v[STAT_running] = n.running;
        w->stats->v[STAT_waiting] = n.waiting;
        w->stats->v[STAT_preemptions] = n.preemptions;
        w->stats->v[STAT_prefix_cache_queries] = n.looked_up;
        w->stats->v[STAT_prefix_cache_hits] = n.found;
        count_blocks(w);
        exec_graphs(w->exec, &w->stats->v[STAT_graphs], &w->stats->v[STAT_graph_bytes]);
    }
    stat_publish(c, w->stats);
}

static void
trace_seq(const struct worker *w, struct step_entry *t, uint32_t slot)
{
    const struct seq *s = t->n_ids < TRACE_IDS ? scheduler_seq_at(w->sched, slot) : NULL;

    if (s) t->id[t->n_ids++] = s->id;
}

void
health_launch(struct worker *w, const struct batch *b)
{
    uint64_t i = atomic_load_explicit(&trace->n, memory_order_relaxed);
    struct step_entry *t = &trace->entry[i % TRACE_ENTRIES];

    atomic_store_explicit(&trace->n, i + 1, memory_order_relaxed);
    atomic_store_explicit(&t->seq, 2 * i + 1, memory_order_release);
    t->step = b->step;
    t->lane = b->lane;
    t->n_ids = 0;
    for (uint32_t k = 0; k < b->n_segments; k++) trace_seq(w, t, b->segment[k].slot);
    for (uint32_t k = 0; k < b->n_encode; k++) trace_seq(w, t, b->encode[k].slot);
    atomic_store_explicit(&t->seq, 2 * i + 2, memory_order_release);
}

void
health_retire(unsigned lane, uint64_t step)
{
    atomic_store_explicit(&trace->retired[lane], step, memory_order_release);
}

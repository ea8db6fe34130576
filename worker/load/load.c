/* load.c - the loader thread and its phases: see load.h. */
#include "worker/load/load.h"

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "gpu/gpu.h"
#include "ipc/channel.h"
#include "ipc/fd_channel.h"
#include "ipc/heritage.h"
#include "ipc/model_options.h"
#include "worker/arch/registry.h"
#include "worker/exec/exec.h"
#include "worker/handover/adopt.h"
#include "worker/handover/host_tier.h"
#include "worker/load/host_memory.h"
#include "worker/load/sizes.h"
#include "worker/ops/partition_ctl.h"
#include "worker/process/health.h"
#include "worker/sched/scheduler.h"
#include "worker/text/tokenizer.h"
#include "worker/tp/plan_ring.h"

#include <poll.h>
#include <stdio.h>
#include <unistd.h>

enum { STANDBY_SLEEP = 200 * NSEC_MS }; /* time between two heartbeats of a waiting standby */

static void
on_progress(void *arg, uint64_t done, uint64_t total)
{
    struct worker *w = arg;

    atomic_store_explicit(&w->loader->bytes_done, done, memory_order_relaxed);
    atomic_store_explicit(&w->loader->bytes_total, total, memory_order_relaxed);
}

/* model_source.planned: refuses a model that does not fit the host, before its weights are loaded.
 * A replacement that gets KV memory starts even if other programs have used up the free memory. A
 * standby is not checked, because its worker still has the memory that the standby inherits. */
static int
on_planned(void *arg, uint64_t arena_bytes, struct err *e)
{
    struct worker *w = arg;
    struct host_memory_need need;
    uint64_t resident = host_memory_resident(w->adopt->old_kv.fd);
    int r;

    if (sizes_on_gpu(w) || w->loader->standby) return 0;
    w->model = w->loader->begun;
    r = sizes_set(w, e);
    if (r == 0) host_memory_need(w, arena_bytes, &need);
    w->model = NULL;
    TRY(r);
    r = host_memory_check(w, &need, resident, e);
    if (r != -ENOMEM || w->adopt->old_kv.fd < 0) return r;
    log_warn("%s; continuing with the KV memory of the previous worker", e->text);
    return 0;
}

/* Takes all messages that have arrived on the fd channel: arenas of the previous worker, and
 * "begin" or "go" for a standby. lagand sends the arenas before it starts this process, or before
 * "begin" and "go". If the model is open already, the weights arena is closed unless lagand marks
 * it as possibly damaged (FD_CHANNEL_VERIFY): check_model() then checks the mapped weights. */
static int
take_inherited(struct worker *w, struct err *e)
{
    struct model_source *src = &w->loader->source;

    for (;;) {
        struct fd_channel_note note;
        int fd;
        int r = fd_channel_take(w->fd_channel, &note, &fd, e);

        if (r <= 0) return r;
        if (!strcmp(note.name, "go")) {
            close(fd);
            w->loader->standby = false;
        } else if (!strcmp(note.name, "begin")) {
            close(fd);
            w->loader->may_use_device = true;
        } else if (!strcmp(note.name, "weights") && (note.flags & FD_CHANNEL_COMPLETE) &&
                   src->weights_fd < 0 && (!w->model || note.flags & FD_CHANNEL_VERIFY)) {
            src->weights_fd = fd;
            src->weights_bytes = note.bytes;
            memcpy(src->weights_fingerprint, note.fingerprint, sizeof note.fingerprint);
        } else if (!strcmp(note.name, "kv") && w->adopt->old_kv.fd < 0) {
            w->adopt->old_kv = (struct arena){ .fd = fd, .bytes = note.bytes };
            memcpy(w->adopt->old_kv_id, note.fingerprint, sizeof w->adopt->old_kv_id);
        } else if (host_tier_take(w, &note, fd)) {
            continue;
        } else if (!strcmp(note.name, "manifest") && w->adopt->old_manifest.fd < 0) {
            w->adopt->old_manifest = (struct arena){ .fd = fd, .bytes = note.bytes };
        } else {
            close(fd);
        }
    }
}

static int
read_source(struct worker *w, struct err *e)
{
    struct model_source *src = &w->loader->source;
    const char *weights = w->keys->weights;
    static const enum dtype dtypes[] = { DT_COUNT, DT_F32, DT_BF16, DT_F16 };

    *src = (struct model_source){
        .dir = w->keys->path,
        .dtype = dtypes[w->keys->dtype],
        .max_len = w->keys->max_model_len,
        .rank = w->rank,
        .n_ranks = w->keys->tensor_parallel,
        .weights_fd = -1,
        .progress = on_progress,
        .planned = on_planned,
        .arg = w,
    };
    if (!strncmp(weights, "random:", 7)) {
        char *end;

        errno = 0;
        src->seed = strtoull(weights + 7, &end, 10);
        if (errno || *end || end == weights + 7)
            return err_set(e, -EINVAL,
                           "weights is \"%s\"; the seed of random:SEED must be a number", weights);
        src->random = true;
    } else if (weights[0] && strcmp(weights, "checkpoint")) {
        return err_set(e, -EINVAL,
                       "weights is \"%s\"; it must be \"checkpoint\" or \"random:SEED\"", weights);
    }
    return 0;
}

static struct gpu_options
device_options(const struct worker *w)
{
    const struct model_options *k = w->keys;

    return (struct gpu_options){
        .device = model_options_device(k),
        .isa = k->isa,
        .libs = k->cuda_libs[0] ? k->cuda_libs : NULL,
        .tuning_file = k->cuda_tuning_file[0] ? k->cuda_tuning_file : NULL,
        .kernels = k->kernels[0] ? k->kernels : NULL,
        .invariant = k->numerics == NUMERICS_INVARIANT,
        .timing = k->step_timing,
        .n_lanes = 1u + (k->split_mode != SPLIT_OFF) + (k->split_encoder == SPLIT_ENCODER_OWN),
        .rank = w->rank,
        .n_ranks = k->tensor_parallel,
        .group_fd = heritage_fd(w->heritage, "group"),
    };
}

static void
end_phase(struct worker *w, enum load_phase which, nsec *since)
{
    nsec now = clock_now();

    w->loader->phase_ns[which] = now - *since;
    *since = now;
}

static int
try_device(struct worker *w, const struct gpu_options *device, struct err *e)
{
    FP_OR(load_device,
          return err_set(e, -ENOMEM, "injected fault: no memory for a device context"));
    return gpu_open(&w->gpu, device, e);
}

/* Opens the device. If a standby finds no memory for a device context, because the worker that it
 * will replace still runs, it waits for "go" and tries again. */
static int
open_device(struct worker *w, const struct gpu_options *device, struct err *e)
{
    struct pollfd p = { .fd = w->fd_channel, .events = POLLIN };
    int r = try_device(w, device, e);

    if (r != -ENOMEM || !w->loader->standby) return r;
    while (w->loader->standby) {
        if (poll(&p, 1, -1) < 0 && errno != EINTR) check(!"poll");
        TRY(take_inherited(w, e));
    }
    return try_device(w, device, e);
}

/* Loads the weights; adopts inherited tensors whose checksums match. */
static int
load_model(struct worker *w, struct err *e)
{
    int r = model_load(w->loader->begun, &w->loader->source, w->gpu, e);

    w->loader->source.weights_fd = -1;
    if (r < 0) return r;
    w->model = w->loader->begun;
    w->loader->begun = NULL;
    if (w->model->n_other)
        log_info("checkpoint: only the language model is served; %u tensors of other parts were "
                 "skipped, the first is %s",
                 w->model->n_other, w->model->other);
    if (w->model->n_unused)
        log_warn("checkpoint: the model does not use %u tensors, the first is %s",
                 w->model->n_unused, w->model->unused[0]);
    if (w->model->n_rebuilt)
        log_warn("adopted weights: %u tensors were damaged and have been reloaded",
                 w->model->n_rebuilt);
    return 0;
}

static int
open_steps(struct worker *w, struct err *e)
{
    FP_OR(load_steps, return err_set(e, -ENOMEM, "injected fault: no memory for step buffers"));
    return exec_open(&w->exec, w->steps, w->gpu, w->model, w->kv_config, e);
}

/* Sets the size of the memory that the ranks share. Every rank sets the same size. */
static int
size_group(const struct gpu_options *o, struct err *e)
{
    if (o->n_ranks == 1 || ftruncate(o->group_fd, GPU_GROUP_BYTES) == 0) return 0;
    return err_set(e, -errno, "cannot set the size of the rank group's shared memory (fd %d): %m",
                   o->group_fd);
}

/* Does the work that needs no device memory: settings, arenas, model files, a standby's driver. */
static int
begin_load(struct worker *w, struct err *e)
{
    struct gpu_options device = device_options(w);

    TRY(sizes_check_settings(w->keys, e));
    TRY(size_group(&device, e));
    w->adopt->old_kv.fd = w->adopt->old_manifest.fd = -1;
    host_tier_init(w);
    TRY(read_source(w, e));
    TRY(take_inherited(w, e));
    if (w->loader->standby && !w->loader->may_use_device) TRY(gpu_begin(&device, e));
    TRY(model_begin(&w->loader->begun, &w->loader->source, arch_families, e));
    return w->loader->standby ? take_inherited(w, e) : 0;
}

/* Does the slow work that a standby can do while the worker runs: device, weights, steps. */
static int
prepare_load(struct worker *w, struct err *e)
{
    nsec since = clock_now();
    const struct model_options *k = w->keys;
    struct gpu_options device = device_options(w);
    int r;

    TRY(open_device(w, &device, e));
    /* "go" may have arrived while the device was opened. It is taken before the weights are mapped,
     * so that load_model() checks damaged weights and check_model() need not. Ranks skip this,
     * because "go" may not have arrived at all of them. */
    if (w->loader->standby && k->tensor_parallel == 1) TRY(take_inherited(w, e));
    end_phase(w, LOAD_DEVICE, &since);
    TRY(load_model(w, e));
    end_phase(w, LOAD_WEIGHTS, &since);
    TRY(sizes_set(w, e));
    TRY(w->rank ? plan_ring_send_join(w, e) : plan_ring_join(w, e));
    r = open_steps(w, e);
    end_phase(w, LOAD_STEPS, &since);
    if (r == 0 && *gpu_group(w->gpu))
        log_info("rank %u of %u: joined the rank group: %s", w->rank, k->tensor_parallel,
                 gpu_group(w->gpu));
    /* A standby without enough memory tries again in complete_load(), after the worker has exited.
     * For ranks this is an error, because they open their steps together. */
    return r == -ENOMEM && w->loader->standby && k->tensor_parallel == 1 ? 0 : r;
}

/* Checks the mapped weights, which the previous worker may have damaged. If they are damaged, loads
 * the model again from its files. Ranks fail instead, because they open their steps together, and
 * lagand starts the rank group again. */
static int
check_model(struct worker *w, struct err *e)
{
    nsec since = clock_now();
    int damaged = model_check(w->model, e);

    if (damaged < 0) return damaged;
    if (damaged && w->keys->tensor_parallel > 1)
        return err_set(e, -EIO, "adopted weights: %d tensors are damaged; all ranks restart",
                       damaged);
    if (damaged == 0) {
        close(w->loader->source.weights_fd);
        w->loader->source.weights_fd = -1;
    } else {
        w->exec = exec_close(w->exec);
        w->model = model_close(w->model);
        TRY(model_begin(&w->loader->begun, &w->loader->source, arch_families, e));
        TRY(load_model(w, e));
        TRY(sizes_set(w, e));
    }
    end_phase(w, LOAD_WEIGHTS, &since);
    return 0;
}

/* Lets no rank use the previous worker's KV, or its host tier, if one of the ranks lacks it. */
static int
compare_left(struct worker *w, struct err *e)
{
    struct plan_ring_left ours;
    struct plan_ring_missing lack;

    memcpy(ours.kv_id, w->adopt->old_kv_id, sizeof ours.kv_id);
    memcpy(ours.host_id, w->host_tier->old_id, sizeof ours.host_id);
    TRY(plan_ring_left(w, &ours, &lack, e));
    if (lack.kv && w->adopt->old_manifest.fd >= 0) {
        log_info("rank %u lacks the KV of the previous worker; recomputing every request", lack.kv);
        adopt_drop_manifest(w);
    }
    if (lack.host) memset(w->host_tier->old_id, 0, sizeof w->host_tier->old_id);
    return 0;
}

/* Does the last part of a load; a standby does it after the worker has exited that it replaces. */
static int
complete_load(struct worker *w, struct err *e)
{
    struct plan_ring_kv kv;
    struct step_costs costs;
    nsec since;

    if (w->loader->source.weights_fd >= 0) TRY(check_model(w, e));
    FP(load_weights);
    TRY(adopt_give_arena(w, "weights", &w->model->weights, w->model->fingerprint, e));
    since = clock_now();
    if (!w->exec) {
        TRY(open_steps(w, e));
        end_phase(w, LOAD_STEPS, &since);
    }
    if (w->rank) return kv_memory_open_rank(w, e);
    TRY(host_tier_open(w, e));
    TRY(compare_left(w, e));
    TRY(kv_memory_open(w, e));
    exec_blocks(w->exec, w->kv_config, &w->adopt->kv_arena);
    exec_host(w->exec, &w->host_tier->host);
    host_tier_measure(w);
    TRY(scheduler_new(&w->sched, w->limits, w->kv, e));
    costs = sizes_work_costs(w);
    partition_ctl_open(w->partition_ctl, w->exec, w->sched, w->kv_config, &costs, w->limits,
                       w->keys->split_itl_target);
    kv = (struct plan_ring_kv){ .id = { w->adopt->kv_id[0], w->adopt->kv_id[1] },
                                .bytes = w->adopt->kv_arena.bytes };
    TRY(plan_ring_ready(w, &kv, e));
    end_phase(w, LOAD_KV, &since);
    return 0;
}

/* Returns the folder in which parsed vocabularies are cached; NULL: they are not cached. */
static const char *
kept_vocabularies(const struct worker *w, char *buf, size_t n)
{
    const char *cache = getenv("CACHE_DIRECTORY");

    if (w->keys->tokenizer_cache_dir[0]) return w->keys->tokenizer_cache_dir;
    if (!cache || !*cache || (size_t)snprintf(buf, n, "%s/vocab", cache) >= n) return NULL;
    return buf;
}

static void
open_chat(struct worker *w)
{
    char note[240];

    chat_open(w->chat, w->keys->path, w->keys->chat_template, w->tokenizer, note);
    if (*note) log_info("%s", note);
}

/* Opens the tokenizer. On failure, requests with text are refused with the reason why_no_text. */
static void *
open_text(void *arg)
{
    struct worker *w = arg;
    char buf[1100];
    const char *kept = kept_vocabularies(w, buf, sizeof buf);
    struct err e = { 0 };
    int r = kept ? tokenizer_open_kept(&w->tokenizer, w->keys->path, kept, &e) : 0;

    if (r == 0) r = tokenizer_open(&w->tokenizer, w->keys->path, &e);
    if (r >= 0) open_chat(w);
    if (r > 0) return NULL;
    if (r == 0) {
        if (kept && tokenizer_keep(w->tokenizer, kept, &e) < 0)
            log_info("cannot cache the vocabulary: %s; the next start parses it again", e.text);
        return NULL;
    }
    w->tokenizer_fault = r != -ENOENT;
    snprintf(w->why_no_text, sizeof w->why_no_text, "serving ids only, no text: %.170s", e.text);
    if (w->tokenizer_fault)
        log_warn("%s", w->why_no_text);
    else
        log_info("%s", w->why_no_text);
    return NULL;
}

int
load_inspect(struct worker *w, uint64_t *weights, uint64_t *beside, struct err *e)
{
    const struct model_options *k = w->keys;
    struct gpu_options device = device_options(w);

    device.n_ranks = 0; /* no rank group */
    device.inspect = true;
    w->adopt->old_kv.fd = w->adopt->old_manifest.fd = -1;
    host_tier_init(w);
    TRY(sizes_check_settings(k, e));
    TRY(read_source(w, e));
    TRY(model_begin(&w->model, &w->loader->source, arch_families, e));
    TRY(gpu_open(&w->gpu, &device, e));
    TRY(model_inspect(w->model, &w->loader->source, w->gpu, weights, e));
    TRY(sizes_set(w, e));
    open_text(w);
    if (w->tokenizer_fault)
        return err_set(e, -EBADMSG,
                       "%s; correct the file, or remove it to serve token ids without text",
                       w->why_no_text);
    *beside = 0;
    if (sizes_on_gpu(w))
        *beside = (gpu_facts(w->gpu).graphs ? k->graphs_memory : 0) + SIZES_REPLACEMENT_BYTES +
                  k->kv_reserve + w->limits->n_lanes * SIZES_LANE_BYTES;
    return 0;
}

/* Does the due parts: a standby does prepare_load() at "begin" and complete_load() at "go". */
static int
load_more(struct worker *w)
{
    int r = 0;

    if (!w->gpu && (w->loader->may_use_device || !w->loader->standby))
        r = prepare_load(w, &w->loader->err);
    if (r == 0 && !w->loader->standby) r = complete_load(w, &w->loader->err);
    return r;
}

/* Does the first round, while another thread opens the tokenizer. */
static int
load_first(struct worker *w)
{
    int r;

    w->loader->opens_text = !w->rank &&
                            pthread_create(&w->loader->text_opener, NULL, open_text, w) == 0;
    r = begin_load(w, &w->loader->err);
    if (r == 0) r = load_more(w);
    if (r == 0 && !w->rank && !w->loader->opens_text) open_text(w);
    return r;
}

/* Runs one round in the loader thread. */
static void *
loader_run(void *arg)
{
    struct worker *w = arg;
    nsec since = clock_now();
    int r;

    /* Times of an earlier round of a standby are not counted: they did not delay the start. */
    memset(w->loader->phase_ns, 0, sizeof w->loader->phase_ns);
    r = !w->loader->begun && !w->model ? load_first(w) : load_more(w);
    if (w->loader->opens_text && (r < 0 || !w->loader->standby)) {
        pthread_join(w->loader->text_opener, NULL);
        w->loader->opens_text = false;
    }
    w->loader->load_ns = clock_now() - since;
    if (!w->loader->standby) FP(load_done);
    atomic_store_explicit(&w->loader->done, r < 0 ? -1 : 1, memory_order_release);
    return NULL;
}

static void
log_standby(const struct worker *w)
{
    if (!w->gpu)
        log_info("standby: loaded the driver of device %s in %.2f s", model_options_device(w->keys),
                 (double)w->loader->load_ns / NSEC_S);
    else
        log_info("standby: loaded the model in %.2f s (device %.2f s, weights %.2f s, step buffers "
                 "%.2f s) on %s",
                 (double)w->loader->load_ns / NSEC_S,
                 (double)w->loader->phase_ns[LOAD_DEVICE] / NSEC_S,
                 (double)w->loader->phase_ns[LOAD_WEIGHTS] / NSEC_S,
                 (double)w->loader->phase_ns[LOAD_STEPS] / NSEC_S, gpu_facts(w->gpu).describe);
}

/* Waits until a standby receives "begin" or "go", and updates its heartbeat meanwhile. */
static int
wait_as_standby(struct worker *w, struct err *e)
{
    static const struct timespec sleep = { .tv_nsec = STANDBY_SLEEP };
    struct pollfd p[] = { { .fd = w->fd_channel, .events = POLLIN },
                          { .fd = w->channel->doorbell.fd, .events = POLLIN } };
    bool begun = w->loader->may_use_device;
    int r;

    log_standby(w);
    health_phase(w, begun ? PHASE_STANDBY : PHASE_BEGUN, 0);
    while ((r = take_inherited(w, e)) == 0 && w->loader->standby &&
           w->loader->may_use_device == begun) {
        health_heartbeat(w, clock_now());
        if (ppoll(p, ARRAY_LEN(p), &sleep, NULL) < 0 && errno != EINTR) check(!"poll");
        if (doorbell_drain(&w->channel->doorbell) == -EPIPE)
            return err_set(e, -EPIPE, "%s has exited", w->rank ? "rank 0" : "lagand");
    }
    return r;
}

static int
start_round(struct worker *w, struct err *e)
{
    struct loader *l = w->loader;

    health_phase(w, PHASE_LOAD, 0);
    l->reported = UINT64_MAX;
    atomic_store_explicit(&l->done, 0, memory_order_relaxed);
    if (pthread_create(&l->thread, NULL, loader_run, w))
        return err_set(e, -EAGAIN, "cannot start the loader thread: no thread is available");
    l->runs = true;
    return 0;
}

int
load_poll(struct worker *w, struct err *e)
{
    struct loader *l = w->loader;
    int done;

    if (!l->runs) TRY(start_round(w, e));
    done = atomic_load_explicit(&l->done, memory_order_acquire);
    if (!done) return 0;
    pthread_join(l->thread, NULL);
    l->runs = false;
    if (done < 0) {
        *e = l->err;
        return e->code;
    }
    if (l->standby) {
        TRY(wait_as_standby(w, e));
        return start_round(w, e);
    }
    w->loaded = true;
    return 1;
}

void
load_free(struct worker *w)
{
    if (w->exec) exec_close(w->exec);
    scheduler_free(w->sched);
    if (w->adopt->kv_arena.base) gpu_ops(w->gpu)->mem.arena_drop(w->gpu, &w->adopt->kv_arena);
    if (w->host_tier->host.base) gpu_ops(w->gpu)->mem.host_close(w->gpu, &w->host_tier->host);
    adopt_close(w);
    free(TAKE(w->kv_memory));
    tokenizer_close(w->tokenizer);
    model_close(w->loader->begun);
    model_close(w->model);
    if (w->gpu) gpu_close(w->gpu);
}

/* cuda_ranks.c - connects the ranks of a rank group; see cuda_ranks.h, which defines channel.
 *
 * Every rank makes a channel in these steps:
 *
 *   1. posts the handle of its memory, maps the memory of all other ranks and learns from every
 *      rank whether that rank could do the same
 *   2. gets the NCCL id from rank 0, makes the communicator, runs one all-reduce and one all-gather
 *      of each size class, which makes connections and loads kernels
 *   3. posts READY and waits for all ranks: then others may write into its memory, which is zero
 */
#include "gpu/cuda/cuda_ranks.h"

#include "base/clock.h"

#include <stdio.h>

#define GROUP_TIME (60 * NSEC_S)

/* Message RENDEZVOUS_MEMORY: the handle to map our memory with. there 0: no valid handle. */
struct memory_note {
    cudaIpcMemHandle_t handle;
    uint32_t there;
};
_Static_assert(sizeof(struct memory_note) <= RENDEZVOUS_BYTES &&
                   sizeof(struct nccl_id) <= RENDEZVOUS_BYTES,
               "a message is smaller");

static void *
opener(void *arg)
{
    struct cuda_ranks *g = arg;

    g->opened = nccl_open(&g->nccl, g->libs, &g->why);
    return NULL;
}

/* NCCL connects ranks by sockets before it uses shared memory: restricts it to the loopback
 * interface, because all ranks are on this host. Disables its registration of buffers, which would
 * map arenas into other processes when an all-reduce is recorded. */
int
cuda_ranks_begin(struct cuda *c, const struct gpu_options *o, struct err *e)
{
    struct cuda_ranks *g;

    if (o->n_ranks <= 1) return 0;
    setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    setenv("NCCL_GRAPH_REGISTER", "0", 0);
    g = calloc(1, sizeof *g);
    if (!g) return err_set(e, -ENOMEM, "cannot open the rank group: out of host memory");
    c->group = g;
    g->cuda = c;
    TRY(rendezvous_open(&g->rendezvous, o->rank, o->n_ranks, o->group_fd, e));
    if (o->libs && !(g->libs = strdup(o->libs)))
        return err_set(e, -ENOMEM, "cannot open the rank group: out of host memory");
    for (uint32_t i = 0; i < RENDEZVOUS_CHANNELS; i++) {
        g->channel[i].group = g;
        g->channel[i].number = i;
    }
    g->opening = pthread_create(&g->opener, NULL, opener, g) == 0;
    if (!g->opening) opener(g);
    return 0;
}

/* ---- making a channel, in its own thread */

static int
cuda_err(cudaError_t r, const char *what, struct err *e)
{
    if (r == cudaSuccess) return 0;
    cudaGetLastError();
    return err_set(e, r == cudaErrorMemoryAllocation ? -ENOMEM : -EIO,
                   "cannot connect the ranks (%s): %s", what, cudaGetErrorString(r));
}

/* Maps the memory of all ranks. If a rank cannot (no peer access, containers), ch->mapped is false,
 * and NCCL does all collectives. */
static int
map_all(struct channel *ch, cudaStream_t st, nsec until, struct err *e)
{
    struct rendezvous *m = &ch->group->rendezvous;
    struct exchange *x = &ch->exchange;
    size_t bytes = K_EXCHANGE_BYTES(m->ranks);
    struct memory_note note = { .there = 0 };
    uint32_t ok = 1;

    TRY(cuda_err(cudaMalloc(&ch->memory, bytes + K_EXCHANGE_BLOCKS * sizeof *x->round), "memory",
                 e));
    TRY(cuda_err(cudaMemsetAsync(ch->memory, 0, bytes + K_EXCHANGE_BLOCKS * sizeof *x->round, st),
                 "memory", e));
    TRY(cuda_err(cudaStreamSynchronize(st), "memory", e));
    x->rank = m->rank;
    x->ranks = m->ranks;
    x->round = (uint32_t *)((char *)ch->memory + bytes);
    note.there = cudaIpcGetMemHandle(&note.handle, ch->memory) == cudaSuccess;
    rendezvous_post(m, ch->number, RENDEZVOUS_MEMORY, &note, sizeof note);
    for (uint32_t r = 0; r < x->ranks; r++) {
        TRY(rendezvous_wait(m, ch->number, RENDEZVOUS_MEMORY, r, &note, sizeof note, until, e));
        if (r == x->rank)
            x->at[r] = ch->memory;
        else if (!note.there || cudaIpcOpenMemHandle(&x->at[r], note.handle,
                                                     cudaIpcMemLazyEnablePeerAccess) != cudaSuccess)
            ok = 0;
    }
    cudaGetLastError();
    rendezvous_post(m, ch->number, RENDEZVOUS_MAPPED, &ok, sizeof ok);
    ch->mapped = true;
    for (uint32_t r = 0; r < x->ranks; r++) {
        TRY(rendezvous_wait(m, ch->number, RENDEZVOUS_MAPPED, r, &ok, sizeof ok, until, e));
        ch->mapped &= ok;
    }
    return 0;
}

static int
connect(struct channel *ch, nsec until, struct err *e)
{
    struct rendezvous *m = &ch->group->rendezvous;
    const struct nccl *n = &ch->group->nccl;
    struct nccl_id id;

    if (m->rank == 0) {
        TRY(nccl_err(n, n->GetUniqueId(&id), "creating the communicator id", e));
        rendezvous_post(m, ch->number, RENDEZVOUS_ID, &id, sizeof id);
    }
    TRY(rendezvous_wait(m, ch->number, RENDEZVOUS_ID, 0, &id, sizeof id, until, e));
    return nccl_err(n, n->CommInitRank(&ch->comm, (int)m->ranks, id, (int)m->rank),
                    "a communicator", e);
}

/* Runs each collective once. NCCL connects ranks and loads kernels at the first use of each
 * algorithm, and that must not happen within a step. */
static int
try_out(struct channel *ch, cudaStream_t st, struct err *e)
{
    static const size_t sizes[] = { 1 << 10, 32 << 10, 256 << 10, 1 << 20 }; /* numbers of floats */
    struct rendezvous *m = &ch->group->rendezvous;
    const struct nccl *n = &ch->group->nccl;
    uint32_t ranks = m->ranks;

    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        size_t floats = MIN(sizes[i], K_EXCHANGE_BYTES(ranks) / sizeof(float)),
               part = floats / ranks;
        float *x = ch->memory;

        TRY(nccl_err(n, n->AllReduce(x, x, floats, NCCL_F32, NCCL_SUM, ch->comm, st),
                     "the first all-reduce", e));
        TRY(nccl_err(n, n->AllGather(x + part * m->rank, x, part, NCCL_F32, ch->comm, st),
                     "the first all-gather", e));
    }
    return cuda_err(cudaStreamSynchronize(st), "first collectives", e);
}

static int
make_by(struct channel *ch, cudaStream_t st, struct err *e)
{
    struct rendezvous *m = &ch->group->rendezvous;
    nsec until = ch->since + GROUP_TIME;

    TRY(map_all(ch, st, until, e));
    TRY(connect(ch, until, e));
    TRY(try_out(ch, st, e));
    rendezvous_post(m, ch->number, RENDEZVOUS_READY, NULL, 0);
    for (uint32_t r = 0; r < m->ranks; r++)
        TRY(rendezvous_wait(m, ch->number, RENDEZVOUS_READY, r, NULL, 0, until, e));
    return 0;
}

static int
make(struct channel *ch, struct err *e)
{
    cudaStream_t st;
    int r;

    TRY(cuda_err(cudaSetDevice(ch->group->cuda->ordinal), "device", e));
    TRY(cuda_err(cudaStreamCreateWithFlags(&st, cudaStreamNonBlocking), "stream", e));
    r = make_by(ch, st, e);
    cudaStreamDestroy(st);
    cuda_close_on_exec();
    return r;
}

static void *
maker(void *arg)
{
    struct channel *ch = arg;

    ch->made = make(ch, &ch->why);
    if (ch->number == 0) ch->group->took = clock_now() - ch->since;
    return NULL;
}

static int
begin(struct channel *ch, struct err *e)
{
    ch->since = clock_now();
    ch->begun = true;
    if (pthread_create(&ch->maker, NULL, maker, ch) == 0) return 0;
    ch->lost = true;
    return err_set(e, -EAGAIN, "cannot start the thread that connects the ranks");
}

/* Waits for the thread that makes a channel. If NCCL hangs, the thread cannot be cancelled: reports
 * the reason; the process cannot continue. */
static int
await(struct channel *ch, struct err *e)
{
    nsec since = clock_now(), left = MAX(ch->since + GROUP_TIME + NSEC_S - since, (nsec)0);
    struct timespec t;

    if (ch->lost)
        return err_set(e, -EIO, "the ranks did not connect; an earlier message has the reason");
    if (!ch->done) {
        clock_gettime(CLOCK_MONOTONIC, &t);
        t.tv_sec += left / NSEC_S;
        if (pthread_clockjoin_np(ch->maker, NULL, CLOCK_MONOTONIC, &t)) {
            ch->lost = true;
            return err_set(
                e, -ETIMEDOUT,
                "the ranks have not connected after %lld s: NCCL still waits; set NCCL_DEBUG=INFO "
                "to see the reason",
                (long long)(GROUP_TIME / NSEC_S));
        }
        ch->done = true;
        ch->group->waited += clock_now() - since;
    }
    return ch->made < 0 ? err_set(e, ch->made, "%s", ch->why.text) : 0;
}

/* ---- what the device calls */

int
cuda_ranks_open(struct cuda *c, struct err *e)
{
    struct cuda_ranks *g = c->group;

    if (!g) return 0;
    if (g->opening) pthread_join(g->opener, NULL);
    g->opening = false;
    if (g->opened < 0) return err_set(e, g->opened, "%s", g->why.text);
    return begin(&g->channel[0], e);
}

static bool
close_channel(struct channel *ch)
{
    struct err none;

    if (!ch->begun) return true;
    await(ch, &none);
    if (ch->lost) return false;
    if (ch->comm) ch->group->nccl.CommAbort(ch->comm); /* CommAbort() does not wait */
    for (uint32_t r = 0; r < ch->exchange.ranks; r++)
        if (r != ch->exchange.rank && ch->exchange.at[r]) cudaIpcCloseMemHandle(ch->exchange.at[r]);
    cudaFree(ch->memory);
    return true;
}

void
cuda_ranks_close(struct cuda *c)
{
    struct cuda_ranks *g = c->group;
    bool all = true;

    if (!g) return;
    c->group = NULL;
    cuda_enter(c);
    if (g->opening) pthread_join(g->opener, NULL);
    for (uint32_t i = 0; i < RENDEZVOUS_CHANNELS; i++) all &= close_channel(&g->channel[i]);
    cudaGetLastError();
    if (!all) return;
    rendezvous_close(&g->rendezvous); /* NCCL stays loaded, because its threads may still run */
    free(g->libs);
    free(g);
}

static struct channel *
free_channel(struct cuda_ranks *g)
{
    for (uint32_t i = 0; i < RENDEZVOUS_CHANNELS; i++)
        if (!g->channel[i].taken) return &g->channel[i];
    return NULL;
}

static int
join(struct cuda_lane *l, struct err *e)
{
    struct channel *ch = free_channel(cuda_of(&l->lane)->group);

    if (l->recording)
        return err_set(e, -EINVAL,
                       "the first collective of a lane must not be in a graph (internal error)");
    if (!ch)
        return err_set(e, -EAGAIN,
                       "%d lanes already have collectives, no more are possible (internal error)",
                       RENDEZVOUS_CHANNELS);
    if (!ch->begun) TRY(begin(ch, e));
    TRY(await(ch, e));
    if (l->k.invariant && ch->exchange.ranks > 2 && !ch->mapped)
        return err_set(
            e, -ENOTSUP,
            "numerics invariant is not possible with %u GPUs that cannot map each other's "
            "memory, because NCCL adds in its own order; use numerics fast",
            ch->exchange.ranks);
    ch->taken = true;
    l->channel = ch;
    return 0;
}

int
cuda_ranks_join(struct cuda_lane *l)
{
    int r;

    if (l->channel) return 0;
    cuda_enter(cuda_of(&l->lane));
    r = join(l, &l->lane.gpu->why);
    if (r < 0 && !l->recording) l->error = -EIO;
    return r;
}

void
cuda_ranks_leave(struct cuda_lane *l)
{
    if (l->channel) ((struct channel *)l->channel)->taken = false;
    l->channel = NULL;
}

int
cuda_ranks_error(struct cuda_lane *l)
{
    struct channel *ch = l->channel;
    int error = NCCL_OK, r;

    if (!ch) return 0;
    r = ch->group->nccl.CommGetAsyncError(ch->comm, &error);
    return nccl_err(&ch->group->nccl, r == NCCL_OK ? error : r, "a rank", &l->lane.gpu->why);
}

int
cuda_ranks_why(struct cuda_lane *l, int r)
{
    struct cuda_ranks *g = cuda_of(&l->lane)->group;

    if (r < 0 && g->nccl_why.code) err_set(&l->lane.gpu->why, r, "%s", g->nccl_why.text);
    g->nccl_why.code = 0;
    return r;
}

const char *
cuda_ranks_describe(const struct gpu *gpu)
{
    struct cuda_ranks *g = ((const struct cuda *)gpu)->group;
    int v = g->nccl.version;

    snprintf(g->describe, sizeof g->describe,
             "NCCL %d.%d.%d%s, connected in %.2f s (the load waited %.2f s)", v / 10000,
             v / 100 % 100, v % 100, g->channel[0].mapped ? " and peer memory" : "",
             (double)g->took / NSEC_S, (double)g->waited / NSEC_S);
    return g->describe;
}

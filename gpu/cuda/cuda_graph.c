/* cuda_graph.c - records the ops of a lane as a CUDA graph and launches it; named ranges for a
 * profiler.
 *
 * Recording captures the stream of the lane (thread-local, so other threads are not affected). The
 * graph is made executable and uploaded at once, so that its first launch takes no longer than
 * later ones.
 */
#include "gpu/cuda/cuda.h"

#include <nvtx3/nvToolsExt.h>

/* MOST_NODES: a graph with more kernels is refused; the launch queue holds 4,092 (cuda_device.c).
 * NODE: estimated bytes of device memory per node. */
enum { MOST_NODES = 2048, NODE = 4096 };

struct graph {
    cudaGraphExec_t exec;
    struct cuda_partition *partition; /* where it was recorded; NULL: undivided device */
    uint32_t sms;
};

static void
destroy(cudaGraph_t *g)
{
    if (*g) cudaGraphDestroy(*g);
}

int
cuda_graph_begin(struct lane *lane)
{
    struct cuda_lane *l = (struct cuda_lane *)lane;

    if (l->recording)
        return err_set(&lane->gpu->why, -EINVAL,
                       "graph_begin: a graph is already being recorded (internal error)");
    cuda_enter(cuda_of(lane));
    TRY(cuda_failed(lane, cudaStreamBeginCapture(l->k.st, cudaStreamCaptureModeThreadLocal),
                    "graph_begin"));
    l->recording = true;
    return 0;
}

/* Estimates the bytes of the graph from its number of nodes. Asking the driver for its free memory
 * could block for seconds while another process allocates or pins memory; heartbeats would stop. */
int
cuda_graph_end(struct lane *lane, struct graph **ret, uint64_t *bytes)
{
    struct cuda_lane *l = (struct cuda_lane *)lane;
    size_t nodes = 0;
    CLEAN(destroy) cudaGraph_t graph = NULL;
    struct graph *g;
    cudaError_t r;
    int failed;

    if (!l->recording)
        return err_set(&lane->gpu->why, -EINVAL,
                       "graph_end: no graph is being recorded (internal error)");
    cuda_enter(cuda_of(lane));
    r = cudaStreamEndCapture(l->k.st, &graph);
    if (r == cudaSuccess && !graph) r = cudaErrorStreamCaptureInvalidated;
    failed = cuda_failed(lane, r, "graph_end");
    l->recording = false;
    if (failed) return failed;
    if (cudaGraphGetNodes(graph, NULL, &nodes) != cudaSuccess || nodes > MOST_NODES)
        return err_set(&lane->gpu->why, -E2BIG,
                       "graph_end: the graph has %zu nodes, at most %d are allowed", nodes,
                       MOST_NODES);
    g = calloc(1, sizeof *g);
    if (!g) return err_set(&lane->gpu->why, -ENOMEM, "graph_end: out of host memory");
    r = cudaGraphInstantiate(&g->exec, graph, 0);
    if (r == cudaSuccess) r = cudaGraphUpload(g->exec, l->k.st);
    if (r == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        cuda_graph_drop(lane, g);
        return err_set(&lane->gpu->why, -ENOMEM,
                       "graph_end: no GPU memory for a graph of %zu nodes", nodes);
    }
    if (r != cudaSuccess) {
        cuda_graph_drop(lane, g);
        return cuda_failed(lane, r, "graph_end");
    }
    g->sms = l->k.sms;
    g->partition = l->partition;
    cuda_partition_count_graph(cuda_of(lane), g->partition, 1);
    *ret = g;
    *bytes = nodes * NODE;
    return 0;
}

int
cuda_graph_launch(struct lane *lane, struct graph *g)
{
    struct cuda_lane *l = (struct cuda_lane *)lane;

    TRY(cuda_not_recording(lane, "graph_launch"));
    if (g->partition != l->partition || g->sms != l->k.sms)
        return err_set(&lane->gpu->why, -EINVAL,
                       "graph_launch: the graph was recorded on a partition with %u SMs, but the "
                       "lane is on one with %u (internal error)",
                       g->sms, l->k.sms);
    cuda_enter(cuda_of(lane));
    return cuda_failed(lane, cudaGraphLaunch(g->exec, l->k.st), "graph_launch");
}

void
cuda_graph_drop(struct lane *l, struct graph *g)
{
    cuda_enter(cuda_of(l));
    if (g->exec) cudaGraphExecDestroy(g->exec);
    cuda_partition_count_graph(cuda_of(l), g->partition, -1);
    free(g);
}

void
cuda_range_begin(struct lane *l, const char *name)
{
    (void)l;
    nvtxRangePushA(name);
}

void
cuda_range_end(struct lane *l)
{
    (void)l;
    nvtxRangePop();
}

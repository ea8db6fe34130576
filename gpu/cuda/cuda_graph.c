/* cuda_graph.c - pieces of a step, recorded once and queued as one; names for a profiler.
 *
 * A lane's stream is captured (thread-local: what other threads do meanwhile is theirs), made
 * executable and sent to the device at once, so that the first run costs what every run costs.
 */
#include "gpu/cuda/cuda.h"

#include <errno.h>
#include <nvtx3/nvToolsExt.h>
#include <stdlib.h>

/* As many launches may wait as CUDA_SCALE_LAUNCH_QUEUES says, 4,092 (cuda_device.c). NODE: bytes of
 * the device's memory. */
enum { MOST_NODES = 2048, NODE = 4096 };

struct graph {
    cudaGraphExec_t exec;
    struct cuda_partition *partition; /* it was recorded on a part of, with that many SMs */
    uint32_t sms;
};

int
cuda_graph_begin(struct lane *lane)
{
    struct cuda_lane *l = (struct cuda_lane *)lane;

    if (l->recording)
        return err_set(&lane->gpu->why, -EINVAL, "graph_begin: a graph is being recorded already");
    cuda_enter(cuda_of(lane));
    TRY(cuda_failed(lane, cudaStreamBeginCapture(l->k.st, cudaStreamCaptureModeThreadLocal),
                    "graph_begin"));
    l->recording = true;
    return 0;
}

/* Bytes are counted by nodes. To ask how much memory is free waits for the kernel's driver, and so
 * for a process that makes or pins host memory: seconds, in which we would not beat. */
int
cuda_graph_end(struct lane *lane, struct graph **ret, uint64_t *bytes)
{
    struct cuda_lane *l = (struct cuda_lane *)lane;
    size_t nodes = 0;
    cudaGraph_t graph = NULL;
    struct graph *g;
    cudaError_t r;
    int failed;

    if (!l->recording)
        return err_set(&lane->gpu->why, -EINVAL, "graph_end: no graph is being recorded");
    cuda_enter(cuda_of(lane));
    r = cudaStreamEndCapture(l->k.st, &graph);
    if (r == cudaSuccess && !graph) r = cudaErrorStreamCaptureInvalidated;
    failed = cuda_failed(lane, r, "graph_end");
    l->recording = false;
    if (failed) return failed;
    if (cudaGraphGetNodes(graph, NULL, &nodes) != cudaSuccess || nodes > MOST_NODES) {
        cudaGraphDestroy(graph);
        return err_set(&lane->gpu->why, -E2BIG, "graph_end: %zu nodes, %d at most", nodes,
                       MOST_NODES);
    }
    g = calloc(1, sizeof *g);
    if (!g) {
        cudaGraphDestroy(graph);
        return err_set(&lane->gpu->why, -ENOMEM, "graph_end: no memory");
    }
    r = cudaGraphInstantiate(&g->exec, graph, 0);
    if (r == cudaSuccess) r = cudaGraphUpload(g->exec, l->k.st);
    cudaGraphDestroy(graph);
    if (r == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        cuda_graph_drop(lane, g);
        return err_set(&lane->gpu->why, -ENOMEM, "graph_end: a graph of %zu nodes does not fit",
                       nodes);
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

    if (l->recording)
        return err_set(&lane->gpu->why, -EINVAL,
                       "graph_launch: not while a graph is being recorded");
    if (g->partition != l->partition || g->sms != l->k.sms)
        return err_set(&lane->gpu->why, -EINVAL,
                       "graph_launch: it was recorded on another part of the device, of %u SMs",
                       g->sms);
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

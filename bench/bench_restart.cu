/* bench_restart.cu - the time from the death of a worker to the first token of its replacement, by
 * slices.
 *
 *     bench_restart [--only chain|tier|quiet] [MODULE.so]
 *
 * The parent has no CUDA and holds the fds of the arenas, like lagand. Its children are copies of
 * this program that use the device like the worker of an 8B model: a context, a module, cuBLASLt,
 * 16 GiB of weights and 64 GiB of KV by fd, a checksum of the weights, a step of 320 kernels that
 * read the weights. Each child is killed while it works, and the next one adopts the arenas. Also
 * measured: the same with a mapped host tier of 32 GiB, and which writes still reach an arena after
 * the pidfd of the killed child is readable, with graphs and copies in flight, and with a forked
 * child that holds the device files.
 *
 * The tier is memory of the driver, a registered memfd or, if the system has huge pages
 * (vm.nr_hugepages), a memfd with huge pages.
 *
 * MODULE is opened at the time at which a worker opens lagan-cuda.so. If it has a function touch(),
 * that function loads the lazily loaded kernels.
 */
#include <cuda.h>
#include <cuda_runtime.h>

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <time.h>
#include <unistd.h>
#include <vector>

#include <algorithm>

constexpr size_t GIB = (size_t)1 << 30, WEIGHTS = 16 * GIB, KV = 64 * GIB;
constexpr size_t PIECE = (size_t)64 << 20; /* of a memfd, per registration */
constexpr int KERNELS = 320;               /* per step: 32 layers of 10 */
constexpr int ROUNDS = 5;

/* Flags of a child. */
enum {
    MAKE = 1,    /* creates the arenas; otherwise adopts fds 4 and 5 */
    BESIDE = 2,  /* opens cuBLASLt in a thread during cuInit() */
    EARLY = 4,   /* waits for a byte before it maps an arena */
    BUSY = 8,    /* runs graphs and copies until the kill */
    FORK = 16,   /* a forked child holds the device files */
    NUMA = 32,   /* a host tier of driver memory; fd 6 unless new */
    MEMFD = 64,  /* a host tier in a registered memfd, fd 6 */
    WATCH = 128, /* maps the arenas and reports changes */
    TIER_NEW = 256,
    LATER = 512,      /* like BESIDE, but while the context is created */
    NO_LT = 1024,     /* without cuBLASLt */
    STANDBY = 2048,   /* EARLY, started long before the kill */
    INIT_ONLY = 4096, /* only cuInit(), to keep the driver initialised */
    CONTEXT_ONLY = 8192
};

/* clang-format off */
#define SLICES(X) \
    X(START, "exec") X(LIBCUDA, "dlopen libcuda") X(MODULE, "dlopen module") X(INIT, "cuInit") \
    X(CONTEXT, "context") X(FIRST, "runtime and first kernel") X(TOUCH, "load the module's kernels") \
    X(LT, "cuBLASLt") X(GO, "wait for the go-ahead") X(MAPS, "import and map 80 GiB") \
    X(SUM, "checksum 16 GiB") X(STEP, "first step, plain") X(GRAPH, "capture and first graph")
#define SLICE(name, words) name,
#define SLICE_NAME(name, words) words,
enum slice { SLICES(SLICE) N_SLICES };
static const char *const slice_name[] = { SLICES(SLICE_NAME) };
/* clang-format on */

struct report {
    double at[N_SLICES];                                   /* ms since spawn */
    double tier_ms, sync_us[2], launch_us[2], graph_us[2]; /* without and with the tier */
    int files, leaking; /* open /dev/nvidia*; those without close-on-exec */
    int holder;         /* FORK: its pid */
    uint64_t free_bytes;
    char error[200];
};

static double
now()
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec * 1e-6;
}

/* ---- a child ---- */

static struct report rep;
static int sock = 3;

static void
send_fds(const void *p, size_t n, const int *fd, int n_fd)
{
    struct iovec io = { (void *)p, n };
    alignas(struct cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))] = {};
    struct msghdr m = {};

    m.msg_iov = &io, m.msg_iovlen = 1;
    if (n_fd) {
        m.msg_control = control, m.msg_controllen = CMSG_SPACE(n_fd * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS,
        c->cmsg_len = CMSG_LEN(n_fd * sizeof(int));
        memcpy(CMSG_DATA(c), fd, n_fd * sizeof(int));
    }
    if (sendmsg(sock, &m, 0) < 0) _exit(3);
}

#define TRY_CU(call) \
    do { \
        CUresult r_ = (call); \
        if (r_ != CUDA_SUCCESS) fail(#call, (int)r_); \
    } while (0)
#define TRY_RT(call) \
    do { \
        cudaError_t r_ = (call); \
        if (r_ != cudaSuccess) fail(#call, (int)r_); \
    } while (0)

static void
fail(const char *what, int code)
{
    snprintf(rep.error, sizeof rep.error, "%.150s: %d", what, code);
    send_fds(&rep, sizeof rep, NULL, 0);
    _exit(1);
}

/* clang-format off */
#define DRIVER(X) \
    X(cuInit) X(cuDevicePrimaryCtxRetain) X(cuCtxSetCurrent) X(cuMemCreate) X(cuMemRelease) \
    X(cuMemExportToShareableHandle) X(cuMemImportFromShareableHandle) X(cuMemAddressReserve) \
    X(cuMemMap) X(cuMemSetAccess)
/* clang-format on */
#define DECLARE(name) static decltype(&name) d_##name;
DRIVER(DECLARE)

__global__ void
nothing()
{
}

/* A sum that depends on every word and its position. */
__global__ void
sum_words(const ulonglong2 *p, size_t n, unsigned long long *out)
{
    unsigned long long s = 0;

    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        ulonglong2 v = p[i];
        s += (v.x ^ i) * 0x9e3779b97f4a7c15ull + (v.y ^ ~i) * 0xbf58476d1ce4e5b9ull;
    }
    for (int step = 16; step; step /= 2) s += __shfl_xor_sync(~0u, s, step);
    if (threadIdx.x % 32 == 0) atomicAdd(out, s);
}

__global__ void
write_words(ulonglong2 *p, size_t n, unsigned long long *tick)
{
    unsigned long long t = *tick;

    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        p[i] = make_ulonglong2(t * 0x9e3779b97f4a7c15ull + i, t);
}

__global__ void
add_one(unsigned long long *tick)
{
    ++*tick;
}

static char *
map(CUmemGenericAllocationHandle h, size_t bytes, bool host)
{
    CUdeviceptr p;
    CUmemAccessDesc a[2] = {};

    TRY_CU(d_cuMemAddressReserve(&p, bytes, 0, 0, 0));
    TRY_CU(d_cuMemMap(p, bytes, 0, h, 0));
    a[0].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    a[0].flags = a[1].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    a[1].location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
    TRY_CU(d_cuMemSetAccess(p, bytes, a, host ? 2 : 1));
    TRY_CU(d_cuMemRelease(h));
    return (char *)p;
}

static char *
arena(int *fd, size_t bytes, bool make, bool host)
{
    CUmemAllocationProp p = {};
    CUmemGenericAllocationHandle h;

    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    p.location.type = host ? CU_MEM_LOCATION_TYPE_HOST_NUMA : CU_MEM_LOCATION_TYPE_DEVICE;
    if (make) {
        TRY_CU(d_cuMemCreate(&h, bytes, &p, 0));
        TRY_CU(d_cuMemExportToShareableHandle(fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    } else
        TRY_CU(d_cuMemImportFromShareableHandle(&h, (void *)(uintptr_t)*fd,
                                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    return map(h, bytes, host);
}

static void
step(cudaStream_t st, char *weights, unsigned long long *out)
{
    size_t each = WEIGHTS / KERNELS / 16;

    for (int i = 0; i < KERNELS; i++)
        sum_words<<<264, 512, 0, st>>>((ulonglong2 *)weights + i * each, each, out);
}

static double
median(std::vector<double> v)
{
    std::sort(v.begin(), v.end());
    return v.empty() ? 0 : v[v.size() / 2];
}

/* Measures in us: launch to sync, launch alone, graph of a step to sync. */
static void
latencies(int which, cudaStream_t st, cudaGraphExec_t tiny)
{
    std::vector<double> s, l, g;

    for (int i = 0; i < 500; i++) {
        double t = now();
        nothing<<<1, 32, 0, st>>>();
        TRY_RT(cudaStreamSynchronize(st));
        s.push_back((now() - t) * 1e3);
    }
    for (int i = 0; i < 20; i++) {
        double t = now();
        for (int j = 0; j < 100; j++) nothing<<<1, 32, 0, st>>>();
        l.push_back((now() - t) * 10);
        TRY_RT(cudaStreamSynchronize(st));
    }
    for (int i = 0; i < 100; i++) {
        double t = now();
        TRY_RT(cudaGraphLaunch(tiny, st));
        TRY_RT(cudaStreamSynchronize(st));
        g.push_back((now() - t) * 1e3);
    }
    rep.sync_us[which] = median(s), rep.launch_us[which] = median(l),
    rep.graph_us[which] = median(g);
}

static void
count_files()
{
    for (int fd = 0; fd < 1024; fd++) {
        char name[64], to[256];
        ssize_t n;

        snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
        n = readlink(name, to, sizeof to - 1);
        if (n < 0) continue;
        to[n] = 0;
        if (strncmp(to, "/dev/nvidia", 11)) continue;
        rep.files++;
        if (!(fcntl(fd, F_GETFD) & FD_CLOEXEC)) rep.leaking++;
    }
}

/* Graphs that rewrite the first GiB of KV, copies in that rewrite the second, copies out into host.
 * */
static void
work(char *kv, char *host, size_t host_bytes, unsigned long long *tick)
{
    cudaStream_t st[3];
    cudaGraph_t graph;
    cudaGraphExec_t run;
    char *from;
    size_t half = GIB / 4;

    for (auto &s : st) TRY_RT(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    TRY_RT(cudaHostAlloc(&from, 2 * half, 0));
    for (size_t i = 0; i < 2 * half; i += 8) *(uint64_t *)(from + i) = i * 0x9e3779b97f4a7c15ull;
    TRY_RT(cudaStreamBeginCapture(st[0], cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < 1000; i++) {
        add_one<<<1, 1, 0, st[0]>>>(tick);
        write_words<<<528, 512, 0, st[0]>>>((ulonglong2 *)kv, GIB / 16, tick);
    }
    TRY_RT(cudaStreamEndCapture(st[0], &graph));
    TRY_RT(cudaGraphInstantiate(&run, graph, 0));
    for (int i = 0; i < 20; i++) TRY_RT(cudaGraphLaunch(run, st[0])); /* about 5 s in total */
    send_fds(&rep, sizeof rep, NULL, 0);
    for (unsigned i = 0;; i++) {
        if (i >= 8) TRY_RT(cudaStreamSynchronize(st[1 + i % 2]));
        for (int j = 0; j < 16; j++) {
            TRY_RT(cudaMemcpyAsync(kv + GIB + j % 4 * half, from + (i + j / 4) % 2 * half, half,
                                   cudaMemcpyHostToDevice, st[1]));
            if (host)
                TRY_RT(cudaMemcpyAsync(host + j * PIECE % host_bytes, kv, PIECE,
                                       cudaMemcpyDeviceToHost, st[2]));
        }
    }
}

/* For each byte from the parent: checks the 2 GiB repeatedly and reports how often they changed. */
static void
watch(char *kv, cudaStream_t st, unsigned long long *out)
{
    char c;

    while (recv(sock, &c, 1, 0) == 1) {
        unsigned long long old = 0, s;
        int changes = 0;
        double from = now();
        size_t free_bytes, total;

        for (int i = 0; i < 100; i++, old = s) {
            TRY_RT(cudaMemsetAsync(out, 0, 8, st));
            sum_words<<<528, 512, 0, st>>>((ulonglong2 *)kv, 2 * GIB / 16, out);
            TRY_RT(cudaMemcpyAsync(&s, out, 8, cudaMemcpyDeviceToHost, st));
            TRY_RT(cudaStreamSynchronize(st));
            changes += i && s != old;
        }
        TRY_RT(cudaMemGetInfo(&free_bytes, &total));
        rep.at[0] = changes, rep.at[1] = now() - from, rep.free_bytes = free_bytes;
        send_fds(&rep, sizeof rep, NULL, 0);
    }
    _exit(0);
}

static void *lt;

static void
open_lt()
{
    static const char *const name[] = { "libcublasLt.so.13",
                                        "/usr/local/cuda/lib64/libcublasLt.so.13",
                                        "/usr/local/cuda/lib64/libcublasLt.so" };

    for (const char *n : name)
        if ((lt = dlopen(n, RTLD_NOW | RTLD_LOCAL))) return;
}

/* Keeps the driver initialised, which otherwise shuts down with its last user. */
static void
bystand()
{
    send_fds(&rep, sizeof rep, NULL, 0);
    for (;;) pause();
}

static int
worker(int argc, char **argv)
{
    double born = atof(argv[2]);
    unsigned flags = (unsigned)atoi(argv[3]);
    size_t tier_bytes = strtoull(argv[4], NULL, 10);
    const char *module_path = argc > 5 ? argv[5] : NULL;
    int fd[3] = { 4, 5, 6 };
    std::thread opener;
    char *weights, *kv, *tier = NULL, go;
    void *cu, *module = NULL;
    unsigned long long *out;
    CUcontext ctx;
    cudaStream_t st;
    cudaGraph_t graph;
    cudaGraphExec_t exec, tiny;

    rep.at[START] = now() - born;
    cu = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!cu) fail("dlopen libcuda", 0);
#define RESOLVE(name) \
    if (!(d_##name = (decltype(d_##name))dlsym(cu, #name))) fail("dlsym " #name, 0);
    DRIVER(RESOLVE)
    rep.at[LIBCUDA] = now() - born;
    if (flags & BESIDE) opener = std::thread(open_lt);
    if (module_path && !(module = dlopen(module_path, RTLD_NOW | RTLD_LOCAL))) fail(dlerror(), 0);
    rep.at[MODULE] = now() - born;
    TRY_CU(d_cuInit(0));
    rep.at[INIT] = now() - born;
    if (flags & INIT_ONLY) bystand();
    if (flags & LATER) opener = std::thread(open_lt);
    TRY_CU(d_cuDevicePrimaryCtxRetain(&ctx, 0));
    TRY_CU(d_cuCtxSetCurrent(ctx));
    rep.at[CONTEXT] = now() - born;
    if (flags & CONTEXT_ONLY) bystand();
    TRY_RT(cudaStreamCreateWithFlags(&st, cudaStreamNonBlocking));
    nothing<<<1, 32, 0, st>>>();
    TRY_RT(cudaStreamSynchronize(st));
    rep.at[FIRST] = now() - born;
    if (module)
        if (void (*touch)() = (void (*)())dlsym(module, "touch")) touch();
    rep.at[TOUCH] = now() - born;
    if (flags & (BESIDE | LATER))
        opener.join();
    else if (!(flags & NO_LT))
        open_lt();
    if (lt) {
        void *handle;
        int (*create)(void **) = (int (*)(void **))dlsym(lt, "cublasLtCreate");

        if (!create || create(&handle)) fail("cublasLtCreate", 0);
    }
    rep.at[LT] = now() - born;
    if ((flags & EARLY) && recv(sock, &go, 1, 0) != 1) _exit(2);
    rep.at[GO] = now() - born;
    weights = arena(&fd[0], WEIGHTS, flags & MAKE, false);
    kv = arena(&fd[1], KV, flags & MAKE, false);
    rep.at[MAPS] = now() - born;
    TRY_RT(cudaMalloc(&out, 64));
    TRY_RT(cudaMemset(out, 0, 64));
    if (flags & MAKE) {
        write_words<<<528, 512, 0, st>>>((ulonglong2 *)weights, WEIGHTS / 16, out);
        write_words<<<528, 512, 0, st>>>((ulonglong2 *)kv, 2 * GIB / 16, out);
    }
    if (flags & WATCH) {
        send_fds(&rep, sizeof rep, NULL, 0);
        watch(kv, st, out);
    }
    sum_words<<<528, 512, 0, st>>>((ulonglong2 *)weights, WEIGHTS / 16, out);
    TRY_RT(cudaStreamSynchronize(st));
    rep.at[SUM] = now() - born;
    step(st, weights, out + 1);
    TRY_RT(cudaStreamSynchronize(st));
    rep.at[STEP] = now() - born;
    TRY_RT(cudaStreamBeginCapture(st, cudaStreamCaptureModeThreadLocal));
    step(st, weights, out + 1);
    TRY_RT(cudaStreamEndCapture(st, &graph));
    TRY_RT(cudaGraphInstantiate(&exec, graph, 0));
    TRY_RT(cudaGraphLaunch(exec, st));
    TRY_RT(cudaStreamSynchronize(st));
    rep.at[GRAPH] = now() - born;

    TRY_RT(cudaStreamBeginCapture(st, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < KERNELS; i++) nothing<<<1, 32, 0, st>>>();
    TRY_RT(cudaStreamEndCapture(st, &graph));
    TRY_RT(cudaGraphInstantiate(&tiny, graph, 0));
    if (flags & (NUMA | MEMFD)) {
        double t;

        if (tier_bytes > GIB) latencies(0, st, tiny);
        t = now();
        if (flags & NUMA)
            tier = arena(&fd[2], tier_bytes, flags & TIER_NEW, true);
        else {
            tier = (char *)mmap(NULL, tier_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd[2], 0);
            for (size_t at = 0; at < tier_bytes; at += PIECE)
                TRY_RT(cudaHostRegister(tier + at, PIECE, cudaHostRegisterDefault));
        }
        rep.tier_ms = now() - t;
        if (tier_bytes > GIB) latencies(1, st, tiny);
    }
    count_files();
    if (flags & FORK) {
        rep.holder = fork();
        if (rep.holder == 0) {
            close(sock);
            for (;;) pause();
        }
    }
    if (flags & MAKE)
        send_fds(&rep, sizeof rep, fd, 2);
    else
        send_fds(&rep, sizeof rep, &fd[2], flags & NUMA && flags & TIER_NEW ? 1 : 0);
    if (flags & BUSY) work(kv, flags & MEMFD ? tier : NULL, tier_bytes, out + 2);
    for (;;) { /* decodes until the kill */
        TRY_RT(cudaGraphLaunch(exec, st));
        TRY_RT(cudaStreamSynchronize(st));
    }
}

/* ---- the parent ---- */

struct child {
    pid_t pid;
    int pidfd, sock;
};

static int kept[3] = { -1, -1, -1 }; /* weights, KV, tier */
static const char *self, *module_path;

static struct child
spawn(unsigned flags, size_t tier)
{
    struct child c;
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) exit(1);
    char born[32], f[16], bytes[32];
    snprintf(born, sizeof born, "%.6f", now());
    snprintf(f, sizeof f, "%u", flags);
    snprintf(bytes, sizeof bytes, "%zu", tier);
    fflush(stdout);
    c.pid = vfork();
    if (c.pid == 0) {
        const char *argv[] = { self, "worker", born, f, bytes, module_path, NULL };

        dup2(pair[1], 3);
        for (int i = 0; i < 3; i++)
            if (kept[i] >= 0) dup2(kept[i], 4 + i);
        execv(self, (char **)argv);
        _exit(127);
    }
    close(pair[1]);
    c.sock = pair[0];
    c.pidfd = (int)syscall(SYS_pidfd_open, c.pid, 0);
    return c;
}

static struct report
receive_report(struct child c)
{
    struct report r = {};
    struct iovec io = { &r, sizeof r };
    alignas(struct cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))];
    struct msghdr m = {};
    struct pollfd p = { c.sock, POLLIN, 0 };
    static int next; /* index of the next fds */

    m.msg_iov = &io, m.msg_iovlen = 1, m.msg_control = control, m.msg_controllen = sizeof control;
    if (poll(&p, 1, 40000) != 1 || recvmsg(c.sock, &m, MSG_CMSG_CLOEXEC) != sizeof r) {
        snprintf(r.error, sizeof r.error, "a child sent no report");
    }
    for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); h; h = CMSG_NXTHDR(&m, h)) {
        int n = (int)((h->cmsg_len - CMSG_LEN(0)) / sizeof(int));

        next = n == 2 ? 0 : 2;
        for (int i = 0; i < n; i++) {
            int fd;

            memcpy(&fd, CMSG_DATA(h) + i * sizeof fd, sizeof fd);
            if (fd < 16) { /* above the numbers that children use */
                int high = fcntl(fd, F_DUPFD_CLOEXEC, 64);
                close(fd);
                fd = high;
            }
            kept[next + i] = fd;
        }
    }
    if (r.error[0]) {
        printf("child %d: %s\n", c.pid, r.error);
        fflush(stdout);
    }
    return r;
}

/* Returns the ms until the pidfd is readable. */
static double
kill_now(struct child *c, double *when)
{
    struct pollfd p = { c->pidfd, POLLIN, 0 };
    double t = now(), ret;

    kill(c->pid, SIGKILL);
    poll(&p, 1, 30000);
    ret = now() - t;
    *when = t;
    waitpid(c->pid, NULL, 0);
    close(c->pidfd), close(c->sock);
    return ret;
}

static void
json(const char *name, const char *unit, std::vector<double> v)
{
    std::sort(v.begin(), v.end());
    if (v.empty()) return;
    printf("{\"bench\":\"restart\",\"case\":\"%s\",\"value\":%.3f,\"unit\":\"%s\",\"n\":%zu,"
           "\"min\":%.3f,"
           "\"median\":%.3f,\"max\":%.3f}\n",
           name, v[v.size() / 2], unit, v.size(), v.front(), v[v.size() / 2], v.back());
    fflush(stdout);
}

/* Measures ROUNDS deaths, each slice of the restart. how: prefix of the case names. */
static struct child
chain(struct child c, unsigned flags, const char *how)
{
    std::vector<double> reap, total, each[N_SLICES];
    char name[128];

    for (int i = 0; i < ROUNDS; i++) {
        struct child next;
        double killed, r;
        struct report rep;

        usleep(100000);
        if (flags & EARLY) {
            next = spawn(flags, 0);
            if (flags & STANDBY) usleep(600000);
            r = kill_now(&c, &killed);
            if (send(next.sock, "g", 1, 0) != 1) exit(1);
        } else {
            r = kill_now(&c, &killed);
            next = spawn(flags, 0);
        }
        rep = receive_report(next);
        reap.push_back(r);
        total.push_back(flags & STANDBY ? r + rep.at[STEP] - rep.at[GO]
                                        : (flags & EARLY ? 0 : r) + rep.at[STEP]);
        for (int s = 0; s < N_SLICES; s++) each[s].push_back(rep.at[s] - (s ? rep.at[s - 1] : 0));
        c = next;
    }
    snprintf(name, sizeof name, "%s: kill to reaped", how);
    json(name, "ms", reap);
    for (int s = 0; s < N_SLICES; s++) {
        snprintf(name, sizeof name, "%s: %s", how, slice_name[s]);
        json(name, "ms", each[s]);
    }
    snprintf(name, sizeof name, "%s: kill to first step done", how);
    json(name, "ms", total);
    return c;
}

/* Returns a memfd with allocated pages, like a used tier; -1: no memory. */
static int
filled_memfd(size_t bytes, bool huge)
{
    int fd = memfd_create("tier", MFD_CLOEXEC | (huge ? MFD_HUGETLB : 0));
    int high = fcntl(fd, F_DUPFD_CLOEXEC, 64);
    std::vector<std::thread> crew;
    char *p;

    if (high < 0 || ftruncate(high, (off_t)bytes)) return -1;
    close(fd);
    p = (char *)mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, high, 0);
    if (p == MAP_FAILED) return -1;
    for (size_t i = 0; i < 16; i++)
        crew.emplace_back([=] {
            for (size_t at = bytes / 16 * i; at < bytes / 16 * (i + 1); at += 4096) p[at] = 1;
        });
    for (auto &t : crew) t.join();
    munmap(p, bytes);
    return high;
}

static struct child
with_tier(struct child c, unsigned kind, bool huge, size_t bytes, const char *how)
{
    char name[128];
    double when, t = now();

    if (kind == MEMFD) {
        kept[2] = filled_memfd(bytes, huge);
        if (kept[2] < 0) {
            printf("%s: no such memory\n", how);
            return c;
        }
        snprintf(name, sizeof name, "%s: first touch of the memfd, 16 threads", how);
        json(name, "ms", { now() - t });
    }

    for (int i = 0; i < 2; i++) { /* new; then adopted */
        kill_now(&c, &when);
        c = spawn(kind | (i == 0 && kind == NUMA ? TIER_NEW : 0), bytes);
        struct report r = receive_report(c);
        snprintf(name, sizeof name, "%s: %s", how, i ? "map or pin again" : "make and map, or pin");
        json(name, "ms", { r.tier_ms });
        for (int w = 0; w < 2; w++) {
            static const char *const when_name[2] = { "without", "with it" };

            snprintf(name, sizeof name, "%s: launch to sync %s", how, when_name[w]);
            json(name, "us", { r.sync_us[w] });
            snprintf(name, sizeof name, "%s: launch alone %s", how, when_name[w]);
            json(name, "us", { r.launch_us[w] });
            snprintf(name, sizeof name, "%s: graph of 320 to sync %s", how, when_name[w]);
            json(name, "us", { r.graph_us[w] });
        }
    }
    /* The replacement is started at the kill and maps the tier after its first step. */
    usleep(100000);
    struct child next = spawn(LATER | EARLY, 0);
    snprintf(name, sizeof name, "%s: kill to reaped", how);
    json(name, "ms", { kill_now(&c, &when) });
    if (send(next.sock, "g", 1, 0) != 1) exit(1);
    snprintf(name, sizeof name, "%s: kill to first step done, started at the kill", how);
    json(name, "ms", { receive_report(next).at[STEP] });
    close(kept[2]);
    kept[2] = -1;
    return next;
}

static struct report
look(struct child watcher)
{
    if (send(watcher.sock, "l", 1, 0) != 1) exit(1);
    return receive_report(watcher);
}

/* Returns how many words of the host buffer change within 60 ms; checks one word per page. */
static int
host_changes(const char *p, size_t bytes)
{
    std::vector<uint64_t> old(bytes / 4096);
    int changed = 0;

    for (size_t i = 0; i < old.size(); i++) old[i] = *(volatile uint64_t *)(p + i * 4096);
    for (double until = now() + 60; now() < until;)
        for (size_t i = 0; i < old.size(); i++) {
            uint64_t v = *(volatile uint64_t *)(p + i * 4096);

            changed += v != old[i];
            old[i] = v;
        }
    return changed;
}

static void
quiet(unsigned extra, const char *how)
{
    struct child watcher = spawn(WATCH, 0), c;
    struct report r, w;
    char name[128];
    std::vector<double> reap, device, host;
    char *p;

    receive_report(watcher);
    kept[2] = filled_memfd(GIB, false);
    p = (char *)mmap(NULL, GIB, PROT_READ, MAP_SHARED, kept[2], 0);
    for (int i = 0; i < (extra ? 1 : 4); i++) {
        double when;
        int holder;

        c = spawn(BUSY | MEMFD | extra, GIB);
        r = receive_report(c);
        holder = r.holder;
        if (i == 0) printf("%s: %d device files, %d not close-on-exec\n", how, r.files, r.leaking);
        r = receive_report(c);
        usleep(200000 + i * 37000);
        w = look(watcher);
        printf("%s: alive: %d of 99 looks saw a change, host %d, free %.1f GiB\n", how,
               (int)w.at[0], host_changes(p, GIB), (double)w.free_bytes / GIB);
        reap.push_back(kill_now(&c, &when));
        std::thread side([&] { host.push_back(host_changes(p, GIB)); });
        w = look(watcher);
        side.join();
        device.push_back(w.at[0]);
        printf("%s: reaped after %.1f ms: then %d of 99 looks in %.0f ms saw a change, host %.0f, "
               "free %.1f GiB\n",
               how, reap.back(), (int)w.at[0], w.at[1], host.back(), (double)w.free_bytes / GIB);
        if (!holder) continue;
        sleep(1);
        w = look(watcher);
        printf("%s: a second later: %d looks saw a change, host %d, free %.1f GiB\n", how,
               (int)w.at[0], host_changes(p, GIB), (double)w.free_bytes / GIB);
        double t = now();
        int fd = (int)syscall(SYS_pidfd_open, holder, 0);
        struct pollfd end = { fd, POLLIN, 0 };
        kill(holder, SIGKILL);
        poll(&end, 1, 20000);
        printf("%s: the holder is gone after %.1f ms\n", how, now() - t);
        waitpid(holder, NULL, 0);
        w = look(watcher);
        printf("%s: then: %d looks saw a change, host %d, free %.1f GiB\n", how, (int)w.at[0],
               host_changes(p, GIB), (double)w.free_bytes / GIB);
    }
    snprintf(name, sizeof name, "%s: kill to reaped", how);
    json(name, "ms", reap);
    snprintf(name, sizeof name, "%s: looks at 2 GiB of the arena that saw a change after", how);
    json(name, "count", device);
    snprintf(name, sizeof name, "%s: pages of the host tier that changed after", how);
    json(name, "count", host);
    munmap(p, GIB);
    close(kept[2]);
    kept[2] = -1;
    double when;
    kill_now(&watcher, &when);
}

/* eager: CUDA_MODULE_LOADING=EAGER. */
static const struct {
    const char *name;
    unsigned flags, bystander;
    bool eager;
} plan[] = {
    { "all in a row", 0, 0, false },
    { "no cuBLASLt", NO_LT, 0, false },
    { "cuBLASLt beside cuInit", BESIDE, 0, false },
    { "cuBLASLt beside the context", LATER, 0, false },
    { "started at the kill", LATER | EARLY, 0, false },
    { "keeper after cuInit", LATER, INIT_ONLY, false },
    { "keeper, started at the kill", LATER | EARLY, INIT_ONLY, false },
    { "keeper with a context", LATER, CONTEXT_ONLY, false },
    { "standby", LATER | EARLY | STANDBY, 0, false },
    { "eager", 0, 0, true },
};

int
main(int argc, char **argv)
{
    struct child c;
    struct report r;
    char path[PATH_MAX];
    double when, t = now();
    size_t tier = 32 * GIB;
    const char *only = NULL;

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc > 1 && !strcmp(argv[1], "worker")) return worker(argc, argv);
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n < 0) return 1;
    path[n] = 0;
    self = path;
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--only") && i + 1 < argc)
            only = argv[++i];
        else
            module_path = argv[i];
    prctl(PR_SET_CHILD_SUBREAPER, 1);

    setenv("CUDA_MODULE_LOADING", "LAZY", 1);
    c = spawn(MAKE, 0);
    r = receive_report(c);
    printf("made and mapped in %.0f ms, first graph done at %.0f ms; %d device files, %d not "
           "close-on-exec\n",
           r.at[MAPS] - r.at[GO], r.at[GRAPH], r.files, r.leaking);
    for (size_t i = 0; i < sizeof plan / sizeof plan[0] && (!only || !strcmp(only, "chain")); i++) {
        struct child other;

        setenv("CUDA_MODULE_LOADING", plan[i].eager ? "EAGER" : "LAZY", 1);
        if (plan[i].bystander) receive_report(other = spawn(plan[i].bystander, 0));
        c = chain(c, plan[i].flags, plan[i].name);
        if (plan[i].bystander) kill_now(&other, &when);
    }
    setenv("CUDA_MODULE_LOADING", "LAZY", 1);
    if (!only || !strcmp(only, "tier")) {
        c = with_tier(c, NUMA, false, tier, "numa tier 32 GiB");
        c = with_tier(c, MEMFD, false, tier, "memfd tier 32 GiB");
        c = with_tier(c, MEMFD, true, tier, "huge memfd tier 32 GiB");
    }
    kill_now(&c, &when);
    if (!only || !strcmp(only, "quiet")) {
        quiet(0, "in flight");
        quiet(FORK, "in flight, forked holder");
    }
    printf("%.1f s\n", (now() - t) / 1e3);
    return 0;
}

/* bench_host_tier.cu - cost of a host tier for a worker: launches while the tier is mapped, and
 * time of death.
 *
 *     bench_host_tier [GIB, default 32]
 *
 * The parent has no CUDA and holds the fds of the tier, like lagand. A child launches kernels and
 * waits for each one. A thread of the child maps the tier (memory of the driver, for the device
 * only) in one piece or in pieces of 1 GiB, all or some. Prints the time of the mapping, the
 * longest launch to sync meanwhile, and the time from SIGKILL until the pidfd is readable.
 */
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <time.h>
#include <unistd.h>
#include <vector>

namespace {

constexpr size_t GIB = (size_t)1 << 30;
constexpr int TIMES = 5, MOST = 128, SOCK = 3, FIRST_FD = 200; /* a child's */

struct report {
    double map_ms, longest_us, usual_us;
    char error[160];
};

double
now()
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec * 1e-6;
}

/* ---- a child ---- */

report rep;

void
say(const int *fd, int n)
{
    struct iovec io = { &rep, sizeof rep };
    alignas(struct cmsghdr) char control[CMSG_SPACE(MOST * sizeof(int))] = {};
    struct msghdr m = {};

    m.msg_iov = &io, m.msg_iovlen = 1;
    if (n) {
        m.msg_control = control, m.msg_controllen = CMSG_SPACE(n * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS,
        c->cmsg_len = CMSG_LEN(n * sizeof(int));
        memcpy(CMSG_DATA(c), fd, n * sizeof(int));
    }
    if (sendmsg(SOCK, &m, 0) < 0) _exit(3);
}

#define MUST(call) \
    do { \
        int must_r = (int)(call); \
        if (must_r) { \
            snprintf(rep.error, sizeof rep.error, "%.100s: %d", #call, must_r); \
            say(nullptr, 0); \
            _exit(1); \
        } \
    } while (0)

__global__ void
nothing()
{
}

/* clang-format off */
#define DRIVER(X) \
    X(cuMemCreate) X(cuMemRelease) X(cuMemExportToShareableHandle) X(cuMemImportFromShareableHandle) \
    X(cuMemAddressReserve) X(cuMemMap) X(cuMemSetAccess)
/* clang-format on */
#define DECLARE(name) decltype(&name) d_##name;
DRIVER(DECLARE)

void
open_driver()
{
    void *cu = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);

#define RESOLVE(name) d_##name = (decltype(d_##name))dlsym(cu, #name);
    DRIVER(RESOLVE)
}

void
map(CUmemGenericAllocationHandle h, size_t bytes)
{
    CUmemAccessDesc a = {};
    CUdeviceptr p;

    a.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    a.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    MUST(d_cuMemAddressReserve(&p, bytes, 0, 0, 0));
    MUST(d_cuMemMap(p, bytes, 0, h, 0));
    MUST(d_cuMemSetAccess(p, bytes, &a, 1));
    MUST(d_cuMemRelease(h));
}

void
make(size_t bytes, int pieces)
{
    CUmemAllocationProp p = {};
    std::vector<int> fd(pieces);

    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    p.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
    for (int i = 0; i < pieces; i++) {
        CUmemGenericAllocationHandle h;

        MUST(d_cuMemCreate(&h, bytes / pieces, &p, 0));
        MUST(
            d_cuMemExportToShareableHandle(&fd[i], h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        MUST(d_cuMemRelease(h));
    }
    say(fd.data(), pieces);
}

void
adopt(size_t piece, int n)
{
    for (int i = 0; i < n; i++) {
        CUmemGenericAllocationHandle h;

        MUST(d_cuMemImportFromShareableHandle(&h, (void *)(intptr_t)(FIRST_FD + i),
                                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
        map(h, piece);
    }
}

/* Arguments: make | map | plain | st-map | st-plain (st-: standby), bytes, pieces, mapped pieces.
 * */
int
child(char **argv)
{
    std::string what = argv[2];
    bool stands = what.rfind("st-", 0) == 0;
    size_t bytes = strtoull(argv[3], nullptr, 10);
    int pieces = atoi(argv[4]), mapped = atoi(argv[5]);
    std::vector<double> took;
    std::atomic<bool> over{ false };
    cudaStream_t st;
    double since;

    open_driver();
    MUST(cudaFree(nullptr));
    MUST(cudaStreamCreateWithFlags(&st, cudaStreamNonBlocking));
    nothing<<<1, 32, 0, st>>>();
    MUST(cudaStreamSynchronize(st));
    if (what == "make") make(bytes, pieces);
    if (stands) {
        if (what == "st-map") adopt(bytes / pieces, mapped);
        say(nullptr, 0);
        for (;;) pause();
    }
    since = now();
    std::thread mapper([&] {
        MUST(cudaSetDevice(0));
        if (what == "map") adopt(bytes / pieces, mapped);
        rep.map_ms = now() - since;
        over = true;
    });
    while (!over || now() - since < 20) {
        double t = now();

        nothing<<<1, 32, 0, st>>>();
        MUST(cudaStreamSynchronize(st));
        took.push_back((now() - t) * 1e3);
    }
    mapper.join();
    std::sort(took.begin(), took.end());
    rep.longest_us = took.back(), rep.usual_us = took[took.size() / 2];
    if (what != "make") say(nullptr, 0);
    for (;;) {
        nothing<<<1, 32, 0, st>>>();
        MUST(cudaStreamSynchronize(st));
    }
}

/* ---- the parent ---- */

const char *self;

struct process {
    pid_t pid;
    int pidfd, sock;
};

process
spawn(const char *what, size_t bytes, int pieces, int mapped, const std::vector<int> &fds)
{
    std::string b = std::to_string(bytes), p = std::to_string(pieces), m = std::to_string(mapped);
    process c;
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) exit(1);
    fflush(stdout);
    c.pid = fork();
    if (c.pid == 0) {
        dup2(pair[1], SOCK);
        for (size_t i = 0; i < fds.size(); i++) dup2(fds[i], FIRST_FD + (int)i);
        execl(self, self, "child", what, b.c_str(), p.c_str(), m.c_str(), nullptr);
        _exit(127);
    }
    close(pair[1]);
    c.sock = pair[0];
    c.pidfd = (int)syscall(SYS_pidfd_open, c.pid, 0);
    return c;
}

report
receive_report(const process &c, std::vector<int> *fds)
{
    report r = {};
    struct iovec io = { &r, sizeof r };
    alignas(struct cmsghdr) char control[CMSG_SPACE(MOST * sizeof(int))];
    struct msghdr m = {};
    struct pollfd p = { c.sock, POLLIN, 0 };

    m.msg_iov = &io, m.msg_iovlen = 1, m.msg_control = control, m.msg_controllen = sizeof control;
    if (poll(&p, 1, 60000) != 1 || recvmsg(c.sock, &m, MSG_CMSG_CLOEXEC) != sizeof r ||
        r.error[0]) {
        printf("child %d: %s\n", c.pid, r.error[0] ? r.error : "no report");
        kill(c.pid, SIGKILL);
        exit(1);
    }
    for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); h && fds; h = CMSG_NXTHDR(&m, h)) {
        fds->resize((h->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(fds->data(), CMSG_DATA(h), fds->size() * sizeof(int));
    }
    return r;
}

double
end(const process &c)
{
    struct pollfd p = { c.pidfd, POLLIN, 0 };
    double t = now();

    kill(c.pid, SIGKILL);
    poll(&p, 1, 30000);
    t = now() - t;
    waitpid(c.pid, nullptr, 0);
    close(c.pidfd), close(c.sock);
    return t;
}

void
json(const std::string &name, const char *unit, std::vector<double> v)
{
    std::sort(v.begin(), v.end());
    printf("{\"bench\":\"host_tier\",\"case\":\"%s\",\"value\":%.4g,\"unit\":\"%s\",\"n\":%zu,"
           "\"min\":%.4g,\"median\":%.4g,\"max\":%.4g}\n",
           name.c_str(), v[v.size() / 2], unit, v.size(), v.front(), v[v.size() / 2], v.back());
    fflush(stdout);
}

void
deaths(const std::string &name, const char *what, size_t bytes, int pieces, int mapped,
       const std::vector<int> &fds, const char *beside)
{
    std::vector<double> took, longest, usual, dead;
    process stand = spawn(beside, bytes, pieces, pieces, fds);
    report r;

    receive_report(stand, nullptr);

    for (int i = 0; i < TIMES; i++) {
        process c = spawn(what, bytes, pieces, mapped, fds);

        r = receive_report(c, nullptr);
        took.push_back(r.map_ms), longest.push_back(r.longest_us), usual.push_back(r.usual_us);
        usleep(50000);
        dead.push_back(end(c));
    }
    end(stand);
    if (!strcmp(what, "map")) json(name + ": map", "ms", took);
    json(name + ": longest launch to sync meanwhile", "us", longest);
    json(name + ": usual launch to sync", "us", usual);
    json(name + ": kill to reaped", "ms", dead);
}

std::vector<int>
made(size_t bytes, int pieces)
{
    std::vector<int> fds;
    double t = now();
    process c = spawn("make", bytes, pieces, 0, {});

    receive_report(c, &fds);
    json("make in " + std::to_string(pieces), "ms", { now() - t });
    end(c);
    return fds;
}

} // namespace

int
main(int argc, char **argv)
{
    size_t gib = argc > 1 ? strtoull(argv[1], nullptr, 10) : 32;
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    std::vector<int> fds;

    if (argc > 5 && !strcmp(argv[1], "child")) return child(argv);
    path[n < 0 ? 0 : n] = 0;
    self = path;
    const size_t all = gib * GIB;

    deaths("no tier", "plain", 0, 1, 0, {}, "st-plain");
    fds = made(all, 1);
    deaths("one piece", "map", all, 1, 1, fds, "st-plain");
    deaths("one piece, mapped by another too", "map", all, 1, 1, fds, "st-map");
    for (int fd : fds) close(fd);
    fds = made(all, 4);
    deaths("a quarter a piece", "map", all, 4, 4, fds, "st-plain");
    deaths("a quarter a piece, one of four", "map", all, 4, 1, fds, "st-plain");
    deaths("a quarter a piece, mapped by another too", "map", all, 4, 4, fds, "st-map");
    return 0;
}

/* cuda_nccl.h - NCCL, opened at run time: sums and gatherings of ranks on several GPUs.
 *
 * What is used of it has been the same since NCCL 2.14 and is declared here, so that nothing of it
 * is needed to build. Source: nccl.h. Knows no CUDA but the name of a stream.
 */
#ifndef CUDA_CUDA_NCCL_H
#define CUDA_CUDA_NCCL_H

#include "base/base.h"
#include "base/err.h"

struct CUstream_st;
struct ncclComm;
struct nccl_id { /* ncclUniqueId */
    char bytes[128];
};
enum { NCCL_OK = 0, NCCL_SUM = 0, NCCL_F16 = 6, NCCL_F32 = 7, NCCL_BF16 = 9 };

#define NCCL_CALLS(X) \
    X(int, GetVersion, (int *version)) \
    X(int, GetUniqueId, (struct nccl_id * id)) \
    X(int, CommInitRank, (struct ncclComm * *comm, int ranks, struct nccl_id id, int rank)) \
    X(int, CommAbort, (struct ncclComm * comm)) \
    X(int, CommGetAsyncError, (struct ncclComm * comm, int *error)) \
    X(const char *, GetErrorString, (int result)) \
    X(const char *, GetLastError, (struct ncclComm * comm)) \
    X(int, AllReduce, \
      (const void *x, void *y, size_t n, int type, int op, struct ncclComm *comm, \
       struct CUstream_st *st)) \
    X(int, AllGather, \
      (const void *x, void *y, size_t n, int type, struct ncclComm *comm, struct CUstream_st *st))

struct nccl {
    void *library;
    int version; /* 22809: 2.28.9 */
#define X(type, name, args) type(*name) args;
    NCCL_CALLS(X)
#undef X
};

/* libs: the only folder looked in; NULL: CUDA_PATH, /usr/local/cuda, the loader's path. -ENOENT
 * says where it was looked for, -ENOTSUP what is too old. */
int nccl_open(struct nccl *n, const char *libs, struct err *e) MUST_USE;
void nccl_close(struct nccl *n); /* also of one that was never opened */
/* -EIO with NCCL's own words about a call that failed; 0 for NCCL_OK. */
int nccl_err(const struct nccl *n, int result, const char *what, struct err *e);

#endif

/* cuda_nccl.h - the functions of NCCL that lagan uses (all-reduce and all-gather between GPUs),
 * opened at run time.
 *
 * The declarations are here so that building needs no NCCL; they have not changed since NCCL 2.14.
 * Source: nccl.h. The only CUDA type that this file needs is the stream.
 */
#pragma once
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
    int version; /* 22809 means 2.28.9 */
#define X(type, name, args) type(*name) args;
    NCCL_CALLS(X)
#undef X
};

/* Opens NCCL. libs: the only folder searched; NULL: CUDA_PATH, /usr/local/cuda, the path of the
 * loader. -ENOENT: not found; the message has the places searched. -ENOTSUP: too old. */
int nccl_open(struct nccl *n, const char *libs, struct err *e) MUST_USE;
void nccl_close(struct nccl *n); /* may be called without nccl_open() */
/* Returns 0 for NCCL_OK, else -EIO with the texts of NCCL. what: the call, for the message. */
int nccl_err(const struct nccl *n, int result, const char *what, struct err *e);

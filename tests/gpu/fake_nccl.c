/* fake_nccl.c - a libnccl.so.2 that only reports a version, for test_nccl.c. */
int ncclGetVersion(int *version);
int ncclGetUniqueId(void *id);
int ncclCommInitRank(void);
int ncclCommAbort(void);
int ncclCommGetAsyncError(void);
const char *ncclGetErrorString(int result);
const char *ncclGetLastError(void *comm);
int ncclAllReduce(void);
int ncclAllGather(void);

#ifndef FAKE_VERSION
#define FAKE_VERSION 22809
#endif

int
ncclGetVersion(int *version)
{
    *version = FAKE_VERSION;
    return 0;
}

int
ncclGetUniqueId(void *id)
{
    *(char *)id = 'n';
    return 0;
}

int
ncclCommInitRank(void)
{
    return 3;
}

int
ncclCommAbort(void)
{
    return 0;
}

int
ncclCommGetAsyncError(void)
{
    return 0;
}

const char *
ncclGetErrorString(int result)
{
    return result == 3 ? "internal error" : "no error";
}

const char *
ncclGetLastError(void *comm)
{
    (void)comm;
    return "a rank is a fake";
}

int
ncclAllReduce(void)
{
    return 0;
}

#ifndef FAKE_HALF
int
ncclAllGather(void)
{
    return 0;
}
#endif

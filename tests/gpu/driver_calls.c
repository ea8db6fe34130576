/* driver_calls.c - see driver_calls.h.
 *
 * The runtime calls dlsym() for cuGetProcAddress(), and cuGetProcAddress() for all other functions.
 * Both return functions of this file, which count and then call the driver. Driver functions have
 * at most sixteen integer or pointer arguments and return an integer, so that one signature fits
 * all under the calling conventions of x86-64 and aarch64.
 */
#include "tests/gpu/driver_calls.h"

#include "base/base.h"

#include <ctype.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

typedef long word;
typedef int function(word, word, word, word, word, word, word, word, word, word, word, word, word,
                     word, word, word);

enum { MOST = 2048 };
static struct {
    char name[64];
    function *real;
    atomic_ulong calls;
} driver[MOST];
static unsigned n_driver;
static pthread_mutex_t finding = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool counting;
static atomic_ulong allocations;
static _Thread_local unsigned inside; /* the driver */
static _Thread_local bool mine;       /* counts allocations of this thread */

#define CALL(i) \
    static int call_##i(word a, word b, word c, word d, word e, word f, word g, word h, word j, \
                        word k, word l, word m, word n, word o, word p, word q) \
    { \
        int r; \
\
        if (counting) driver[0x##i].calls++; \
        inside++; \
        r = driver[0x##i].real(a, b, c, d, e, f, g, h, j, k, l, m, n, o, p, q); \
        inside--; \
        return r; \
    }
#define NAME(i) call_##i,
/* clang-format off */
#define EACH(X, i) \
    X(i##0) X(i##1) X(i##2) X(i##3) X(i##4) X(i##5) X(i##6) X(i##7) \
    X(i##8) X(i##9) X(i##a) X(i##b) X(i##c) X(i##d) X(i##e) X(i##f)
#define EACH_TWO(X, i) \
    EACH(X, i##0) EACH(X, i##1) EACH(X, i##2) EACH(X, i##3) EACH(X, i##4) EACH(X, i##5) \
    EACH(X, i##6) EACH(X, i##7) EACH(X, i##8) EACH(X, i##9) EACH(X, i##a) EACH(X, i##b) \
    EACH(X, i##c) EACH(X, i##d) EACH(X, i##e) EACH(X, i##f)
#define ALL(X) \
    EACH_TWO(X, 0) EACH_TWO(X, 1) EACH_TWO(X, 2) EACH_TWO(X, 3) \
    EACH_TWO(X, 4) EACH_TWO(X, 5) EACH_TWO(X, 6) EACH_TWO(X, 7)
/* clang-format on */
ALL(CALL)
static function *const counted[MOST] = { ALL(NAME) };

/* Replaces one function of the driver. */
static void *
count(const char *name, void *real)
{
    unsigned i = 0;

    pthread_mutex_lock(&finding);
    while (i < n_driver && *(void **)&driver[i].real != real) i++;
    check(i < MOST);
    if (i == n_driver) {
        snprintf(driver[i].name, sizeof driver[i].name, "%.*s", (int)strcspn(name, "_"), name);
        *(void **)&driver[i].real = real;
        n_driver++;
    }
    pthread_mutex_unlock(&finding);
    return *(void *const *)&counted[i];
}

/* The driver's cuGetProcAddress(), in two versions; below, the replacements. */
typedef int find_two(const char *name, void **ret, int version, uint64_t flags, int *how);
typedef int find_one(const char *name, void **ret, int version, uint64_t flags);
static find_two *find;
static find_one find_as_before;

static int
find_counted(const char *name, void **ret, int version, uint64_t flags, int *how)
{
    int r = find(name, ret, version, flags, how);

    if (r != 0 || !ret || !*ret) return r;
    if (strcmp(name, "cuGetProcAddress") != 0)
        *ret = count(name, *ret);
    else if (version >= 12000)
        *(find_two **)ret = find_counted;
    else
        *(find_one **)ret = find_as_before;
    return 0;
}

static int
find_as_before(const char *name, void **ret, int version, uint64_t flags)
{
    int how;

    return find_counted(name, ret, version, flags, &how);
}

void *dlsym(void *restrict library, const char *restrict name);

__attribute__((visibility("default"))) void *
dlsym(void *restrict library, const char *restrict name)
{
    static void *(*real)(void *library, const char *name);
    find_two *two = find_counted;
    find_one *one = find_as_before;
    void *p;

    if (!real) *(void **)&real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (!real) *(void **)&real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    check(real);
    p = real(library, name);
    if (!p || strncmp(name, "cu", 2) != 0 || !isupper((unsigned char)name[2])) return p;
    if (strncmp(name, "cuGetProcAddress", 16) != 0) return count(name, p);
    if (!find) *(void **)&find = real(library, "cuGetProcAddress_v2");
    check(find);
    return name[16] ? *(void **)&two : *(void **)&one;
}

#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t each);
void *__libc_realloc(void *p, size_t n);

/* Allocations of the program and of the module with its runtime; other libraries are not
 * counted. */
static void
allocated(const void *by)
{
    Dl_info where;
    const char *base;

    if (!mine || inside) return;
    mine = false;
    if (dladdr(by, &where)) {
        base = strrchr(where.dli_fname, '/');
        base = base ? base + 1 : where.dli_fname;
        if (strncmp(base, "lib", 3) != 0) allocations++;
    }
    mine = true;
}

#define COUNTED(call) (allocated(__builtin_return_address(0)), (call))
__attribute__((visibility("default"))) void *
malloc(size_t n)
{
    return COUNTED(__libc_malloc(n));
}

__attribute__((visibility("default"))) void *
calloc(size_t n, size_t each)
{
    return COUNTED(__libc_calloc(n, each));
}

__attribute__((visibility("default"))) void *
realloc(void *p, size_t n)
{
    return COUNTED(__libc_realloc(p, n));
}
#endif

void
driver_calls_begin(void)
{
    for (unsigned i = 0; i < n_driver; i++) driver[i].calls = 0;
    allocations = 0;
    counting = mine = true;
}

void
driver_calls_end(void)
{
    counting = mine = false;
}

uint64_t
driver_calls(const char *name)
{
    uint64_t n = 0;

    for (unsigned i = 0; i < n_driver; i++)
        if (strcmp(driver[i].name, name) == 0) n += driver[i].calls;
    return n;
}

uint64_t
driver_calls_allocations(void)
{
    return allocations;
}

const char *
driver_calls_beside(const char *const *names)
{
    for (unsigned i = 0; i < n_driver; i++) {
        const char *const *n = names;

        if (!driver[i].calls) continue;
        while (*n && strcmp(*n, driver[i].name) != 0) n++;
        if (!*n) return driver[i].name;
    }
    return NULL;
}

void
driver_calls_print(void)
{
    for (unsigned i = 0; i < n_driver; i++)
        if (driver[i].calls) printf("%8lu %s\n", driver[i].calls, driver[i].name);
}

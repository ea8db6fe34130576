/* test_shm.c - tests of ipc/shm.h: seals, write protection and header validation. */
#include "tests/test.h"

#include "ipc/shm.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LOG2 = 12, EPOCH = 17 };
static const uint8_t id[16] = "0123456789abcde";
static struct shm d, w;
static struct err e;

static int
setup(void **state)
{
    (void)state;
    assert_int_equal(shm_make(&d, SHM_D, 3, EPOCH, id, LOG2, &e), 0);
    assert_int_equal(shm_make(&w, SHM_W, 3, EPOCH, id, LOG2, &e), 0);
    return 0;
}

static int
teardown(void **state)
{
    (void)state;
    shm_close(&d);
    shm_close(&w);
    shm_close(&w); /* close is idempotent */
    return 0;
}

/* Returns whether this process may write at p. The kernel returns EFAULT instead of a signal. */
static bool
writable(void *p)
{
    int fd = open("/dev/zero", O_RDONLY);
    ssize_t n = read(fd, p, 1);

    close(fd);
    return n == 1;
}

static void
checksum_is_crc32c(void **state)
{
    (void)state;
    assert_int_equal(shm_crc32c("123456789", 9), 0xe3069283);
    assert_int_equal(shm_crc32c("", 0), 0);
}

static void
header_has_the_requested_values(void **state)
{
    const struct shm_hdr *h = w.base;

    (void)state;
    assert_memory_equal(h, &w.hdr, sizeof *h);
    assert_memory_equal(h->magic, SHM_MAGIC, 8);
    assert_int_equal(h->epoch, EPOCH);
    assert_int_equal(h->kind, SHM_W);
    assert_int_equal(h->worker_idx, 3);
    assert_int_equal(h->total_size, SHM_RING_OFF_W + (1 << LOG2));
    assert_int_equal(h->max_rec, (1 << LOG2) / 8);
    assert_memory_equal(h->daemon_id, id, 16);
    assert_ptr_equal(shm_ring(&w), (uint8_t *)w.base + SHM_RING_OFF_W);
    assert_ptr_equal(shm_ring(&d), (uint8_t *)d.base + SHM_RING_OFF_D);
}

static void
every_page_is_allocated_at_creation(void **state)
{
    struct stat st;

    (void)state;
    assert_int_equal(fstat(d.fd, &st), 0);
    assert_true((uint64_t)st.st_blocks * 512 >= d.bytes);
}

static void
only_lagand_can_write_d(void **state)
{
    struct shm worker;
    char path[64];
    int fd;

    (void)state;
    assert_true(writable(shm_ctl(&d)));
    assert_int_equal(shm_attach(&worker, dup(d.fd), SHM_D, EPOCH, &e), 0);
    assert_false(writable(shm_ctl(&worker)));
    assert_int_equal(mprotect(worker.base, worker.bytes, PROT_READ | PROT_WRITE), -1);
    assert_ptr_equal(mmap(NULL, d.bytes, PROT_WRITE, MAP_SHARED, d.fd, 0), MAP_FAILED);
    assert_int_equal(errno, EPERM);
    assert_int_equal(pwrite(d.fd, "x", 1, 0), -1);
    assert_int_equal(errno, EPERM);
    snprintf(path, sizeof path, "/proc/self/fd/%d", d.fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0) {
        assert_ptr_equal(mmap(NULL, d.bytes, PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
        close(fd);
    }
    shm_close(&worker);
}

static void
only_the_worker_can_write_w(void **state)
{
    struct shm worker;

    (void)state;
    assert_false(writable(shm_ctl(&w)));
    assert_int_equal(shm_attach(&worker, dup(w.fd), SHM_W, EPOCH, &e), 0);
    assert_true(writable(shm_ctl(&worker)));
    atomic_store(&shm_ctl(&worker)->hb_count, 5);
    assert_int_equal(atomic_load(&shm_ctl(&w)->hb_count), 5);
    shm_close(&worker);
}

static void
memfd_cannot_be_resized_or_unsealed(void **state)
{
    const struct shm *both[] = { &d, &w };

    (void)state;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ftruncate(both[i]->fd, 4096), -1);
        assert_int_equal(errno, EPERM);
        assert_int_equal(ftruncate(both[i]->fd, (off_t)both[i]->bytes * 2), -1);
        assert_int_equal(errno, EPERM);
        assert_int_equal(fcntl(both[i]->fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
        assert_int_equal(errno, EPERM);
    }
}

static void
descriptors_are_close_on_exec(void **state)
{
    (void)state;
    assert_int_equal(fcntl(d.fd, F_GETFD), FD_CLOEXEC);
    assert_int_equal(fcntl(w.fd, F_GETFD), FD_CLOEXEC);
}

#define FIELD(name, by) \
    { \
#name, by, offsetof(struct shm_hdr, name), sizeof w.hdr.name \
    }
static const struct field {
    /* by: field that the error names if the checksum is valid; NULL: accepted */
    const char *name, *by;
    size_t off, size;
} fields[] = {
    FIELD(magic, "magic"),         FIELD(abi_major, "abi_major"),
    FIELD(abi_minor, NULL),        FIELD(hdr_size, "hdr_size"),
    FIELD(epoch, "epoch"),         FIELD(kind, "kind"),
    FIELD(worker_idx, NULL),       FIELD(total_size, "total_size"),
    FIELD(ctl_off, "ctl_off"),     FIELD(ring_off, "ring_off"),
    FIELD(ring_log2, "ring_log2"), FIELD(rec_align, "rec_align"),
    FIELD(max_rec, "max_rec"),     FIELD(feature_bits, "feature_bits"),
    FIELD(daemon_id, NULL),        FIELD(zero, "zero"),
};

static int
attach_w(void)
{
    struct shm worker;
    int fd = dup(w.fd), r = shm_attach(&worker, fd, SHM_W, EPOCH, &e);

    if (r < 0) {
        assert_int_equal(close(fd), 0); /* still owned by the caller */
    } else {
        shm_close(&worker);
    }
    return r;
}

static void
changed_header_field_is_rejected_by_name(void **state)
{
    char want[80];

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        for (size_t at = 0; at < fields[i].size; at += at < 16 ? 1 : 331) {
            struct shm_hdr h = w.hdr;

            ((uint8_t *)&h)[fields[i].off + at] ^= 0x55;
            assert_int_equal(pwrite(w.fd, &h, sizeof h, 0), sizeof h);
            assert_int_equal(attach_w(), -EBADMSG);
            snprintf(want, sizeof want, "shared memory W: the value of header field %s is invalid",
                     fields[i].by ? fields[i].by : "hdr_crc32c");
            assert_string_equal(e.text, want);
            /* A hostile lagand would also adjust the checksum. */
            h.hdr_crc32c = shm_crc32c(&h, offsetof(struct shm_hdr, hdr_crc32c));
            assert_int_equal(pwrite(w.fd, &h, sizeof h, 0), sizeof h);
            assert_int_equal(attach_w(), fields[i].by ? -EBADMSG : 0);
        }
    }
    assert_int_equal(pwrite(w.fd, &w.hdr, sizeof w.hdr, 0), sizeof w.hdr);
    assert_int_equal(attach_w(), 0);
}

static void
another_epoch_or_kind_is_rejected(void **state)
{
    struct shm worker;

    (void)state;
    assert_int_equal(shm_attach(&worker, w.fd, SHM_W, EPOCH + 1, &e), -EBADMSG);
    assert_string_equal(e.text, "shared memory W: the value of header field epoch is invalid");
    assert_int_equal(shm_attach(&worker, w.fd, SHM_D, EPOCH, &e), -EBADMSG);
    assert_int_equal(shm_attach(&worker, d.fd, SHM_W, EPOCH, &e), -EBADMSG);
}

/* Creates a memfd with this header, size and seals. */
static int
forged(const struct shm_hdr *h, uint64_t bytes, int seals)
{
    int fd = memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    assert_int_equal(pwrite(fd, h, sizeof *h, 0), sizeof *h);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static void
memfd_with_wrong_seals_or_size_is_rejected(void **state)
{
    enum { ALL = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW, FUTURE = 0x10 };
    static const struct {
        enum shm_kind kind;
        int seals;
        int64_t more;
        const char *why;
    } bad[] = {
        { SHM_W, ALL & ~F_SEAL_SHRINK, 0, "seals" },
        { SHM_W, ALL & ~F_SEAL_GROW, 0, "seals" },
        { SHM_W, F_SEAL_SHRINK | F_SEAL_GROW, 0, "seals" },
        { SHM_W, ALL | FUTURE, 0, "seals" },
        { SHM_D, ALL, 0, "seals" },
        { SHM_W, ALL, 4096, "total_size" },
        { SHM_W, ALL, -4096, "total_size" },
        { SHM_W, ALL, -2 * 4096, "fixed part" },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        const struct shm *s = bad[i].kind == SHM_D ? &d : &w;
        int fd = forged(&s->hdr, s->bytes + (uint64_t)bad[i].more, bad[i].seals);
        struct shm worker;

        assert_int_equal(shm_attach(&worker, fd, bad[i].kind, EPOCH, &e), -EBADMSG);
        assert_non_null(strstr(e.text, bad[i].why));
        close(fd);
    }
    {
        int fd = open("/dev/null", O_RDONLY);
        struct shm worker;

        assert_int_equal(shm_attach(&worker, fd, SHM_D, EPOCH, &e), -EBADMSG);
        assert_non_null(strstr(e.text, "not a memfd"));
        close(fd);
    }
}

static void
copy_in_equals_memcpy_at_every_alignment_and_length(void **state)
{
    _Alignas(8) uint8_t from[160], to[160];

    (void)state;
    for (size_t i = 0; i < sizeof from; i++) from[i] = (uint8_t)(i * 7 + 1);
    for (size_t off = 0; off < 9; off++) {
        for (size_t to_off = 0; to_off < 9; to_off++) {
            for (size_t n = 0; n < 140; n++) {
                memset(to, 0xaa, sizeof to);
                shm_copy_in(to + to_off, from + off, n);
                assert_memory_equal(to + to_off, from + off, n);
                assert_int_equal(to[to_off + n], 0xaa);
            }
        }
    }
}

static void
copy_out_equals_memcpy_at_every_alignment_and_length(void **state)
{
    enum { LEAST = SHM_MANY - 80, MOST = SHM_MANY + 200 };
    static uint8_t from[MOST + 16], to[MOST + 80];

    (void)state;
    for (size_t i = 0; i < sizeof from; i++) from[i] = (uint8_t)(i * 7 + i / 256 + 1);
    for (size_t off = 0; off < 9; off += 4) {
        for (size_t to_off = 1; to_off < 66; to_off++) {
            for (size_t n = 0; n <= MOST; n += n == 70 ? LEAST - 70 : 1) {
                memset(to, 0xaa, sizeof to);
                shm_copy_out(to + to_off, from + off, n);
                shm_fence_out();
                assert_memory_equal(to + to_off, from + off, n);
                assert_int_equal(to[to_off - 1], 0xaa);
                assert_int_equal(to[to_off + n], 0xaa);
            }
        }
    }
}

int
main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checksum_is_crc32c),
        T(header_has_the_requested_values),
        T(every_page_is_allocated_at_creation),
        T(only_lagand_can_write_d),
        T(only_the_worker_can_write_w),
        T(memfd_cannot_be_resized_or_unsealed),
        T(descriptors_are_close_on_exec),
        T(changed_header_field_is_rejected_by_name),
        T(another_epoch_or_kind_is_rejected),
        T(memfd_with_wrong_seals_or_size_is_rejected),
        cmocka_unit_test(copy_in_equals_memcpy_at_every_alignment_and_length),
        cmocka_unit_test(copy_out_equals_memcpy_at_every_alignment_and_length),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

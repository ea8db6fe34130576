/* test_planted.c - plants faults in the memory that a worker leaves and checks that each is
 * detected.
 *
 * Between a worker's death and the start of its replacement, while lagand is stopped, the test
 * overwrites KV. Blocks that neither a manifest entry nor a node proves may contain anything. Noise
 * in one proven block changes the bits of its request only. A worker that is stopped at any instant
 * has no entry that proves a block written by another request, except late_worker, which removes
 * blocks from their old entries too late.
 */
#include "base/clock.h"
#include "tests/test.h"
#include "tests/torture/args.h"
#include "tests/torture/leak_check.h"
#include "tests/torture/repeat_load.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/pidfd.h>
#include <unistd.h>

enum { SETTLE_MS = 60000, NAN_BYTE = 0xff };

static uint32_t n_kills = 12, n_looks = 200, n_late = 0;
static struct service v;
static struct repeat_load load;
static struct remains left;

static int
begin(void **state)
{
    (void)state;
    service_open(&v);
    return 0;
}

static int
finish(void **state)
{
    (void)state;
    remains_close(&left);
    repeat_load_close(&load);
    service_close(&v);
    return 0;
}

/* ---- killed while lagand is stopped */

static void
run_for(uint32_t ms)
{
    nsec until = clock_now() + ms * NSEC_MS;

    do repeat_load_run(&load, 2, true);
    while (clock_now() < until);
}

/* Opens the worker's KV memory as soon as it exists. */
static pid_t
open_remains(const char *worker)
{
    nsec until = service_now(&v) + SETTLE_MS * NSEC_MS;
    pid_t pid;

    while (!remains_open(&left, pid = service_pid(&v, worker))) {
        run_for(5);
        if (service_now(&v) >= until) fail_msg("worker %s has no KV", worker);
    }
    return pid;
}

/* Stops lagand and kills the worker. */
static void
kill_while_lagand_stopped(const char *worker)
{
    pid_t pid = open_remains(worker);
    struct pollfd p = { .fd = pidfd_open(pid, 0), .events = POLLIN };

    assert_true(p.fd >= 0 && kill(v.pid, SIGSTOP) == 0);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(poll(&p, 1, SETTLE_MS), 1);
    close(p.fd);
}

static void
resume_lagand(void)
{
    remains_close(&left);
    assert_int_equal(kill(v.pid, SIGCONT), 0);
}

/* ---- what is not committed */

static void
copy_block(char *kept, uint32_t group, slice_id block)
{
    uint64_t bytes;
    const char *at;

    if (block == SLICE_NONE) return;
    at = remains_block(&left, group, block, &bytes);
    memcpy(kept + (at - left.kv), at, bytes);
}

/* Sets every unproven byte of the arena to NaN. Returns their number. */
static uint64_t
spoil_unproven(void)
{
    char *kept = malloc(left.kv_bytes);
    uint64_t n = 0;

    assert_non_null(kept);
    memset(kept, NAN_BYTE, left.kv_bytes);
    for (uint32_t slot = 0; slot < left.m.h.n_slots; slot++) {
        struct manifest_found f;

        if (manifest_read(&left.m, slot, left.entries, &f) != 1) continue;
        for (uint32_t g = 0; g < left.m.h.n_groups; g++)
            for (uint32_t i = 0; i < remains_proven(&left, &f, g); i++)
                copy_block(kept, g, f.row.entry[g][i]);
    }
    for (uint32_t label = 1; label < left.m.h.n_nodes; label++)
        for (uint32_t g = 0; g < left.m.h.n_groups; g++)
            copy_block(kept, g, remains_labelled(&left, label, g));
    for (uint64_t i = 0; i < left.kv_bytes; i++) n += left.kv[i] != kept[i];
    memcpy(left.kv, kept, left.kv_bytes);
    free(kept);
    return n;
}

static void
unproven_blocks_may_contain_anything(void **state)
{
    uint64_t spoiled = 0;

    (void)state;
    repeat_load_start(&load, &v, "fp32", 0, NULL);
    for (uint32_t i = 0; torture_more("kills", i, n_kills); i++) {
        char worker[8];

        if (!service_all_ready(&v, SETTLE_MS)) fail_msg("workers are missing");
        run_for(20 + test_below(100));
        snprintf(worker, sizeof worker, "w%u", i % LOAD_MODELS);
        kill_while_lagand_stopped(worker);
        spoiled += spoil_unproven();
        resume_lagand();
    }
    repeat_load_settle(&load);
    print_message("%llu bytes spoiled, KV of %llu tokens adopted\n", (unsigned long long)spoiled,
                  (unsigned long long)load.adopted);
    assert_true(spoiled > 0 && load.adopted > 0);
    repeat_load_stop(&load);
}

/* ---- what is committed */

/* Returns the request of an entry if it has one output: a spoiled beam need not be in the result,
 * and samples have separate parts. */
static struct repeated_request *
request_of(const struct manifest_found *f)
{
    for (uint32_t i = 0; i < LOAD_REQUESTS; i++) {
        uint64_t hash[2];

        if (!load.request[i].id || load.request[i].n_prompt != f->owner.n_tokens) continue;
        if (load.request[i].search || load.request[i].want.n_other[1]) continue;
        manifest_hash(load.request[i].prompt, load.request[i].n_prompt, hash);
        if (!memcmp(hash, f->owner.tokens_hash, sizeof hash)) return &load.request[i];
    }
    return NULL;
}

/* Writes noise into one proven full-attention block of some entry. first: its first position. */
static struct repeated_request *
spoil_proven(uint32_t *first)
{
    uint32_t from = test_below(left.m.h.n_slots), g = 0;

    while (g < left.m.h.n_groups && left.m.h.group[g].kind != KV_FULL) g++;
    assert_true(g < left.m.h.n_groups);
    for (uint32_t k = 0; k < left.m.h.n_slots; k++) {
        uint32_t slot = (from + k) % left.m.h.n_slots, entry;
        struct manifest_found f;
        struct repeated_request *j;
        uint64_t bytes;
        float *at;

        if (manifest_read(&left.m, slot, left.entries, &f) != 1 || !(j = request_of(&f))) continue;
        entry = test_below(remains_proven(&left, &f, g));
        at = (float *)(void *)remains_block(&left, g, f.row.entry[g][entry], &bytes);
        for (uint64_t i = 0; i < bytes / sizeof *at; i++)
            at[i] = (float)test_below(2000) / 1000 - 1;
        *first = entry * left.m.h.tokens_per_block;
        return j;
    }
    return NULL;
}

static void
noise_in_a_proven_block_changes_only_its_request(void **state)
{
    uint32_t seen = 0, i;

    (void)state;
    repeat_load_start(&load, &v, "fp32", 0, NULL);
    load.may_differ = true;
    for (i = 0; torture_more("kills", i, n_kills); i++) {
        struct repeated_request *j;
        uint32_t first = 0;

        if (!service_all_ready(&v, SETTLE_MS)) fail_msg("workers are missing");
        repeat_load_run(&load, 0, true);
        do repeat_load_run(&load, 5, false);
        while (!load.request[i % 2 ? 0 : 2].got.n || test_below(8));
        kill_while_lagand_stopped(i % 2 ? "w0" : "w2");
        j = spoil_proven(&first);
        resume_lagand();
        repeat_load_settle(&load);
        for (uint32_t k = 0; k < LOAD_REQUESTS; k++) {
            const struct repeated_request *o = &load.request[k];
            bool spoiled = o == j && o->got.adopted > first;

            if (o->differs != spoiled)
                fail_msg("request %u: its result %s; %s", k, o->differs ? "differs" : "is the same",
                         spoiled ? "noise was adopted" : "no block of it was changed");
            seen += spoiled;
        }
    }
    print_message("%u kills, noise was detected %u times\n", i, seen);
    assert_true(seen > i / 4);
    repeat_load_stop(&load);
}

/* ---- what others wrote */

/* A full block that an entry proves is never written again: its bytes when it was first seen. Beams
 * are excepted, because a beam continues from another's blocks. */
static struct proof {
    uint64_t id, hash[2];
    uint32_t member, group, entry;
} proofs[1 << 14];

/* Returns true if the block's bytes differ from the first time. */
static bool
changed(uint64_t id, uint32_t member, uint32_t group, uint32_t entry, slice_id at)
{
    struct proof *p = &proofs[(id * 1021 + member * 251 + group * 509 + entry) % ARRAY_LEN(proofs)];
    struct proof now = { .id = id, .member = member, .group = group, .entry = entry };
    uint64_t bytes;
    char *block = remains_block(&left, group, at, &bytes);

    manifest_hash((token_id *)(void *)block, (uint32_t)(bytes / sizeof(token_id)), now.hash);
    if (p->id == id && p->member == member && p->group == group && p->entry == entry)
        return memcmp(p->hash, now.hash, sizeof now.hash) != 0;
    *p = now;
    return false;
}

static uint32_t
changes(void)
{
    uint32_t n = 0;

    for (uint32_t slot = 0; slot < left.m.h.n_slots; slot++) {
        struct manifest_found f;

        if (manifest_read(&left.m, slot, left.entries, &f) != 1 || f.owner.n_beams) continue;
        for (uint32_t g = 0; g < left.m.h.n_groups; g++)
            for (uint32_t i = 0; i < f.row.committed / left.m.h.tokens_per_block; i++)
                if (f.row.entry[g][i] != SLICE_NONE)
                    n += changed(f.row.id, f.owner.member, g, i, f.row.entry[g][i]);
    }
    return n;
}

static void
await_stopped(pid_t pid)
{
    nsec until = service_now(&v) + SETTLE_MS * NSEC_MS;
    char path[64], line[512], *end;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    for (;;) {
        FILE *f = fopen(path, "re");

        assert_true(f && fgets(line, sizeof line, f));
        end = strrchr(line, ')');
        assert_non_null(end);
        fclose(f);
        if (end[2] == 'T') return;
        if (service_now(&v) >= until) fail_msg("process %d does not stop", (int)pid);
        poll(NULL, 0, 1);
    }
}

/* Stops gemma's worker at random instants and returns true if a proven block has changed. */
static bool
stop_and_check(const char *program, uint32_t looks)
{
    uint32_t n = 0;
    pid_t pid;

    memset(proofs, 0, sizeof proofs);
    v.worker = program;
    repeat_load_start(&load, &v, "fp32", 0, NULL);
    pid = open_remains("w0");
    for (uint32_t i = 0; torture_more("looks", i, looks) && !n; i++) {
        run_for(test_below(10));
        assert_int_equal(kill(pid, SIGSTOP), 0);
        await_stopped(pid);
        n += changes();
        assert_int_equal(kill(pid, SIGCONT), 0);
    }
    repeat_load_settle(&load);
    remains_close(&left);
    repeat_load_stop(&load);
    return n > 0;
}

static void
no_manifest_entry_proves_a_block_of_another_request(void **state)
{
    (void)state;
    assert_false(stop_and_check("lagan-worker", n_looks));
}

/* The worker must be stopped between a write and the later removal, which happens once in some 1000
 * stops. */
static void
manifest_entry_retracted_late_is_detected(void **state)
{
    (void)state;
    if (!n_late) {
        print_message("--late LOOKS: in check-long\n");
        skip();
    }
    assert_true(stop_and_check("late_worker", n_late));
}

int
main(int argc, char **argv)
{
#define T(f) cmocka_unit_test_setup_teardown(f, begin, finish)
    const struct CMUnitTest tests[] = {
        T(unproven_blocks_may_contain_anything),
        T(noise_in_a_proven_block_changes_only_its_request),
        T(no_manifest_entry_proves_a_block_of_another_request),
        T(manifest_entry_retracted_late_is_detected),
    };

    torture_args(
        argc, argv,
        (const struct torture_arg[]){
            { "kills", &n_kills }, { "looks", &n_looks }, { "late", &n_late }, { NULL, NULL } });
    return cmocka_run_group_tests(tests, test_seed_group, NULL);
}

/* fuzz.h - what every fuzzer is: one function that takes hostile bytes and returns 0, or
 * aborts.
 *
 * Built with --enable-fuzzing (CC=clang) each fuzz_NAME.c is a libFuzzer program. Otherwise it is
 * linked with replay.c and is a test: it replays tests/data/fuzz_NAME/ and then 20,000 mutations of
 * these files. tools/fuzz.sh and tools/planted.sh build and test them; see tests/fuzz/README.md.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
/* Calls made so far, of a fuzzer that counts them; replay.c prints the number. */
extern uint64_t fuzz_operations __attribute__((weak));

/* The bytes that are not read yet; after the end byte() returns zeros. */
struct in {
    const uint8_t *p, *end;
};

static inline uint32_t
byte(struct in *in)
{
    return in->p < in->end ? *in->p++ : 0;
}

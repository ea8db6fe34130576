/* test_candidates.c - the option that restricts an op to named kernels. Needs no GPU. */
#include "gpu/cuda/cuda_candidates.h"
#include "tests/test.h"

struct one {
    struct candidate c;
    int more;
};
static const struct one attend[] = { { .c = { "sm90", 90, 90 } },
                                     { .c = { "mma", 80, 0 } },
                                     { .c = { "generic", 0, 0 } },
                                     { .more = 0 } };
static const struct one matmul[] = { { .c = { "small", 0, 0 } },
                                     { .c = { "blas", 0, 0 } },
                                     { .more = 0 } };
static const struct one see[] = { { .more = 0 } };
static const struct candidates choice[] = { { "attend", attend, sizeof attend[0] },
                                            { "matmul", matmul, sizeof matmul[0] },
                                            { "see", see, sizeof see[0] } };
enum { N = ARRAY_LEN(choice) };

static void
expect(const char *text, uint32_t sm, uint32_t for_attend, uint32_t for_matmul)
{
    uint32_t allowed[N];
    struct err e = { 0 };

    if (cuda_candidates_parse(text, choice, N, sm, allowed, &e) < 0) fail_msg("%s", e.text);
    assert_int_equal(allowed[0], for_attend);
    assert_int_equal(allowed[1], for_matmul);
    assert_int_equal(allowed[2], 0);
}

static void
refuse(const char *text, uint32_t sm, int code, const char *says)
{
    uint32_t allowed[N];
    struct err e = { 0 };

    assert_int_equal(cuda_candidates_parse(text, choice, N, sm, allowed, &e), code);
    if (!strstr(e.text, says)) fail_msg("\"%s\" does not say \"%s\"", e.text, says);
}

static void
without_the_option_every_candidate_for_the_gpu_may_run(void **state)
{
    (void)state;
    expect(NULL, 90, 7, 3);
    expect("", 90, 7, 3);
    expect("", 80, 6, 3);
    expect("", 100, 6, 3);
    expect("", 75, 4, 3);
}

static void
a_named_op_has_only_the_named_candidates(void **state)
{
    (void)state;
    expect("attend=generic", 90, 4, 3);
    expect("attend=generic,", 90, 4, 3);
    expect("attend=generic,matmul=blas", 90, 4, 2);
    expect("attend=generic,matmul=blas,attend=sm90", 90, 5, 2);
}

static void
unknown_names_are_refused_with_the_known_ones(void **state)
{
    (void)state;
    refuse("atend=generic", 90, -EINVAL, "unknown op \"atend\"; known: attend, matmul");
    refuse("=generic", 90, -EINVAL, "unknown op \"\"");
    refuse(",", 90, -EINVAL, "does not have the form op=candidate");
    refuse("attend", 90, -EINVAL, "\"attend\" does not have the form op=candidate");
    refuse("attend=", 90, -EINVAL, "attend has no candidate \"\"; known: sm90, mma, generic");
    refuse("attend=an", 90, -EINVAL, "attend has no candidate \"an\"");
    refuse("attend=generic;matmul=blas", 90, -EINVAL,
           "attend has no candidate \"generic;matmul=blas\"");
    refuse("see=generic", 90, -EINVAL, "known: none");
    refuse("attend=sm90", 80, -ENOTSUP, "attend=sm90 does not run on this GPU (sm_80)");
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_the_option_every_candidate_for_the_gpu_may_run),
        cmocka_unit_test(a_named_op_has_only_the_named_candidates),
        cmocka_unit_test(unknown_names_are_refused_with_the_known_ones),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_groups.c - which layers share a block table, and block sizes. */
#include "tests/test.h"
#include "worker/model/model.h"

static struct model m;
static struct kv_config c;
static struct err e;

/* n full-attention layers with 8 heads of 128 and their own KV. */
static void
plain(uint32_t n)
{
    memset(&m, 0, sizeof m);
    memset(&c, 0, sizeof c);
    m.shape.n_layers = n;
    m.shape.max_len = 1000;
    for (uint32_t i = 0; i < n; i++)
        m.shape.layer[i] = (struct layer_shape){
            .n_heads = 32, .n_kv_heads = 8, .head_dim = 128, .kv_parts = 2, .kv_from = i
        };
}

static void
window(uint32_t layer, uint32_t w)
{
    m.shape.layer[layer].kv = KV_WINDOW;
    m.shape.layer[layer].window = w;
}

static void
equal_layers_share_a_group(void **state)
{
    (void)state;
    plain(32); /* Llama 8B */
    assert_int_equal(model_groups(&m, DT_BF16, 0, &c, &e), 0);
    assert_int_equal(c.n_groups, 1);
    assert_int_equal(c.tokens_per_block, 64);
    assert_int_equal(c.group[0].kind, KV_FULL);
    assert_int_equal(c.group[0].n_layers, 32);
    assert_int_equal(c.group[0].n_parts, 2);
    assert_int_equal(c.group[0].slice_bytes, 8 * 64 * 128 * 2);
    assert_int_equal(c.group[0].max_entries, 16); /* 1000 positions */
    for (uint8_t i = 0; i < 32; i++) {
        assert_int_equal(m.shape.layer[i].group, 0);
        assert_int_equal(m.shape.layer[i].in_group, i);
    }
}

static void
different_kind_window_or_geometry_is_another_group(void **state)
{
    (void)state;
    plain(7);
    window(1, 512);
    window(2, 1024);
    window(3, 512);
    m.shape.layer[4].n_kv_heads = 4;
    m.shape.layer[5].head_dim = 64;
    m.shape.layer[6].kv_parts = 1;
    assert_int_equal(model_groups(&m, DT_F32, 32, &c, &e), 0);
    assert_int_equal(c.n_groups, 6);
    assert_int_equal(c.tokens_per_block, 32);
    assert_int_equal(c.group[1].window, 512);
    assert_int_equal(c.group[1].n_layers, 2);
    assert_int_equal(m.shape.layer[3].group, 1);
    assert_int_equal(m.shape.layer[3].in_group, 1);
    assert_int_equal(c.group[2].window, 1024);
    assert_int_equal(c.group[1].max_entries, 32); /* tables are by absolute position */
    assert_int_equal(c.group[3].slice_bytes, 4 * 32 * 128 * 4);
    assert_int_equal(c.group[4].slice_bytes, 8 * 32 * 64 * 4);
    assert_int_equal(c.group[5].n_parts, 1);
}

static void
layer_that_reads_shared_kv_owns_no_slices(void **state)
{
    (void)state;
    plain(6);
    window(1, 64);
    window(3, 64);
    m.shape.layer[4].kv_from = 2;
    window(5, 64);
    m.shape.layer[5].kv_from = 3;
    assert_int_equal(model_groups(&m, DT_BF16, 16, &c, &e), 0);
    assert_int_equal(c.n_groups, 2);
    assert_int_equal(c.group[0].n_layers, 2);
    assert_int_equal(c.group[1].n_layers, 2);
    assert_int_equal(m.shape.layer[4].group, 0);
    assert_int_equal(m.shape.layer[4].in_group, 1);
    assert_int_equal(m.shape.layer[5].group, 1);
    assert_int_equal(m.shape.layer[5].in_group, 1);
}

static void
cross_attention_of_all_decoder_layers_is_one_group(void **state)
{
    (void)state;
    plain(4);
    m.shape.n_encoder_layers = 6;
    m.shape.max_source = 100;
    m.shape.cross = m.shape.layer[0];
    assert_int_equal(model_groups(&m, DT_F32, 16, &c, &e), 0);
    assert_int_equal(c.n_groups, 2);
    assert_int_equal(c.group[1].kind, KV_CROSS);
    assert_int_equal(c.group[1].n_layers, 4);
    assert_int_equal(c.group[1].max_entries, 7); /* 100 encoder tokens */
    assert_int_equal(c.group[0].max_entries, 63);
    assert_int_equal(m.shape.cross.group, 1);
    assert_int_equal(m.shape.cross.in_group, 0);
}

static void
slices_are_padded_to_128_bytes(void **state)
{
    (void)state;
    plain(1);
    m.shape.layer[0].n_kv_heads = 1;
    m.shape.layer[0].head_dim = 18;
    assert_int_equal(model_groups(&m, DT_BF16, 4, &c, &e), 0);
    assert_int_equal(c.group[0].slice_bytes, 256); /* 144 */
}

static void
default_block_is_the_largest_below_16_mib(void **state)
{
    (void)state;
    plain(80); /* Llama 70B: 320 KiB a token, 20 MiB for 64 */
    assert_int_equal(model_groups(&m, DT_BF16, 0, &c, &e), 0);
    assert_int_equal(c.tokens_per_block, 32);
    plain(80);
    for (int i = 0; i < 80; i++) m.shape.layer[i].n_kv_heads = 32;
    assert_int_equal(model_groups(&m, DT_BF16, 0, &c, &e), 0);
    assert_int_equal(c.tokens_per_block, 16); /* the smallest, even above the limit */
    plain(64);                                /* exactly 16 MiB */
    assert_int_equal(model_groups(&m, DT_BF16, 0, &c, &e), 0);
    assert_int_equal(c.tokens_per_block, 64);
}

static void
tokens_per_block_is_a_power_of_two_from_4_to_128(void **state)
{
    static const uint32_t bad[] = { 1, 2, 3, 24, 127, 256 };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        plain(1);
        assert_int_equal(model_groups(&m, DT_BF16, bad[i], &c, &e), -EINVAL);
    }
    assert_string_equal(e.text, "kv.tokens_per_block is 256, want a power of two from 4 to 128");
    for (uint32_t t = 4; t <= 128; t *= 2) {
        plain(1);
        assert_int_equal(model_groups(&m, DT_BF16, t, &c, &e), 0);
        assert_int_equal(c.tokens_per_block, t);
    }
}

static void
layouts_beyond_kv_limits_are_refused(void **state)
{
    (void)state;
    plain(9);
    for (uint32_t i = 0; i < 9; i++) window(i, 10 + i);
    assert_int_equal(model_groups(&m, DT_BF16, 16, &c, &e), -ENOTSUP);
    assert_string_equal(e.text, "the model needs more than 8 KV groups");
    plain(128);
    for (int i = 0; i < 128; i++) m.shape.layer[i].n_kv_heads = m.shape.layer[i].head_dim = 1024;
    assert_int_equal(model_groups(&m, DT_F32, 128, &c, &e), -EINVAL);
    assert_non_null(strstr(e.text, "a block has 137438953472 bytes; the limit is 4 GiB"));
}

static void
recurrent_layers_form_a_state_group_with_snapshots(void **state)
{
    (void)state;
    plain(3);
    m.shape.layer[1] = (struct layer_shape){
        .mixer = MIX_STATE, .kv = KV_STATE, .kv_parts = 1, .kv_from = 1, .state_bytes = 1000
    };
    assert_int_equal(model_groups(&m, DT_BF16, 16, &c, &e), 0);
    assert_int_equal(c.n_groups, 2);
    assert_int_equal(c.group[0].n_layers, 2);
    assert_int_equal(c.group[1].kind, KV_STATE);
    assert_int_equal(c.group[1].max_entries, 1 + KV_SNAPSHOTS);
    assert_true(c.group[1].slice_bytes >= 1000);
    assert_int_equal(c.group[1].slice_bytes % c.group[0].slice_bytes, 0);
}

static void
layer_without_a_mixer_has_no_kv(void **state)
{
    (void)state;
    plain(3);
    m.shape.layer[1].mixer = MIX_NONE;
    assert_int_equal(model_groups(&m, DT_BF16, 16, &c, &e), 0);
    assert_int_equal(c.group[0].n_layers, 2);
    assert_int_equal(m.shape.layer[2].in_group, 1);
}

static void
groups_of_a_kind_divide_its_share_evenly(void **state)
{
    static const struct {
        const char *text, *why;
        double cross;
    } wrong[] = { { "half=0.5", "is none of full, window, cross and state", 0 },
                  { "full", "the form KIND=SHARE", 0 },
                  { "full=", "the form KIND=SHARE", 0 },
                  { "full=2", "the form KIND=SHARE", 0 },
                  { "full=0", "the form KIND=SHARE", 0 },
                  { "full=0.5x", "the form KIND=SHARE", 0 },
                  { "full=0.2,full=0.2", "given twice", 0 },
                  { "full=0.9,window=0.2", "sum to 1.10", 0 },
                  { "state=0.5", "kv.shares names kind state", 0 },
                  { "", "cross_kv_cache_fraction names kind cross", 0.5 },
                  { "full=0.5", "set only one", 0.5 } };

    (void)state;
    plain(7);
    window(1, 512);
    window(2, 1024);
    assert_int_equal(model_groups(&m, DT_BF16, 16, &c, &e), 0);
    assert_int_equal(c.n_groups, 3);
    assert_int_equal(model_shares("", 0, &c, &e), 0);
    for (uint32_t i = 0; i < 3; i++) assert_true(c.group[i].share == 0);
    assert_int_equal(model_shares("window=0.5,full=0.25", 0, &c, &e), 0);
    for (uint32_t i = 0; i < 3; i++) assert_true(c.group[i].share == 0.25f);
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        assert_int_equal(model_shares(wrong[i].text, wrong[i].cross, &c, &e), -EINVAL);
        assert_non_null(strstr(e.text, wrong[i].why));
    }
    c.group[2].kind = KV_CROSS;
    assert_int_equal(model_shares("", 0.5, &c, &e), 0);
    assert_true(c.group[0].share == 0.25f && c.group[1].share == 0.25f && c.group[2].share == 0.5f);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_layers_share_a_group),
        cmocka_unit_test(different_kind_window_or_geometry_is_another_group),
        cmocka_unit_test(layer_that_reads_shared_kv_owns_no_slices),
        cmocka_unit_test(cross_attention_of_all_decoder_layers_is_one_group),
        cmocka_unit_test(slices_are_padded_to_128_bytes),
        cmocka_unit_test(default_block_is_the_largest_below_16_mib),
        cmocka_unit_test(tokens_per_block_is_a_power_of_two_from_4_to_128),
        cmocka_unit_test(layouts_beyond_kv_limits_are_refused),
        cmocka_unit_test(recurrent_layers_form_a_state_group_with_snapshots),
        cmocka_unit_test(layer_without_a_mixer_has_no_kv),
        cmocka_unit_test(groups_of_a_kind_divide_its_share_evenly),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

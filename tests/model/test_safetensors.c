/* test_safetensors.c - untrusted checkpoint files: valid tensors are found, errors are named. */
#include "tests/model/checkpoint_writer.h"
#include "tests/test.h"
#include "worker/model/safetensors.h"

#include <stdio.h>

#define T(name, dtype, shape, first, end) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #first "," #end \
    "]}"

static struct err e;

/* Reads a header followed by n bytes of data. */
static int
read_header(const char *header, size_t n, struct safetensors *t, uint8_t **bytes)
{
    struct st_shard f = { .name = "m.safetensors" };
    int code;

    memset(t, 0, sizeof *t);
    f.map = *bytes = ckpt_raw(header, n, &f.bytes);
    code = safetensors_header_read(t, &f, 0, &e);
    return code < 0 ? code : safetensors_sort(t, &e);
}

static void
refused(const char *header, size_t n, const char *sentence)
{
    struct safetensors t;
    uint8_t *bytes;

    assert_int_equal(read_header(header, n, &t, &bytes), -EBADMSG);
    assert_string_equal(e.text, sentence);
    safetensors_done(&t);
    free(bytes);
}

static void
taken(const char *header, size_t n, uint32_t n_tensors)
{
    struct safetensors t;
    uint8_t *bytes;

    assert_int_equal(read_header(header, n, &t, &bytes), 0);
    assert_int_equal(t.n, n_tensors);
    safetensors_done(&t);
    free(bytes);
}

static void
tensors_are_found_by_name_with_dtype_shape_and_offset(void **state)
{
    struct safetensors t;
    struct safetensors_tensor *x;
    uint8_t *bytes;

    (void)state;
    assert_int_equal(
        read_header("{\"__metadata__\":{\"format\":\"pt\"}," T("b", "BF16", "[2,3]", 0, 12) "," T(
                        "a", "F32", "[2]", 16,
                        24) "," T("c", "I64", "[]", 24, 32) "," T("d", "U8", "[0,7]", 32, 32) "}  ",
                    32, &t, &bytes),
        0);
    assert_int_equal(t.n, 4);
    x = safetensors_find(&t, "b");
    assert_non_null(x);
    assert_int_equal(x->dtype, DT_BF16);
    assert_int_equal(x->n_dims, 2);
    assert_int_equal(x->dim[1], 3);
    assert_int_equal(x->bytes, 12);
    assert_string_equal(x->file, "m.safetensors");
    x = safetensors_find(&t, "a");
    assert_ptr_equal(x->data, (const uint8_t *)safetensors_find(&t, "b")->data + 16);
    assert_int_equal(safetensors_find(&t, "c")->dtype, DT_COUNT);
    assert_int_equal(safetensors_find(&t, "d")->bytes, 0);
    assert_null(safetensors_find(&t, "e"));
    safetensors_done(&t);
    free(bytes);
}

static void
git_lfs_pointer_is_named(void **state)
{
    const char text[] = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n";
    struct st_shard f = { .name = "m", .map = (const uint8_t *)text, .bytes = sizeof text - 1 };
    struct safetensors t = { 0 };

    (void)state;
    assert_int_equal(safetensors_header_read(&t, &f, 0, &e), -EBADMSG);
    assert_non_null(strstr(e.text, "m is a git-lfs pointer of 64 bytes, not the weights; run git"));
}

static void
absurd_header_length_is_refused(void **state)
{
    uint8_t bytes[64] = { 0 };
    struct st_shard f = { .name = "m", .map = bytes, .bytes = sizeof bytes };
    struct safetensors t = { 0 };
    uint64_t len = 1;

    (void)state;
    memcpy(bytes, &len, 8);
    assert_int_equal(safetensors_header_read(&t, &f, 0, &e), -EBADMSG);
    assert_string_equal(e.text, "m is not safetensors: its header length is 1, not 2 to 100000000");
    len = 100000001;
    memcpy(bytes, &len, 8);
    assert_int_equal(safetensors_header_read(&t, &f, 0, &e), -EBADMSG);
    len = 100;
    memcpy(bytes, &len, 8);
    assert_int_equal(safetensors_header_read(&t, &f, 0, &e), -EBADMSG);
    assert_string_equal(e.text, "m is truncated: 44 bytes of its header are missing");
    f.bytes = 7;
    assert_int_equal(safetensors_header_read(&t, &f, 0, &e), -EBADMSG);
    assert_string_equal(e.text, "m is 7 bytes, too short for a safetensors file");
    safetensors_done(&t);
}

static void
error_of_a_truncated_file_states_the_missing_bytes(void **state)
{
    (void)state;
    refused("{" T("b", "F32", "[8]", 8, 40) "," T("a", "F32", "[2]", 0, 8) "}", 24,
            "m.safetensors is truncated 16 bytes before the end of tensor b");
}

static void
tensor_whose_shape_disagrees_with_its_bytes_is_refused(void **state)
{
    (void)state;
    refused("{" T("a", "BF16", "[2,3]", 0, 10) "}", 10,
            "m.safetensors: a: BF16 [2, 3] is 12 bytes, but data_offsets are 0 to 10");
    refused("{" T("a", "BF16", "[2,3]", 12, 0) "}", 12,
            "m.safetensors: a: BF16 [2, 3] is 12 bytes, but data_offsets are 12 to 0");
    refused("{" T("a", "U8", "[4294967295,4294967295,4294967295]", 0, 1) "}", 1,
            "m.safetensors: a: a tensor of shape [4294967295, 4294967295, 4294967295] "
            "is larger than any file can be");
    refused("{" T("a", "U8", "[4294967296,0]", 0, 0) "}", 0,
            "m.safetensors: a: a tensor of shape [4294967296, 0] is larger than any file can be");
}

static void
overlapping_tensors_are_refused_and_both_named(void **state)
{
    (void)state;
    refused("{" T("b", "U8", "[4]", 3, 7) "," T("a", "U8", "[4]", 0, 4) "}", 8,
            "m.safetensors: tensors a and b overlap");
    refused("{" T("b", "U8", "[4]", 0, 4) "," T("a", "U8", "[4]", 0, 4) "}", 8,
            "m.safetensors: tensors b and a overlap");
    taken("{" T("b", "U8", "[4]", 0, 4) "," T("a", "U8", "[0]", 2, 2) "," T("c", "U8", "[1]", 4,
                                                                            5) "}",
          8, 3);
}

static void
holes_between_tensors_are_accepted(void **state)
{
    (void)state;
    taken("{" T("b", "U8", "[1]", 7, 8) "," T("a", "U8", "[1]", 1, 2) "}", 100, 2);
}

static void
duplicate_tensor_name_is_refused(void **state)
{
    (void)state;
    refused("{" T("a", "U8", "[1]", 0, 1) "," T("a", "U8", "[1]", 1, 2) "}", 8,
            "m.safetensors: tensor a occurs twice");
    /* the same name with other escapes */
    refused("{" T("a", "U8", "[1]", 0, 1) "," T("\\u0061", "U8", "[1]", 1, 2) "}", 8,
            "m.safetensors: tensor a occurs twice");
}

static void
missing_unknown_or_duplicate_fields_are_refused(void **state)
{
    (void)state;
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[]}}", 8, "m.safetensors: a: has no data_offsets");
    refused("{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 8,
            "m.safetensors: a: has no shape");
    refused("{\"a\":{\"shape\":[],\"data_offsets\":[0,1]}}", 8, "m.safetensors: a: has no dtype");
    refused("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", 8,
            "m.safetensors: a: has a field twice");
    refused("{\"a\":{\"scale\":1}}", 8,
            "m.safetensors: a: has a field other than dtype, shape and data_offsets");
    refused("{\"a\":3}", 8, "m.safetensors: a: is not an object");
    refused("{" T("a", "U7", "[1]", 0, 1) "}", 8, "m.safetensors: a: dtype \"U7\" is not known");
    refused("{" T("a", "U8", "[-1]", 0, 1) "}", 8,
            "m.safetensors: a: a dimension is not a whole number below 2^64");
    refused("{" T("a", "U8", "[1,1,1,1,1,1,1,1,1]", 0, 1) "}", 8,
            "m.safetensors: a: shape has more than 8 dimensions");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1,2]}}", 8,
            "m.safetensors: a: data_offsets has more than two entries");
    refused("{" T("", "U8", "[1]", 0, 1) "}", 8,
            "m.safetensors: a tensor's name is empty or holds a zero byte");
    refused("{" T("a\\u0000b", "U8", "[1]", 0, 1) "}", 8,
            "m.safetensors: a tensor's name is empty or holds a zero byte");
    refused("[]", 8, "m.safetensors: header: the header is not a JSON object");
}

static void
error_of_an_invalid_json_header_states_the_place(void **state)
{
    struct safetensors t;
    uint8_t *bytes;

    (void)state;
    assert_int_equal(read_header("{\"a\":{\"shape\":[1 2]}}", 8, &t, &bytes), -EBADMSG);
    assert_non_null(strstr(e.text, "m.safetensors: a: line 1, column"));
    safetensors_done(&t);
    free(bytes);
    assert_int_equal(read_header("{} x", 8, &t, &bytes), -EBADMSG);
    assert_non_null(strstr(e.text, "m.safetensors: header: line 1, column"));
    safetensors_done(&t);
    free(bytes);
}

static int
open_dir(struct ckpt *c, struct safetensors **s)
{
    *s = NULL;
    return safetensors_open(s, c->dir, &e);
}

static void
single_file_checkpoint_is_opened_and_mapped(void **state)
{
    struct safetensors *s;
    struct safetensors_tensor *t;
    struct ckpt c;
    float f;

    (void)state;
    ckpt_open(&c);
    ckpt_add(&c, "x.weight", "F32", 2, 3);
    ckpt_add(&c, "y.weight", "F32", 0, 3);
    ckpt_write(&c, "model.safetensors", 0);
    assert_int_equal(open_dir(&c, &s), 0);
    assert_int_equal(s->n, 2);
    t = safetensors_find(s, "y.weight");
    memcpy(&f, (const char *)t->data + 4, 4);
    assert_true(f == ckpt_value("y.weight", 1));
    safetensors_close(s);
    ckpt_close(&c);
}

#define INDEX(map) "{\"metadata\":{\"total_size\":1},\"weight_map\":{" map "}}"

static void
shards_are_opened_by_the_index(void **state)
{
    struct safetensors *s;
    struct ckpt c;

    (void)state;
    ckpt_open(&c);
    ckpt_add(&c, "a", "F32", 2, 3);
    ckpt_write(&c, "m-1.safetensors", 8);
    ckpt_add(&c, "b", "F32", 2, 3);
    ckpt_write(&c, "m-2.safetensors", 8);
    ckpt_text(&c, "model.safetensors.index.json",
              INDEX("\"a\":\"m-1.safetensors\",\"b\":\"m-2.safetensors\""));
    assert_int_equal(open_dir(&c, &s), 0);
    assert_int_equal(s->n_shards, 2);
    assert_string_equal(safetensors_find(s, "b")->file, "m-2.safetensors");
    safetensors_close(s);

    ckpt_text(&c, "model.safetensors.index.json",
              INDEX("\"a\":\"m-1.safetensors\",\"b\":\"m-1.safetensors\""));
    assert_int_equal(open_dir(&c, &s), -EBADMSG);
    assert_string_equal(e.text,
                        "m-1.safetensors lacks tensor b, named in model.safetensors.index.json");

    ckpt_text(&c, "model.safetensors.index.json",
              INDEX("\"a\":\"m-1.safetensors\",\"b\":\"m-3.safetensors\""));
    assert_int_equal(open_dir(&c, &s), -ENOENT);
    assert_non_null(strstr(e.text, "m-3.safetensors: No such file"));

    ckpt_text(&c, "model.safetensors.index.json", INDEX("\"a\":\"../m-1.safetensors\""));
    assert_int_equal(open_dir(&c, &s), -EBADMSG);
    assert_string_equal(e.text,
                        "model.safetensors.index.json: the value of a is not a plain file name");

    ckpt_text(&c, "model.safetensors.index.json", "{\"weight_map\":[]}");
    assert_int_equal(open_dir(&c, &s), -EBADMSG);
    assert_string_equal(e.text, "model.safetensors.index.json has no weight_map");
    ckpt_close(&c);
}

static void
tensor_in_two_shards_is_refused(void **state)
{
    struct safetensors *s;
    struct ckpt c;

    (void)state;
    ckpt_open(&c);
    ckpt_add(&c, "a", "F32", 2, 3);
    ckpt_write(&c, "m-1", 8);
    ckpt_add(&c, "b", "F32", 2, 3);
    ckpt_add(&c, "a", "F32", 2, 3);
    ckpt_write(&c, "m-2", 8);
    ckpt_text(&c, "model.safetensors.index.json", INDEX("\"a\":\"m-1\",\"b\":\"m-2\""));
    assert_int_equal(open_dir(&c, &s), -EBADMSG);
    assert_non_null(strstr(e.text, "tensor a is in two files, m-"));
    ckpt_close(&c);
}

static void
error_of_a_directory_without_weights_names_the_expected_files(void **state)
{
    char want[256];
    struct safetensors *s;
    struct ckpt c;

    (void)state;
    ckpt_open(&c);
    assert_int_equal(open_dir(&c, &s), -ENOENT);
    snprintf(want, sizeof want, "%s has neither model.safetensors nor model.safetensors.index.json",
             c.dir);
    assert_string_equal(e.text, want);
    ckpt_text(&c, "pytorch_model.bin", "x");
    assert_int_equal(open_dir(&c, &s), -ENOENT);
    assert_non_null(strstr(e.text, "convert pytorch_model.bin"));
    ckpt_text(&c, "model.safetensors", "");
    assert_int_equal(open_dir(&c, &s), -EBADMSG);
    assert_string_equal(e.text, "model.safetensors is 0 bytes, too short for a safetensors file");
    ckpt_close(&c);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_are_found_by_name_with_dtype_shape_and_offset),
        cmocka_unit_test(git_lfs_pointer_is_named),
        cmocka_unit_test(absurd_header_length_is_refused),
        cmocka_unit_test(error_of_a_truncated_file_states_the_missing_bytes),
        cmocka_unit_test(tensor_whose_shape_disagrees_with_its_bytes_is_refused),
        cmocka_unit_test(overlapping_tensors_are_refused_and_both_named),
        cmocka_unit_test(holes_between_tensors_are_accepted),
        cmocka_unit_test(duplicate_tensor_name_is_refused),
        cmocka_unit_test(missing_unknown_or_duplicate_fields_are_refused),
        cmocka_unit_test(error_of_an_invalid_json_header_states_the_place),
        cmocka_unit_test(single_file_checkpoint_is_opened_and_mapped),
        cmocka_unit_test(shards_are_opened_by_the_index),
        cmocka_unit_test(tensor_in_two_shards_is_refused),
        cmocka_unit_test(error_of_a_directory_without_weights_names_the_expected_files),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_curve.c - tests of wire/curve.h. */
#include "tests/test.h"
#include "wire/curve.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* Made by zmq_curve_keypair(); the second contains '#'. */
#define K1 "/-cQ7<iL3dd+e}=:6<i*i%W5gkg!SfthN>-qZC4h"
#define K2 "vZ/c@9VcxHfQ$akgx6M=7#Omx<6N3J3QR[kERF<Z"
#define K3 "N)l[$mWW>+mth5[-!g@AG:W!xfE#rLz#]QgWnwRr"

static struct curve_file f;

static void
takes(const char *text)
{
    struct err e;

    if (curve_parse(&f, text, strlen(text), &e) < 0) fail_msg("%s", e.text);
}

static void
refuses(const char *text, const char *words)
{
    struct err e = { 0 };

    assert_int_equal(curve_parse(&f, text, strlen(text), &e), -EINVAL);
    if (!strstr(e.text, words)) fail_msg("\"%s\" instead of \"%s\"", e.text, words);
}

static void
key_files_of_client_and_server_are_read(void **state)
{
    (void)state;
    takes("# lagand's\n\n  secret " K1 "   # ours\nclient " K2 " alice\n"
          "client\t" K3 " batch max_inflight=64 max_tokens=100000\r\n");
    assert_string_equal(f.secret, K1);
    assert_string_equal(f.server, "");
    assert_int_equal(f.n_peers, 2);
    assert_string_equal(f.peer[0].key, K2);
    assert_string_equal(f.peer[0].name, "alice");
    assert_int_equal(f.peer[0].max_inflight, 0);
    assert_int_equal(f.peer[1].max_inflight, 64);
    assert_int_equal(f.peer[1].max_tokens, 100000);
    assert_ptr_equal(curve_find(&f, K3), &f.peer[1]);
    assert_null(curve_find(&f, K1));
    takes("server " K2 "\nsecret " K1);
    assert_string_equal(f.server, K2);
    takes("");
}

static void
errors_of_a_key_file_name_the_line(void **state)
{
    (void)state;
    refuses("secret " K1 "\nsecret " K2 "\n", "line 2: a second secret or server key");
    refuses("\n\nfriend " K1, "line 3: the line must begin with");
    refuses("secret", "line 1: the key is not 40 characters");
    refuses("secret /-cQ7<iL3dd+e}=:6<i*i%W5gkg!SfthN>-qZC4", "not 40 characters");
    refuses("secret ~-cQ7<iL3dd+e}=:6<i*i%W5gkg!SfthN>-qZC4h", "not 40 characters");
    refuses("secret " K1 " more", "only a comment may follow");
    refuses("client " K1, "a name of 1 to 32");
    refuses("client " K1 " a23456789012345678901234567890123", "a name of 1 to 32");
    refuses("client " K1 " m\xc3\xbcller", "visible ASCII");
    refuses("client " K1 " a\nclient " K2 " a", "line 2: another client has this name");
    refuses("client " K1 " a\nclient " K1 " b", "line 2: another client has this key");
    refuses("client " K1 " a max_inflight", "after the name");
    refuses("client " K1 " a max_inflight=", "must be 1 to");
    refuses("client " K1 " a max_inflight=0", "must be 1 to");
    refuses("client " K1 " a max_inflight=x", "not a decimal number");
    refuses("client " K1 " a max_tokens=99999999999999999999", "too large");
    refuses("client " K1 " a speed=3", "after the name");
}

static void
z85_encodes_4_bytes_in_5_characters(void **state)
{
    char key[CURVE_KEY + 1];

    (void)state;
    memset(key, '0', CURVE_KEY);
    key[CURVE_KEY] = '\0';
    assert_true(curve_key_fits(key, CURVE_KEY));
    memcpy(key + 35, "%nSc0", 5); /* 0xffffffff */
    assert_true(curve_key_fits(key, CURVE_KEY));
    memcpy(key + 35, "%nSc1", 5);
    assert_false(curve_key_fits(key, CURVE_KEY));
    key[7] = '\0';
    assert_false(curve_key_fits(key, CURVE_KEY));
}

static void
key_file_readable_by_others_is_rejected(void **state)
{
    char path[] = "/tmp/lagan-keys-XXXXXX";
    int fd = mkstemp(path);
    struct err e;

    (void)state;
    assert_int_equal(write(fd, "secret " K1 "\n", 48), 48);
    close(fd);
    assert_int_equal(curve_read(&f, path, &e), 0);
    assert_string_equal(f.secret, K1);
    chmod(path, 0640);
    assert_int_equal(curve_read(&f, path, &e), -EACCES);
    assert_non_null(strstr(e.text, "mode 0640; run chmod 600"));
    chmod(path, 0600);
    if (geteuid() == 0) {
        assert_int_equal(chown(path, 12345, (gid_t)-1), 0);
        assert_int_equal(curve_read(&f, path, &e), -EACCES);
        assert_non_null(strstr(e.text, "owned by user 12345"));
        assert_int_equal(chown(path, 0, (gid_t)-1), 0);
    }
    fd = open(path, O_WRONLY | O_TRUNC);
    assert_int_equal(write(fd, "secret\n", 7), 7);
    close(fd);
    assert_int_equal(curve_read(&f, path, &e), -EINVAL);
    assert_non_null(strstr(e.text, path));
    unlink(path);
    assert_int_equal(curve_read(&f, path, &e), -ENOENT);
    assert_int_equal(curve_read(&f, "/tmp", &e), -EINVAL);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(key_files_of_client_and_server_are_read),
        cmocka_unit_test(errors_of_a_key_file_name_the_line),
        cmocka_unit_test(z85_encodes_4_bytes_in_5_characters),
        cmocka_unit_test(key_file_readable_by_others_is_rejected),
    };

    return cmocka_run_group_tests_name("curve", tests, NULL, NULL);
}

/* test_session.c - clients and users of session.h. */
#include "daemon/net/session.h"

#include "tests/test.h"

static void
same_id_at_the_same_listener_is_one_client(void **state)
{
    struct sessions *s = sessions_new(1);
    uint32_t gone;
    struct client *a = session_of(s, LISTENER_API, "\0abcd", 5, 1, &gone);

    (void)state;
    assert_non_null(a);
    assert_ptr_equal(session_of(s, LISTENER_API, "\0abcd", 5, 2, &gone), a);
    assert_int_equal(a->received_at, 2);
    assert_ptr_not_equal(session_of(s, LISTENER_CTL, "\0abcd", 5, 3, &gone), a);
    assert_int_equal(session_n(s), 2);
    sessions_free(s);
}

/* Regression: the second peer of one listener was taken for the third one of another. */
static void
same_id_at_two_listeners_is_two_clients(void **state)
{
    struct sessions *s = sessions_new(1);
    uint32_t gone;

    (void)state;
    for (uint64_t n = 0; n < 256; n++)
        for (int listener = 0; listener < N_LISTENERS; listener++)
            assert_non_null(session_of(s, (enum listener_id)listener, &n, sizeof n, 1, &gone));
    assert_int_equal(session_n(s), 256 * N_LISTENERS);
    for (uint64_t n = 0; n < 256; n++)
        assert_int_equal(session_at(s, LISTENER_CTL, &n, sizeof n)->listener, LISTENER_CTL);
    assert_null(session_at(s, LISTENER_CTL, "none", 4));
    sessions_free(s);
}

static void
handle_is_never_reused(void **state)
{
    struct sessions *s = sessions_new(1);
    uint32_t gone, handle;
    struct client *a = session_of(s, LISTENER_API, "a", 1, 1, &gone);

    (void)state;
    handle = a->handle;
    assert_ptr_equal(session_find(s, handle), a);
    session_drop(s, a);
    assert_null(session_find(s, handle));
    for (int i = 0; i < 2 * MAX_CLIENTS; i++) {
        a = session_of(s, LISTENER_API, &i, sizeof i, 1, &gone);
        assert_non_null(a);
        assert_int_not_equal(a->handle, handle);
    }
    assert_null(session_find(s, handle));
    sessions_free(s);
}

static void
full_table_drops_only_clients_without_requests(void **state)
{
    struct sessions *s = sessions_new(1);
    struct client *c, *busy = NULL;
    uint32_t gone, handle = 0;

    (void)state;
    for (int i = 0; i < MAX_CLIENTS; i++) {
        c = session_of(s, LISTENER_API, &i, sizeof i, 100 + i, &gone);
        assert_int_equal(gone, CLIENT_NONE);
        c->n_open = i == 0;
        if (i == 0) busy = c;
        if (i == 2) handle = c->handle;
    }
    session_of(s, LISTENER_API, &(int){ 1 }, sizeof(int), 4000,
               &gone); /* it sends a message again */
    assert_non_null(session_of(s, LISTENER_API, "new", 3, 5000, &gone));
    assert_int_equal(gone, handle);
    assert_ptr_equal(session_find(s, busy->handle), busy);

    for (uint32_t at = 0; (c = session_next(s, &at));) c->n_open = 1;
    assert_null(session_of(s, LISTENER_API, "newer", 5, 5001, &gone));
    sessions_free(s);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_id_at_the_same_listener_is_one_client),
        cmocka_unit_test(same_id_at_two_listeners_is_two_clients),
        cmocka_unit_test(handle_is_never_reused),
        cmocka_unit_test(full_table_drops_only_clients_without_requests),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

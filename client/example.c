/* example.c - sends one prompt to lagand and prints the output while it is generated.
 *
 *     cc example.c $(pkg-config --cflags --libs liblagan) -o example
 *     ./example "12 = " ipc:///tmp/l/api.sock */
#include <lagan.h>
#include <stdio.h>
#include <string.h>

int
main(int argc, char **argv)
{
    const char *prompt = argc > 1 ? argv[1] : "12 = ";
    const char *endpoint = argc > 2 ? argv[2] : NULL; /* NULL: the default endpoint */
    struct lagan_event ev = { .size = sizeof ev };
    struct lagan_request *r = lagan_request_new();
    struct lagan *c;
    uint64_t id;
    int over = 0, failed = 1;

    if (!r || lagan_open(&c, endpoint, 1000) < 0) {
        fprintf(stderr, "%s\n", lagan_errmsg(NULL));
        lagan_request_free(r);
        return 3;
    }
    lagan_set_str(r, "text", prompt, strlen(prompt));
    lagan_set_int(r, "max_tokens", 64);
    if (lagan_submit(c, r, &id) < 0) over = fprintf(stderr, "%s\n", lagan_errmsg(c));
    while (!over && lagan_next(c, &ev, -1) > 0) {
        switch (ev.kind) {
        case LAGAN_EVENT_TOKENS:
            fwrite(ev.text, 1, ev.text_len, stdout);
            fflush(stdout);
            break;
        case LAGAN_EVENT_DONE:
            putchar('\n');
            failed = 0;
            over = 1;
            break;
        case LAGAN_EVENT_ERROR:
            fprintf(stderr, "%s: %s\n", ev.reason_name, ev.message);
            over = 1;
            break;
        default:
            break; /* PROMPT, OUTPUT, and kinds of later versions */
        }
    }
    lagan_request_free(r);
    lagan_close(c);
    return failed;
}

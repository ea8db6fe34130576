/* ref_json.c - see ref_json.h. */
#include "tests/fuzz/ref_json.h"

#include <jansson.h>
#include <string.h>

int
ref_is_json(const char *body, size_t n)
{
    json_error_t e = { .text = "" };
    json_t *v = json_loadb(body, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
    enum json_error_code code = json_error_code(&e);

    json_decref(v);
    if (n && memchr(body, 0, n)) return -1; /* jansson overlooks a NUL behind a number */
    if (v) return 1;
    return code == json_error_numeric_overflow || code == json_error_null_character ||
                   code == json_error_null_byte_in_key || code == json_error_stack_overflow ||
                   code == json_error_out_of_memory
               ? -1
               : 0;
}

int
ref_choices(const char *json, size_t n, void (*add)(uint64_t index, const char *text, size_t n))
{
    json_t *root = json_loadb(json, n, JSON_ALLOW_NUL, NULL), *choice;
    size_t i;
    int r = json_is_object(root) ? 0 : -1;

    json_array_foreach(json_object_get(root, "choices"), i, choice)
    {
        json_t *index = json_object_get(choice, "index"), *text = json_object_get(choice, "text");

        if (!text) text = json_object_get(json_object_get(choice, "delta"), "content");
        if (!text) text = json_object_get(json_object_get(choice, "message"), "content");
        if (!json_is_integer(index))
            r = -1;
        else if (text)
            add((uint64_t)json_integer_value(index), json_string_value(text),
                json_string_length(text));
    }
    json_decref(root);
    return r;
}

/* manual.c - the part of lagan-gateway(8) that the tables of fields and errors generate. */
#include "base/opt.h"
#include "gateway/api/api_internal.h"

static const char *const kinds[] = { "true or false", "an integer", "a number", "a string", NULL };

/* Prints what a field takes and what becomes of it. */
static void
print_field(const struct field_row *row, FILE *out)
{
    bool range = row->kind == FIELD_INT || row->kind == FIELD_NUM;

    fputs(".It Cm ", out);
    opt_roff(out, row->name);
    fputs("\n", out);
    if (row->use == FIELD_REFUSED) {
        fputs("is refused", out);
        if (row->arg[0]) fputs(" unless it is ", out);
        for (const char *p = row->arg; *p; p++) {
            char text[2] = { *p, '\0' };

            if (*p == '|')
                fputs(" or ", out);
            else
                opt_roff(out, text);
        }
    } else if (row->use == FIELD_ACCEPTED) {
        fputs("is accepted without effect", out);
    } else {
        fputs(kinds[row->kind] ? kinds[row->kind] : "is served", out);
        if (range && row->most < FIELD_I64)
            fprintf(out, " from %.10g to %.10g", row->least, row->most);
        if (row->kind == FIELD_STR) fprintf(out, " of %g to %g bytes", row->least, row->most);
    }
    fputs(".\n", out);
}

void
api_manual(FILE *out)
{
    static const struct {
        unsigned on;
        const char *path;
    } paths[] = { { ON_CHAT, "/v1/chat/completions" }, { ON_COMPLETIONS, "/v1/completions" },
                  { ON_EMBEDDINGS, "/v1/embeddings" }, { ON_TOKENIZE, "/tokenize" },
                  { ON_DETOKENIZE, "/detokenize" },    { ON_TEMPLATE, "/apply-template" } };

    fputs(".Sh FIELDS\nFields of the body of a request. null is absent. A further field is ignored "
          "and\n"
          "named in the header X-Lagan-Ignored, or refused with the option strict.\n",
          out);
    for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
        fprintf(out, ".Ss POST %s\n.Bl -tag -width Ds -compact\n", paths[i].path);
        for (enum field k = 0; k < N_FIELDS; k++)
            if (field_rows[k].routes & paths[i].on) print_field(&field_rows[k], out);
        fputs(".El\n", out);
    }
    fputs(
        ".Sh HEADERS\n.Bl -tag -width Ds -compact\n"
        ".It Cm X-Lagan-Priority\nof a request: priority from 0 to 1, stands above the field "
        "priority.\n"
        ".It Cm X-Lagan-Deadline-Ms\nof a request: milliseconds, 1 to 86400000, after which it "
        "ends with\n"
        "the error deadline.\n"
        ".It Cm X-Lagan-Ignored\nof a response: fields and headers of the request without effect.\n"
        ".It Cm X-Lagan-Max-Tokens\nof a response: the limit that default_max_tokens has "
        "set.\n.El\n",
        out);
    fputs(".Sh ERRORS\nThe code of an error, its HTTP status and its cause. In a stream that has "
          "begun\n"
          "an error is the last event.\n.Bl -tag -width Ds -compact\n",
          out);
    for (enum api_error i = 0; i < API_N_ERRORS; i++) {
        fprintf(out, ".It Cm %s\n%d: ", api_error_rows[i].code, api_error_rows[i].status);
        opt_roff(out, api_error_rows[i].sentence);
        if (api_error_rows[i].retry_after)
            fprintf(out, "; Retry-After: %u", api_error_rows[i].retry_after);
        fputs(".\n", out);
    }
    fputs(".El\n", out);
}

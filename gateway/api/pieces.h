/* pieces.h - the texts of the tokens of each model, for log-probabilities.
 *
 * A vocabulary is read from lagand once, with the verb `pieces`, when the first request needs it.
 * It is kept as long as the model's fingerprint and the size of its vocabulary stay the same. */
#pragma once
#include "gateway/http/http.h"
#include "include/lagan.h"

struct api;
struct api_model;
struct pieces;
struct vocabulary;

enum { PIECES_MODELS = 16 };

struct pieces *pieces_new(struct api *a) MUST_USE; /* NULL: no memory */
void pieces_free(struct pieces *p);                /* NULL is allowed */
/* Returns the vocabulary of a model; begins to read it if that is necessary. When it is complete or
 * its reading has failed, prepare_go_on() is called. NULL: no memory, lagand is not reachable, or
 * PIECES_MODELS vocabularies are in use. */
struct vocabulary *pieces_of(struct pieces *p, uint32_t tenant, const struct api_model *m);
bool vocabulary_complete(const struct vocabulary *v);
/* The sentence why the vocabulary could not be read; NULL: it could, or is being read. */
const char *vocabulary_fault(const struct vocabulary *v);
/* Returns the bytes of a token; n 0: it has no text, or there is no such token. */
struct http_text vocabulary_text(const struct vocabulary *v, token_id id);
/* Returns the first token with this text; -1: there is none. */
token_id vocabulary_find(const struct vocabulary *v, const char *text);

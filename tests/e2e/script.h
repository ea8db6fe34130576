/* script.h - runs one end-to-end script (README.md): a real lagand, its workers and a client. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

/* Runs the commands of text. file: the name in error messages. Returns false with "FILE:LINE:
 * sentence" in error, of n bytes. Leaves no process and no file, also on failure. */
bool script_run(const char *file, const char *text, char *error, size_t n);

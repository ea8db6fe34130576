/* test_models.c - model directories that cannot be served: one command, a sentence, an exit code.
 *
 * Each case is a copy of a good checkpoint with one thing broken, given to `laganctl --spawn`: the
 * worker finds the fault, lagand passes it on, and the person sees the file, the tensor or the key.
 */
#include "tests/e2e/serve.h"
#include "tests/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[64];

static int
setup(void **state)
{
    char command[2300];

    (void)state;
    strcpy(dir, "/tmp/lagan-model-XXXXXX");
    if (!mkdtemp(dir)) return -1;
    snprintf(command, sizeof command, "cp %s/* %s/ && chmod u+w %s/*",
             source_path("tests/data/golden/llama2"), dir, dir);
    return system(command);
}

static int
teardown(void **state)
{
    char command[128];

    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

/* Run a shell line in the broken directory. */
static void
damage(const char *line)
{
    char command[1024];

    snprintf(command, sizeof command, "cd %s && %s", dir, line);
    assert_int_equal(system(command), 0);
}

static void
expect_refusal(const char *model, const char *says)
{
    char command[2300], out[8192];
    FILE *f;
    size_t n;
    int status;

    snprintf(command, sizeof command,
             "timeout 20 %s --spawn %s generate --ids 1,2 --max-tokens 2 2>&1",
             program_path("laganctl"), model);
    f = popen(command, "re");
    assert_non_null(f);
    n = fread(out, 1, sizeof out - 1, f);
    out[n] = 0;
    status = pclose(f);
    if (!strstr(out, says)) fail_msg("\"%s\" is not in:\n%s", says, out);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) != 78 && WEXITSTATUS(status) != 1)
        fail_msg("exit code %d after:\n%s", WEXITSTATUS(status), out);
}

static void
a_whole_directory_is_served(void **state)
{
    char command[2300];

    (void)state;
    snprintf(command, sizeof command,
             "timeout 20 %s --spawn %s generate --ids 1,2 --max-tokens 2 --json >/dev/null",
             program_path("laganctl"), dir);
    assert_int_equal(system(command), 0);
}

static void
a_directory_that_is_not_there(void **state)
{
    (void)state;
    expect_refusal("/tmp/no/such/model", "/tmp/no/such/model");
}

static void
a_directory_without_weights(void **state)
{
    (void)state;
    damage("rm model.safetensors");
    expect_refusal(dir, "model.safetensors");
}

static void
a_half_copied_weight_file_says_how_much_is_missing(void **state)
{
    (void)state;
    damage("truncate -s 300000 model.safetensors");
    expect_refusal(dir, "missing");
}

static void
an_unknown_architecture_is_named(void **state)
{
    (void)state;
    damage("sed -i 's/\"model_type\": *\"llama\"/\"model_type\": \"frobnicator\"/' config.json");
    expect_refusal(dir, "frobnicator");
}

static void
a_config_value_of_the_wrong_type_names_its_key(void **state)
{
    (void)state;
    damage("sed -i 's/\"num_hidden_layers\": *4/\"num_hidden_layers\": \"four\"/' config.json");
    expect_refusal(dir, "num_hidden_layers");
}

static void
a_config_that_is_not_json(void **state)
{
    (void)state;
    damage("echo '{\"model_type\": llama}' > config.json");
    expect_refusal(dir, "config.json");
}

static void
a_tensor_of_the_wrong_shape_is_named_with_both_shapes(void **state)
{
    (void)state;
    damage("sed -i 's/\"intermediate_size\": *[0-9]*/\"intermediate_size\": 192/' config.json");
    expect_refusal(dir, "192");
}

static void
a_missing_tensor_is_named(void **state)
{
    (void)state;
    damage("sed -i 's/model.norm.weight/model.morn.weight/' model.safetensors");
    expect_refusal(dir, "model.norm.weight");
}

static void
overlapping_tensors_are_refused(void **state)
{
    (void)state;
    /* The header keeps its length: the first tensor's end moves one element up. */
    damage("perl -0pi -e 's/(\"data_offsets\":\\s*\\[)(\\d+),(\\s*)(\\d+)\\]/"
           "$1 . $2 . \",\" . $3 . ($4 + 2) . \"]\"/e' model.safetensors");
    expect_refusal(dir, "model.safetensors");
}

#define BROKEN(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        BROKEN(a_whole_directory_is_served),
        BROKEN(a_directory_that_is_not_there),
        BROKEN(a_directory_without_weights),
        BROKEN(a_half_copied_weight_file_says_how_much_is_missing),
        BROKEN(an_unknown_architecture_is_named),
        BROKEN(a_config_value_of_the_wrong_type_names_its_key),
        BROKEN(a_config_that_is_not_json),
        BROKEN(a_tensor_of_the_wrong_shape_is_named_with_both_shapes),
        BROKEN(a_missing_tensor_is_named),
        BROKEN(overlapping_tensors_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

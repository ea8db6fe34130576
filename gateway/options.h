/* options.h - reads the settings of lagan-gateway from the command line and the configuration file;
 * one table serves both, --help and lagan-gateway(8).
 *
 * A value on the command line replaces one in the file, which replaces the default. A key that a
 * later version will have is not in the table; tls_cert and tls_key are refused with the reason. */
#pragma once
#include "base/log.h"
#include "base/opt.h"
#include "base/yaml.h"
#include "gateway/http/http.h"

enum { GATEWAY_MAX_ALIASES = 64 };

struct gateway_config { /* values of gateway_opts */
    bool check, announce, help, version, manual;
    char config[1024], set[2];
    char listen[2048]; /* addresses, one per line */
    char lagand[256], lagand_keys[1024];
    char tls_cert[1024], tls_key[1024]; /* refused where one is set */
    char models[8192];                  /* aliases: "ALIAS=NAME" per line */
    uint32_t max_connections, max_connections_per_address;
    uint64_t max_header, max_url, max_body, body_rate;
    uint32_t max_headers, max_prompts, max_n;
    nsec header_timeout, body_timeout, idle_timeout, write_timeout;
    nsec header_hold, sse_ping, shutdown_timeout, reconnect_timeout, start_wait;
    char default_max_tokens[24];
    bool strict, log_requests;
    uint32_t log_level; /* index into "err|warn|info|debug" */

    /* Derived from the values above by gateway_config_read(). */
    const char *address[HTTP_MAX_LISTEN]; /* elements of listen, in listen_text */
    uint32_t n_addresses;
    char listen_text[2048];
    char aliases[8192];  /* lines "ALIAS NAME", for api_config */
    uint64_t max_tokens; /* of default_max_tokens: 0 auto, UINT64_MAX what fits */
};

extern const struct opt gateway_opts[];
extern const char gateway_default_file[]; /* path of a file that may be absent */

/* Reads command line and file. -EINVAL: *p has all errors; *usage is true for an invalid option. */
int gateway_config_read(struct gateway_config *c, int argc, char **argv, struct problems *p,
                        bool *usage) MUST_USE;
struct http_limits gateway_limits(const struct gateway_config *c);
/* Returns true if only processes of this host can connect to the address ("127.0.0.1:8000"). */
bool gateway_is_local(const char *address);

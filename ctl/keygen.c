/* keygen.c - laganctl keygen: writes a new CURVE secret key to a file and prints the public key;
 * see wire/curve.h. */
#include "ctl/ctl.h"

#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <unistd.h>
#include <zmq.h>

enum { Z85_KEY = 40 };

static int
write_secret(const char *path, const char *secret)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600), r;

    if (fd < 0 && errno == EEXIST)
        return ctl_fail(CTL_FAILED, "%s exists; keygen does not overwrite a key file", path);
    if (fd < 0) {
        r = errno == EACCES || errno == EPERM || errno == EROFS ? CTL_NO_PERMISSION : CTL_FAILED;
        return ctl_fail(r, "%s: %s", path, strerror(errno));
    }
    r = dprintf(fd, "# lagan keys, made by laganctl keygen\nsecret %s\n", secret) < 0 ? errno : 0;
    if (fsync(fd) < 0 && !r && errno != EINVAL) r = errno;
    if (close(fd) < 0 && !r) r = errno;
    if (!r) return 0;
    unlink(path);
    return ctl_fail(CTL_FAILED, "%s: %s", path, strerror(r));
}

int
cmd_keygen(struct ctl *ctl)
{
    const char *path = ctl->argv[0];
    char public[Z85_KEY + 1], secret[Z85_KEY + 1];
    const struct passwd *service;
    json_t *result;
    int r;

    if (zmq_curve_keypair(public, secret) < 0)
        return ctl_fail(CTL_FAILED, "libzmq was built without CURVE: %s", zmq_strerror(errno));
    r = write_secret(path, secret);
    explicit_bzero(secret, sizeof secret);
    if (r) return r;
    if (ctl->json) {
        result = json_pack("{s:s,s:s}", "file", path, "public", public);
        print_json(result);
        json_decref(result);
        return 0;
    }
    service = getpwnam("lagan");
    printf("%s has a new secret key; its public key is\n\n  %s\n\n"
           "Key of lagand (api.keys): add to each client's file    server %s\n"
           "Key of a client (--keys): add to api.keys of lagand    client %s NAME\n",
           path, public, public, public);
    if (service && service->pw_uid != geteuid())
        printf("If lagand.service is to read it     run  chown lagan %s\n", path);
    return 0;
}

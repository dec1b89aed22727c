/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The shared secret and what is proven with it.
 *
 * libnettle is loaded with the first secret.  Linked, it would cost every rank
 * a tenth of its start: the dynamic linker looks up all of its 550 symbols.
 */
#include "config.h"

#include <dlfcn.h>
#include <errno.h>
#include <nettle/hmac.h>
#include <stdio.h>
#include <sys/stat.h>

#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "runtime/base/library.h"
#include "runtime/base/thread.h"
#include "runtime/secret.h"

static struct {
    struct tpb_once once;
    void (*set_key)(struct hmac_sha256_ctx *, size_t, const uint8_t *);
    void (*update)(struct hmac_sha256_ctx *, size_t, const uint8_t *);
    void (*digest)(struct hmac_sha256_ctx *, size_t, uint8_t *);
} secret_hmac = { .once = TPB_ONCE_INIT };

static tp_status secret_load(struct tpb_error *error)
{
    void *handle = tpb_library_open(NETTLE_LIBRARY, NETTLE_LIBRARY_PLACE,
                                    RTLD_NOW | RTLD_LOCAL);
    void *key = NULL, *update = NULL, *digest = NULL;

    if (handle != NULL) {
        key = dlsym(handle, "nettle_hmac_sha256_set_key");
        update = dlsym(handle, "nettle_hmac_sha256_update");
        digest = dlsym(handle, "nettle_hmac_sha256_digest");
    }
    if (key == NULL || update == NULL || digest == NULL) {
        tpb_fail_load(error, TP_ERR_NOT_SUPPORTED, "peers outside the job need "
                      NETTLE_LIBRARY ", which cannot be loaded");
        if (handle != NULL)
            dlclose(handle);
        return TP_ERR_NOT_SUPPORTED;
    }
    *(void **)&secret_hmac.set_key = key;
    *(void **)&secret_hmac.update = update;
    *(void **)&secret_hmac.digest = digest;
    return TP_OK;
}

/* What kept it from being loaded, as want of descriptors, may be over the next
 * time. */
tp_status tpr_secret_open(struct tpb_error *error)
{
    return tpb_once(&secret_hmac.once, secret_load, error);
}

static void secret_add(struct hmac_sha256_ctx *context, const void *data,
                       size_t length)
{
    uint64_t size = length;

    secret_hmac.update(context, sizeof(size), (const uint8_t *)&size);
    if (length > 0)
        secret_hmac.update(context, length, data);
}

void tpr_secret_mac(const char *secret, const char *purpose,
                    const struct tpr_piece *pieces, size_t count,
                    uint8_t mac[TPR_MAC])
{
    struct hmac_sha256_ctx context;

    secret_hmac.set_key(&context, strlen(secret), (const uint8_t *)secret);
    secret_add(&context, purpose, strlen(purpose));
    for (size_t i = 0; i < count; i++)
        secret_add(&context, pieces[i].data, pieces[i].length);
    secret_hmac.digest(&context, TPR_MAC, mac);
}

/* Whoever can read the file is let in, so only its owner may. */
static tp_status secret_file(const char *path, char secret[TPR_SECRET_TEXT],
                             struct tpb_error *error)
{
    struct stat file;
    size_t length = 0;
    char *text;

    if (stat(path, &file) == 0 && (file.st_mode & 077) != 0)
        return tpb_fail(error, TP_ERR_INVALID, "TP_SECRET=file:%s: other users "
                        "may read it; make it private with chmod 600", path);
    text = tpb_read_file(path, &length);
    if (text == NULL) {
        tpb_fail_errno(error, errno, "TP_SECRET=file:%s", path);
        return TP_ERR_NOT_FOUND;
    }
    while (length > 0 && (text[length - 1] == '\n'
                          || text[length - 1] == '\r'))
        text[--length] = '\0';
    if (length == 0 || length >= TPR_SECRET_TEXT || strlen(text) != length) {
        tpb_free(text);
        return tpb_fail(error, TP_ERR_INVALID, "TP_SECRET=file:%s: expected a"
                        " text of 1 to %d bytes", path, TPR_SECRET_TEXT - 1);
    }
    memcpy(secret, text, length + 1);
    tpb_free(text);
    return TP_OK;
}

tp_status tpr_secret_get(const struct tpb_settings *settings,
                         char secret[TPR_SECRET_TEXT],
                         struct tpb_error *error)
{
    const char *text = settings->text[TPB_SET_SECRET];

    if (strncmp(text, "file:", 5) == 0)
        return secret_file(text + 5, secret, error);
    if (strlen(text) >= TPR_SECRET_TEXT)
        return tpb_fail(error, TP_ERR_INVALID, "TP_SECRET is longer than %d"
                        " bytes", TPR_SECRET_TEXT - 1);
    strcpy(secret, text);
    return TP_OK;
}

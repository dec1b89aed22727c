/* SPDX-License-Identifier: BSD-3-Clause */
/* Who this process is, and on which host. */
#include "config.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/base/door.h"
#include "runtime/base/io.h"
#include "runtime/base/settings.h"
#include "topology/card.h"
#include "topology/private.h"

uint64_t tpt_namespace(const char *name)
{
    struct stat status;
    char path[64];

    snprintf(path, sizeof(path), "/proc/self/ns/%s", name);
    return stat(path, &status) == 0 ? (uint64_t)status.st_ino : 0;
}

/* 32 hexadecimal digits with hyphens in between. */
static bool identify_parse_uuid(const char *text, uint8_t id[16])
{
    size_t digits = 0;

    for (; *text != '\0' && *text != '\n'; text++) {
        int value = tpb_hex_digit((char)tolower((unsigned char)*text));

        if (*text == '-')
            continue;
        if (value < 0 || digits == 32)
            return false;
        id[digits / 2] = (uint8_t)(id[digits / 2] << 4 | value);
        digits++;
    }
    return digits == 32;
}

/*
 * Some sandboxes hide the boot id.  The time of boot and the machine's id take
 * its place: where they are equal for two hosts, a trial finds it out.  False
 * if there are none, or if memory lacks: half an identity would be another.
 */
static bool identify_substitute(const char *name, uint8_t id[16])
{
    static const char *const paths[] = { "/proc/stat", "/etc/machine-id" };
    bool found = false;
    uint64_t hash = tpb_hash(TPB_HASH_INIT, name, strlen(name));

    for (size_t i = 0; i < TPB_COUNT(paths); i++) {
        char *text = tpb_read_file(paths[i], NULL);
        const char *part = text;

        if (text == NULL && errno == ENOMEM)
            return false;
        if (text != NULL && i == 0)
            part = strstr(text, "btime ");
        if (part != NULL) {
            hash = tpb_hash(hash, part, strcspn(part, "\n"));
            found = true;
        }
        tpb_free(text);
    }
    memset(id, 0, 16);
    memcpy(id, &hash, sizeof(hash));
    return found;
}

/* tprun, on whose host this rank is, can read it. */
static bool identify_by_launcher(uint8_t id[16])
{
    static const uint8_t none[16];
    const char *text = getenv(tpb_setting_table[TPB_SET_DOOR].variable);
    struct tpb_door door;

    if (text == NULL || !tpb_door_parse(text, &door)
        || memcmp(door.boot_id, none, sizeof(none)) == 0)
        return false;
    memcpy(id, door.boot_id, 16);
    return true;
}

static tp_status identify_boot(struct tpt_host *host, struct tpb_error *error)
{
    static const char path[] = "/proc/sys/kernel/random/boot_id";
    char *text = tpb_read_file(path, NULL);
    int code = text == NULL ? errno : EINVAL;
    bool good = text != NULL && identify_parse_uuid(text, host->boot_id);

    tpb_free(text);
    if (good)
        return TP_OK;
    if (code == ENOMEM)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    if (identify_by_launcher(host->boot_id)
        || identify_substitute(host->name, host->boot_id))
        return TP_OK;
    return tpb_fail_errno(error, code, "cannot tell this host from others: "
                          "%s is needed; mount /proc", path);
}

tp_status tpt_card_identify(struct tpt_card *card, struct tpb_error *error)
{
    struct tpt_host *host = &card->host;

    memset(host, 0, sizeof(*host));
    /* One that is too long is cut. */
    if ((gethostname(host->name, sizeof(host->name) - 1) != 0
         && errno != ENAMETOOLONG) || host->name[0] == '\0')
        snprintf(host->name, sizeof(host->name), "localhost");
    host->net_namespace = tpt_namespace("net");
    host->pid_namespace = tpt_namespace("pid");
    host->user_namespace = tpt_namespace("user");
    host->mount_namespace = tpt_namespace("mnt");
    card->pid = (uint32_t)getpid();
    card->uid = (uint32_t)geteuid();
    tpb_random(card->instance, sizeof(card->instance));
    tpb_random(card->cookie, sizeof(card->cookie));
    return identify_boot(host, error);
}

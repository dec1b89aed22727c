/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The table of measured costs.  tpperf(1) describes the file, which is made to
 * be read by people too.  It is small; one that is not is no such table.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "runtime/base/log.h"
#include "topology/costs.h"
#include "topology/devices.h"

TPB_LOG_COMPONENT("topology");

enum { COSTS_VERSION = 1, COSTS_BYTES = 256 << 10 };

/* ---- where ------------------------------------------------------------- */

/* TP_COSTS, else the user's cache as XDG says, else that below the home. */
static tp_status costs_folder(const struct tpb_settings *settings,
                              struct tpb_text *folder,
                              struct tpb_error *error)
{
    const char *wanted = settings->text[TPB_SET_COSTS];
    const char *cache = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");

    if (strcmp(wanted, "none") == 0)
        return tpb_fail(error, TP_ERR_NOT_FOUND, "TP_COSTS=none: no measured "
                        "costs are kept");
    if (*wanted != '\0')
        tpb_text_add(folder, "%s", wanted);
    else if (cache != NULL && *cache == '/')
        tpb_text_add(folder, "%s/tp", cache);
    else if (home != NULL && *home == '/')
        tpb_text_add(folder, "%s/.cache/tp", home);
    else
        return tpb_fail(error, TP_ERR_NOT_FOUND, "no place for measured costs:"
                        " set TP_COSTS to a folder (HOME is %s)",
                        home == NULL ? "not set" : "no absolute path");
    return folder->failed ? tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory")
           : TP_OK;
}

tp_status tpt_costs_path(const struct tpb_settings *settings, uint64_t hash,
                         char **path, struct tpb_error *error)
{
    struct tpb_text text = { 0 };
    tp_status status = costs_folder(settings, &text, error);

    if (status == TP_OK)
        tpb_text_add(&text, "/costs-%016llx.json", (unsigned long long)hash);
    if (status == TP_OK && text.failed)
        status = tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    if (status == TP_OK)
        *path = text.text;
    else
        tpb_text_fini(&text);
    return status;
}

struct tpt_costs_row *tpt_costs_row(struct tpt_costs *costs,
                                    const char *backend)
{
    struct tpt_costs_row *row;

    for (uint32_t i = 0; i < costs->count; i++)
        if (strcmp(costs->rows[i].backend, backend) == 0)
            return &costs->rows[i];
    if (costs->count == TPT_BACKENDS || *backend == '\0'
        || strlen(backend) >= TPT_NAME)
        return NULL;
    row = &costs->rows[costs->count++];
    memset(row, 0, sizeof(*row));
    memcpy(row->backend, backend, strlen(backend));
    return row;
}

void tpt_costs_put(const struct tpt_costs *costs,
                   struct tpt_backend_card *backend)
{
    for (uint32_t i = 0; i < costs->count; i++)
        if (strcmp(costs->rows[i].backend, backend->name) == 0)
            memcpy(backend->measured, costs->rows[i].cost,
                   sizeof(costs->rows[i].cost));
}

void tpt_costs_apply(const struct tpt_costs *costs, struct tpt_card *card)
{
    for (uint32_t i = 0; i < card->backend_count; i++)
        tpt_costs_put(costs, &card->backends[i]);
}

/* ---- reading ----------------------------------------------------------- */

/* Backends for devices are measured by what lies between two of these. */
static bool costs_devices(const char *backend)
{
    return strncmp(backend, "cuda_", 5) == 0;
}

static const char *costs_place(const char *backend, int place)
{
    if (!costs_devices(backend))
        return tpt_locality_name((enum tpt_locality)place);
    return place < TPT_PATHS ? tpt_path_name((enum tpt_path)place) : "";
}

static int costs_locality(const char *backend, const char *name)
{
    for (int i = 0; i < TPT_LOCALITIES; i++)
        if (strcmp(name, costs_place(backend, i)) == 0)
            return i;
    return -1;
}

/* A whole number above 0 that a card can hold. */
static bool costs_number(const json_t *object, const char *key, uint32_t *to)
{
    const json_t *value = json_object_get(object, key);
    json_int_t number = json_integer_value(value);

    if (!json_is_integer(value) || number < 1 || number > UINT32_MAX)
        return false;
    *to = (uint32_t)number;
    return true;
}

static bool costs_read_row(const json_t *object, struct tpt_costs *costs)
{
    const char *backend = json_string_value(json_object_get(object,
                                                            "backend"));
    const char *name = json_string_value(json_object_get(object, "locality"));
    int locality = name != NULL && backend != NULL
                   ? costs_locality(backend, name) : -1;
    struct tpt_costs_row *row = backend != NULL
                                ? tpt_costs_row(costs, backend) : NULL;

    return row != NULL && locality >= 0
           && costs_number(object, "latency_ns",
                           &row->cost[locality].latency_ns)
           && costs_number(object, "megabytes_per_second",
                           &row->cost[locality].megabytes);
}

/* What is wrong with it; NULL: nothing. */
static const char *costs_read(const json_t *root, uint64_t hash,
                              struct tpt_costs *costs)
{
    const char *format = json_string_value(json_object_get(root, "format"));
    const char *machine = json_string_value(json_object_get(root, "machine"));
    const char *when = json_string_value(json_object_get(root, "when"));
    const json_t *list = json_object_get(root, "costs"), *row;
    char text[20];
    size_t i;

    snprintf(text, sizeof(text), "%016llx", (unsigned long long)hash);
    if (format == NULL || strcmp(format, "tp-costs") != 0)
        return "it is not a table of costs";
    if (json_integer_value(json_object_get(root, "version")) != COSTS_VERSION)
        return "it is of another version";
    if (machine == NULL || strcmp(machine, text) != 0)
        return "it is about another machine";
    if (when == NULL || !json_is_array(list))
        return "a member is missing";
    json_array_foreach(list, i, row)
        if (!costs_read_row(row, costs))
            return "a row is malformed";
    snprintf(costs->when, sizeof(costs->when), "%s", when);
    return NULL;
}

static tp_status costs_parse(const char *path, const char *text, size_t length,
                             uint64_t hash, struct tpt_costs *costs,
                             struct tpb_error *error)
{
    json_error_t where = { 0 };
    json_t *root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &where);
    const char *wrong = root == NULL ? where.text
                        : costs_read(root, hash, costs);
    tp_status status = TP_OK;

    if (wrong != NULL) {
        memset(costs, 0, sizeof(*costs));
        status = tpb_fail(error, TP_ERR_INVALID, "the measured costs in %s "
                          "are not used: %s; `tpperf --calibrate` writes them "
                          "anew", path, wrong);
    }
    json_decref(root);
    return status;
}

/* No table: none was measured here, which is as it should be, unless the user
 * names a folder that is not there. */
static tp_status costs_absent(const struct tpb_settings *settings,
                              struct tpb_error *error)
{
    const char *wanted = settings->text[TPB_SET_COSTS];
    struct stat found;
    int code = 0;

    if (*wanted != '\0' && stat(wanted, &found) < 0)
        code = errno;
    else if (*wanted != '\0' && !S_ISDIR(found.st_mode))
        code = ENOTDIR;
    return code == 0 ? TP_OK
           : tpb_fail(error, TP_ERR_NOT_FOUND, "TP_COSTS=%s: %s; the model's "
                      "costs are used instead; `tpperf --calibrate` creates "
                      "the folder and a table, and TP_COSTS=none asks for "
                      "neither", wanted,
                      strerror(code));
}

/* Did stat() find that there is no table for us?  That a folder is closed says
 * so, too, where nobody named it: HOME may be another user's, as after
 * setpriv(1). */
static bool costs_none(const struct tpb_settings *settings, int code)
{
    return code == ENOENT || code == ENOTDIR
           || (code == EACCES && *settings->text[TPB_SET_COSTS] == '\0');
}

tp_status tpt_costs_load(const struct tpb_settings *settings, uint64_t hash,
                         struct tpt_costs *costs, struct tpb_error *error)
{
    struct stat found;
    char *path, *text;
    size_t length;
    tp_status status;

    memset(costs, 0, sizeof(*costs));
    if (tpt_costs_path(settings, hash, &path, NULL) != TP_OK)
        return TP_OK;
    if (stat(path, &found) < 0 && costs_none(settings, errno)) {
        tpb_free(path);
        return costs_absent(settings, error);
    }
    /* A pipe, or a file without end, would hold up the job. */
    if (stat(path, &found) == 0
        && (!S_ISREG(found.st_mode) || found.st_size > COSTS_BYTES)) {
        status = tpb_fail(error, TP_ERR_INVALID, "the measured costs in %s are"
                          " not used: it is not a file of less than %d KiB",
                          path,
                          COSTS_BYTES >> 10);
        tpb_free(path);
        return status;
    }
    text = tpb_read_file(path, &length);
    if (text == NULL)
        status = tpb_fail_errno(error, errno, "cannot read the measured costs "
                                "in %s", path);
    else
        status = costs_parse(path, text, length, hash, costs, error);
    tpb_free(text);
    tpb_free(path);
    return status;
}

struct tpt_costs *tpt_costs_for(const struct tpb_settings *settings,
                                const struct tpt_card *card)
{
    struct tpt_costs *costs = tpb_zalloc(sizeof(*costs));
    struct tpb_error error = { "" };

    if (costs == NULL
        || tpt_costs_load(settings, card->place.topology, costs, &error)
           == TP_OK)
        return costs;
    if (card->rank == 0)
        tpb_warn("%s", error.text);
    else
        tpb_info("%s", error.text);
    return costs;
}

/* ---- writing ----------------------------------------------------------- */

static json_t *costs_rows(const struct tpt_costs *costs)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < costs->count; i++)
        for (int j = 0; j < TPT_LOCALITIES; j++) {
            const struct tpt_cost *cost = &costs->rows[i].cost[j];

            if (cost->megabytes != 0 && cost->latency_ns != 0)
                json_array_append_new(list, json_pack(
                    "{s:s, s:s, s:I, s:I}", "backend", costs->rows[i].backend,
                    "locality", costs_place(costs->rows[i].backend, j),
                    "latency_ns", (json_int_t)cost->latency_ns,
                    "megabytes_per_second", (json_int_t)cost->megabytes));
        }
    return list;
}

static char *costs_text(uint64_t hash, const char *host,
                        const struct tpt_costs *costs)
{
    char machine[20], when[32] = "";
    time_t now = time(NULL);
    struct tm utc;
    json_t *root;
    char *text;

    snprintf(machine, sizeof(machine), "%016llx", (unsigned long long)hash);
    if (gmtime_r(&now, &utc) != NULL)
        strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", &utc);
    root = json_pack("{s:s, s:i, s:s, s:s, s:s, s:s, s:o}",
                     "format", "tp-costs", "version", COSTS_VERSION,
                     "machine", machine, "host", host, "when", when,
                     "tp", PACKAGE_VERSION, "costs", costs_rows(costs));
    text = root != NULL ? json_dumps(root, JSON_INDENT(1)) : NULL;
    json_decref(root);
    return text;
}

/* All before the last slash. */
static void costs_make_folder(char *path)
{
    char *slash = strrchr(path, '/');

    if (slash == NULL || slash == path)
        return;
    *slash = '\0';
    tpb_make_folders(path);        /* what fails shows when the file is made */
    *slash = '/';
}

/* A new file beside it, whose name is `temporary` afterwards. */
static tp_status costs_open(const char *path, struct tpb_text *temporary,
                            int *fd, struct tpb_error *error)
{
    tpb_text_add(temporary, "%s.XXXXXX", path);
    if (temporary->failed)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    *fd = mkostemp(temporary->text, O_CLOEXEC);
    return *fd >= 0 ? TP_OK
           : tpb_fail_errno(error, errno, "cannot write %s", path);
}

static tp_status costs_write(const char *path, const char *text,
                             struct tpb_error *error)
{
    struct tpb_text temporary = { 0 };
    int fd, code = 0;
    tp_status status = costs_open(path, &temporary, &fd, error);

    if (status == TP_OK) {
        if (tpb_write_all(fd, text, strlen(text)) < 0
            || tpb_write_all(fd, "\n", 1) < 0 || fchmod(fd, 0644) < 0
            || fsync(fd) < 0 || rename(temporary.text, path) < 0)
            code = errno;
        close(fd);
        if (code != 0) {
            unlink(temporary.text);
            status = tpb_fail_errno(error, code, "cannot write %s", path);
        }
    }
    tpb_text_fini(&temporary);
    return status;
}

tp_status tpt_costs_try(const struct tpb_settings *settings, uint64_t hash,
                        struct tpb_error *error)
{
    struct tpb_text temporary = { 0 };
    char *path = NULL;
    tp_status status = tpt_costs_path(settings, hash, &path, error);
    struct stat there;
    int fd;

    if (status != TP_OK)
        return status;
    costs_make_folder(path);
    status = costs_open(path, &temporary, &fd, error);
    if (status == TP_OK) {
        close(fd);
        unlink(temporary.text);
        if (stat(path, &there) == 0 && S_ISDIR(there.st_mode))
            status = tpb_fail_errno(error, EISDIR, "cannot write %s", path);
    }
    tpb_text_fini(&temporary);
    tpb_free(path);
    return status;
}

tp_status tpt_costs_save(const struct tpb_settings *settings, uint64_t hash,
                         const char *host, const struct tpt_costs *costs,
                         struct tpb_error *error)
{
    char *path = NULL;
    tp_status status = tpt_costs_path(settings, hash, &path, error);
    char *text;

    if (status != TP_OK)
        return status;
    costs_make_folder(path);
    text = costs_text(hash, host, costs);
    status = text == NULL
             ? tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory")
             : costs_write(path, text, error);
    free(text);
    tpb_free(path);
    return status;
}

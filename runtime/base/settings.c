/* SPDX-License-Identifier: BSD-3-Clause */
/* Reads the settings table from the environment. */
#include "config.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/base/log.h"
#include "runtime/base/settings.h"

TPB_LOG_COMPONENT("settings");

const struct tpb_setting tpb_setting_table[TPB_SET_COUNT] = {
#define TPB_SETTING(id, variable, type, initial, values, text) \
    [TPB_SET_##id] = { variable, TPB_TYPE_##type, initial, values, text },
#include "runtime/base/settings.def"
#undef TPB_SETTING
};

/* "500", "64k", "500ms", "2m"; -1 for "-".  False if it is none of these. */
static bool settings_number(const char *text, enum tpb_setting_type type,
                            int64_t *number)
{
    static const struct { const char *unit; int64_t factor; bool ms; }
    units[] = {
        { "", 1, false }, { "k", 1 << 10, false }, { "M", 1 << 20, false },
        { "G", 1 << 30, false }, { "", 1, true }, { "ms", 1, true },
        { "s", 1000, true }, { "m", 60000, true }, { "h", 3600000, true },
    };
    char *end;
    long long value;

    if (strcmp(text, "-") == 0) {
        *number = -1;
        return true;
    }
    errno = 0;
    value = strtoll(text, &end, 10);
    if (end == text || errno != 0 || value < 0)
        return false;
    for (size_t i = 0; i < TPB_COUNT(units); i++) {
        if (units[i].ms != (type == TPB_TYPE_MS)
            || strcmp(end, units[i].unit) != 0)
            continue;
        return !__builtin_mul_overflow((int64_t)value, units[i].factor,
                                       number);
    }
    return false;
}

static bool settings_bool(const char *text, int64_t *number)
{
    static const char *const no[] = { "0", "no", "false", "off" };
    static const char *const yes[] = { "1", "yes", "true", "on" };

    for (size_t i = 0; i < TPB_COUNT(no); i++) {
        *number = strcasecmp(text, yes[i]) == 0;
        if (*number || strcasecmp(text, no[i]) == 0)
            return true;
    }
    return false;
}

const char *tpb_setting_shown(const struct tpb_settings *settings,
                              enum tpb_setting_id id)
{
    if (id == TPB_SET_SECRET && *settings->text[id] != '\0')
        return "(set)";
    return settings->text[id];
}

tp_status tpb_settings_set(struct tpb_settings *settings,
                           enum tpb_setting_id id, const char *text,
                           struct tpb_error *error)
{
    const struct tpb_setting *row = &tpb_setting_table[id];
    int64_t number = 0;
    tp_status status;
    bool good = true;
    char *copy;

    if (row->type == TPB_TYPE_BOOL)
        good = settings_bool(text, &number);
    else if (row->type != TPB_TYPE_STRING)
        good = settings_number(text, row->type, &number);
    if (!good)
        return tpb_setting_refuse(id, text, NULL, error);
    status = tpb_setting_check(id, text, number, error);
    if (status != TP_OK)
        return status;
    copy = tpb_copy_string(text);
    if (copy == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    tpb_free(settings->text[id]);
    settings->text[id] = copy;
    settings->number[id] = number;
    return TP_OK;
}

/* Two neighbours that changed places are one edit, as people's are. */
unsigned tpb_edit_distance(const char *a, const char *b)
{
    unsigned rows[3][TPB_NEAR], *before = rows[0], *above = rows[1];
    unsigned *row = rows[2];
    size_t m = strlen(b);

    if (m >= TPB_NEAR)
        return 99;
    for (size_t j = 0; j <= m; j++)
        row[j] = (unsigned)j;
    for (size_t i = 0; a[i] != '\0'; i++) {
        unsigned *oldest = before;

        before = above;
        above = row;
        row = oldest;
        row[0] = (unsigned)i + 1;
        for (size_t j = 0; j < m; j++) {
            unsigned best = above[j] + (a[i] != b[j]);

            if (above[j + 1] + 1 < best)
                best = above[j + 1] + 1;
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j]
                && before[j - 1] + 1 < best)
                best = before[j - 1] + 1;
            row[j + 1] = best;
        }
    }
    return row[m];
}

const char *tpb_nearest(const char *written, const char *const *words,
                        size_t count)
{
    const char *nearest = NULL;
    unsigned best = 4;

    for (size_t i = 0; i < count; i++) {
        unsigned distance = tpb_edit_distance(written, words[i]);

        /* With half of it wrong it is another word. */
        if (distance < best && 2 * (size_t)distance <= strlen(written)) {
            best = distance;
            nearest = words[i];
        }
    }
    return nearest;
}

static void settings_warn_unknown(const char *entry)
{
    enum { PREFIX = 3 };           /* "TP_", which all have */
    const char *known[TPB_SET_COUNT], *nearest;
    char name[64];
    size_t length = strcspn(entry, "=");

    if (length >= sizeof(name))
        return;
    memcpy(name, entry, length);
    name[length] = '\0';
    for (size_t i = 0; i < TPB_SET_COUNT; i++)
        if (strcmp(name, tpb_setting_table[i].variable) == 0)
            return;
    /* Ours to read elsewhere: the tests' own variables. */
    if (strncmp(name, "TP_TEST_", 8) == 0)
        return;
    for (size_t i = 0; i < TPB_SET_COUNT; i++)
        known[i] = tpb_setting_table[i].variable + PREFIX;
    nearest = tpb_nearest(name + PREFIX, known, TPB_SET_COUNT);
    if (nearest != NULL)
        tpb_warn("unknown variable %s: did you mean TP_%s?", name, nearest);
    else
        tpb_warn("unknown variable %s; `tpinfo --env` lists them all",
                 name);
}

static void settings_warn_component(const char *name,
                                    const char *const *components,
                                    size_t count)
{
    const char *nearest = tpb_nearest(name, components, count);

    if (nearest != NULL)
        tpb_warn("TP_LOG: no component is called \"%s\": did you mean %s?",
                 name, nearest);
    else
        tpb_warn("TP_LOG: no component is called \"%s\"; tp_env(7) lists them "
                 "all", name);
}

/* Nearly always all ranks of a job would say the same: one does. */
static bool settings_warns(void)
{
    const char *rank = getenv("PMIX_RANK");

    return rank == NULL || strcmp(rank, "0") == 0;
}

tp_status tpb_settings_load(struct tpb_settings *settings,
                            struct tpb_error *error)
{
    tp_status status = TP_OK;
    const char *log = getenv("TP_LOG");

    memset(settings, 0, sizeof(*settings));
    if (!tpb_log_configure(log))
        status = tpb_setting_refuse(TPB_SET_LOG, log, NULL, error);
    for (size_t i = 0; i < TPB_SET_COUNT && status == TP_OK; i++) {
        const char *text = getenv(tpb_setting_table[i].variable);

        settings->set[i] = text != NULL;
        status = tpb_settings_set(settings, (enum tpb_setting_id)i,
                                  text != NULL ? text
                                  : tpb_setting_table[i].initial, error);
    }
    if (status != TP_OK) {
        tpb_settings_fini(settings);
        return status;
    }
    if (!settings_warns())
        return TP_OK;
    tpb_log_unknown(settings_warn_component);
    /* Another thread's tp_init() may put a longer list in its place. */
    for (char **entry = __atomic_load_n(&environ, __ATOMIC_ACQUIRE);
         entry != NULL && *entry != NULL; entry++)
        if (strncmp(*entry, "TP_", 3) == 0)
            settings_warn_unknown(*entry);
    return TP_OK;
}

void tpb_settings_fini(struct tpb_settings *settings)
{
    for (size_t i = 0; i < TPB_SET_COUNT; i++)
        tpb_free(settings->text[i]);
    memset(settings, 0, sizeof(*settings));
}

bool tpb_list_allows(const char *list, const char *name)
{
    bool forbid, found = false;

    if (list == NULL || *list == '\0')
        return true;
    forbid = *list == '^';
    list += forbid;
    while (*list != '\0' && !found) {
        size_t length = strcspn(list, ",");

        found = length > 0 && strncmp(list, name, length) == 0
                && (name[length] == '\0' || name[length] == ':');
        list += length;
        list += *list == ',';
    }
    return found != forbid;
}

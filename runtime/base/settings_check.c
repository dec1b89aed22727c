/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Which values a setting may have, where that is known here: what would be
 * taken without a word, and do nothing, is refused.
 */
#include "config.h"

#include <stdio.h>
#include <strings.h>

#include "runtime/base/settings.h"

/* ---- words --------------------------------------------------------------- */

enum check_form { CHECK_ONE, CHECK_ANY_CASE, CHECK_LIST };

/* A word that ends in = or : begins what goes on as it likes. */
static const struct check_words {
    enum tpb_setting_id id;
    enum check_form form;
    const char *words[12];         /* up to a NULL */
    const char *alone;             /* instead of them, or nothing at all */
} check_words[] = {
    { TPB_SET_PROGRESS, CHECK_ONE, { "auto", "thread", "manual" }, NULL },
    { TPB_SET_BOOTSTRAP, CHECK_ONE, { "auto", "pmix", "single", "dir:" },
      NULL },
    { TPB_SET_OFI_TCP, CHECK_ONE, { "net", "tcp", "-" }, NULL },
    { TPB_SET_GDR, CHECK_LIST, { "dmabuf", "hmem", "plain" }, "none" },
    { TPB_SET_GDR_PATH, CHECK_ANY_CASE, { "PIX", "PXB", "PHB", "NODE",
                                          "SYS" }, NULL },
    { TPB_SET_CARD_HOOK, CHECK_ONE, { "garbage", "truncate", "version", "host",
                                      "denied", "two", "rivals", "lacks=",
                                      "address=", "over=" }, "" },
};

static bool check_is(const char *word, const char *text, size_t length,
                     bool any_case)
{
    size_t part = strlen(word);
    bool begins = word[part - 1] == '=' || word[part - 1] == ':';

    if (begins ? length <= part : length != part)
        return false;
    return (any_case ? strncasecmp(word, text, part)
                     : strncmp(word, text, part)) == 0;
}

static bool check_among(const char *const *words, const char *text,
                        size_t length, bool any_case)
{
    for (; *words != NULL; words++)
        if (check_is(*words, text, length, any_case))
            return true;
    return false;
}

/* The word that is none goes to `wrong`, up to its end. */
static bool check_word_row(const struct check_words *row, const char *text,
                           char wrong[TPB_NEAR])
{
    size_t length = strlen(text);

    if (row->alone != NULL
        && (length == 0 || strcmp(text, row->alone) == 0))
        return true;
    text += row->form == CHECK_LIST && *text == '^';
    do {
        length = row->form == CHECK_LIST ? strcspn(text, ",") : strlen(text);
        snprintf(wrong, TPB_NEAR, "%.*s", (int)length, text);
        if (!check_among(row->words, text, length,
                         row->form == CHECK_ANY_CASE))
            return false;
        text += length;
    } while (*text++ != '\0');
    return true;
}

tp_status tpb_setting_refuse(enum tpb_setting_id id, const char *text,
                             const char *near, struct tpb_error *error)
{
    const struct tpb_setting *row = &tpb_setting_table[id];
    const char *more = "";

    if (id == TPB_SET_LOG)
        more = "; a LEVEL is off, error, warn, info, debug or trace";
    else if (row->type == TPB_TYPE_MS)
        more = "; times are written as 500ms, 30s, 2m or 1h";
    return tpb_fail(error, TP_ERR_INVALID, "%s=%s: expected %s%s%s%s%s",
                    row->variable, text, row->values, more,
                    near != NULL ? "; did you mean " : "",
                    near != NULL ? near : "", near != NULL ? "?" : "");
}

static tp_status check_refuse(enum tpb_setting_id id, const char *text,
                              const char *wrong, const char *const *words,
                              struct tpb_error *error)
{
    size_t count = 0;
    const char *near;

    while (words != NULL && words[count] != NULL)
        count++;
    near = wrong != NULL ? tpb_nearest(wrong, words, count) : NULL;
    if (near != NULL && strcmp(near, wrong) == 0)
        near = NULL;               /* it is what lacks behind "dir:" */
    return tpb_setting_refuse(id, text, near, error);
}

static tp_status check_text(enum tpb_setting_id id, const char *text,
                            struct tpb_error *error)
{
    char wrong[TPB_NEAR];

    /* To dlopen(3) that is the program itself. */
    if (id == TPB_SET_CUDA_LIBRARY && *text == '\0')
        return tpb_setting_refuse(id, text, NULL, error);
    for (size_t i = 0; i < TPB_COUNT(check_words); i++)
        if (check_words[i].id == id
            && !check_word_row(&check_words[i], text, wrong))
            return check_refuse(id, text, wrong, check_words[i].words,
                                error);
    return TP_OK;
}

/* ---- numbers ------------------------------------------------------------- */

enum {
    CHECK_SECOND = 1000,
    CHECK_DAY = 86400 * CHECK_SECOND
};

static const struct check_range {
    enum tpb_setting_id id;
    int64_t least, most;
    bool or_zero;
} check_ranges[] = {
    { TPB_SET_SPIN, 0, 3600 * INT64_C(1000000), false },
    { TPB_SET_CONNECT_TIMEOUT, 1, 365 * INT64_C(86400000), false },
    { TPB_SET_FINALIZE_TIMEOUT, 0, 365 * INT64_C(86400000), false },
    { TPB_SET_HEARTBEAT, 5 * CHECK_SECOND, CHECK_DAY, true },
    { TPB_SET_RAILS, 1, 8, false },
    { TPB_SET_CUDA_IMPORTS, 1, INT32_MAX, false },
    { TPB_SET_CUDA_IMPORT_BYTES, 1, INT64_MAX, false },
    { TPB_SET_SIZE, 1, 1 << 20, false },
    { TPB_SET_RANK, 0, (1 << 20) - 1, false },
    { TPB_SET_CPUS, 1, INT32_MAX, false },
};

/* "-" leaves it open, where that is one of the values. */
static bool check_number(enum tpb_setting_id id, int64_t number)
{
    if (number < 0)
        return strstr(tpb_setting_table[id].values, "|-") != NULL;
    for (size_t i = 0; i < TPB_COUNT(check_ranges); i++)
        if (check_ranges[i].id == id)
            return (number >= check_ranges[i].least
                    && number <= check_ranges[i].most)
                   || (number == 0 && check_ranges[i].or_zero);
    return true;
}

tp_status tpb_setting_check(enum tpb_setting_id id, const char *text,
                            int64_t number, struct tpb_error *error)
{
    const struct tpb_setting *row = &tpb_setting_table[id];

    if (row->type == TPB_TYPE_STRING)
        return check_text(id, text, error);
    if (row->type != TPB_TYPE_BOOL && !check_number(id, number))
        return tpb_setting_refuse(id, text, NULL, error);
    return TP_OK;
}

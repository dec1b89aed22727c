/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The settings: what the environment may say, in one table (settings.def).
 * Read from the environment at each call of tpb_settings_load(); afterwards
 * plain memory, read by any thread.
 */
#ifndef TPB_SETTINGS_H
#define TPB_SETTINGS_H

#include "runtime/base/base.h"

enum tpb_setting_id {
#define TPB_SETTING(id, variable, type, initial, values, text) TPB_SET_##id,
#include "runtime/base/settings.def"
#undef TPB_SETTING
    TPB_SET_COUNT
};

enum tpb_setting_type {
    TPB_TYPE_STRING, TPB_TYPE_INT, TPB_TYPE_BOOL, TPB_TYPE_MS
};

struct tpb_setting {
    const char *variable;      /* "TP_SPIN" */
    enum tpb_setting_type type;
    const char *initial;       /* as one would write it */
    const char *values;        /* for people: "MICROSECONDS|-" */
    const char *text;          /* for people: one line */
};

/* The table; TPB_SET_COUNT rows. */
extern const struct tpb_setting tpb_setting_table[TPB_SET_COUNT];

struct tpb_settings {
    char *text[TPB_SET_COUNT];         /* as set or by default; never NULL */
    int64_t number[TPB_SET_COUNT];     /* INT, BOOL, MS; -1 for "-" */
    bool set[TPB_SET_COUNT];           /* came from the environment */
};

/*
 * Fills *settings from the environment.  INVALID, with words that name the
 * variable and its values, if one cannot be understood.  An unknown TP_*
 * variable is logged as a warning, with the nearest known one.  On success the
 * caller calls tpb_settings_fini(); after a failure there is nothing to free.
 */
tp_status tpb_settings_load(struct tpb_settings *settings,
                            struct tpb_error *error);
void tpb_settings_fini(struct tpb_settings *settings);

/* The value as people may see it: a secret is not for the screen, nor for the
 * file where the output goes. */
const char *tpb_setting_shown(const struct tpb_settings *settings,
                              enum tpb_setting_id id);

/* Replaces one value, as if the environment held it. */
tp_status tpb_settings_set(struct tpb_settings *settings,
                           enum tpb_setting_id id, const char *text,
                           struct tpb_error *error);

/*
 * Does `list` ("a,b", "^a,b", or empty for all) allow `name`?  An item allows
 * a name that equals it or that goes on with ':' ("ofi" allows "ofi:tcp").
 */
bool tpb_list_allows(const char *list, const char *name);

/* May it have that value?  INVALID with words otherwise; settings_check.c. */
tp_status tpb_setting_check(enum tpb_setting_id id, const char *text,
                            int64_t number, struct tpb_error *error);
/* INVALID, with what it may be; `near` is what may be meant, or NULL. */
tp_status tpb_setting_refuse(enum tpb_setting_id id, const char *text,
                             const char *near, struct tpb_error *error);

enum { TPB_NEAR = 64 };

/* How many single-letter edits lead from a to b, for "did you mean"; 99 if b
 * has TPB_NEAR letters or more. */
unsigned tpb_edit_distance(const char *a, const char *b);
/* Which of the words may be meant by that one; NULL: none. */
const char *tpb_nearest(const char *written, const char *const *words,
                        size_t count);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* Log lines, chosen by component. */
#include "config.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <unistd.h>

#include "runtime/base/io.h"
#include "runtime/base/log.h"

enum { LOG_RULES = 16 };

struct log_rule {
    char component[24];
    int level;
};

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static struct log_rule log_rules[LOG_RULES];
static int log_rule_count;
static int log_default = TPB_LOG_WARN;
static char log_name[32] = "tp";

static const char *const log_words[] = {
    "off", "error", "warn", "info", "debug", "trace"
};

/* All that there are in tp; tests/lint/settings.sh looks. */
static const char *const log_components[] = {
    "bootstrap", "borrow", "both", "broker", "context", "cuda", "cuda_host",
    "cuda_ipc", "desk", "device", "door", "gdr", "gpu", "hello", "link",
    "listener", "memory", "ofi", "outbox", "peer", "pmix", "pull", "rails",
    "record", "rx", "settings", "shm", "topology", "visit"
};

static int log_parse_level(const char *word, size_t length)
{
    for (size_t i = 0; i < TPB_COUNT(log_words); i++)
        if (strlen(log_words[i]) == length
            && strncasecmp(log_words[i], word, length) == 0)
            return (int)i;
    return -1;
}

bool tpb_log_configure(const char *specification)
{
    struct log_rule rules[LOG_RULES];
    int count = 0, level = TPB_LOG_WARN;

    while (specification != NULL && *specification != '\0') {
        size_t length = strcspn(specification, ",");
        const char *equals = memchr(specification, '=', length);

        if (equals == NULL) {
            level = log_parse_level(specification, length);
            if (level < 0)
                return false;
        } else {
            size_t name = (size_t)(equals - specification);
            int parsed = log_parse_level(equals + 1, length - name - 1);

            if (parsed < 0 || count == LOG_RULES
                || name >= sizeof(rules[0].component))
                return false;
            memset(&rules[count], 0, sizeof(rules[count]));
            memcpy(rules[count].component, specification, name);
            rules[count++].level = parsed;
        }
        specification += length;
        specification += *specification == ',';
    }
    pthread_mutex_lock(&log_lock);
    memcpy(log_rules, rules, sizeof(rules[0]) * (size_t)count);
    log_rule_count = count;
    log_default = level;
    pthread_mutex_unlock(&log_lock);
    return true;
}

static bool log_is_component(const char *name)
{
    for (size_t i = 0; i < TPB_COUNT(log_components); i++)
        if (strcmp(log_components[i], name) == 0)
            return true;
    return false;
}

void tpb_log_unknown(void (*unknown)(const char *name,
                                     const char *const *components,
                                     size_t count))
{
    struct log_rule rules[LOG_RULES];
    int count;

    /* `unknown` may log. */
    pthread_mutex_lock(&log_lock);
    count = log_rule_count;
    memcpy(rules, log_rules, sizeof(rules[0]) * (size_t)count);
    pthread_mutex_unlock(&log_lock);
    for (int i = 0; i < count; i++)
        if (!log_is_component(rules[i].component))
            unknown(rules[i].component, log_components,
                    TPB_COUNT(log_components));
}

void tpb_log_name(const char *name)
{
    pthread_mutex_lock(&log_lock);
    snprintf(log_name, sizeof(log_name), "%s", name);
    pthread_mutex_unlock(&log_lock);
}

int tpb_log_level(struct tpb_log_component *component)
{
    /* Cached without order: every thread computes the same. */
    int level = __atomic_load_n(&component->level, __ATOMIC_RELAXED);

    if (TPB_LIKELY(level >= 0))
        return level;
    pthread_mutex_lock(&log_lock);
    level = log_default;
    for (int i = 0; i < log_rule_count; i++)
        if (strcmp(log_rules[i].component, component->name) == 0)
            level = log_rules[i].level;
    pthread_mutex_unlock(&log_lock);
    __atomic_store_n(&component->level, level, __ATOMIC_RELAXED);
    return level;
}

void tpb_log_write(struct tpb_log_component *component, int level,
                   const char *format, ...)
{
    char line[1024];
    va_list args;
    int used;

    pthread_mutex_lock(&log_lock);
    used = snprintf(line, sizeof(line), "%s: %s: %s: ", log_name,
                    component->name, log_words[level]);
    pthread_mutex_unlock(&log_lock);
    va_start(args, format);
    vsnprintf(line + used, sizeof(line) - (size_t)used - 1, format, args);
    va_end(args);
    used = (int)strlen(line);
    line[used++] = '\n';
    tpb_write_all(STDERR_FILENO, line, (size_t)used);
}

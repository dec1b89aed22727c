/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Log lines on standard error, chosen by component: TP_LOG=warn,shm=trace.
 * One write(2) per line, so that lines of several processes do not mix.
 * Any thread.  Never from inside a signal handler.
 */
#ifndef TPB_LOG_H
#define TPB_LOG_H

#include "runtime/base/base.h"

enum tpb_log_level {
    TPB_LOG_OFF, TPB_LOG_ERROR, TPB_LOG_WARN, TPB_LOG_INFO, TPB_LOG_DEBUG,
    TPB_LOG_TRACE
};

/* One per component; static in the file that logs. */
struct tpb_log_component {
    const char *name;          /* "shm" */
    int level;                 /* -1 until first used */
};
#define TPB_LOG_COMPONENT(noun) \
    static struct tpb_log_component tpb_component = { noun, -1 }

/* Reads a specification such as TP_LOG holds; NULL is the default (warn).
 * Returns false and changes nothing if it cannot be understood. */
bool tpb_log_configure(const char *specification);

/* Calls that for each component of the specification that tp does not have,
 * with those that it has.  Not while another thread configures. */
void tpb_log_unknown(void (*unknown)(const char *name,
                                     const char *const *components,
                                     size_t count));

/* What stands before each line: "tp[3]"; copied, at most 31 characters. */
void tpb_log_name(const char *name);

/* The level at which this component logs; cached in it. */
int tpb_log_level(struct tpb_log_component *component);

void tpb_log_write(struct tpb_log_component *component, int level,
                   const char *format, ...) TPB_PRINTF(3, 4);

#define TPB_LOG(at, ...) \
    do { \
        if (TPB_UNLIKELY(tpb_log_level(&tpb_component) >= (at))) \
            tpb_log_write(&tpb_component, (at), __VA_ARGS__); \
    } while (0)
#define tpb_error_log(...) TPB_LOG(TPB_LOG_ERROR, __VA_ARGS__)
#define tpb_warn(...) TPB_LOG(TPB_LOG_WARN, __VA_ARGS__)
#define tpb_info(...) TPB_LOG(TPB_LOG_INFO, __VA_ARGS__)
#define tpb_debug(...) TPB_LOG(TPB_LOG_DEBUG, __VA_ARGS__)
#define tpb_trace(...) TPB_LOG(TPB_LOG_TRACE, __VA_ARGS__)

#endif

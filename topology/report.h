/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What tpinfo tells, as JSON.  It stands here because jansson does not leave
 * topology/.
 */
#ifndef TPT_REPORT_H
#define TPT_REPORT_H

#include "topology/discover.h"
#include "topology/score.h"

/*
 * Version, machine, NICs, backends and settings as one JSON object, described
 * in tpinfo(1).  `card` gives the NICs and backends, `carriers` (may be NULL,
 * as each of them) what each of those would go over.  The caller frees it with
 * free().  NULL if memory lacks.
 */
char *tpt_report_json(const struct tpt_card *card,
                      const char *const *carriers,
                      struct tpt_topology *topology,
                      const struct tpb_settings *settings);

/* One of several plans. */
struct tpt_planned {
    struct tpt_plan plan;
    struct tpt_card mine, yours;   /* of the first pair */
    const int (*pairs)[2];         /* all that are connected so; may be NULL */
    size_t pair_count;
};

/* {"version", "plans": [...]}; each as tpt_plan_json() makes it, and with
 * "pairs" if they are given. */
char *tpt_plans_json(const struct tpt_planned *plans, size_t count);

#endif

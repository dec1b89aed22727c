/* SPDX-License-Identifier: BSD-3-Clause */
/* What explain.c, device_explain.c, report.c and tpperf share. */
#ifndef TPT_JSON_H
#define TPT_JSON_H

#include <jansson.h>

#include "topology/score.h"

/* A JSON string from any bytes: what is not UTF-8 becomes '?'. */
json_t *tpt_json_text(const char *text);

/* The plan as an object with a reference of its own; NULL without memory. */
json_t *tpt_json_plan(const struct tpt_plan *plan, const struct tpt_card *mine,
                      const struct tpt_card *yours);

/* Of device_explain.c: the GPUs of a card, and the pairs of two cards'. */
json_t *tpt_json_gpus(const struct tpt_card *card);
json_t *tpt_json_devices(const struct tpt_plan *plan,
                         const struct tpt_card *mine,
                         const struct tpt_card *yours);

/* The counts of a rank's record, also while it counts on. */
json_t *tpt_json_imports(const struct tpb_record_imports *imports);

/* From that size on buffers go by `name`, or nothing may carry them (NULL): a
 * new object of a list of routes, and one more of them for people, appended. */
json_t *tpt_json_route(uint64_t from_bytes, const char *name);
void tpt_route_text(size_t at, uint64_t from_bytes, const char *name,
                    struct tpb_text *text);

/* The pairs of the cards' devices, for people; appended. */
void tpt_devices_text(const struct tpt_plan *plan, const struct tpt_card *mine,
                      const struct tpt_card *yours, struct tpb_text *text);

/* As text to be freed with free(); drops the reference, NULL for NULL. */
char *tpt_json_dump(json_t *root);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* What explain.c and report.c share of JSON. */
#ifndef TPT_JSON_H
#define TPT_JSON_H

#include <jansson.h>

#include "topology/score.h"

/* A JSON string from any bytes: what is not UTF-8 becomes '?'. */
json_t *tpt_json_text(const char *text);

/* The plan as an object with a reference of its own; NULL without memory. */
json_t *tpt_json_plan(const struct tpt_plan *plan, const struct tpt_card *mine,
                      const struct tpt_card *yours);

/* As text to be freed with free(); drops the reference, NULL for NULL. */
char *tpt_json_dump(json_t *root);

#endif

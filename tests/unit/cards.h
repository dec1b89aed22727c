/* SPDX-License-Identifier: BSD-3-Clause */
/* Cards and recorded machines for the tests of topology/. */
#ifndef TPX_CARDS_H
#define TPX_CARDS_H

#include "topology/discover.h"
#include "topology/score.h"

/* The machine tests/data/topology/NAME.xml; fails the test if it cannot be
 * loaded. */
struct tpt_topology *tpx_machine(const char *name);

/* A rank on the given core of that machine, on the host "hostN" for boot N,
 * with the backends loop, shm, ofi:tcp and ofi:verbs, all usable. */
void tpx_card(struct tpt_card *card, struct tpt_topology *machine,
              uint32_t core, int rank, uint8_t boot);

/* Adds a usable backend. */
struct tpt_backend_card *tpx_card_add(struct tpt_card *card, const char *name,
                                      enum tpt_reach reach,
                                      uint32_t latency_ns, uint32_t megabytes);

/* Adds "rails" over the NICs of the card, as a rank there would. */
struct tpt_backend_card *tpx_card_rails(struct tpt_card *card);

/* Adds a usable channel inside a host, over the transport of that name or, if
 * "", over any. */
struct tpt_backend_card *tpx_card_channel(struct tpt_card *card,
                                          const char *name, const char *over,
                                          uint32_t latency_ns,
                                          uint32_t megabytes);

/* Adds cuda_ipc, cuda_gdr over ofi:verbs, and cuda_staged. */
void tpx_card_gpus(struct tpt_card *card);

/* The same numbers for the same seed, on every machine. */
uint64_t tpx_random(uint64_t *seed);
uint32_t tpx_random_below(uint64_t *seed, uint32_t limit);

/* Anything a card may hold, within its limits. */
void tpx_card_random(struct tpt_card *card, uint64_t *seed);

/* "shm ofi:tcp|loop; cma|map": of the transports, then of the channels, the
 * possible ones in order, then the others; fails if they are not in that order.
 * One of two static texts in turn. */
const char *tpx_plan_order(const struct tpt_plan *plan);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* What the files of tpinfo share. */
#ifndef TPINFO_H
#define TPINFO_H

#include "topology/report.h"

/* What to show; several may be asked for. */
enum {
    TPINFO_TOPOLOGY = 1, TPINFO_BACKENDS = 2, TPINFO_ENV = 4, TPINFO_PLAN = 8,
    TPINFO_COSTS = 16
};

struct tpinfo_options {
    unsigned show;                 /* 0: an overview */
    bool json;
    const char *topo;              /* --topo; NULL: this machine */
    int ranks;                     /* -n; 0: two, in every way they can lie */
};

/*
 * Reads the command line.  Returns true to go on; else *exit_status is what to
 * end with, and everything (help, version, the one line of a mistake) has been
 * said.
 */
bool tpinfo_parse(int argc, char **argv, struct tpinfo_options *options,
                  int *exit_status);

/* Puts every backend of this build on the card: tried on this machine, or for
 * a recorded one (`assume`, with its NICs on the card) taken to work, but for
 * RDMA without a device. */
void tpinfo_backends(const struct tpb_settings *settings, bool assume,
                     struct tpt_card *card);

/* What each backend of the card would go over here, in words; nothing where
 * there is nothing to add.  Loads libraries; `carriers` is zeros before. */
struct tpinfo_carriers {
    struct tpb_text text[TPT_BACKENDS];
    const char *words[TPT_BACKENDS];       /* the same; NULL for "" */
};
void tpinfo_carriers(const struct tpb_settings *settings,
                     const struct tpt_card *card,
                     struct tpinfo_carriers *carriers);
void tpinfo_carriers_fini(struct tpinfo_carriers *carriers);

/* The GPUs that a process started here would see, onto the card. */
void tpinfo_gpus(const struct tpb_settings *settings,
                 struct tpt_topology *topology, struct tpt_card *card);

/* Model and measurement of every backend, side by side; appended to *text. */
void tpinfo_costs(const struct tpt_card *card,
                  const struct tpb_settings *settings, struct tpb_text *text);

/* The sections for people; appended to *text. */
void tpinfo_show(unsigned show, const struct tpt_card *card,
                 struct tpt_topology *topology,
                 const struct tpb_settings *settings, struct tpb_text *text);

/*
 * Predicts the candidates of two ranks, for each way in which they can lie to
 * each other: on the machine of `card`, or on the recorded ones of
 * options->topo.  Appends to *text, as JSON if asked for.
 */
tp_status tpinfo_plan(const struct tpinfo_options *options,
                      const struct tpt_card *card,
                      struct tpt_topology *topology,
                      const struct tpb_settings *settings,
                      struct tpb_text *text, struct tpb_error *error);

/*
 * The same for options->ranks ranks, bound as tprun binds them, dealt out in
 * blocks to this machine or to the recorded ones.  Pairs that are connected in
 * the same way are one plan.
 */
tp_status tpinfo_plan_job(const struct tpinfo_options *options,
                          const struct tpt_card *card,
                          struct tpt_topology *topology,
                          const struct tpb_settings *settings,
                          struct tpb_text *text, struct tpb_error *error);

/* A recorded machine's card: its name from the file's, and `host` tells it from
 * others. */
void tpinfo_recorded(struct tpt_card *card, const char *path,
                     struct tpt_topology *topology, uint8_t host,
                     const struct tpb_settings *settings);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* How long a caller that waits polls: by how long the last ones did. */
#include "config.h"

#include <sched.h>
#include <unistd.h>

#include "runtime/base/base.h"
#include "runtime/base/io.h"
#include "runtime/patience.h"

enum {
    PATIENCE_OFFER_NS = 50000,
    PATIENCE_TAKEN_NS = 100000,    /* by others, if a yield takes that long */
    PATIENCE_SPARE = 2,            /* times what would have been enough */
    PATIENCE_BRIEF_NS = 50000,     /* in any case: a sleep costs as much */
    PATIENCE_LOOK_NS = 100000000,  /* at the group, so often, and ... */
    PATIENCE_STOOD = 8             /* ... it stands too much from that part of
                                      the time on */
};

#define PATIENCE_SPELL_NS UINT64_C(1000000000)
#define PATIENCE_SPELL_MOST_NS UINT64_C(64000000000)

void tpr_patience_init(struct tpr_patience *patience, uint64_t least,
                       uint64_t most)
{
    *patience = (struct tpr_patience){ .least = least, .most = most,
                                       .budget = least,
                                       .statistics = -1, .cpus = 1 };
}

void tpr_patience_watch(struct tpr_patience *patience, int statistics,
                        uint64_t cpus)
{
    patience->statistics = statistics;
    patience->cpus = cpus;
}

void tpr_patience_fini(struct tpr_patience *patience)
{
    tpb_close(&patience->statistics);
}

uint64_t tpr_patience_parse(const char *statistics)
{
    uint64_t stood = 0;

    if (!tpb_text_number(statistics, "throttled_time ", &stood)
        && tpb_text_number(statistics, "throttled_usec ", &stood))
        stood *= 1000;
    return stood;
}

/*
 * Once a spell is over, all is as before until the group stands too much again:
 * then the next one is twice as long.  A program that needs more than there is,
 * whatever we do, is not tried.
 */
void tpr_patience_stood(struct tpr_patience *patience, uint64_t now,
                        uint64_t stood)
{
    bool much = patience->looked > 0
                && stood > patience->stood
                && (stood - patience->stood) / patience->cpus
                   > (now - patience->looked) / PATIENCE_STOOD;

    patience->looked = now;
    patience->stood = stood;
    if (!much)
        return;
    if (now < patience->frugal) {
        patience->frugal = now + patience->spell;
        return;
    }
    patience->spell = patience->spell == 0 ? PATIENCE_SPELL_NS
                      : 2 * patience->spell;
    if (patience->spell > PATIENCE_SPELL_MOST_NS)
        patience->spell = PATIENCE_SPELL_MOST_NS;
    patience->frugal = now + patience->spell;
}

/* No error: then it has not stood. */
static void patience_look(struct tpr_patience *patience, uint64_t now)
{
    char text[1024];
    ssize_t got = pread(patience->statistics, text, sizeof(text) - 1, 0);

    text[got > 0 ? got : 0] = '\0';
    tpr_patience_stood(patience, now, tpr_patience_parse(text));
}

bool tpr_patience_affords(struct tpr_patience *patience, uint64_t waited,
                          uint64_t now)
{
    if (TPB_LIKELY(patience->statistics < 0) || waited < PATIENCE_BRIEF_NS)
        return true;
    if (now - patience->looked >= PATIENCE_LOOK_NS)
        patience_look(patience, now);
    return now >= patience->frugal;
}

bool tpr_patience_lasts(struct tpr_patience *patience, uint64_t waited,
                        uint64_t now)
{
    if (waited >= patience->budget)
        return false;
    if (now - patience->offered < PATIENCE_OFFER_NS)
        return true;
    sched_yield();
    patience->offered = tpb_now();
    if (patience->offered - now < PATIENCE_TAKEN_NS)
        return true;
    patience->budget = patience->least;
    return false;
}

void tpr_patience_vain(struct tpr_patience *patience, uint64_t waited)
{
    if (waited >= patience->least)
        patience->budget = patience->least;
}

void tpr_patience_slept(struct tpr_patience *patience, uint64_t waited)
{
    uint64_t enough = PATIENCE_SPARE * waited;

    if (waited > patience->most)
        patience->budget = patience->least;
    else if (enough > patience->budget)
        patience->budget = enough < patience->most ? enough : patience->most;
}

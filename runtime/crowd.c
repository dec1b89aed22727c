/* SPDX-License-Identifier: BSD-3-Clause */
/* See crowd.h. */
#include "config.h"

#include <unistd.h>

#include "runtime/base/base.h"
#include "runtime/crowd.h"

enum {
    CROWD_TOGETHER = 96,           /* looks before the first yield, while the
                                      answers come within these, at least */
    CROWD_TIMED = 32,              /* from this one to that they are timed */
    CROWD_LOOKS_MOST = 4096,       /* where switches are dear */
    CROWD_GROWTH = 64,             /* how soon a longer yield to nobody is
                                      believed */
    CROWD_TRUST = 256,             /* answers that did, at most; and ... */
    CROWD_LATE = 32,               /* ... what one that did not costs */
    CROWD_APART = 256,             /* waits without them, at most */
    CROWD_LINGER = 40,             /* looks after each yield, while who is
                                      waited for has something to do, at least
                                      ... */
    CROWD_WORTH = 16,              /* ... but not where that is mostly in vain,
                                      by a count up to this, either way: then
                                      once in ... */
    CROWD_SELDOM = 8,              /* ... so many turns; as a yield takes longer
                                      than the looks, one that was right ... */
    CROWD_FOUND = 3,               /* ... counts as much as so many others */
    CROWD_LONG_DEAR = 40 * 1024,   /* bytes of a long message where ... */
    CROWD_CALL_NS = 500,           /* ... a system call takes longer than that,
                                      and so does a switch */
    CROWD_CALLS = 4,               /* of which the quickest tells */
    CROWD_LONG = 8,                /* waits that a long message counts for */
    CROWD_LONGS_MOST = 256,        /* half of them, and they are what counts */
    CROWD_LONGS_LEAST = 32,        /* and here no more */
    CROWD_FEW = 2,                 /* ranks per cpu */
    CROWD_STAYS = 10,              /* looks after a yield, at least */
    CROWD_YIELD_NS = 100000,       /* a longer yield was to strangers, where a
                                      rank's turn takes ... */
    CROWD_TURN_NS = 8000,          /* ... no more than this ... */
    CROWD_STRANGERS = 256,         /* ... and so many waits do without */
    CROWD_BUDGET_NS = 2000,        /* they poll for so long */
    CROWD_EARNED_NS = 50000,       /* what longer ones may take: so much more
                                      with each wait, ... */
    CROWD_BRIEF_NS = 20000,        /* turns as short as this are timed ... */
    CROWD_UNTIMED = 6,             /* ... two of so many more */
    CROWD_SHARE = 2,               /* ... so many times what we had the cpu for,
                                      for each rank that shares it, and ... */
    CROWD_SLICE_NS = 4000000,      /* ... so much for each rank that shares the
                                      cpu, but at least ... */
    CROWD_ENOUGH_NS = 16000000,
    CROWD_MEET_NS = 200000000,     /* so long may turns take in which others
                                      connect, too */
    CROWD_SETTLE_NS = 5000000,     /* looks whether this is home, at first */
    CROWD_SETTLE_MOST_NS = 1000000000
};

/* The index-th of these. */
static int crowd_cpu(const cpu_set_t *own, int index)
{
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, own) && index-- == 0)
            return cpu;
    return -1;
}

/*
 * Neighbours are who talks most.  With short messages they get different cpus:
 * two that both run need no switch at all.  With long ones they get the same
 * one, if they can: what the other has just written is in its caches, and the
 * copy takes longer than the switch.  Where it does not come out even the first
 * cpu has one rank less than others: of a star rank 0 is mostly the middle.
 */
static void crowd_homes(struct tpr_crowd *crowd, int local_rank, int local_size,
                        const cpu_set_t *own)
{
    int count = CPU_COUNT(own), column;

    crowd->home = crowd->apart_home = crowd->beside_home = -1;
    if (count < 2)
        return;
    column = local_rank % count;
    if (local_rank >= count && local_rank - column + count > local_size)
        column = count - 1 - column;
    crowd->home = crowd->apart_home = crowd_cpu(own, column);
    column = (int)(((int64_t)local_rank * count + count - 1) / local_size);
    crowd->beside_home = crowd_cpu(own, column);
}

static void crowd_count(struct tpr_crowd *crowd, bool counting)
{
    if (crowd->counting == counting)
        return;
    crowd->counting = counting;
    crowd->home = counting ? crowd->beside_home : crowd->apart_home;
    crowd->settled = 0;
    crowd->away = CROWD_SETTLE_NS;
    crowd->untimed = 0;
    if (crowd->mine != NULL && !counting)
        atomic_store_explicit(&crowd->mine->place, 0, memory_order_relaxed);
}

/*
 * A copy of some KiB out of the other cpu's caches takes as long as a switch
 * where that is quick; where system calls are dear, as in some virtual
 * machines, of some more.
 */
static uint64_t crowd_long_least(void)
{
    uint64_t quickest = UINT64_MAX;

    for (int i = 0; i < CROWD_CALLS; i++) {
        uint64_t before = tpb_now(), took;

        (void)getppid();
        took = tpb_now() - before;
        if (took < quickest)
            quickest = took;
    }
    /* One of two, for neighbours have to agree. */
    return quickest <= CROWD_CALL_NS ? TPR_CROWD_LONG : CROWD_LONG_DEAR;
}

bool tpr_crowd_copied(struct tpr_crowd *crowd, uint64_t bytes)
{
    if (bytes < crowd->long_least)
        return false;
    if (crowd->longs < CROWD_LONGS_MOST)
        crowd->longs += CROWD_LONG;
    if (crowd->longs >= CROWD_LONGS_MOST / 2)
        crowd_count(crowd, true);
    return true;
}

void tpr_crowd_init(struct tpr_crowd *crowd, int local_rank, int local_size,
                    int cpus, const cpu_set_t *own)
{
    int ranks = (local_size + cpus - 1) / cpus;

    *crowd = (struct tpr_crowd){ .enough = CROWD_ENOUGH_NS,
                                 .away = CROWD_SETTLE_NS,
                                 .long_least = ranks > 1 ? crowd_long_least()
                                               : TPR_CROWD_LONG,
                                 .empty = CROWD_YIELD_NS,
                                 .together = CROWD_TOGETHER,
                                 .lingers = CROWD_LINGER };
    tpr_queue_init(&crowd->queue, ranks, (uint32_t)local_rank + 1);
    tpr_beside_init(&crowd->beside);
    crowd_homes(crowd, local_rank, local_size, own);
    if ((uint64_t)ranks * CROWD_SLICE_NS > crowd->enough)
        crowd->enough = (uint64_t)ranks * CROWD_SLICE_NS;
    /* Of two ranks per cpu the one that gets it back is likely to be the next
     * to be written to, by one who runs on another cpu just now.  Of more it
     * is likely to be another. */
    if (ranks <= CROWD_FEW)
        crowd->stays = CROWD_STAYS;
}

/* From now on turns take no longer than usual. */
static void crowd_met(struct tpr_crowd *crowd)
{
    crowd->meeting = false;
    if (crowd->patience > crowd->enough)
        crowd->patience = crowd->enough;
}

void tpr_crowd_meet(struct tpr_crowd *crowd, bool meeting)
{
    if (!meeting) {
        crowd_met(crowd);
        return;
    }
    crowd->meeting = true;
    crowd->met = tpb_now() + CROWD_MEET_NS;
    crowd->strangers = 0;
    if (crowd->patience < CROWD_MEET_NS)
        crowd->patience = CROWD_MEET_NS;
}

void tpr_crowd_begin(struct tpr_crowd *crowd)
{
    if (TPB_UNLIKELY(crowd->gone))
        tpr_crowd_return(crowd);       /* another thread had left */
    crowd->stay = crowd->linger = crowd->first = 0;
    crowd->looked_on = false;
    crowd->timed = 0;
    if (crowd->strangers > 0)
        crowd->strangers--;
    /* Who does not answer for so long is not there. */
    if (TPB_UNLIKELY(crowd->meeting) && tpb_now() > crowd->met)
        crowd_met(crowd);
}

/*
 * Of two ranks per cpu there is one that can have it next, whoever is waited
 * for: then it does not pay to look, but where it reads long messages.
 */
static bool crowd_looks(const struct tpr_crowd *crowd)
{
    return crowd->queue.ranks > CROWD_FEW || crowd->counting;
}

/* Times the looks of a wait that finds nothing, the quickest lately: what comes
 * between two of them is not theirs. */
static void crowd_time(struct tpr_crowd *crowd, uint32_t turn)
{
    uint64_t now, look;

    if (TPB_LIKELY(turn != CROWD_TIMED && turn != CROWD_TOGETHER))
        return;
    now = tpb_now();
    if (turn == CROWD_TIMED) {
        crowd->timed = now;
    } else if (crowd->timed > 0) {
        look = (now - crowd->timed) / (CROWD_TOGETHER - CROWD_TIMED) + 1;
        if (crowd->look > 0 && look > crowd->look)
            look = crowd->look + 1;
        crowd->look = look;
        crowd->timed = 0;
    }
}

static uint32_t crowd_number(const struct tpr_crowd *crowd, uint64_t ns,
                             uint32_t least)
{
    uint64_t looks = ns / crowd->look;

    return looks < least ? least
           : looks < CROWD_LOOKS_MOST ? (uint32_t)looks : CROWD_LOOKS_MOST;
}

/*
 * How long it pays to look depends on what a switch costs: 0.8 us on one
 * machine, 5.5 on another.  Who looks before its first yield for as long as
 * half a round of those that share the cpu takes finds the other there again
 * after each time slice, and then both stay.
 */
static void crowd_numbers(struct tpr_crowd *crowd, uint64_t took)
{
    uint64_t round = crowd->round;

    /* The quickest are those that nobody else had the cpu in. */
    crowd->empty += crowd->empty / CROWD_GROWTH + 1;
    if (took < crowd->empty)
        crowd->empty = took;
    if (took < 2 * crowd->empty)
        return;
    /* About the median: some are to many messages. */
    if (took > round)
        round += round > 0 ? round / 8 + 1 : took;
    else
        round -= round / 8;
    crowd->round = round;
    if (crowd->look == 0)
        return;
    crowd->together = crowd_number(crowd, round / 2, CROWD_TOGETHER);
    round /= crowd->queue.ranks;
    crowd->lingers = crowd_number(crowd, round / 2, CROWD_LINGER);
    if (crowd->stays > 0)
        crowd->stays = crowd_number(crowd, round / 8, CROWD_STAYS);
}

/*
 * Who answers may have the other cpu just now: then it does many times before
 * either loses its own, if neither gives it away.  So the first looks of a wait
 * do without a yield; but where nothing comes within these, later waits yield
 * at once, for a while.  Not so after many quick answers: one of the two has
 * just lost its cpu then, and they find each other again.
 */
static bool crowd_stays(struct tpr_crowd *crowd, uint32_t turn,
                        const struct tpb_presence *theirs)
{
    if (!crowd_looks(crowd))
        theirs = NULL;
    if (theirs != NULL && !tpb_presence_busy(theirs))
        return false;
    if (turn <= crowd->together && crowd->apart == 0) {
        crowd_time(crowd, turn);
        return true;
    }
    if (theirs == NULL && crowd->stay > 0) {
        crowd->stay--;
        return true;
    }
    if (theirs == NULL || crowd->linger == 0)
        return false;
    crowd->linger--;
    crowd->looked_on = true;
    return true;
}

/*
 * Was it right to look on after the last yield?  Not if the next one came all
 * the same: then others of this cpu had to wait for it.  Where one answers many
 * each learns his own part: who is the last one to ask finds the answer, the
 * others do not.
 */
static void crowd_judge(struct tpr_crowd *crowd, bool found)
{
    if (!crowd->looked_on)
        return;
    crowd->looked_on = false;
    crowd->worth += found ? CROWD_FOUND : -1;
    if (crowd->worth > CROWD_WORTH)
        crowd->worth = CROWD_WORTH;
    else if (crowd->worth < -CROWD_WORTH)
        crowd->worth = -CROWD_WORTH;
}

bool tpr_crowd_apart(const struct tpr_crowd *crowd)
{
    return crowd->apart > 0 && crowd->strangers == 0 && !crowd_looks(crowd);
}

bool tpr_crowd_stays(struct tpr_crowd *crowd, uint32_t turn, bool beside,
                     const struct tpb_presence *theirs)
{
    bool stays = !beside && crowd_stays(crowd, turn, theirs);

    if (stays)
        return true;
    crowd_judge(crowd, false);
    if (crowd->first == 0)
        crowd->first = beside ? 1 : turn;
    return false;
}

void tpr_crowd_end(struct tpr_crowd *crowd, uint32_t turn)
{
    bool late;

    /* One that did without a yield says nothing of others. */
    if (crowd->patience < crowd->enough && crowd->strangers == 0)
        crowd->patience += CROWD_EARNED_NS;
    if (crowd->longs > 0 && --crowd->longs < CROWD_LONGS_LEAST)
        crowd_count(crowd, false);
    /* Who was waited for gave his cpu away meanwhile, or took too long. */
    late = crowd->first > 1 || turn > crowd->together;
    crowd_judge(crowd, true);
    if (crowd->apart > 0) {
        crowd->apart--;
    } else if (crowd->first == 1) {
        /* He had none: that says nothing. */
    } else if (late && crowd->trust >= CROWD_LATE) {
        crowd->trust -= CROWD_LATE;
    } else if (late) {
        crowd->apart_next = crowd->apart_next < CROWD_APART / 2
                            ? 2 * crowd->apart_next + 1 : CROWD_APART;
        crowd->apart = crowd->apart_next;
    } else if (turn > 1) {
        /* Where one of three is late, as of those that talk to several, the
         * looks for it cost more than the two yields that were saved. */
        if (crowd->trust >= CROWD_LATE)
            crowd->apart_next /= 2;
        crowd->trust += crowd->trust < CROWD_TRUST;
    }
    crowd->first = 0;
}

uint64_t tpr_crowd_budget(const struct tpr_crowd *crowd, uint64_t budget)
{
    bool brief = crowd->strangers > 0 || crowd->meeting;

    return brief && budget > CROWD_BUDGET_NS ? CROWD_BUDGET_NS : budget;
}

static uint64_t crowd_long(const struct tpr_crowd *crowd)
{
    return CROWD_YIELD_NS + (uint64_t)crowd->queue.ranks * CROWD_TURN_NS;
}

/* What was ours since the last yield, the others may have as well. */
static void crowd_earn(struct tpr_crowd *crowd, uint64_t own)
{
    uint64_t most = crowd->enough / crowd->queue.ranks / CROWD_SHARE;

    if (crowd->patience >= crowd->enough)
        return;
    crowd->patience += (own < most ? own : most) * crowd->queue.ranks
                       * CROWD_SHARE;
    if (crowd->patience > crowd->enough)
        crowd->patience = crowd->enough;
}

/*
 * If the cpu is long in coming back time after time, strangers have it, and
 * whoever yields to those gets nothing done: then it is better to sleep, and to
 * be woken, for a while.  Two ranks that keep each other busy have it for a
 * time slice, too, but before and after that others get thousands of turns, or
 * one that is as long.
 */
static void crowd_yielded(struct tpr_crowd *crowd, uint64_t took)
{
    if (took <= crowd_long(crowd))
        return;
    if (took <= crowd->patience) {
        crowd->patience -= took;
    } else {
        crowd->patience = 0;
        crowd->strangers = CROWD_STRANGERS;
    }
}

void tpr_crowd_leave(struct tpr_crowd *crowd)
{
    struct tpb_presence *mine = crowd->mine;

    if (mine == NULL || !crowd_looks(crowd))
        return;
    crowd->gone = true;
    atomic_store_explicit(&mine->told, 0, memory_order_relaxed);
    /* Who sees us gone may tell. */
    atomic_store_explicit(&mine->place, 2 * tpb_presence_cpu(),
                          memory_order_release);
}

void tpr_crowd_return(struct tpr_crowd *crowd)
{
    crowd->returned = 0;
    crowd->gone = false;
    if (crowd->mine != NULL && crowd_looks(crowd))
        atomic_store_explicit(&crowd->mine->place, tpb_presence_here(),
                              memory_order_relaxed);
}

/*
 * A turn begins at `now`: what waited for it, and for how long?  Where
 * neighbours are to be on one cpu the way from another says nothing of the
 * order that is right here.
 */
static void crowd_turn(struct tpr_crowd *crowd, uint64_t now, uint64_t took)
{
    uint64_t told = 0;

    if (took > crowd_long(crowd))
        return;
    if (crowd->mine != NULL && crowd_looks(crowd))
        told = atomic_load_explicit(&crowd->mine->told, memory_order_acquire);
    if (told >= now
        || (told > 0 && crowd->home != crowd->apart_home
            && atomic_load_explicit(&crowd->mine->teller, memory_order_relaxed)
               != tpb_presence_cpu()))
        told = 0;
    tpr_queue_turn(&crowd->queue, took, told > 0 ? now - told : 0);
    crowd_numbers(crowd, took);
}

static void crowd_back(struct tpr_crowd *crowd)
{
    crowd->stay = crowd->stays;
    crowd->linger = crowd->worth >= 0 || crowd->turns++ % CROWD_SELDOM == 0
                    ? crowd->lingers : 0;
}

/* The clock is a fifth of what a rank does in a turn that is as short as can
 * be.  Two yields after each other tell how long both were away, and what is
 * done in between.  While there may be strangers each is timed. */
static void crowd_sample(struct tpr_crowd *crowd, uint64_t own, uint64_t took)
{
    bool brief = took <= CROWD_BRIEF_NS && own <= CROWD_BRIEF_NS
                 && crowd->patience >= crowd->enough && !crowd_looks(crowd);

    crowd->untimed = brief && own > 0 ? CROWD_UNTIMED : 0;
}

bool tpr_crowd_untimed(struct tpr_crowd *crowd)
{
    if (crowd->untimed == 0)
        return false;
    crowd->untimed--;
    tpr_queue_yield(&crowd->queue);
    crowd->returned = 0;
    crowd_back(crowd);
    return true;
}

uint64_t tpr_crowd_yield(struct tpr_crowd *crowd, uint64_t now)
{
    uint64_t after, own = 0;

    if (crowd->strangers > 0 || crowd->meeting) {
        tpb_pause();
        return tpb_now();
    }
    if (now - crowd->settled >= crowd->away)
        tpr_crowd_settle(crowd, now);
    if (crowd->returned > 0 && now > crowd->returned) {
        own = now - crowd->returned;
        crowd_earn(crowd, own);
    }
    tpr_crowd_leave(crowd);
    tpr_queue_yield(&crowd->queue);
    tpr_crowd_return(crowd);
    crowd->returned = after = tpb_now();
    crowd_yielded(crowd, after - now);
    crowd_turn(crowd, after, after - now);
    crowd_sample(crowd, own, after - now);
    crowd_back(crowd);
    return after;
}

/* Has the kernel move the calling thread to one of `to`, of which it may be
 * moved to all its `own` again. */
static void crowd_move(cpu_set_t *own, const cpu_set_t *to)
{
    if (sched_setaffinity(0, sizeof(*to), to) != 0
        || sched_setaffinity(0, sizeof(*own), own) == 0)
        return;
    /* Its cgroup has lost all of these cpus but those meanwhile: let the kernel
     * choose. */
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        CPU_SET(cpu, own);
    sched_setaffinity(0, sizeof(*own), own);
}

/* The kernel leaves ranks that never sleep where they are as long as each cpu
 * has as many as the next one: it does not know who talks to whom. */
void tpr_crowd_settle(struct tpr_crowd *crowd, uint64_t now)
{
    cpu_set_t own, home;

    crowd->settled = now;
    if (crowd->home < 0)
        return;
    if (sched_getcpu() == crowd->home) {
        if (crowd->away > CROWD_SETTLE_NS)
            crowd->away /= 2;
        return;
    }
    if (crowd->away < CROWD_SETTLE_MOST_NS)
        crowd->away *= 2;
    if (sched_getaffinity(0, sizeof(own), &own) != 0
        || !CPU_ISSET(crowd->home, &own))
        return;
    CPU_ZERO(&home);
    CPU_SET(crowd->home, &home);
    crowd_move(&own, &home);
}

void tpr_crowd_part(int cpu)
{
    cpu_set_t own, others;

    if (sched_getaffinity(0, sizeof(own), &own) != 0 || CPU_COUNT(&own) < 2)
        return;
    others = own;
    CPU_CLR(cpu, &others);
    crowd_move(&own, &others);
}

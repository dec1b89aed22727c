/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Faults that are planted here on purpose, to see that the tests find them.
 * Only tests/gpu/test_mutants and spmd_mutant are built with them; elsewhere
 * each is the constant false.
 */
#ifndef TPG_MUTANTS_H
#define TPG_MUTANTS_H

#ifdef TPX_MUTANTS
enum tpg_mutant {
    TPG_MUTANT_NONE,
    TPG_MUTANT_NO_STREAM_WAIT,     /* users' streams are not waited for */
    TPG_MUTANT_WRONG_STREAM,       /* ... but another one is */
    TPG_MUTANT_NO_JOIN,            /* a reader's stream does not wait for us */
    TPG_MUTANT_NO_SLOT_WAIT,       /* a slot is sent before it is full */
    TPG_MUTANT_SLOT_TWICE,         /* ... or filled before it is empty */
    TPG_MUTANT_NO_FLAG_WAIT,       /* a pull is over when it begins */
    TPG_MUTANT_NO_BOX_WAIT,        /* an outbox is offered while it is filled */
    TPG_MUTANT_STALE_EXPORT,       /* caches are keyed by address */
    TPG_MUTANT_STALE_IMPORT,
    TPG_MUTANT_NO_PUSH,            /* the context is not made current */
    TPG_MUTANT_NO_CALM,            /* captures of others are broken */
    TPG_MUTANT_THREAD_STREAM,      /* a thread's own stream is joined by ours */
    TPG_MUTANT_NO_FORGET,          /* importers are never told: harmless */
    TPG_MUTANTS,
    /* Those that need an RDMA device: tests/hosts/guest_gdr.sh has them. */
    TPG_MUTANT_GDR_ADDRESS,        /* registrations are kept by address */
    TPG_MUTANT_GDR_NO_FLUSH,       /* what a NIC wrote is not flushed */
    TPG_MUTANT_GDR_NO_TRIAL,       /* what the trial brought is not compared */
    TPG_MUTANT_GDR_NO_SYNC         /* synchronous copies are not made so */
};
extern int tpg_mutant;
#define TPG_MUTANT(name) (tpg_mutant == TPG_MUTANT_##name)
#else
#define TPG_MUTANT(name) false
#endif

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * libpmix, loaded when it is first needed.  Linked, it would be two thirds of
 * what a rank of tprun costs to start, and that one does without it.  For the
 * bootstrap's PMIx files, instead of pmix.h.
 */
#ifndef TPR_BOOTSTRAP_LIBPMIX_H
#define TPR_BOOTSTRAP_LIBPMIX_H

#include <pmix.h>

#include "runtime/base/base.h"

/* In the order of the names in bootstrap_libpmix.c. */
struct tpr_pmix_calls {
    __typeof__(PMIx_Abort) *abort;
    __typeof__(PMIx_Commit) *commit;
    __typeof__(PMIx_Error_string) *error_string;
    __typeof__(PMIx_Finalize) *finalize;
    __typeof__(PMIx_Get) *get;
    __typeof__(PMIx_Get_nb) *get_nb;
    __typeof__(PMIx_Get_version) *get_version;
    __typeof__(PMIx_Info_load) *info_load;
    __typeof__(PMIx_Init) *init;
    __typeof__(PMIx_Initialized) *initialized;
    __typeof__(PMIx_Lookup_nb) *lookup_nb;
    __typeof__(PMIx_Publish_nb) *publish_nb;
    __typeof__(PMIx_Put) *put;
    __typeof__(PMIx_Register_event_handler) *register_event_handler;
    __typeof__(PMIx_Value_destruct) *value_destruct;
    __typeof__(PMIx_Value_load) *value_load;
};
extern struct tpr_pmix_calls tpr_pmix;

/* Once per process, and again if that failed.  BACKEND: there is none, or it
 * lacks something; the words say which.  No function may be called before. */
tp_status tpr_pmix_load(struct tpb_error *error);

/* Also inside pmix.h's own macros. */
#define PMIx_Abort tpr_pmix.abort
#define PMIx_Commit tpr_pmix.commit
#define PMIx_Error_string tpr_pmix.error_string
#define PMIx_Finalize tpr_pmix.finalize
#define PMIx_Get tpr_pmix.get
#define PMIx_Get_nb tpr_pmix.get_nb
#define PMIx_Get_version tpr_pmix.get_version
#define PMIx_Info_load tpr_pmix.info_load
#define PMIx_Init tpr_pmix.init
#define PMIx_Initialized tpr_pmix.initialized
#define PMIx_Lookup_nb tpr_pmix.lookup_nb
#define PMIx_Publish_nb tpr_pmix.publish_nb
#define PMIx_Put tpr_pmix.put
#define PMIx_Register_event_handler tpr_pmix.register_event_handler
#define PMIx_Value_destruct tpr_pmix.value_destruct
#define PMIx_Value_load tpr_pmix.value_load

/*
 * Most macros of pmix.h call functions of the library since 4.2.3, and none
 * before.  What must work with either is here instead, and tests/lint knows
 * which macros are left.
 */
static inline pmix_proc_t tpr_pmix_proc(const pmix_proc_t *same_job,
                                        pmix_rank_t rank)
{
    pmix_proc_t proc = *same_job;

    proc.rank = rank;
    return proc;
}

/* A job without a name is any. */
static inline bool tpr_pmix_same_job(const pmix_proc_t *one,
                                     const pmix_proc_t *other)
{
    return one->nspace[0] == '\0' || other->nspace[0] == '\0'
           || strncmp(one->nspace, other->nspace, PMIX_MAX_NSLEN) == 0;
}

#endif

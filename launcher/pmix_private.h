/* SPDX-License-Identifier: BSD-3-Clause */
/* What the launcher's pmix files share. */
#ifndef TPL_PMIX_PRIVATE_H
#define TPL_PMIX_PRIVATE_H

/* pmix_server.h alone lacks half of what it needs. */
#include <pmix.h>
#include <pmix_server.h>

#include "launcher/pmix_server.h"

/*
 * Upcalls that wait for the main thread.  `run` is called there, and owns the
 * memory from then on; it ends with free(call).
 */
struct tpl_pmix_call {
    struct tpb_list node;
    void (*run)(struct tpl_pmix_call *call);
};
/* From any thread. */
void tpl_pmix_queue(struct tpl_pmix_call *call);

/* From any thread: queues what a rank did, for tpl_pmix_watch()'s function;
 * false if it is not one of ours. */
bool tpl_pmix_report(const pmix_proc_t *proc, enum tpl_pmix_what what,
                     int status, const char *reason);

/* The job's description for PMIx_server_register_nspace(); the caller
 * destructs the array. */
pmix_status_t tpl_pmix_job_info(const char *job, const char *host,
                            const struct tpl_options *options,
                            const struct tpt_bind_plan *plan,
                            pmix_data_array_t *info);

/* The upcalls of publish, lookup and unpublish. */
pmix_status_t tpl_pmix_publish_up(const pmix_proc_t *proc,
                              const pmix_info_t info[], size_t count,
                              pmix_op_cbfunc_t done, void *arg);
pmix_status_t tpl_pmix_lookup_up(const pmix_proc_t *proc, char **keys,
                             const pmix_info_t info[], size_t count,
                             pmix_lookup_cbfunc_t done, void *arg);
pmix_status_t tpl_pmix_unpublish_up(const pmix_proc_t *proc, char **keys,
                                const pmix_info_t info[], size_t count,
                                pmix_op_cbfunc_t done, void *arg);

/* Main thread: the loop whose timers limit lookups that wait. */
void tpl_pmix_publish_watch(struct tpl_loop *loop);

/* Main thread: this rank has ended; what it published for its lifetime goes,
 * and lookups of its own are forgotten. */
void tpl_pmix_publish_ended(int rank);

#endif

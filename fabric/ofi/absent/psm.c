/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Stands in for libpsm_infinipath, or, compiled with ABSENT_PSM2, for libpsm2,
 * on machines without such a card (../quick.c): it has all of their functions,
 * and each says so.  Who else in the process asks for that library, as Open MPI
 * may, gets this one, and hears the same.
 */
enum { ABSENT_NO_DEVICE = 21 };    /* PSM_EP_NO_DEVICE, PSM2_EP_NO_DEVICE */

#ifdef ABSENT_PSM2
#define ABSENT_NAME(name) psm2_##name
#else
#define ABSENT_NAME(name) psm_##name
#endif

/* The ABI of C lets a caller pass more than the function looks at. */
#define ABSENT_ERROR(name) \
    int ABSENT_NAME(name)(void); \
    int ABSENT_NAME(name)(void) { return ABSENT_NO_DEVICE; }
#define ABSENT_NONE(name) \
    unsigned long long ABSENT_NAME(name)(void); \
    unsigned long long ABSENT_NAME(name)(void) { return 0; }
#define ABSENT_NULL(name) \
    void *ABSENT_NAME(name)(void); \
    void *ABSENT_NAME(name)(void) { return (void *)0; }
#define ABSENT_NOTHING(name) \
    void ABSENT_NAME(name)(void); \
    void ABSENT_NAME(name)(void) { }

const char *ABSENT_NAME(error_get_string)(void);
const char *ABSENT_NAME(error_get_string)(void)
{
    return "no such device";
}

ABSENT_ERROR(am_get_parameters)
ABSENT_ERROR(am_register_handlers)
ABSENT_ERROR(am_reply_short)
ABSENT_ERROR(am_request_short)
ABSENT_ERROR(ep_close)
ABSENT_ERROR(ep_connect)
ABSENT_ERROR(ep_epid_lookup)
ABSENT_ERROR(ep_epid_share_memory)
ABSENT_ERROR(ep_num_devunits)
ABSENT_ERROR(ep_open)
ABSENT_ERROR(ep_open_opts_get_defaults)
ABSENT_ERROR(ep_query)
ABSENT_NULL(epaddr_getctxt)
ABSENT_NOTHING(epaddr_setctxt)
ABSENT_NOTHING(epaddr_setlabel)
ABSENT_NONE(epid_context)
ABSENT_NONE(epid_nid)
ABSENT_NONE(epid_port)
ABSENT_ERROR(error_defer)
ABSENT_ERROR(error_register_handler)
ABSENT_ERROR(finalize)
ABSENT_ERROR(getopt)
ABSENT_ERROR(init)
ABSENT_ERROR(map_nid_hostname)
ABSENT_ERROR(mq_cancel)
ABSENT_ERROR(mq_finalize)
ABSENT_NOTHING(mq_get_stats)
ABSENT_ERROR(mq_getopt)
ABSENT_ERROR(mq_init)
ABSENT_ERROR(mq_ipeek)
ABSENT_ERROR(mq_iprobe)
ABSENT_ERROR(mq_irecv)
ABSENT_ERROR(mq_isend)
ABSENT_ERROR(mq_send)
ABSENT_ERROR(mq_setopt)
ABSENT_ERROR(mq_test)
ABSENT_ERROR(mq_wait)
ABSENT_ERROR(poll)
ABSENT_ERROR(setopt)
ABSENT_NOTHING(uuid_generate)

#ifdef ABSENT_PSM2
ABSENT_ERROR(am_get_source)
ABSENT_ERROR(am_register_handlers_2)
ABSENT_ERROR(am_unregister_handlers)
ABSENT_ERROR(ep_disconnect)
ABSENT_ERROR(ep_disconnect2)
ABSENT_ERROR(ep_epid_lookup2)
ABSENT_ERROR(epaddr_to_epid)
ABSENT_NONE(get_capability_mask)
ABSENT_ERROR(info_query)
ABSENT_ERROR(mq_fp_msg)
ABSENT_ERROR(mq_improbe)
ABSENT_ERROR(mq_improbe2)
ABSENT_ERROR(mq_imrecv)
ABSENT_ERROR(mq_ipeek2)
ABSENT_ERROR(mq_ipeek_dequeue)
ABSENT_ERROR(mq_ipeek_dequeue_multi)
ABSENT_ERROR(mq_iprobe2)
ABSENT_ERROR(mq_irecv2)
ABSENT_ERROR(mq_isend2)
ABSENT_ERROR(mq_req_free)
ABSENT_ERROR(mq_send2)
ABSENT_ERROR(mq_test2)
ABSENT_ERROR(mq_wait2)
#endif

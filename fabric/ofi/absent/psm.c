/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Stands in for libpsm_infinipath, or, compiled with ABSENT_PSM2, for libpsm2,
 * on machines without such a card (../quick.c): every function says so.  What
 * is here is what libfabric asks either for.
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
#define ABSENT_NULL(name) \
    void *ABSENT_NAME(name)(void); \
    void *ABSENT_NAME(name)(void) { return (void *)0; }
#define ABSENT_NOTHING(name) \
    void ABSENT_NAME(name)(void); \
    void ABSENT_NAME(name)(void) { }

ABSENT_ERROR(am_get_parameters)
ABSENT_ERROR(am_reply_short)
ABSENT_ERROR(am_request_short)
ABSENT_ERROR(ep_close)
ABSENT_ERROR(ep_connect)
ABSENT_ERROR(ep_open)
ABSENT_ERROR(ep_open_opts_get_defaults)
ABSENT_NULL(epaddr_getctxt)
ABSENT_NOTHING(epaddr_setctxt)
ABSENT_ERROR(error_register_handler)
ABSENT_ERROR(finalize)
ABSENT_ERROR(init)
ABSENT_ERROR(mq_cancel)
ABSENT_ERROR(mq_init)
ABSENT_ERROR(mq_ipeek)

const char *ABSENT_NAME(error_get_string)(int error);
const char *ABSENT_NAME(error_get_string)(int error)
{
    (void)error;
    return "no such device";
}

#ifdef ABSENT_PSM2

ABSENT_ERROR(am_get_source)
ABSENT_ERROR(am_register_handlers_2)
ABSENT_ERROR(ep_disconnect2)
ABSENT_ERROR(ep_epid_lookup2)
ABSENT_ERROR(ep_num_devunits)
ABSENT_ERROR(epaddr_to_epid)
ABSENT_ERROR(info_query)
ABSENT_ERROR(mq_improbe2)
ABSENT_ERROR(mq_imrecv)
ABSENT_ERROR(mq_iprobe2)
ABSENT_ERROR(mq_irecv2)
ABSENT_ERROR(mq_isend2)
ABSENT_ERROR(mq_send2)
ABSENT_ERROR(mq_test2)
ABSENT_ERROR(mq_wait2)
ABSENT_ERROR(poll)

/* Of what there is none of. */
unsigned long long psm2_get_capability_mask(unsigned long long asked);
unsigned long long psm2_get_capability_mask(unsigned long long asked)
{
    (void)asked;
    return 0;
}

#else

ABSENT_ERROR(am_register_handlers)
ABSENT_ERROR(ep_epid_lookup)
ABSENT_ERROR(ep_num_devunits)
ABSENT_ERROR(mq_finalize)
ABSENT_ERROR(mq_iprobe)
ABSENT_ERROR(mq_irecv)
ABSENT_ERROR(mq_isend)
ABSENT_ERROR(mq_send)
ABSENT_ERROR(mq_test)

#endif

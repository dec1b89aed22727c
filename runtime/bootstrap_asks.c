/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Ranks ask each other to call, through PMIx: see bootstrap_asks.h.
 *
 * A value is read once (PMIX_PERSIST_FIRST_READ), and the one who published it
 * is the one who asks.  If several wait to be read, libpmix 4.2 hands over the
 * first and empty ones: so whoever is not answered asks again.
 */
#include "config.h"

#include <pthread.h>
#include <stdio.h>

#include "runtime/base/alloc.h"
#include "runtime/base/log.h"
#include "runtime/bootstrap_asks.h"
#include "runtime/bootstrap_libpmix.h"
#include "runtime/core.h"

TPB_LOG_COMPONENT("pmix");

struct tpr_asks {
    struct tpb_list link;          /* in asks_all */
    tp_context *context;
    pmix_nspace_t space;
    int rank;
    unsigned number;
    bool listens;                  /* a lookup is under way, or is of no use */
    bool mute;                     /* the server knows no lookups */
};

/* Lookups are not ended: what comes of them finds its object by the number, or
 * does not.  The context is told under a lock of its own, since what it does
 * then may listen again, on the same thread. */
static pthread_mutex_t asks_calls = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t asks_lock = PTHREAD_MUTEX_INITIALIZER;
static struct tpb_list asks_all = { &asks_all, &asks_all };    /* asks_lock */

struct tpr_asks *tpr_asks_open(tp_context *context, const char *space,
                               int rank, unsigned number)
{
    struct tpr_asks *asks = tpb_zalloc(sizeof(*asks));

    if (asks == NULL)
        return NULL;
    asks->context = context;
    snprintf(asks->space, sizeof(asks->space), "%s", space);
    asks->rank = rank;
    asks->number = number;
    tpb_list_init(&asks->link);
    pthread_mutex_lock(&asks_lock);
    tpb_list_append(&asks_all, &asks->link);
    pthread_mutex_unlock(&asks_lock);
    return asks;
}

void tpr_asks_close(struct tpr_asks *asks)
{
    if (asks == NULL)
        return;
    pthread_mutex_lock(&asks_calls);
    pthread_mutex_lock(&asks_lock);
    tpb_list_unlink(&asks->link);
    pthread_mutex_unlock(&asks_lock);
    pthread_mutex_unlock(&asks_calls);
    tpb_free(asks);
}

/* Who is asked: a rank's k-th context by another's k-th. */
static void asks_key(const struct tpr_asks *asks, int rank, pmix_key_t key)
{
    snprintf(key, sizeof(pmix_key_t), "tp.ask.%s.%d.%u", asks->space, rank,
             asks->number);
}

/* ---- listening ---------------------------------------------------------- */

/* Whose lookup has ended, and may begin again; NULL: nobody's. */
static struct tpr_asks *asks_find(unsigned number, pmix_status_t code)
{
    struct tpr_asks *found = NULL;

    pthread_mutex_lock(&asks_lock);
    TPB_LIST_EACH(node, &asks_all) {
        struct tpr_asks *asks = TPB_CONTAINER(node, struct tpr_asks, link);

        if (asks->number == number && code == PMIX_SUCCESS) {
            asks->listens = false;
            found = asks;
        } else if (asks->number == number) {
            asks->mute |= code == PMIX_ERR_NOT_SUPPORTED;
        }
    }
    pthread_mutex_unlock(&asks_lock);
    return found;
}

/* On libpmix's thread. */
static void asks_heard(pmix_status_t code, pmix_pdata_t *data, size_t count,
                       void *arg)
{
    struct tpr_asks *asks;

    pthread_mutex_lock(&asks_calls);
    asks = asks_find((unsigned)(uintptr_t)arg, code);
    for (size_t i = 0; asks != NULL && i < count; i++)
        if (data[i].value.type == PMIX_UINT32)
            tpr_peer_asks(asks->context, (int)data[i].proc.rank,
                          data[i].value.data.uint32 != 0);
    pthread_mutex_unlock(&asks_calls);
    if (code != PMIX_SUCCESS)
        tpb_debug("nobody can ask this rank to call: %s",
                  PMIx_Error_string(code));
}

void tpr_asks_listen(struct tpr_asks *asks)
{
    int wait = 1;
    pmix_data_range_t range = PMIX_RANGE_SESSION;
    pmix_status_t code;
    pmix_info_t info[2];
    pmix_key_t key;
    char *keys[] = { key, NULL };
    bool listens;

    pthread_mutex_lock(&asks_lock);
    listens = asks->listens;
    asks->listens = true;
    pthread_mutex_unlock(&asks_lock);
    if (listens)
        return;
    asks_key(asks, asks->rank, key);
    PMIX_INFO_LOAD(&info[0], PMIX_WAIT, &wait, PMIX_INT);
    PMIX_INFO_LOAD(&info[1], PMIX_RANGE, &range, PMIX_DATA_RANGE);
    code = PMIx_Lookup_nb(keys, info, TPB_COUNT(info), asks_heard,
                          (void *)(uintptr_t)asks->number);
    if (code == PMIX_SUCCESS)
        return;
    asks_find(asks->number, code);
    tpb_debug("nobody can ask this rank to call: %s", PMIx_Error_string(code));
}

bool tpr_asks_mute(struct tpr_asks *asks)
{
    bool mute;

    pthread_mutex_lock(&asks_lock);
    mute = asks->mute;
    pthread_mutex_unlock(&asks_lock);
    return mute;
}

/* ---- asking ------------------------------------------------------------- */

static void asks_said(pmix_status_t code, void *arg)
{
    (void)arg;
    if (code != PMIX_SUCCESS)
        tpb_debug("a rank could not be asked to call: %s",
                  PMIx_Error_string(code));
}

void tpr_asks_say(struct tpr_asks *asks, int rank, bool gave_up)
{
    pmix_data_range_t range = PMIX_RANGE_SESSION;
    pmix_persistence_t persistence = PMIX_PERSIST_FIRST_READ;
    uint32_t value = gave_up;
    pmix_info_t info[3];
    pmix_key_t key;

    if (tpr_asks_mute(asks))
        return;
    asks_key(asks, rank, key);
    PMIX_INFO_LOAD(&info[0], key, &value, PMIX_UINT32);
    PMIX_INFO_LOAD(&info[1], PMIX_RANGE, &range, PMIX_DATA_RANGE);
    PMIX_INFO_LOAD(&info[2], PMIX_PERSISTENCE, &persistence, PMIX_PERSIST);
    asks_said(PMIx_Publish_nb(info, TPB_COUNT(info), asks_said, NULL), NULL);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Lines: connections for remote reads of device memory (remote.h).
 *
 * A read that fails puts the endpoint into its error state.  The line is closed
 * then, at once, since only a closed endpoint is known to write no more; every
 * fetch ends with the bytes that were there before.  Reads of one endpoint
 * complete in their order, so those bytes are a piece at the front.
 */
#include "config.h"

#include "fabric/ofi/line.h"
#include "runtime/base/alloc.h"
#include "runtime/base/io.h"

enum {
    LINE_CONNECT_MS = 5000,
    LINE_UNDER_WAY = 512,          /* reads of one remote: its queue has 1024 */
    LINE_COMPLETIONS = 16
};

TPB_LOG_COMPONENT("ofi");

/* ---- endpoints ----------------------------------------------------------- */

/* Never a copy of the payload by the CPU, whatever the provider prefers. */
static int line_endpoint(struct tpf_remote *remote, struct fi_info *info,
                         struct fid_ep **ep)
{
    int code;

    info->tx_attr->inject_size = 0;
    code = fi_endpoint(remote->domain, info, ep, NULL);
    if (code != 0) {
        *ep = NULL;
        return code;
    }
    code = fi_ep_bind(*ep, &remote->eq->fid, 0);
    if (code == 0)
        code = fi_ep_bind(*ep, &remote->cq->fid, FI_TRANSMIT | FI_RECV);
    if (code == 0)
        code = fi_enable(*ep);
    if (code != 0) {
        fi_close(&(*ep)->fid);
        *ep = NULL;
    }
    return code;
}

static int line_connect(struct tpf_line *line,
                        const struct tpf_remote_place *place)
{
    struct ofi_where where;
    struct fi_info *info;
    int code;

    memcpy(&where, place->where, sizeof(where));
    info = ofi_info_towards(line->remote->info, &where);
    if (info == NULL)
        return -FI_ENOMEM;
    code = line_endpoint(line->remote, info, &line->ep);
    if (code == 0)
        code = fi_connect(line->ep, info->dest_addr, place->ticket,
                          sizeof(place->ticket));
    ofi_lib->freeinfo(info);
    return code;
}

/* ---- completions --------------------------------------------------------- */

static void line_ended(struct tpf_fetch *fetch)
{
    tpb_list_unlink(&fetch->node);
    tpb_list_append(&fetch->line->ended, &fetch->node);
}

static void line_break(struct tpf_line *line, int code, const char *what);

static void line_read_over(struct line_read *read, int code)
{
    struct tpf_fetch *fetch = read->fetch;
    struct tpf_line *line = read->line;

    if (!read->posted)
        return;
    read->posted = false;
    read->fetch = NULL;
    line->remote->reads--;
    if (fetch != NULL) {
        fetch->under_way--;
        if (code == 0 && fetch->done == read->offset)
            fetch->done += read->length;
        if (fetch->done == fetch->length)
            line_ended(fetch);
    }
    if (code != 0)
        line_break(line, code, "reading remotely");
}

static bool line_drain(struct tpf_remote *remote)
{
    struct fi_cq_entry entries[LINE_COMPLETIONS];
    bool any = false;
    ssize_t count;

    do {
        count = fi_cq_read(remote->cq, entries, LINE_COMPLETIONS);
        if (count == -FI_EAVAIL) {
            struct fi_cq_err_entry wrong = { .err_data_size = 0 };

            if (fi_cq_readerr(remote->cq, &wrong, 0) == 1
                && wrong.op_context != NULL)
                line_read_over(wrong.op_context, wrong.err);
        }
        for (ssize_t i = 0; i < count; i++)
            line_read_over(entries[i].op_context, 0);
        any |= count > 0 || count == -FI_EAVAIL;
    } while (count == LINE_COMPLETIONS || count == -FI_EAVAIL);
    return any;
}

/* Takes the endpoint away; after this nothing writes into anybody's memory. */
static void line_cut(struct tpf_line *line)
{
    struct fid_ep *ep = line->ep;

    line->ep = NULL;
    line->state = LINE_BROKEN;
    if (ep == NULL)
        return;
    fi_close(&ep->fid);
    line_drain(line->remote);      /* what names our reads */
    for (size_t i = 0; i < LINE_READS; i++)
        line_read_over(&line->reads[i], 0);
}

static void line_break(struct tpf_line *line, int code, const char *what)
{
    struct tpb_list *node;

    if (line->state == LINE_BROKEN)
        return;
    ofi_fail(&line->words, code, what);
    tpb_info("%s", line->words.text);
    line->state = LINE_BROKEN;
    /* Whole pieces that are not known to be there do not count. */
    for (size_t i = 0; i < LINE_READS; i++)
        line->reads[i].offset = SIZE_MAX;
    line_cut(line);
    while ((node = tpb_list_take(&line->fetches)) != NULL)
        tpb_list_append(&line->ended, node);
}

/* ---- posting ------------------------------------------------------------- */

static struct line_read *line_free_read(struct tpf_line *line)
{
    for (size_t i = 0; i < LINE_READS; i++)
        if (!line->reads[i].posted)
            return &line->reads[i];
    return NULL;
}

/* One more read.  False: not now, or never. */
static bool line_post(struct tpf_line *line, struct tpf_fetch *fetch)
{
    struct line_read *read = line_free_read(line);
    ssize_t code;

    if (read == NULL || line->remote->reads >= LINE_UNDER_WAY)
        return false;
    read->line = line;
    read->fetch = fetch;
    read->offset = fetch->posted;
    read->length = ofi_piece(line->remote->info,
                             fetch->length - fetch->posted);
    code = fi_read(line->ep, (char *)fetch->to + read->offset, read->length,
                   fi_mr_desc(fetch->registration->mr), FI_ADDR_UNSPEC,
                   fetch->address + read->offset, fetch->key, &read->context);
    if (code == 0) {
        read->posted = true;
        fetch->posted += read->length;
        fetch->under_way++;
        line->remote->reads++;
        return true;
    }
    read->fetch = NULL;
    if (code != -FI_EAGAIN)
        line_break(line, (int)code, "reading remotely");
    return false;
}

static bool line_push(struct tpf_line *line)
{
    bool any = false;

    TPB_LIST_EACH(node, &line->fetches) {
        struct tpf_fetch *fetch = TPB_CONTAINER(node, struct tpf_fetch, node);

        while (fetch->posted < fetch->length) {
            if (line->state != LINE_READY || !line_post(line, fetch))
                return any;
            any = true;
        }
    }
    return any;
}

/* ---- events -------------------------------------------------------------- */

/* Whoever knows the ticket may connect; what he may read, keys tell. */
static void line_request(struct tpf_remote *remote, struct fi_info *info,
                         const void *ticket, size_t length)
{
    struct line_guest *guest = NULL;
    int code = -FI_EACCES;

    if (length >= sizeof(remote->ticket)
        && tpb_equal_secret(remote->ticket, ticket, sizeof(remote->ticket)))
        guest = tpb_zalloc(sizeof(*guest));
    if (guest != NULL) {
        code = line_endpoint(remote, info, &guest->ep);
        if (code == 0)
            code = fi_accept(guest->ep, NULL, 0);
    }
    if (code == 0) {
        tpb_list_append(&remote->guests, &guest->link);
    } else {
        tpb_debug("a reader was sent away: %s", ofi_lib->strerror(-code));
        if (guest != NULL && guest->ep != NULL)
            fi_close(&guest->ep->fid);
        else
            fi_reject(remote->door, info->handle, NULL, 0);
        tpb_free(guest);
    }
    ofi_lib->freeinfo(info);
}

static bool line_door_events(struct tpf_remote *remote)
{
    struct ofi_request request;
    bool any = false;

    while (ofi_request_read(remote->door_eq, &request)) {
        if (request.info != NULL)
            line_request(remote, request.info, request.ticket,
                         request.length);
        any = true;
    }
    return any;
}

static struct tpf_line *line_of(struct tpf_remote *remote, fid_t fid)
{
    TPB_LIST_EACH(node, &remote->lines) {
        struct tpf_line *line = TPB_CONTAINER(node, struct tpf_line, link);

        if (line->ep != NULL && &line->ep->fid == fid)
            return line;
    }
    return NULL;
}

static void line_guest_gone(struct tpf_remote *remote, fid_t fid)
{
    TPB_LIST_EACH(node, &remote->guests) {
        struct line_guest *guest = TPB_CONTAINER(node, struct line_guest,
                                                 link);

        if (&guest->ep->fid != fid)
            continue;
        tpb_list_unlink(&guest->link);
        fi_close(&guest->ep->fid);
        tpb_free(guest);
        return;
    }
}

/* `code` 0: it is connected. */
static void line_event(struct tpf_remote *remote, fid_t fid, int code)
{
    struct tpf_line *line = line_of(remote, fid);

    if (line == NULL && code != 0)
        line_guest_gone(remote, fid);
    if (line == NULL)
        return;
    if (code == 0)
        line->state = LINE_READY;
    else
        line_break(line, code, line->state == LINE_CONNECTING
                               ? "connecting a line for device memory"
                               : "a line for device memory");
}

bool ofi_line_events(struct tpf_remote *remote)
{
    bool any = line_door_events(remote);

    for (;;) {
        union ofi_event event;
        struct fi_eq_err_entry wrong = { .err_data_size = 0 };
        uint32_t kind = 0;
        ssize_t got = fi_eq_read(remote->eq, &kind, &event, sizeof(event), 0);

        if (got == -FI_EAVAIL) {
            if (fi_eq_readerr(remote->eq, &wrong, 0) >= 0
                && wrong.fid != NULL)
                line_event(remote, wrong.fid,
                           wrong.err != 0 ? wrong.err : FI_EIO);
        } else if (got < (ssize_t)sizeof(event.entry)) {
            return any;
        } else if (kind == FI_CONNECTED) {
            line_event(remote, event.entry.fid, 0);
        } else if (kind == FI_SHUTDOWN) {
            line_drain(remote);
            line_event(remote, event.entry.fid, FI_ECONNRESET);
        }
        any = true;
    }
}

void ofi_line_guests_close(struct tpf_remote *remote)
{
    struct tpb_list *node;

    while ((node = tpb_list_take(&remote->guests)) != NULL) {
        struct line_guest *guest = TPB_CONTAINER(node, struct line_guest,
                                                 link);

        fi_close(&guest->ep->fid);
        tpb_free(guest);
    }
}

/* ---- for channels -------------------------------------------------------- */

tp_status tpf_line_open(struct tpf_remote *remote,
                        const struct tpf_remote_place *place,
                        struct tpf_line **result, struct tpb_error *error)
{
    struct ofi_where where;
    struct tpf_line *line;
    int code;

    memcpy(&where, place->where, sizeof(where));
    if (where.family != 4 && where.family != 6)
        return tpb_fail(error, TP_ERR_PROTOCOL, "it names no address");
    line = tpb_zalloc(sizeof(*line));
    if (line == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    tpb_list_init(&line->fetches);
    tpb_list_init(&line->ended);
    line->remote = remote;
    line->deadline = tpb_now() + UINT64_C(1000000) * LINE_CONNECT_MS;
    code = line_connect(line, place);
    if (code != 0) {
        if (line->ep != NULL)
            fi_close(&line->ep->fid);
        tpb_free(line);
        return ofi_fail(error, code, "connecting a line for device memory");
    }
    tpb_list_append(&remote->lines, &line->link);
    *result = line;
    return TP_OK;
}

void tpf_line_close(struct tpf_line *line)
{
    if (line == NULL)
        return;
    line_cut(line);
    while (tpb_list_take(&line->fetches) != NULL)
        continue;
    while (tpb_list_take(&line->ended) != NULL)
        continue;
    tpb_list_unlink(&line->link);
    tpb_free(line);
}

const char *tpf_line_broken(const struct tpf_line *line)
{
    return line->state == LINE_BROKEN ? line->words.text : NULL;
}

void tpf_line_fetch(struct tpf_line *line, struct tpf_fetch *fetch)
{
    fetch->line = line;
    fetch->done = fetch->posted = fetch->under_way = 0;
    tpb_list_init(&fetch->node);
    tpb_list_append(line->state == LINE_BROKEN ? &line->ended : &line->fetches,
                    &fetch->node);
    line_push(line);
}

bool tpf_line_stop(struct tpf_fetch *fetch)
{
    if (fetch->under_way > 0) {
        fetch->length = fetch->posted;     /* ends with what is under way */
        return false;
    }
    tpb_list_unlink(&fetch->node);
    return true;
}

static bool line_progress(struct tpf_line *line)
{
    if (line->state == LINE_CONNECTING && !tpb_list_empty(&line->fetches)
        && tpb_now() > line->deadline)
        line_break(line, FI_ETIMEDOUT, "connecting a line for device memory");
    return line->state == LINE_READY && line_push(line);
}

/* The next fetch that has ended, on whatever line: what is told of it may
 * close lines. */
static struct tpf_fetch *line_next_ended(struct tpf_remote *remote)
{
    TPB_LIST_EACH(node, &remote->lines) {
        struct tpf_line *line = TPB_CONTAINER(node, struct tpf_line, link);
        struct tpb_list *first = tpb_list_take(&line->ended);

        if (first != NULL)
            return TPB_CONTAINER(first, struct tpf_fetch, node);
    }
    return NULL;
}

static bool line_all(struct tpf_remote *remote)
{
    bool any = ofi_line_events(remote);

    any |= line_drain(remote);
    TPB_LIST_EACH(node, &remote->lines)
        any |= line_progress(TPB_CONTAINER(node, struct tpf_line, link));
    return any;
}

void tpf_line_await(struct tpf_line *line)
{
    line_all(line->remote);
}

bool tpf_remote_progress(struct tpf_remote *remote)
{
    bool any = line_all(remote);
    struct tpf_fetch *fetch;

    while ((fetch = line_next_ended(remote)) != NULL) {
        fetch->ended(fetch);
        any = true;
    }
    return any;
}

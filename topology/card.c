/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The card as bytes.
 *
 *   u32 magic, u8 version, u8 zero, u16 length of the whole
 *   job, rank, size, pid, uid, instance, cookie, host, place
 *   u8 count, NICs; u8 count, backends
 *   u8 count, records: u8 kind, u16 length, bytes
 *   u64 FNV-1a of all that stands before
 *
 * Integers are little-endian; a string is u8 length and its bytes.
 */
#include "config.h"

#include <stdio.h>

#include "topology/card.h"
#include "topology/private.h"

enum {
    CARD_MAGIC = 0x44435054,       /* "TPCD" */
    CARD_VERSION = 3,
    CARD_HEADER = 8,
    CARD_CHECKSUM = 8,
    CARD_USABLE = 1,               /* flags of a backend */
    CARD_FORBIDDEN = 2,
    CARD_DEVICES = 4,
    CARD_GPUS = 1                  /* kinds of records */
};

_Static_assert(TPT_CARD_BYTES <= UINT16_MAX, "length is 16 bits");
_Static_assert(TPT_WORDS <= UINT8_MAX, "a string's length is 8 bits");
_Static_assert(TPT_LOCALITIES <= 8, "a bit of a byte each");
_Static_assert(TPT_NICS <= 16, "a bit of tpt_backend_card.nics each");

/* ---- writing ----------------------------------------------------------- */

struct card_writer {
    uint8_t *start, *at, *end;
    bool failed;
};

static void card_put(struct card_writer *writer, const void *data,
                     size_t length)
{
    if (writer->failed || length > (size_t)(writer->end - writer->at)) {
        writer->failed = true;
        return;
    }
    memcpy(writer->at, data, length);
    writer->at += length;
}

static void card_put_number(struct card_writer *writer, uint64_t number,
                            size_t width)
{
    uint8_t bytes[8];

    for (size_t i = 0; i < width; i++)
        bytes[i] = (uint8_t)(number >> (8 * i));
    card_put(writer, bytes, width);
}

static bool card_printable(uint8_t byte)
{
    return byte >= 0x20 && byte != 0x7f;
}

static void card_put_string(struct card_writer *writer, const char *text,
                            size_t capacity)
{
    size_t length = strnlen(text, capacity);
    uint8_t *bytes;

    if (length == capacity)
        writer->failed = true;
    card_put_number(writer, length, 1);
    bytes = writer->at;
    card_put(writer, text, length);
    for (size_t i = 0; !writer->failed && i < length; i++)
        if (!card_printable(bytes[i]))
            bytes[i] = '?';
}

static void card_put_host(struct card_writer *writer,
                          const struct tpt_host *host)
{
    card_put(writer, host->boot_id, sizeof(host->boot_id));
    card_put_number(writer, host->net_namespace, 8);
    card_put_number(writer, host->pid_namespace, 8);
    card_put_number(writer, host->user_namespace, 8);
    card_put_number(writer, host->mount_namespace, 8);
    card_put_string(writer, host->name, sizeof(host->name));
}

static void card_put_place(struct card_writer *writer,
                           const struct tpt_place *place)
{
    card_put_number(writer, place->topology, 8);
    card_put_number(writer, (uint32_t)place->core, 4);
    card_put_number(writer, (uint32_t)place->l2, 4);
    card_put_number(writer, (uint32_t)place->l3, 4);
    card_put_number(writer, (uint32_t)place->numa, 4);
    card_put_number(writer, (uint32_t)place->package, 4);
    card_put_number(writer, place->cpus, 4);
    card_put_number(writer, place->machine_cpus, 4);
}

static void card_put_nic(struct card_writer *writer, const struct tpt_nic *nic)
{
    card_put_string(writer, nic->name, sizeof(nic->name));
    card_put_number(writer, nic->megabits, 4);
    card_put_number(writer, (uint32_t)nic->numa, 4);
    card_put_number(writer, nic->pci, 4);
    card_put_number(writer, nic->kind, 1);
    writer->failed |= nic->kind > TPT_NIC_RDMA;
}

/* A byte with a bit for each that there is, then these. */
static void card_put_measured(struct card_writer *writer,
                              const struct tpt_backend_card *backend)
{
    unsigned known = 0;

    for (unsigned i = 0; i < TPT_LOCALITIES; i++)
        known |= (unsigned)(backend->measured[i].megabytes != 0) << i;
    card_put_number(writer, known, 1);
    for (unsigned i = 0; i < TPT_LOCALITIES; i++) {
        if ((known >> i & 1) == 0)
            continue;
        card_put_number(writer, backend->measured[i].latency_ns, 4);
        card_put_number(writer, backend->measured[i].megabytes, 4);
    }
}

static void card_put_backend(struct card_writer *writer,
                             const struct tpt_backend_card *backend)
{
    card_put_string(writer, backend->name, sizeof(backend->name));
    card_put_string(writer, backend->over, sizeof(backend->over));
    card_put_number(writer, backend->role, 1);
    card_put_number(writer, backend->reach, 1);
    card_put_number(writer, (backend->usable ? CARD_USABLE : 0)
                    | (backend->forbidden ? CARD_FORBIDDEN : 0)
                    | (backend->devices ? CARD_DEVICES : 0), 1);
    card_put_number(writer, backend->nic_kind, 1);
    card_put_number(writer, backend->nics, 2);
    card_put_number(writer, backend->latency_ns, 4);
    card_put_number(writer, backend->megabytes, 4);
    card_put_measured(writer, backend);
    card_put_string(writer, backend->why, sizeof(backend->why));
    card_put_number(writer, backend->address_length, 2);
    writer->failed |= backend->name[0] == '\0'
                      || backend->role > TPT_ROLE_CHANNEL
                      || backend->reach > TPT_REACH_NETWORK
                      || backend->nic_kind > TPT_NIC_RDMA
                      || backend->address_length > TPT_ADDRESS;
    if (!writer->failed)
        card_put(writer, backend->address, backend->address_length);
}

/* What not every card has; those who do not know a kind pass it over. */
static void card_put_records(struct card_writer *writer,
                             const struct tpt_card *card)
{
    uint8_t bytes[TPT_CARD_GPUS_BYTES];
    size_t length = tpt_card_gpus_encode(card, bytes);

    writer->failed |= card->gpu_count > 0 && length == 0;
    card_put_number(writer, card->gpu_count > 0, 1);
    if (card->gpu_count == 0)
        return;
    card_put_number(writer, CARD_GPUS, 1);
    card_put_number(writer, length, 2);
    card_put(writer, bytes, length);
}

static bool card_has_twins(const struct tpt_card *card)
{
    for (uint32_t i = 1; i < card->backend_count; i++)
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(card->backends[i].name, card->backends[j].name) == 0)
                return true;
    return false;
}

static void card_put_all(struct card_writer *writer,
                         const struct tpt_card *card)
{
    card_put_string(writer, card->job, sizeof(card->job));
    card_put_number(writer, (uint32_t)card->rank, 4);
    card_put_number(writer, (uint32_t)card->size, 4);
    card_put_number(writer, card->pid, 4);
    card_put_number(writer, card->uid, 4);
    card_put(writer, card->instance, sizeof(card->instance));
    card_put(writer, card->cookie, sizeof(card->cookie));
    card_put_host(writer, &card->host);
    card_put_place(writer, &card->place);
    card_put_number(writer, card->nic_count, 1);
    for (uint32_t i = 0; i < card->nic_count; i++)
        card_put_nic(writer, &card->nics[i]);
    card_put_number(writer, card->backend_count, 1);
    for (uint32_t i = 0; i < card->backend_count; i++) {
        card_put_backend(writer, &card->backends[i]);
        writer->failed |= card->backends[i].nics >> card->nic_count != 0;
    }
    card_put_records(writer, card);
}

tp_status tpt_card_encode(const struct tpt_card *card,
                          uint8_t blob[TPT_CARD_BYTES], size_t *length)
{
    struct card_writer writer = { blob, blob + CARD_HEADER,
                                  blob + TPT_CARD_BYTES - CARD_CHECKSUM,
                                  false };
    size_t total;

    if (card->nic_count > TPT_NICS || card->gpu_count > TPT_CARD_GPUS
        || card->backend_count > TPT_BACKENDS)
        return TP_ERR_INVALID;
    card_put_all(&writer, card);
    /* Names are known to be terminated only now. */
    if (writer.failed || card_has_twins(card))
        return TP_ERR_INVALID;
    total = (size_t)(writer.at - blob) + CARD_CHECKSUM;
    writer.at = blob;
    writer.end = blob + total;
    card_put_number(&writer, CARD_MAGIC, 4);
    card_put_number(&writer, CARD_VERSION, 1);
    card_put_number(&writer, 0, 1);
    card_put_number(&writer, total, 2);
    writer.at = writer.end - CARD_CHECKSUM;
    card_put_number(&writer, tpb_hash(TPB_HASH_INIT, blob,
                                      total - CARD_CHECKSUM), CARD_CHECKSUM);
    *length = total;
    return TP_OK;
}

/* ---- reading ----------------------------------------------------------- */

struct card_reader {
    const uint8_t *at, *end;
    const char *wrong;             /* the first thing that was; NULL: none */
};

static void card_wrong(struct card_reader *reader, const char *what)
{
    if (reader->wrong == NULL)
        reader->wrong = what;
}

static void card_get(struct card_reader *reader, void *data, size_t length)
{
    if (length > (size_t)(reader->end - reader->at))
        card_wrong(reader, "it ends too early");
    if (reader->wrong != NULL) {
        memset(data, 0, length);
        return;
    }
    memcpy(data, reader->at, length);
    reader->at += length;
}

static uint64_t card_get_number(struct card_reader *reader, size_t width)
{
    uint8_t bytes[8];
    uint64_t number = 0;

    card_get(reader, bytes, width);
    for (size_t i = 0; i < width; i++)
        number |= (uint64_t)bytes[i] << (8 * i);
    return number;
}

static uint32_t card_get_u32(struct card_reader *reader)
{
    return (uint32_t)card_get_number(reader, 4);
}

static int32_t card_get_i32(struct card_reader *reader)
{
    return (int32_t)card_get_u32(reader);
}

static uint8_t card_get_u8(struct card_reader *reader, unsigned limit,
                           const char *what)
{
    unsigned number = (unsigned)card_get_number(reader, 1);

    if (number > limit) {
        card_wrong(reader, what);
        return 0;
    }
    return (uint8_t)number;
}

/* *card was zeroed: what follows the string is its end. */
static void card_get_string(struct card_reader *reader, char *text,
                            size_t capacity)
{
    size_t length = (size_t)card_get_number(reader, 1);

    if (length >= capacity) {
        card_wrong(reader, "a text is too long");
        return;
    }
    card_get(reader, text, length);
    for (size_t i = 0; i < length; i++)
        if (!card_printable((uint8_t)text[i]))
            card_wrong(reader, "a text holds control characters");
}

static void card_get_host(struct card_reader *reader, struct tpt_host *host)
{
    card_get(reader, host->boot_id, sizeof(host->boot_id));
    host->net_namespace = card_get_number(reader, 8);
    host->pid_namespace = card_get_number(reader, 8);
    host->user_namespace = card_get_number(reader, 8);
    host->mount_namespace = card_get_number(reader, 8);
    card_get_string(reader, host->name, sizeof(host->name));
}

static void card_get_place(struct card_reader *reader,
                           struct tpt_place *place)
{
    place->topology = card_get_number(reader, 8);
    place->core = card_get_i32(reader);
    place->l2 = card_get_i32(reader);
    place->l3 = card_get_i32(reader);
    place->numa = card_get_i32(reader);
    place->package = card_get_i32(reader);
    place->cpus = card_get_u32(reader);
    place->machine_cpus = card_get_u32(reader);
}

static void card_get_nic(struct card_reader *reader, struct tpt_nic *nic)
{
    card_get_string(reader, nic->name, sizeof(nic->name));
    nic->megabits = card_get_u32(reader);
    nic->numa = card_get_i32(reader);
    nic->pci = card_get_u32(reader);
    nic->kind = card_get_u8(reader, TPT_NIC_RDMA, "an unknown kind of NIC");
}

static void card_get_measured(struct card_reader *reader,
                              struct tpt_backend_card *backend)
{
    unsigned known = (unsigned)card_get_number(reader, 1);

    for (unsigned i = 0; i < TPT_LOCALITIES; i++) {
        if ((known >> i & 1) == 0)
            continue;
        backend->measured[i].latency_ns = card_get_u32(reader);
        backend->measured[i].megabytes = card_get_u32(reader);
        if (backend->measured[i].megabytes == 0)
            card_wrong(reader, "a measured speed of nothing");
    }
}

static void card_get_backend(struct card_reader *reader,
                             struct tpt_backend_card *backend)
{
    uint8_t flags;
    size_t length;

    card_get_string(reader, backend->name, sizeof(backend->name));
    card_get_string(reader, backend->over, sizeof(backend->over));
    backend->role = card_get_u8(reader, TPT_ROLE_CHANNEL,
                                "an unknown role of a backend");
    backend->reach = card_get_u8(reader, TPT_REACH_NETWORK,
                                 "an unknown reach of a backend");
    flags = card_get_u8(reader, CARD_USABLE | CARD_FORBIDDEN | CARD_DEVICES,
                        "unknown flags of a backend");
    backend->usable = (flags & CARD_USABLE) != 0;
    backend->forbidden = (flags & CARD_FORBIDDEN) != 0;
    backend->devices = (flags & CARD_DEVICES) != 0;
    backend->nic_kind = card_get_u8(reader, TPT_NIC_RDMA,
                                    "an unknown kind of NIC");
    backend->nics = (uint16_t)card_get_number(reader, 2);
    backend->latency_ns = card_get_u32(reader);
    backend->megabytes = card_get_u32(reader);
    card_get_measured(reader, backend);
    card_get_string(reader, backend->why, sizeof(backend->why));
    length = (size_t)card_get_number(reader, 2);
    if (length > TPT_ADDRESS) {
        card_wrong(reader, "an address is too long");
        return;
    }
    card_get(reader, backend->address, length);
    backend->address_length = (uint16_t)length;
    if (backend->name[0] == '\0')
        card_wrong(reader, "a backend has no name");
}

static void card_get_record(struct card_reader *reader, struct tpt_card *card)
{
    unsigned kind = (unsigned)card_get_number(reader, 1);
    size_t length = (size_t)card_get_number(reader, 2);
    const char *wrong = NULL;

    if (length > (size_t)(reader->end - reader->at))
        card_wrong(reader, "a record is cut");
    if (reader->wrong != NULL)
        return;
    if (kind == CARD_GPUS)
        wrong = tpt_card_gpus_decode(reader->at, length, card);
    if (wrong != NULL)
        card_wrong(reader, wrong);
    reader->at += length;
}

static void card_get_all(struct card_reader *reader, struct tpt_card *card)
{
    unsigned records;

    card_get_string(reader, card->job, sizeof(card->job));
    card->rank = card_get_i32(reader);
    card->size = card_get_i32(reader);
    card->pid = card_get_u32(reader);
    card->uid = card_get_u32(reader);
    card_get(reader, card->instance, sizeof(card->instance));
    card_get(reader, card->cookie, sizeof(card->cookie));
    card_get_host(reader, &card->host);
    card_get_place(reader, &card->place);
    card->nic_count = card_get_u8(reader, TPT_NICS, "too many NICs");
    for (uint32_t i = 0; i < card->nic_count; i++)
        card_get_nic(reader, &card->nics[i]);
    card->backend_count = card_get_u8(reader, TPT_BACKENDS,
                                      "too many backends");
    for (uint32_t i = 0; i < card->backend_count; i++) {
        card_get_backend(reader, &card->backends[i]);
        if (card->backends[i].nics >> card->nic_count != 0)
            card_wrong(reader, "a backend goes over a NIC that is not there");
    }
    records = card_get_u8(reader, UINT8_MAX, "");
    for (unsigned i = 0; i < records && reader->wrong == NULL; i++)
        card_get_record(reader, card);
    if (reader->at != reader->end)
        card_wrong(reader, "there are bytes behind its end");
    if (card_has_twins(card))
        card_wrong(reader, "two backends have one name");
}

/* The header and the checksum; afterwards the reader spans what is between. */
static tp_status card_check(struct card_reader *reader, struct tpb_error *error)
{
    const uint8_t *blob = reader->at;
    size_t length = (size_t)(reader->end - blob);
    unsigned version;

    if (length < CARD_HEADER + CARD_CHECKSUM
        || card_get_u32(reader) != CARD_MAGIC)
        return tpb_fail(error, TP_ERR_PROTOCOL, "not a tp card (%zu bytes)",
                        length);
    version = (unsigned)card_get_number(reader, 1);
    if (version != CARD_VERSION)
        return tpb_fail(error, TP_ERR_PROTOCOL,
                        "card of version %u, this tp knows version %d: run "
                        "the same tp on all hosts", version, CARD_VERSION);
    if (card_get_number(reader, 1) != 0
        || card_get_number(reader, 2) != length)
        return tpb_fail(error, TP_ERR_PROTOCOL,
                        "card is cut or has a wrong length (%zu bytes)",
                        length);
    reader->at = reader->end - CARD_CHECKSUM;
    if (card_get_number(reader, CARD_CHECKSUM)
        != tpb_hash(TPB_HASH_INIT, blob, length - CARD_CHECKSUM))
        return tpb_fail(error, TP_ERR_PROTOCOL,
                        "card is damaged: its checksum does not match");
    reader->at = blob + CARD_HEADER;
    reader->end -= CARD_CHECKSUM;
    return TP_OK;
}

tp_status tpt_card_decode(const void *blob, size_t length,
                          struct tpt_card *card, struct tpb_error *error)
{
    struct card_reader reader = { blob, (const uint8_t *)blob + length, NULL };
    tp_status status;

    memset(card, 0, sizeof(*card));
    status = card_check(&reader, error);
    if (status != TP_OK)
        return status;
    card_get_all(&reader, card);
    if (reader.wrong != NULL)
        return tpb_fail(error, TP_ERR_PROTOCOL, "card is malformed: %s",
                        reader.wrong);
    return TP_OK;
}

const struct tpt_backend_card *tpt_card_backend(const struct tpt_card *card,
                                                const char *name)
{
    for (uint32_t i = 0; i < card->backend_count; i++)
        if (strcmp(card->backends[i].name, name) == 0)
            return &card->backends[i];
    return NULL;
}

uint16_t tpt_card_nics(const struct tpt_card *card, enum tpt_nic_kind kind,
                       uint32_t most)
{
    uint32_t count = 0;
    uint16_t bits = 0;

    /* They stand there in the order of their speed. */
    for (uint32_t i = 0; i < card->nic_count && count < most; i++)
        if (card->nics[i].kind == kind && card->nics[i].megabits > 0) {
            bits |= (uint16_t)(1u << i);
            count++;
        }
    return count > 1 ? bits : 0;
}

void tpt_pci_text(uint32_t pci, char text[TPT_PCI_TEXT])
{
    snprintf(text, TPT_PCI_TEXT, "%04x:%02x:%02x.%x", pci >> 16,
             pci >> 8 & 0xff, pci >> 3 & 0x1f, pci & 7);
}

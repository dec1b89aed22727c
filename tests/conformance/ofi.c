/* SPDX-License-Identifier: BSD-3-Clause */
/* What the programs of connected libfabric backends tell the suite. */
#include "config.h"

#include "fabric/ofi/ofi.h"
#include "tests/conformance/ofi.h"

int tpx_ofi_listening(const void *address, size_t length,
                      struct sockaddr_storage *sockets, int capacity)
{
    struct tpb_error error = { "" };
    struct ofi_card card;
    int count = 0;

    ck_assert_msg(ofi_card_decode(&card, address, length, &error) == TP_OK,
                  "%s", error.text);
    while (count < card.count && count < capacity) {
        ofi_where_to_socket(&card.wheres[count], &sockets[count]);
        count++;
    }
    return count;
}

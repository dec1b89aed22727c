/* SPDX-License-Identifier: BSD-3-Clause */
/* The conformance suite over ofi:verbs, where there is an RDMA device. */
#include "config.h"

#include "fabric/ofi/ofi.h"
#include "tests/conformance/suite.h"

static int verbs_listening(const void *address, size_t length,
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

int main(void)
{
    static const struct tpx_target target = {
        .name = "ofi:verbs", .listening = verbs_listening
    };

    return tpx_conform(&target);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* The conformance suite over rails: three streams over loopback. */
#include "config.h"

#include <stdlib.h>

#include "fabric/rails/rails.h"
#include "tests/conformance/ofi.h"

static int rails_listening(const void *address, size_t length,
                           struct sockaddr_storage *sockets, int capacity)
{
    struct tpb_error error = { "" };
    struct rails_card rails;
    int count = 0;

    ck_assert_msg(rails_card_decode(&rails, address, length, &error) == TP_OK,
                  "%s", error.text);
    for (unsigned i = 0; i < rails.count; i++) {
        const struct rails_place *place = &rails.places[i];

        count += tpx_ofi_listening(place->address, place->length,
                                   sockets + count, capacity - count);
    }
    return count;
}

int main(void)
{
    static const struct tpx_target target = {
        .name = "rails", .listening = rails_listening
    };

    setenv("TP_RAILS", "3", 1);
    setenv("TP_IFACE", "lo", 1);
    return tpx_conform(&target);
}

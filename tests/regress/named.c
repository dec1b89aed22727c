/* SPDX-License-Identifier: BSD-3-Clause */
/* Listens at the address that it is given, and says where that is: named
 * HOST:PORT. */
#include <stdio.h>

#include "runtime/tp.h"

int main(int argc, char **argv)
{
    tp_options options = TP_OPTIONS_INIT;
    tp_context *context;
    tp_listener *listener;
    char address[1024];
    tp_status status;

    options.bootstrap = "single";
    options.secret = "a secret of both sides";
    if (argc != 2 || tp_init(&options, &context) != TP_OK)
        return 2;
    status = tp_listen(context, argv[1], &listener);
    if (status == TP_OK)
        status = tp_listener_address(listener, address, sizeof(address));
    if (status == TP_OK)
        puts(address);
    return tp_finalize(context) == TP_OK && status == TP_OK ? 0 : 1;
}

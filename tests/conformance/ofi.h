/* SPDX-License-Identifier: BSD-3-Clause */
/* What the programs of connected libfabric backends tell the suite. */
#ifndef TPX_CONFORMANCE_OFI_H
#define TPX_CONFORMANCE_OFI_H

#include "tests/conformance/suite.h"

/* A target's `listening`: the sockets at which strangers can call. */
int tpx_ofi_listening(const void *address, size_t length,
                      struct sockaddr_storage *sockets, int capacity);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The addresses of listeners, as text and taken apart; tp_listen(3) has the
 * syntax.  Pure: no name is looked up, no socket opened.
 */
#ifndef TPR_ADDRESS_H
#define TPR_ADDRESS_H

#include <sys/socket.h>

#include "runtime/base/base.h"

enum {
    TPR_WAYS = 12,                 /* the most network addresses in one text */
    TPR_ADDRESS_TEXT = 1024,       /* holds every text we write, with its NUL */
    TPR_HOST_TEXT = 256,
    TPR_KEY_TEXT = 33              /* 32 hexadecimal digits */
};

/* One network address. */
struct tpr_way {
    uint8_t family;                /* 4 or 6 */
    uint8_t address[16];
    uint16_t port;
};

struct tpr_address {
    /* Written by hand: HOST:PORT, or "local".  The rest is then empty. */
    bool by_hand, local;
    char host[TPR_HOST_TEXT];      /* "*" or "": all of this host */
    uint16_t port;
    /* Written by tp_listener_address(). */
    bool has_host;
    uint8_t boot_id[16];           /* of the host where `name` is known */
    char name[64];                 /* of an abstract Unix socket; "": none */
    char key[TPR_KEY_TEXT];        /* stands for the secret; "": none */
    uint32_t count;
    struct tpr_way ways[TPR_WAYS];
};

/* INVALID, with words, for everything that is not an address. */
tp_status tpr_address_parse(const char *text, struct tpr_address *address,
                            struct tpb_error *error);

/* The text of an address that is not by_hand; NO_MEMORY. */
tp_status tpr_address_format(const struct tpr_address *address,
                             struct tpb_text *text);

socklen_t tpr_way_socket(const struct tpr_way *way,
                         struct sockaddr_storage *address);
bool tpr_way_from_socket(const struct sockaddr *address, struct tpr_way *way);
/* "192.0.2.7:4711", "[fd00::1]:4711". */
enum { TPR_WAY_TEXT = 64 };
const char *tpr_way_text(const struct tpr_way *way, char text[TPR_WAY_TEXT]);

/* A NUL first: no file. */
socklen_t tpr_name_socket(const char *name, struct sockaddr_storage *address);

#endif

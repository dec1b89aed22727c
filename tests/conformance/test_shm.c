/* SPDX-License-Identifier: BSD-3-Clause */
/* The conformance suite over shm. */
#include "config.h"

#include <errno.h>
#include <malloc.h>
#include <sys/un.h>

#include "fabric/shm/shm.h"
#include "runtime/base/io.h"
#include "tests/conformance/suite.h"

/* A stranger, who says nothing yet. */
static int shm_caller(const struct tpx_side *side)
{
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    struct sockaddr_un name = { .sun_family = AF_UNIX };
    struct shm_address address;

    ck_assert_uint_eq(side->address_length, sizeof(address));
    memcpy(&address, side->address, sizeof(address));
    memcpy(name.sun_path + 1, address.name, address.name_length);
    ck_assert_int_eq(connect(fd, (const struct sockaddr *)&name,
                             (socklen_t)(offsetof(struct sockaddr_un, sun_path)
                                         + 1 + address.name_length)), 0);
    return fd;
}

/* The oldest of too many speaks in the moment in which it has to make room: the
 * caller's event comes first, and is followed by its own.  Memory that was
 * freed is filled, so that this is not by luck. */
START_TEST(test_crowd_of_strangers)
{
    struct tpx_side *side = tpx_side_open(tpx_backend);
    int held[2 * SHM_PENDING];
    ssize_t got;
    char byte;

    mallopt(M_PERTURB, 0xa5);
    for (int i = 0; i < 2 * SHM_PENDING; i++) {
        held[i] = shm_caller(side);
        if (i >= SHM_PENDING) {
            ck_assert_int_eq(send(held[i - SHM_PENDING], "x", 1, 0), 1);
            tpx_side_step(side);
            got = recv(held[i - SHM_PENDING], &byte, 1, MSG_DONTWAIT);
            ck_assert(got == 0 || (got < 0 && errno == ECONNRESET));
        }
        while (tpx_side_step(side))
            ;
        if (i >= SHM_PENDING)
            tpb_close(&held[i - SHM_PENDING]);
    }
    for (int i = SHM_PENDING; i < 2 * SHM_PENDING; i++)
        tpb_close(&held[i]);
    tpx_side_close(side);
}
END_TEST

static void shm_more(Suite *suite)
{
    tcase_add_test(tpx_tcase(suite, "crowd"), test_crowd_of_strangers);
}

int main(void)
{
    static const struct tpx_target target = { .name = "shm",
                                              .more = shm_more };

    return tpx_conform(&target);
}

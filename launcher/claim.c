/* SPDX-License-Identifier: BSD-3-Clause */
/* Claims cores by abstract sockets. */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "launcher/claim.h"
#include "runtime/base/alloc.h"
#include "runtime/base/io.h"

enum { CLAIM_CPUS = 8192 };        /* as the kernel's own limit */

/* The socket, -1 with errno: EADDRINUSE if another holds it. */
static int claim_core(int core)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int used = snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1,
                        "tprun/core/%d", core);
    int code;

    if (fd < 0)
        return -1;
    if (bind(fd, (const struct sockaddr *)&address,
             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1
                         + (size_t)used)) == 0)
        return fd;
    code = errno;
    tpb_close(&fd);
    errno = code;
    return -1;
}

static void claims_drop(struct tpl_claims *claims)
{
    for (int i = 0; i < claims->count; i++)
        tpb_close(&claims->fds[i]);
    tpb_free(claims->fds);
    claims->fds = NULL;
    claims->count = 0;
}

static bool claims_note(struct tpl_claims *claims, int core)
{
    if (core >= CLAIM_CPUS)
        return false;
    if (claims->taken == NULL) {
        claims->taken_size = CPU_ALLOC_SIZE(CLAIM_CPUS);
        claims->taken = tpb_zalloc(claims->taken_size);
    }
    if (claims->taken == NULL
        || CPU_ISSET_S(core, claims->taken_size, claims->taken))
        return false;
    CPU_SET_S(core, claims->taken_size, claims->taken);
    return true;
}

/* Did an earlier rank of the plan get that core? */
static bool claims_repeated(const struct tpt_bind_plan *plan, int rank)
{
    for (int i = 0; i < rank; i++)
        if (plan->places[i].core == plan->places[rank].core)
            return true;
    return false;
}

bool tpl_claims_take(struct tpl_claims *claims,
                     const struct tpt_bind_plan *plan)
{
    bool refused = false;

    claims->fds = tpb_array((size_t)plan->count, sizeof(claims->fds[0]));
    for (int i = 0; claims->fds != NULL && i < plan->count; i++) {
        int core = plan->places[i].core, fd;

        /* From the second round on all cores have their ranks. */
        if (core < 0 || (unsigned)i >= plan->allowed_cores
            || claims_repeated(plan, i))
            continue;
        fd = claim_core(core);
        if (fd >= 0)
            claims->fds[claims->count++] = fd;
        else if (errno == EADDRINUSE && claims_note(claims, core))
            refused = true;
    }
    if (refused)
        claims_drop(claims);
    return !refused;
}

void tpl_claims_fini(struct tpl_claims *claims)
{
    claims_drop(claims);
    tpb_free(claims->taken);
    claims->taken = NULL;
}

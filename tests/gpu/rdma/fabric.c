/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Stands in front of libfabric, under its name in a folder of its own on
 * LD_LIBRARY_PATH, and adds what the installed one may lack: registration of
 * device memory by dmabuf (libfabric 1.20) and by FI_HMEM_CUDA (one that was
 * built with CUDA, at a device that can).  All else is the real one's, which
 * FABRICDOUBLE_REAL names.  For tests only, never installed.
 *
 *   FABRICDOUBLE_DMABUF=1    it says that it is 1.20, and takes FI_MR_DMABUF
 *   FABRICDOUBLE_HMEM=1      every verbs domain offers FI_HMEM;
 *   FABRICDOUBLE_HMEM=host   the same, and takes device memory for memory of
 *                            the host, which no status tells;
 *   FABRICDOUBLE_HMEM=refuse ... and refuses to register any
 *   FABRICDOUBLE_INLINE=N    endpoints inline up to N bytes, whatever is asked
 *
 * The real one then registers the address as it is, and verbs.c, which stands
 * in for the kernel, is told to let it.
 */
#include "config.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_errno.h>

#include "tests/gpu/rdma/rdma.h"

#define FABRIC_DMABUF (UINT64_C(1) << 40)  /* FI_MR_DMABUF of 1.20 */

struct fabric_dmabuf {                 /* struct fi_mr_dmabuf of 1.20 */
    int fd;
    uint64_t offset;
    size_t length;
    void *base;
};

/* The ops of one domain or fabric, with ours in front. */
static struct fi_ops_mr fabric_mr_ours, fabric_mr_next_ops;
static struct fi_ops_mr *fabric_mr_next;
static struct fi_ops_fabric fabric_ops_ours, *fabric_ops_next;
static struct fi_ops_domain fabric_domain_ours, fabric_domain_next;

static void *fabric_real(const char *name)
{
    static void *library;
    const char *path = getenv("FABRICDOUBLE_REAL");
    void *symbol;

    if (library == NULL && path != NULL)
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    symbol = library != NULL ? dlsym(library, name) : NULL;
    if (symbol == NULL) {
        fprintf(stderr, "fabricdouble: no %s in FABRICDOUBLE_REAL\n", name);
        abort();
    }
    return symbol;
}

static const char *fabric_hmem(void)
{
    const char *text = getenv("FABRICDOUBLE_HMEM");

    return text != NULL ? text : "";
}

static int fabric_knows_dmabuf(void)
{
    const char *text = getenv("FABRICDOUBLE_DMABUF");

    return text != NULL && strcmp(text, "1") == 0;
}

/* ---- registering --------------------------------------------------------- */

static void fabric_permit(enum rdma_permit permit)
{
    rdma_permit_fn *set;

    *(void **)&set = dlsym(RTLD_DEFAULT, "rdma_permit_set");
    if (set == NULL) {
        fprintf(stderr, "fabricdouble: without verbsdouble in LD_PRELOAD\n");
        abort();
    }
    set(permit);
}

static int fabric_register(struct fid *fid, const void *address, size_t length,
                           const struct fi_mr_attr *attr,
                           enum rdma_permit permit, struct fid_mr **mr)
{
    int code;

    fabric_permit(permit);
    code = fabric_mr_next->reg(fid, address, length, attr->access,
                               attr->offset, attr->requested_key, 0, mr,
                               attr->context);
    fabric_permit(RDMA_ASK);
    return code;
}

static int fabric_regattr(struct fid *fid, const struct fi_mr_attr *attr,
                          uint64_t flags, struct fid_mr **mr)
{
    if ((flags & FABRIC_DMABUF) != 0) {
        struct fabric_dmabuf dmabuf;
        struct stat status;

        memcpy(&dmabuf, attr->mr_iov, sizeof(dmabuf));
        if (!fabric_knows_dmabuf() || fstat(dmabuf.fd, &status) != 0
            || (size_t)status.st_size < dmabuf.offset + dmabuf.length)
            return -FI_EINVAL;
        return fabric_register(fid, (char *)dmabuf.base + dmabuf.offset,
                               dmabuf.length, attr, RDMA_ALLOW, mr);
    }
    if (attr->iface == FI_HMEM_CUDA) {
        if (strcmp(fabric_hmem(), "refuse") == 0)
            return -FI_ENOSYS;         /* as one built without CUDA */
        return fabric_register(fid, attr->mr_iov->iov_base,
                               attr->mr_iov->iov_len, attr,
                               strcmp(fabric_hmem(), "host") == 0
                               ? RDMA_HOST : RDMA_ALLOW, mr);
    }
    return fabric_mr_next->regattr(fid, attr, flags, mr);
}

/* ---- what is made of an fi_info ------------------------------------------ */

/* As the real one knows it: without FI_HMEM.  The caller's comes back. */
static uint64_t fabric_strip(struct fi_info *info)
{
    uint64_t caps = info->caps;

    info->caps &= ~FI_HMEM;
    info->domain_attr->mr_mode &= ~FI_MR_HMEM;
    return caps;
}

static void fabric_restore(struct fi_info *info, uint64_t caps)
{
    info->caps = caps;
    if ((caps & FI_HMEM) != 0)
        info->domain_attr->mr_mode |= FI_MR_HMEM;
}

static int fabric_endpoint(struct fid_domain *domain, struct fi_info *info,
                           struct fid_ep **ep, void *context)
{
    uint64_t caps = fabric_strip(info);
    const char *size = getenv("FABRICDOUBLE_INLINE");
    int code;

    if (size != NULL)
        info->tx_attr->inject_size = (size_t)atoi(size);
    code = fabric_domain_next.endpoint(domain, info, ep, context);
    fabric_restore(info, caps);
    return code;
}

static int fabric_passive(struct fid_fabric *fabric, struct fi_info *info,
                          struct fid_pep **pep, void *context)
{
    uint64_t caps = fabric_strip(info);
    int code = fabric_ops_next->passive_ep(fabric, info, pep, context);

    fabric_restore(info, caps);
    return code;
}

static int fabric_domain(struct fid_fabric *fabric, struct fi_info *info,
                         struct fid_domain **domain, void *context)
{
    uint64_t caps = fabric_strip(info);
    int code = fabric_ops_next->domain(fabric, info, domain, context);

    fabric_restore(info, caps);
    if (code != 0)
        return code;
    if (fabric_domain_next.size == 0) {
        fabric_domain_next = *(*domain)->ops;
        fabric_domain_ours = fabric_domain_next;
        fabric_domain_ours.endpoint = fabric_endpoint;
    }
    (*domain)->ops = &fabric_domain_ours;
    if (fabric_mr_next == NULL) {
        fabric_mr_next_ops = *(*domain)->mr;
        fabric_mr_next = &fabric_mr_next_ops;
        fabric_mr_ours = fabric_mr_next_ops;
        fabric_mr_ours.regattr = fabric_regattr;
    }
    (*domain)->mr = &fabric_mr_ours;
    return 0;
}

/* ---- the calls ----------------------------------------------------------- */

#pragma GCC visibility push(default)
#undef fi_version
#undef fi_getinfo
#undef fi_freeinfo
#undef fi_dupinfo
#undef fi_fabric
#undef fi_strerror
uint32_t fi_version(void);
int fi_getinfo(uint32_t version, const char *node, const char *service,
               uint64_t flags, const struct fi_info *hints,
               struct fi_info **info);
void fi_freeinfo(struct fi_info *info);
struct fi_info *fi_dupinfo(const struct fi_info *info);
int fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric,
              void *context);
const char *fi_strerror(int code);
#pragma GCC visibility pop

uint32_t fi_version(void)
{
    uint32_t (*real)(void);

    if (fabric_knows_dmabuf())
        return FI_VERSION(1, 20);
    *(void **)&real = fabric_real("fi_version");
    return real();
}

int fi_getinfo(uint32_t version, const char *node, const char *service,
               uint64_t flags, const struct fi_info *hints,
               struct fi_info **info)
{
    int (*real)(uint32_t, const char *, const char *, uint64_t,
                const struct fi_info *, struct fi_info **);
    struct fi_info *without = hints != NULL ? fi_dupinfo(hints) : NULL;
    bool hmem = without != NULL && (without->caps & FI_HMEM) != 0;
    int code;

    *(void **)&real = fabric_real("fi_getinfo");
    if (without != NULL && *fabric_hmem() != '\0') {
        without->caps &= ~FI_HMEM;
        without->domain_attr->mr_mode &= ~FI_MR_HMEM;
    }
    if (FI_VERSION_GE(version, FI_VERSION(1, 18)))
        version = FI_VERSION(1, 17);
    code = real(version, node, service, flags, without, info);
    if (without != NULL)
        fi_freeinfo(without);
    for (struct fi_info *one = code == 0 && hmem ? *info : NULL; one != NULL;
         one = one->next)
        one->caps |= FI_HMEM;
    return code;
}

void fi_freeinfo(struct fi_info *info)
{
    void (*real)(struct fi_info *);

    *(void **)&real = fabric_real("fi_freeinfo");
    real(info);
}

struct fi_info *fi_dupinfo(const struct fi_info *info)
{
    struct fi_info *(*real)(const struct fi_info *);

    *(void **)&real = fabric_real("fi_dupinfo");
    return real(info);
}

int fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric,
              void *context)
{
    int (*real)(struct fi_fabric_attr *, struct fid_fabric **, void *);
    int code;

    *(void **)&real = fabric_real("fi_fabric");
    code = real(attr, fabric, context);
    if (code != 0)
        return code;
    /* One table serves all: only verbs is used beside these tests. */
    if (fabric_ops_next == NULL) {
        static struct fi_ops_fabric next;

        next = *(*fabric)->ops;
        fabric_ops_next = &next;
        fabric_ops_ours = next;
        fabric_ops_ours.domain = fabric_domain;
        fabric_ops_ours.passive_ep = fabric_passive;
    }
    (*fabric)->ops = &fabric_ops_ours;
    return 0;
}

const char *fi_strerror(int code)
{
    const char *(*real)(int);

    *(void **)&real = fabric_real("fi_strerror");
    return real(code);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What libfabric does when it is loaded takes 0.3 s, nearly all of it for
 * hardware that hardly any machine has:
 *
 * - two libraries that it needs, of QLogic's TrueScale and Intel's Omni-Path,
 *   measure the clock in their constructors, asleep for 0.1 s each.  Where
 *   there is no such card, libraries of their names that know of none
 *   (fabric/ofi/absent) are there already when libfabric is loaded, and the
 *   dynamic linker takes these;
 * - its verbs look twice through /proc/kallsyms, a list of 5 MiB that the
 *   kernel makes each time, whether a driver for GPUs' memory is there: 70 ms
 *   of a cpu.  Where there is no RDMA device they are told that there is no
 *   such file.
 *
 * Without this a first message over TCP would take longer than all else that
 * starting a job does.
 */
#include "config.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fabric/ofi/ofi.h"
#include "fabric/ofi/quick.h"
#include "runtime/base/base.h"
#include "runtime/base/log.h"

TPB_LOG_COMPONENT("ofi");

enum { QUICK_PATH = 4096 };

/* ---- cards that are not there -------------------------------------------- */

/* Is there an entry of that folder whose name begins so? */
static bool quick_has(const char *folder, const char *name)
{
    DIR *entries = opendir(folder);
    struct dirent *entry;
    bool found = false;

    while (entries != NULL && !found && (entry = readdir(entries)) != NULL)
        found = entry->d_name[0] != '.'
                && strncmp(entry->d_name, name, strlen(name)) == 0;
    if (entries != NULL)
        closedir(entries);
    return found;
}

static bool quick_has_card(const char *device, const char *driver)
{
    return quick_has("/dev", device)
           || quick_has("/sys/class/infiniband", driver);
}

/* One of absent/'s: from this library's folder, where it is installed, or,
 * where it has just been built, in the build tree. */
static void *quick_absent(const char *name)
{
    static const char built[] = "/.libs";
    char path[QUICK_PATH];
    const char *slash;
    int length;
    bool ours;
    Dl_info self;

    if (dladdr(&ofi_lib, &self) == 0
        || (slash = strrchr(self.dli_fname, '/')) == NULL)
        return NULL;
    length = (int)(slash - self.dli_fname);
    ours = length >= (int)sizeof(built) - 1
           && strncmp(slash - (sizeof(built) - 1), built,
                      sizeof(built) - 1) == 0;
    snprintf(path, sizeof(path), "%.*s/%s/%s", length, self.dli_fname,
             ours ? "../fabric/ofi/absent" : PACKAGE, name);
    if (access(path, R_OK) == 0)
        return dlopen(path, RTLD_NOW | RTLD_LOCAL);
    tpb_debug("there is no %s, so libfabric takes longer to load", path);
    return NULL;
}

/* ---- a file that need not be read ---------------------------------------- */

static FILE *quick_fopen(const char *path, const char *mode)
{
    if (strcmp(path, "/proc/kallsyms") == 0) {
        errno = ENOENT;
        return NULL;
    }
    return fopen(path, mode);
}

#if defined(__x86_64__) && defined(__LP64__)
enum { QUICK_SLOT = R_X86_64_JUMP_SLOT, QUICK_DATA = R_X86_64_GLOB_DAT };
#elif defined(__aarch64__) && defined(__LP64__)
enum { QUICK_SLOT = R_AARCH64_JUMP_SLOT, QUICK_DATA = R_AARCH64_GLOB_DAT };
#else
enum { QUICK_SLOT = -1, QUICK_DATA = -1 };
#endif

/* What the dynamic section of a library says. */
struct quick_object {
    const struct link_map *map;
    const ElfW(Sym) *symbols;
    const char *names;
    const ElfW(Rela) *calls, *data; /* relocations, ... */
    size_t call_count, data_count;
    bool rela;                      /* ... of this kind */
    uintptr_t guarded, guarded_end; /* read-only since it was relocated */
};

static void quick_read(struct quick_object *object)
{
    for (const ElfW(Dyn) *entry = object->map->l_ld; entry->d_tag != DT_NULL;
         entry++) {
        /* The dynamic linker has made addresses of these. */
        const void *there = (const void *)entry->d_un.d_ptr;
        size_t value = entry->d_un.d_val, rela = sizeof(ElfW(Rela));

        switch (entry->d_tag) {
        case DT_SYMTAB: object->symbols = there; break;
        case DT_STRTAB: object->names = there; break;
        case DT_JMPREL: object->calls = there; break;
        case DT_PLTRELSZ: object->call_count = value / rela; break;
        case DT_PLTREL: object->rela = value == DT_RELA; break;
        case DT_RELA: object->data = there; break;
        case DT_RELASZ: object->data_count = value / rela; break;
        default: break;
        }
    }
}

static int quick_guard(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct quick_object *object = arg;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);

    (void)size;
    if (info->dlpi_addr != object->map->l_addr)
        return 0;
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];

        if (part->p_type != PT_GNU_RELRO)
            continue;
        object->guarded = (info->dlpi_addr + part->p_vaddr) & ~(page - 1);
        object->guarded_end = (info->dlpi_addr + part->p_vaddr + part->p_memsz)
                              & ~(page - 1);
    }
    return 1;
}

/* Stores it where the library looks for the function. */
static bool quick_store(const struct quick_object *object, uintptr_t where,
                        void *function)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    void *begin = (void *)(where & ~(page - 1));
    bool guarded = where >= object->guarded && where < object->guarded_end;

    if (guarded && mprotect(begin, page, PROT_READ | PROT_WRITE) < 0)
        return false;
    atomic_store((_Atomic(void *) *)where, function);
    if (guarded)
        mprotect(begin, page, PROT_READ);
    return true;
}

/* Among so many relocations: where that function is called, or its address is
 * kept. */
static bool quick_replace(const struct quick_object *object,
                          const ElfW(Rela) *relocations, size_t count,
                          const char *name, void *function)
{
    bool done = false;

    for (size_t i = 0; i < count; i++) {
        const ElfW(Rela) *one = &relocations[i];
        int type = (int)ELF64_R_TYPE(one->r_info);
        const ElfW(Sym) *symbol =
            &object->symbols[ELF64_R_SYM(one->r_info)];

        if ((type == QUICK_SLOT || type == QUICK_DATA)
            && strcmp(object->names + symbol->st_name, name) == 0)
            done |= quick_store(object, object->map->l_addr + one->r_offset,
                                function);
    }
    return done;
}

static bool quick_calls(void *library, const char *name, void *function)
{
    struct quick_object object = { 0 };
    bool done;

    if (QUICK_SLOT < 0 || dlinfo(library, RTLD_DI_LINKMAP, &object.map) != 0)
        return false;
    quick_read(&object);
    if (!object.rela || object.symbols == NULL || object.names == NULL)
        return false;
    dl_iterate_phdr(quick_guard, &object);
    done = quick_replace(&object, object.calls, object.call_count, name,
                         function);
    return quick_replace(&object, object.data, object.data_count, name,
                         function) || done;
}

void ofi_quick_begin(struct ofi_quick *quick)
{
    *quick = (struct ofi_quick){ 0 };
    if (!quick_has_card("ipath", "qib"))
        quick->absent[0] = quick_absent("libpsm_infinipath.so.1");
    if (!quick_has_card("hfi1", "hfi1"))
        quick->absent[1] = quick_absent("libpsm2.so.2");
}

bool ofi_quick_undo(struct ofi_quick *quick)
{
    bool any = false;

    for (size_t i = 0; i < TPB_COUNT(quick->absent); i++)
        if (quick->absent[i] != NULL) {
            dlclose(quick->absent[i]);
            any = true;
        }
    *quick = (struct ofi_quick){ 0 };
    return any;
}

void ofi_quick_first(struct ofi_quick *quick, void *library)
{
    FILE *(*function)(const char *, const char *) = quick_fopen;

    if (!quick_has("/sys/class/infiniband", ""))
        quick->hushed = quick_calls(library, "fopen",
                                    *(void **)(void *)&function);
}

void ofi_quick_end(struct ofi_quick *quick, void *library)
{
    FILE *(*function)(const char *, const char *) = fopen;

    if (quick->hushed)
        quick_calls(library, "fopen", *(void **)(void *)&function);
    quick->hushed = false;
}

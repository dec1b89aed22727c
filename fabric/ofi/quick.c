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

/* May there be an entry of that folder whose name begins so?  Who cannot look
 * does not know. */
static bool quick_has(const char *folder, const char *name)
{
    DIR *entries = opendir(folder);
    struct dirent *entry;
    bool found = false;

    if (entries == NULL)
        return errno != ENOENT && errno != ENOTDIR;
    while (!found && (entry = readdir(entries)) != NULL)
        found = entry->d_name[0] != '.'
                && strncmp(entry->d_name, name, strlen(name)) == 0;
    closedir(entries);
    return found;
}

static bool quick_has_card(const char *device, const char *driver)
{
    return quick_has("/dev", device)
           || quick_has("/sys/class/infiniband", driver);
}

static bool quick_is_loaded(const char *name)
{
    void *handle = dlopen(name, RTLD_NOW | RTLD_NOLOAD);

    if (handle != NULL)
        dlclose(handle);
    return handle != NULL;
}

/*
 * The folder of this library, from the root.  Not the program's, whose name is
 * what its caller says: then we are part of it, and have no folder.
 */
static const char *quick_folder(int *length)
{
    const struct link_map *map = NULL;
    const char *slash;
    Dl_info self;

    if (dladdr1(&ofi_lib, &self, (void **)&map, RTLD_DL_LINKMAP) == 0
        || map == NULL || map->l_name[0] != '/')
        return NULL;
    slash = strrchr(map->l_name, '/');
    *length = (int)(slash - map->l_name);
    return map->l_name;
}

/* One of absent/'s: below that folder, where it is installed, or, where it has
 * just been built, in the build tree. */
static void *quick_absent(const char *name)
{
    static const char built[] = "/.libs";
    const int end = sizeof(built) - 1;
    int length = 0;
    const char *folder = quick_folder(&length);
    char path[QUICK_PATH];
    bool ours;

    if (folder == NULL || quick_is_loaded(name))
        return NULL;
    ours = length >= end && memcmp(folder + length - end, built, end) == 0;
    snprintf(path, sizeof(path), "%.*s/%s/%s", length, folder,
             ours ? "../fabric/ofi/absent" : PACKAGE, name);
    if (access(path, R_OK) == 0)
        return dlopen(path, RTLD_NOW | RTLD_LOCAL);
    tpb_debug("there is no %s, so libfabric takes longer to load", path);
    return NULL;
}

/* ---- a file that need not be read ---------------------------------------- */

typedef FILE *quick_open(const char *path, const char *mode);

#if defined(__LP64__) && (defined(__x86_64__) || defined(__aarch64__))

#ifdef __x86_64__
enum { QUICK_SLOT = R_X86_64_JUMP_SLOT, QUICK_DATA = R_X86_64_GLOB_DAT };
#else
enum { QUICK_SLOT = R_AARCH64_JUMP_SLOT, QUICK_DATA = R_AARCH64_GLOB_DAT };
#endif

/* What it called before. */
static _Atomic(quick_open *) quick_before;

static FILE *quick_fopen(const char *path, const char *mode)
{
    quick_open *before = atomic_load(&quick_before);

    if (strcmp(path, "/proc/kallsyms") == 0) {
        errno = ENOENT;
        return NULL;
    }
    return before != NULL ? before(path, mode) : fopen(path, mode);
}

/* What the dynamic section of a library says. */
struct quick_object {
    const struct link_map *map;
    const ElfW(Sym) *symbols;
    const char *names;
    const ElfW(Rela) *calls, *data; /* relocations */
    size_t call_count, data_count;
    bool found;                     /* among what is loaded */
    uintptr_t guarded, guarded_end; /* read-only since it was relocated */
};

/* The dynamic linker makes an address of what it says, where it can write. */
static const void *quick_address(const struct link_map *map, ElfW(Addr) said)
{
    return (const void *)(said < map->l_addr ? said + map->l_addr : said);
}

/* False: not as we know it. */
static bool quick_read(struct quick_object *object)
{
    bool rela = true;

    for (const ElfW(Dyn) *entry = object->map->l_ld; entry->d_tag != DT_NULL;
         entry++) {
        const void *there = quick_address(object->map, entry->d_un.d_ptr);
        size_t value = entry->d_un.d_val, one = sizeof(ElfW(Rela));

        switch (entry->d_tag) {
        case DT_SYMTAB: object->symbols = there; break;
        case DT_STRTAB: object->names = there; break;
        case DT_JMPREL: object->calls = there; break;
        case DT_PLTRELSZ: object->call_count = value / one; break;
        case DT_PLTREL: rela = value == DT_RELA; break;
        case DT_RELA: object->data = there; break;
        case DT_RELASZ: object->data_count = value / one; break;
        default: break;
        }
    }
    return rela && object->symbols != NULL && object->names != NULL;
}

static int quick_find(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct quick_object *object = arg;
    uintptr_t page = tpb_page(), guarded = 0, end = 0;

    (void)size;
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uintptr_t begin = info->dlpi_addr + part->p_vaddr;

        if (part->p_type == PT_DYNAMIC)
            object->found = begin == (uintptr_t)object->map->l_ld;
        if (part->p_type == PT_GNU_RELRO) {
            guarded = begin & ~(page - 1);
            end = (begin + part->p_memsz) & ~(page - 1);
        }
    }
    if (!object->found)
        return 0;
    object->guarded = guarded;
    object->guarded_end = end;
    return 1;
}

/* Where the library looks for a function: another one; NULL: not done. */
static quick_open *quick_exchange(const struct quick_object *object,
                                  uintptr_t where, quick_open *other)
{
    uintptr_t page = tpb_page();
    void *begin = (void *)(where & ~(page - 1));
    bool guarded = where >= object->guarded && where < object->guarded_end;
    quick_open *before;

    if (guarded && mprotect(begin, page, PROT_READ | PROT_WRITE) < 0)
        return NULL;
    before = atomic_exchange((_Atomic(quick_open *) *)where, other);
    if (guarded)
        mprotect(begin, page, PROT_READ);
    return before;
}

/* Among so many relocations, where fopen() is called through a table. */
static void quick_replace(const struct quick_object *object,
                          const ElfW(Rela) *relocations, size_t count,
                          quick_open *other, quick_open **before)
{
    for (size_t i = 0; i < count; i++) {
        const ElfW(Rela) *one = &relocations[i];
        int type = (int)ELF64_R_TYPE(one->r_info);
        const char *name = object->names
            + object->symbols[ELF64_R_SYM(one->r_info)].st_name;
        quick_open *was;

        if ((type != QUICK_SLOT && type != QUICK_DATA)
            || (strcmp(name, "fopen") != 0 && strcmp(name, "fopen64") != 0))
            continue;
        was = quick_exchange(object, object->map->l_addr + one->r_offset,
                             other);
        if (was != NULL)
            *before = was;
    }
}

/* Has the library call `other` instead of what it calls for fopen().  What that
 * is; NULL: it calls none, or is not as we know it. */
static quick_open *quick_calls(void *library, quick_open *other)
{
    struct quick_object object = { 0 };
    quick_open *before = NULL;

    if (dlinfo(library, RTLD_DI_LINKMAP, &object.map) != 0
        || !quick_read(&object))
        return NULL;
    dl_iterate_phdr(quick_find, &object);
    if (!object.found)
        return NULL;
    quick_replace(&object, object.calls, object.call_count, other, &before);
    quick_replace(&object, object.data, object.data_count, other, &before);
    return before;
}

static bool quick_hush(void *library)
{
    quick_open *before = quick_calls(library, quick_fopen);

    atomic_store(&quick_before, before);
    return before != NULL;
}

static void quick_unhush(void *library)
{
    quick_calls(library, atomic_load(&quick_before));
}

#else

static bool quick_hush(void *library)
{
    (void)library;
    return false;
}

static void quick_unhush(void *library)
{
    (void)library;
}

#endif

void ofi_quick_begin(struct ofi_quick *quick, const char *library)
{
    *quick = (struct ofi_quick){ 0 };
    if (quick_is_loaded(library))
        return;
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
    if (!quick_has("/sys/class/infiniband", ""))
        quick->hushed = quick_hush(library);
}

void ofi_quick_end(struct ofi_quick *quick, void *library)
{
    if (quick->hushed)
        quick_unhush(library);
    quick->hushed = false;
}

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * libfabric without what takes it 0.3 s for hardware that is not there.  For
 * the one thread that loads it.  Where something of this cannot be had it takes
 * the time that it takes.
 */
#ifndef TPF_OFI_QUICK_H
#define TPF_OFI_QUICK_H

#include <stdbool.h>

struct ofi_quick {
    void *absent[2];               /* libraries that stand in; NULL: not */
    bool hushed;                   /* it finds no /proc/kallsyms */
};

/* Before that `library` is loaded. */
void ofi_quick_begin(struct ofi_quick *quick, const char *library);
/* It could not be: is it worth another try, without us? */
bool ofi_quick_undo(struct ofi_quick *quick);
/* Around its first question, to which it sets up its providers. */
void ofi_quick_first(struct ofi_quick *quick, void *library);
void ofi_quick_end(struct ofi_quick *quick, void *library);

#endif

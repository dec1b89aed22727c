/* SPDX-License-Identifier: BSD-3-Clause */
/* A folder of files as the kernel's, below /tmp, for one test at a time. */
#ifndef TPX_TREE_H
#define TPX_TREE_H

/* Where it is. */
extern char tpx_tree[64];

/* For tcase_add_checked_fixture(). */
void tpx_tree_make(void);
void tpx_tree_remove(void);

/* Writes a file there, "folder/name", and its folders. */
void tpx_tree_put(const char *name, const char *text);

#endif

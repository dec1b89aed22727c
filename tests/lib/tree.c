/* SPDX-License-Identifier: BSD-3-Clause */
/* See tree.h. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/tpx.h"
#include "tests/lib/tree.h"

char tpx_tree[64];

void tpx_tree_make(void)
{
    strcpy(tpx_tree, "/tmp/tp-tree.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(tpx_tree));
}

void tpx_tree_remove(void)
{
    char command[96];

    snprintf(command, sizeof(command), "rm -rf '%s'", tpx_tree);
    ck_assert_int_eq(system(command), 0);
}

void tpx_tree_put(const char *name, const char *text)
{
    char path[256];
    FILE *file;

    snprintf(path, sizeof(path), "%s/%s", tpx_tree, name);
    for (char *at = path + strlen(tpx_tree) + 1; (at = strchr(at, '/')) != NULL;
         at++) {
        *at = '\0';
        (void)mkdir(path, 0700);
        *at = '/';
    }
    file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

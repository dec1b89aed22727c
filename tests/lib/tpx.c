/* SPDX-License-Identifier: BSD-3-Clause */
/* One main for a Check suite. */
#include "config.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/base/settings.h"
#include "tests/lib/tpx.h"

/* Shared with the forked test cases. */
static int *tpx_skips;

static int *tpx_shared(void)
{
    if (tpx_skips == NULL) {
        tpx_skips = mmap(NULL, sizeof(int), PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (tpx_skips == MAP_FAILED)
            abort();
    }
    return tpx_skips;
}

void tpx_skip(const char *what, const char *reason)
{
    const char *required = getenv("TP_TEST_REQUIRE");

    if (required != NULL && *required != '\0'
        && tpb_list_allows(required, what))
        ck_abort_msg("%s is required (TP_TEST_REQUIRE=%s) but: %s", what,
                     required, reason);
    __atomic_add_fetch(tpx_shared(), 1, __ATOMIC_SEQ_CST);
    fprintf(stderr, "SKIP: %s: %s\n", what, reason);
}

bool tpx_is_set(const char *variable)
{
    const char *value = getenv(variable);

    return value != NULL && *value != '\0';
}

bool tpx_sanitized(void)
{
    return tpx_is_set("TP_TEST_SANITIZER");
}

bool tpx_sanitized_thread(void)
{
    return tpx_sanitized()
           && strstr(getenv("TP_TEST_SANITIZER"), "thread") != NULL;
}

bool tpx_chosen(const char *test)
{
    const char *only = getenv("TP_TEST_ONLY");

    return only == NULL || tpb_list_allows(only, test);
}

void tpx_load(const char *backend)
{
    if (strncmp(backend, "ofi:", 4) == 0 || strcmp(backend, "rails") == 0)
        (void)dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
}

unsigned tpx_few(unsigned many)
{
    return tpx_is_set("TP_TEST_FEW") && many > 10 ? many / 10 : many;
}

const char *tpx_program(const char *path)
{
    static char buffer[8][1024];
    static unsigned next;
    const char *build = getenv("TP_TEST_BUILD");
    char *text = buffer[next++ % 8];

    snprintf(text, sizeof(buffer[0]), "%s/%s", build != NULL ? build : ".",
             path);
    return text;
}

int tpx_run(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    int run, failed, passed, skipped, before = *tpx_shared();

    srunner_run_all(runner, CK_NORMAL);
    run = srunner_ntests_run(runner);
    failed = srunner_ntests_failed(runner);
    skipped = *tpx_shared();
    /* What main() skipped is no test that was run. */
    passed = run - failed - (skipped - before);
    srunner_free(runner);
    if (run == 0) {
        /* What could not be run was counted all the same. */
        passed = 0;
        skipped = 1;
        printf("SKIP: none of its tests was asked for (TP_TEST_ONLY,"
               " TP_TEST_BACKENDS, CK_RUN_CASE)\n");
    }
    printf("tpx: %d passed, %d failed, %d skipped\n", passed, failed, skipped);
    if (failed > 0)
        return 1;
    return passed == 0 && skipped > 0 ? 77 : 0;
}

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Would the tests notice?  Each fault of gpu/mutants.h is planted, and a test
 * has to fail; without it the same test passes.
 */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "gpu/mutants.h"
#include "runtime/base/base.h"
#include "tests/gpu/device.h"
#include "tests/gpu/runs.h"
#include "tests/gpu/suite_device.h"

int tpg_mutant = TPG_MUTANT_NONE;

static const struct tpx_run staged = { "loop,shm", "thread", "lazy", true,
                                       true, true, true };
static const struct tpx_run pinned = { "loop,shm,cuda_host", "thread", "lazy",
                                       true, true, true, true };
static const struct tpx_run direct = { "loop,shm,cuda_ipc", "thread", "lazy",
                                       true, true, true, true };

/* `words`: what the report has to contain; NULL: all must be well.  `test`:
 * NULL is tpx_kinds_short. */
static const struct {
    enum tpg_mutant mutant;
    const struct tpx_run *run;
    const char *words;
    const struct tpx_spmd *test;
} mutants[] = {
    { TPG_MUTANT_NO_STREAM_WAIT, &staged, "is wrong", NULL },
    { TPG_MUTANT_NO_STREAM_WAIT, &direct, "is wrong", NULL },
    { TPG_MUTANT_WRONG_STREAM, &staged, "is wrong", NULL },
    { TPG_MUTANT_WRONG_STREAM, &direct, "is wrong", NULL },
    { TPG_MUTANT_NO_JOIN, &staged, "is wrong", NULL },
    { TPG_MUTANT_NO_SLOT_WAIT, &staged, "is wrong", NULL },
    { TPG_MUTANT_SLOT_TWICE, &staged, "is wrong", NULL },
    { TPG_MUTANT_NO_SLOT_WAIT, &pinned, "is wrong", NULL },
    { TPG_MUTANT_SLOT_TWICE, &pinned, "is wrong", NULL },
    { TPG_MUTANT_NO_FLAG_WAIT, &direct, "is wrong", NULL },
    { TPG_MUTANT_NO_BOX_WAIT, &direct, "is wrong", NULL },
    { TPG_MUTANT_STALE_EXPORT, &direct, "that its owner freed", NULL },
    { TPG_MUTANT_STALE_IMPORT, &direct, "that its owner freed", NULL },
    { TPG_MUTANT_NO_PUSH, &staged, "(201)", NULL },
    { TPG_MUTANT_NO_PUSH, &direct, "(201)", NULL },
    { TPG_MUTANT_NO_CALM, &staged, "reported an error", &tpx_streams_capture },
    { TPG_MUTANT_NO_CALM, &direct, "reported an error", &tpx_streams_capture },
    { TPG_MUTANT_THREAD_STREAM, &staged, "is wrong", &tpx_streams_thread },
    /* A note that comes late, or never, costs memory and no byte. */
    { TPG_MUTANT_NO_FORGET, &direct, NULL, NULL },
};

START_TEST(planted)
{
    const struct tpx_spmd *test = mutants[_i].test;
    char *environment[8], text[3000];
    struct tpx_job job = tpx_run_job(test != NULL ? test : &tpx_kinds_short,
                                     mutants[_i].run, environment);

    tpx_device_choose();
    tpg_mutant = (int)mutants[_i].mutant;
    if (mutants[_i].words == NULL) {
        tpx_job_run(&job);
        return;
    }
    ck_assert_msg(tpx_job_fails(&job, text, sizeof(text)),
                  "no test noticed fault %d", tpg_mutant);
    ck_assert_msg(strstr(text, mutants[_i].words) != NULL,
                  "fault %d was noticed by: %s", tpg_mutant, text);
}
END_TEST

START_TEST(sound)
{
    static const struct tpx_spmd *const tests[] = {
        &tpx_kinds_short, &tpx_streams_capture, &tpx_streams_thread };
    char *environment[8];
    struct tpx_job job = tpx_run_job(tests[_i / 2],
                                     _i % 2 == 0 ? &staged : &direct,
                                     environment);

    tpx_device_choose();
    tpx_job_run(&job);
}
END_TEST

/* Every fault has a row; those of cuda_gdr come behind. */
START_TEST(complete)
{
    for (int mutant = TPG_MUTANT_NONE + 1; mutant < TPG_MUTANTS; mutant++) {
        bool found = false;

        for (size_t i = 0; i < TPB_COUNT(mutants); i++)
            found |= (int)mutants[i].mutant == mutant;
        ck_assert_msg(found, "fault %d is not tried", mutant);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("mutants");
    TCase *tests = tcase_create("mutants");

    tcase_set_timeout(tests, tpx_patience_ms(60) / 1000.0 + 10);
    tcase_add_loop_test(tests, planted, 0, (int)TPB_COUNT(mutants));
    tcase_add_loop_test(tests, sound, 0, 6);
    tcase_add_test(tests, complete);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* The same tests under real launchers: tprun, and Open MPI's mpirun. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/tpx.h"
#include "tests/multi/harness.h"

/* The deadline only finds hangs; a machine may have much else to do. */
enum { LAUNCHED_TEXT = 12000, LAUNCHED_MOST = 64, LAUNCHED_SECONDS = 60,
       LAUNCHED_TRIES = 3 };

static const struct tpx_spmd *launched_tests[LAUNCHED_MOST];
static int launched_count;

static void launched_find(void)
{
    for (size_t s = 0; tpx_suites[s] != NULL; s++)
        for (const struct tpx_spmd *test = tpx_suites[s]; test->name != NULL;
             test++)
            if ((test->flags & TPX_LAUNCH) != 0
                && launched_count < LAUNCHED_MOST)
                launched_tests[launched_count++] = test;
}

static int launched_done(const char *output)
{
    int count = 0;

    while ((output = strstr(output, "spmd: a rank is done")) != NULL) {
        output++;
        count++;
    }
    return count;
}

/* Runs and judges; the launcher's path and options come first.  One that is
 * `deaf` may miss the end of its ranks, as long as they say that they are done:
 * Open MPI 4.1 does, now and then, of ranks that end together.  And twice in a
 * hundred jobs of a busy machine it leaves a rank in PMIx_Init for ever: such a
 * job is run again. */
static void launched_run(const char *const *launcher, bool deaf,
                         const struct tpx_spmd *test)
{
    static char output[LAUNCHED_TEXT];
    const char *command[24];
    char ranks[16];
    size_t count = 0;
    int status = -1;

    while (launcher[count] != NULL) {
        command[count] = launcher[count];
        count++;
    }
    snprintf(ranks, sizeof(ranks), "%d", test->ranks);
    command[count++] = "-n";
    command[count++] = ranks;
    command[count++] = tpx_program("tests/multi/spmd");
    command[count++] = test->name;
    command[count] = NULL;
    setenv("TPX_TELL", "1", 1);
    for (int try = 1; try <= LAUNCHED_TRIES; try++) {
        status = tpx_execute((char *const *)(uintptr_t)command,
                             LAUNCHED_SECONDS, output, sizeof(output));
        if (status != -1 || !deaf || strstr(output, "PMIx_Init") == NULL)
            break;
        printf("note: %s did not answer a rank of %s\n", launcher[0],
               test->name);
    }
    if (status == -1 && deaf && launched_done(output) == test->ranks) {
        printf("note: %s did not see the ranks of %s end\n", launcher[0],
               test->name);
        return;
    }
    if (status == -1)
        ck_abort_msg("%s %s had to be killed: %s", launcher[0], test->name,
                     output);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        ck_abort_msg("%s %s: status %x: %s", launcher[0], test->name, status,
                     output);
}

START_TEST(test_tprun)
{
    const char *launcher[] = { tpx_program("launcher/tprun"), NULL };

    if (access(launcher[0], X_OK) < 0) {
        tpx_skip("tprun", "launcher/tprun is not in the build tree");
        return;
    }
    launched_run(launcher, false, launched_tests[_i]);
}
END_TEST

static const char *launched_mpirun(void)
{
    static const char *const places[] = { "/usr/bin/mpirun.openmpi",
                                          "/usr/bin/mpirun",
                                          "/usr/local/bin/mpirun" };

    for (size_t i = 0; i < TPB_COUNT(places); i++)
        if (access(places[i], X_OK) == 0)
            return places[i];
    return NULL;
}

START_TEST(test_openmpi)
{
    const char *mpirun = launched_mpirun();
    const char *launcher[] = { mpirun, "--oversubscribe", NULL };

    if (mpirun == NULL) {
        tpx_skip("openmpi", "no mpirun: apt-get install openmpi-bin");
        return;
    }
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    launched_run(launcher, true, launched_tests[_i]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("launched");
    TCase *tests = tcase_create("launched");

    launched_find();
    tcase_set_timeout(tests, LAUNCHED_TRIES
                             * (tpx_patience_ms(LAUNCHED_SECONDS) / 1000.0
                                + 30));
    tcase_add_loop_test(tests, test_tprun, 0, launched_count);
    tcase_add_loop_test(tests, test_openmpi, 0, launched_count);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}

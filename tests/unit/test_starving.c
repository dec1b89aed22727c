/* SPDX-License-Identifier: BSD-3-Clause */
/* Who waits for a cpu, and who for something else. */
#include "config.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/starving.h"
#include "tests/lib/tpx.h"

/* Milliseconds of a cpu at one look after the other. */
START_TEST(test_texts)
{
    static const struct {
        const char *stat, *schedstat;
        bool starving;
    } looks[] = {
        { "7 (a) b) R 1 7", "1000000 5000000000 3", true },
        { "7 (a) b) R 1 7", "1000000 9000000000 3", true },
        { "7 (a) b) R 1 7", "9000000 9900000000 4", true },
        { "7 (a) b) S 1 7", "9000000 9900000000 4", false },
        { "7 (R) T 1 7", "9000000 9900000000 4", false },
        { "7 (a) b) R 1 7", "", false },
        { "", "9000000 9900000000 4", false },
        { "7 (a", "9000000 9900000000 4", false },
        { "7 (a) b) R 1 7", "11000000 9900000000 5", false },
    };
    uint64_t ran = 0;

    for (size_t i = 0; i < TPB_COUNT(looks); i++)
        ck_assert_msg(tpl_starving_text(looks[i].stat, looks[i].schedstat,
                                        &ran) == looks[i].starving, "%zu", i);
    ck_assert_uint_eq(ran, 1000000);
}
END_TEST

/* Who sleeps does not starve, nor who is stopped, nor who is gone. */
START_TEST(test_processes)
{
    uint64_t ran = 0;
    pid_t pid = fork();
    siginfo_t info;

    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        raise(SIGSTOP);
        _exit(0);
    }
    ck_assert_int_eq(waitid(P_PID, (id_t)pid, &info, WSTOPPED), 0);
    ck_assert(!tpl_starving(pid, &ran));
    kill(pid, SIGKILL);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    ck_assert(!tpl_starving(pid, &ran));
    /* This one runs, so it has a turn; at the first look that is not known. */
    if (access("/proc/self/schedstat", R_OK) != 0) {
        tpx_skip("schedstat", "the kernel does not count turns");
        return;
    }
    ck_assert(tpl_starving(getpid(), &ran));
    for (int i = 0; i < 100000 && tpl_starving(getpid(), &ran); i++)
        ;
    ck_assert(!tpl_starving(getpid(), &ran));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("starving");
    TCase *tests = tcase_create("starving");

    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, test_texts);
    tcase_add_test(tests, test_processes);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}

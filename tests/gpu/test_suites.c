/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The whole of tests/multi with payloads and tensors on devices (payloads.h),
 * over each way of device memory, in two of the four modes of the double.
 * With a real driver each takes each way once; under sanitizers one way in one
 * mode.  Which modes goes on from test to test, and begins elsewhere in each
 * build.  With TP_TEST_LONG all ways in all modes.  TP_TEST_WAY chooses one of
 * the ways.
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "runtime/base/base.h"
#include "tests/gpu/device.h"
#include "tests/gpu/payloads.h"
#include "tests/gpu/runs.h"
#include "tests/gpu/suite_device.h"

enum {
    SUITES_IPC = 2, SUITES_GDR = 4, SUITES_HOST = 8,   /* by suites_names */
    SUITES_DIRECT = SUITES_IPC | SUITES_GDR | SUITES_HOST, SUITES_ALL = 15
};

/* What is left out of which ways, and why: by the beginning of its name. */
static const struct {
    const char *name;
    unsigned ways;
    const char *why;
} suites_out[] = {
    { "any_turns_", SUITES_ALL, "counts bytes that wait at the receiver" },
    { "any_outside", SUITES_DIRECT, "sends what is read after later ones" },
    { "arguments_messages", SUITES_ALL, "wrong calls, not passed on" },
    { "arguments_devices", SUITES_ALL, "wrong calls, not passed on" },
    { "arguments_places", SUITES_ALL, "wrong calls, not passed on" },
    { "arguments_skeletons", SUITES_ALL, "wrong calls, not passed on" },
    { "arguments_unfilled", SUITES_ALL, "wrong calls, not passed on" },
    { "arguments_read_twice", SUITES_ALL, "wrong calls, not passed on" },
    { "arguments_no_driver", SUITES_ALL, "there is one" },
    { "blocking_credit", SUITES_ALL, "fills the transport's room" },
    { "blocking_send_timeout", SUITES_ALL, "fills the transport's room" },
    { "blocking_timeouts", SUITES_DIRECT, "reads what is there in no time" },
    { "blocking_unheard", SUITES_ALL, "fills the transport's room" },
    { "channel_borrow_short", SUITES_DIRECT, "keeps some, and more is sent" },
    { "channel_demote", SUITES_GDR, "takes the double's right to read" },
    { "channel_denied", SUITES_GDR, "takes the double's right to read" },
    { "close_finalize_pending", SUITES_DIRECT, "both send, then both read" },
    { "close_inside", SUITES_ALL, "sends what nobody reads" },
    { "idle_ways", SUITES_ALL, "measures, and copies cost time here" },
    { "listen_close", SUITES_ALL, "no messages, but waits" },
    { "listen_crowd", SUITES_DIRECT, "sends what is read after later ones" },
    { "listen_flood", SUITES_DIRECT, "counts descriptors" },
    { "listen_self", SUITES_DIRECT, "sends before it reads" },
    { "nested_after_read", SUITES_ALL, "wrong calls, not passed on" },
    { "nested_every_call", SUITES_DIRECT, "both send, then both read" },
    { "order_turns", SUITES_DIRECT, "both send, then both read" },
    { "pressure_beside", SUITES_ALL, "never rests, and copies cost time" },
    { "pressure_both", SUITES_DIRECT, "both send, then both read" },
    { "pressure_called", SUITES_ALL, "never rests, and copies cost time" },
};

enum { SUITES_TESTS = 256, SUITES_MODES = 4 };

static const char *const suites_names[] = { "staged", "ipc", "gdr", "host" };

/* By way, then by mode: lazy, delayed, addresses that come back, and two
 * devices that may not access each other (there are two in all of them). */
static const struct tpx_run suites_runs[][SUITES_MODES] = {
    { { "loop,shm", "auto", "lazy", false, true, true, false },
      { "loop,shm", "thread", "delay", false, true, true, false },
      { "loop,ofi:tcp", "auto", "lazy", true, true, false, false },
      { "loop,shm", "auto", "eager", false, false, true, false } },
    { { "loop,shm,cuda_ipc", "auto", "lazy", false, true, true, false },
      { "loop,shm,cuda_ipc", "thread", "delay", false, true, false, false },
      { "loop,shm,cuda_ipc", "auto", "lazy", true, true, true, false },
      { "loop,ofi:tcp,cuda_ipc", "auto", "eager", true, false, false,
        false } },
    { { "loop,shm,cuda_gdr", "auto", "lazy", false, true, true, false },
      { "loop,shm,cuda_gdr", "thread", "delay", false, true, true, false },
      { "loop,shm,cuda_gdr", "auto", "lazy", true, true, false, false },
      { "loop,shm,cuda_gdr", "auto", "eager", true, false, false, false } },
    { { "loop,shm,cuda_host", "auto", "lazy", false, true, true, false },
      { "loop,shm,cuda_host", "thread", "delay", false, true, true, false },
      { "loop,shm,cuda_host", "auto", "lazy", true, true, false, false },
      { "loop,shm,cuda_host", "auto", "eager", true, false, true, false } },
};

static const struct tpx_spmd *suites_tests[SUITES_TESTS];

static const char *suites_variable(const char *name)
{
    const char *text = getenv(name);

    return text != NULL ? text : "";
}

/* All ways in all modes? */
static bool suites_whole(void)
{
    return tpx_is_set("TP_TEST_LONG");
}

/* In how many modes is a test run over a way?  A real driver has none. */
static int suites_modes(void)
{
    if (suites_whole())
        return SUITES_MODES;
    return !tpx_sanitized() && tpx_device_is_double() ? 2 : 1;
}

START_TEST(run)
{
    const struct tpx_spmd *test = suites_tests[_i / SUITES_MODES
                                               / TPB_COUNT(suites_runs)];
    struct tpx_run way = suites_runs[_i / SUITES_MODES
                                     % TPB_COUNT(suites_runs)]
                                    [_i % SUITES_MODES];
    char *environment[8], part[32];
    struct tpx_job job;

    if ((test->flags & TPX_MANUAL) != 0)
        way.progress = "manual";
    tpx_payloads_keep = strcmp(test->name, "bad_alloc") == 0;
    job = tpx_run_job(test, &way, environment);
    /* What fails one by one is shared out among the modes. */
    snprintf(part, sizeof(part), "TP_TEST_PART=%d/%d",
             _i % SUITES_MODES * suites_modes() / SUITES_MODES,
             suites_modes());
    environment[4] = part;
    environment[5] = NULL;
    tpx_device_choose();
    tpx_job_run(&job);
}
END_TEST

/* Both direct ways at once. */
START_TEST(rivals)
{
    static const struct tpx_run both[] = {
        { "loop,shm,cuda_ipc,cuda_gdr,cuda_staged", "auto", "lazy", false,
          true, true, false },
        { "loop,shm,cuda_ipc,cuda_gdr,cuda_staged", "thread", "eager", true,
          true, false, false } };
    char *environment[8];
    struct tpx_job job = tpx_run_job(&tpx_rivals, &both[_i], environment);

    tpx_device_choose();
    tpx_job_run(&job);
}
END_TEST

/* Without this, a mistake in how it is linked would go unnoticed. */
START_TEST(moved)
{
    ck_assert_uint_gt(*tpx_payloads_count, getenv("TP_TEST_ONLY") != NULL
                                           ? 0 : 500);
}
END_TEST

/* The ways that a test takes; says which it does not. */
static unsigned suites_ways(const struct tpx_spmd *test)
{
    if ((test->flags & TPX_LONG) != 0)
        return 0;
    for (size_t i = 0; i < TPB_COUNT(suites_out); i++) {
        unsigned ways = suites_out[i].ways;

        if (strncmp(test->name, suites_out[i].name,
                    strlen(suites_out[i].name)) != 0)
            continue;
        printf("left out: %s%s%s: %s\n", test->name,
               ways == SUITES_ALL ? "" : " over ",
               ways == SUITES_ALL ? "" : ways == SUITES_GDR ? "cuda_gdr"
               : "direct ways",
               suites_out[i].why);
        return SUITES_ALL & ~ways;
    }
    return SUITES_ALL;
}

/* Is that test, over that way, to be run in that mode here?  The two builds
 * with sanitizers do not begin with the same. */
static bool suites_turn(int number, int way, int mode)
{
    int first = tpx_sanitized_thread();
    int ways = (int)TPB_COUNT(suites_runs);
    int step = SUITES_MODES / suites_modes();

    return mode % step == (number + way + first) % step
           && (suites_whole() || !tpx_sanitized()
               || way == (number + first) % ways);
}

static void suites_add(Suite *suite, const struct tpx_spmd *test, int number)
{
    TCase *tests = tcase_create(test->name);
    int ways = (int)TPB_COUNT(suites_runs);
    const char *chosen = getenv("TP_TEST_WAY");
    unsigned takes = suites_ways(test);

    suites_tests[number] = test;
    tcase_set_timeout(tests, tpx_patience_ms(test->seconds) / 1000.0 + 10);
    for (int i = 0; i < ways * SUITES_MODES; i++) {
        int way = i / SUITES_MODES, at = number * ways * SUITES_MODES + i;

        if ((takes & 1u << way) != 0
            && (chosen == NULL || strcmp(chosen, suites_names[way]) == 0)
            && suites_turn(number, way, i % SUITES_MODES))
            tcase_add_loop_test(tests, run, at, at + 1);
    }
    suite_add_tcase(suite, tests);
}

int main(void)
{
    const char *only = getenv("TP_TEST_ONLY");
    Suite *suite = suite_create("suites");
    TCase *last = tcase_create("moved");
    int count = 0;

    setenv("TP_TEST_FEW", "1", 0);
    tpx_payloads_count = mmap(NULL, sizeof(unsigned), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (tpx_payloads_count == MAP_FAILED)
        return 1;
    for (size_t s = 0; tpx_suites[s] != NULL; s++)
        for (const struct tpx_spmd *test = tpx_suites[s]; test->name != NULL;
             test++)
            if (tpx_chosen(test->name)) {
                if (count == SUITES_TESTS) {
                    fprintf(stderr, "more than SUITES_TESTS tests\n");
                    return 1;
                }
                suites_add(suite, test, count++);
            }
    tcase_add_test(last, moved);
    suite_add_tcase(suite, last);
    if (only == NULL && *suites_variable("TP_TEST_WAY") == 'g') {
        TCase *two = tcase_create("rivals");

        tcase_set_timeout(two, tpx_patience_ms(tpx_rivals.seconds) / 1000.0);
        tcase_add_loop_test(two, rivals, 0, 2);
        suite_add_tcase(suite, two);
    }
    return tpx_run(suite);
}

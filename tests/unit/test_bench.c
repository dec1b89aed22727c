/* SPDX-License-Identifier: BSD-3-Clause */
/* What tpperf's figures rest on: quantiles, contents, roles, the options. */
#include "config.h"

#include <math.h>
#include <stdio.h>

#include "bench/bench.h"
#include "bench/fit.h"
#include "bench/statistics.h"
#include "tests/lib/tpx.h"

START_TEST(test_quantiles)
{
    double values[] = { 5, 1, 4, 2, 3 };
    uint64_t ticks[] = { 40, 10, 30, 20 };

    bench_sort(values, 5);
    ck_assert_double_eq(bench_quantile(values, 5, 0), 1);
    ck_assert_double_eq(bench_quantile(values, 5, 0.5), 3);
    ck_assert_double_eq(bench_quantile(values, 5, 0.125), 1.5);
    ck_assert_double_eq(bench_quantile(values, 5, 1), 5);
    ck_assert_double_eq(bench_quantile(values, 1, 0.99), 1);
    ck_assert(isnan(bench_quantile(values, 0, 0.5)));
    bench_sort_ticks(ticks, 4);
    ck_assert_double_eq(bench_quantile_ticks(ticks, 4, 0.5), 25);
    ck_assert_double_eq(bench_quantile_ticks(ticks, 4, 1), 40);
    ck_assert(isnan(bench_quantile_ticks(ticks, 0, 0.5)));
}
END_TEST

START_TEST(test_sizes)
{
    static const struct { const char *text; size_t bytes; } good[] = {
        { "0", 0 }, { "8", 8 }, { "4k", 4096 }, { "4K", 4096 },
        { "1M", 1048576 }, { "2g", (size_t)2 << 30 }, { "2G", (size_t)2 << 30 }
    };
    static const char *const bad[] = {
        "", "k", "-1", " 8", "8 ", "8kk", "8kB", "0x8", "1e3",
        "99999999999999999999", "9999999999999G"
    };
    size_t bytes = 17;

    for (size_t i = 0; i < TPB_COUNT(good); i++) {
        ck_assert_msg(bench_size(good[i].text, &bytes), "%s", good[i].text);
        ck_assert_uint_eq(bytes, good[i].bytes);
    }
    bytes = 17;
    for (size_t i = 0; i < TPB_COUNT(bad); i++)
        ck_assert_msg(!bench_size(bad[i], &bytes), "%s", bad[i]);
    ck_assert_uint_eq(bytes, 17);
}
END_TEST

/* Every byte counts: changed, it is found. */
static void damage(const struct bench_job *job, unsigned char *buffer,
                   uint64_t number)
{
    for (size_t i = 0; i < job->bytes; i++) {
        buffer[i] ^= 0x40;
        ck_assert_msg(!bench_right_here(job, buffer, number),
                      "byte %zu of %zu", i, job->bytes);
        buffer[i] ^= 0x40;
    }
    ck_assert(bench_right_here(job, buffer, number));
}

START_TEST(test_contents)
{
    static const size_t sizes[] = { 0, 1, 7, 8, 9, 15, 16, 17, 63, 64, 1001 };
    unsigned char buffer[1024];

    for (size_t i = 0; i < TPB_COUNT(sizes); i++)
        for (int fresh = 0; fresh < 2; fresh++) {
            struct bench_job job = { .bytes = sizes[i], .fresh = fresh,
                                     .verify = true };

            memset(buffer, 0xaa, sizeof(buffer));
            bench_fill(buffer, job.bytes, 0);
            bench_touch(&job, buffer, 7);
            ck_assert_uint_eq(buffer[job.bytes], 0xaa);
            damage(&job, buffer, 7);
            ck_assert(bench_right(&job, buffer, 7));
            if (job.bytes == 0)
                continue;
            /* What was looked at once does not pass again, nor does what is
             * left of another message. */
            ck_assert(!bench_right(&job, buffer, 7));
            bench_fill(buffer, job.bytes, 0);
            bench_touch(&job, buffer, 7);
            ck_assert(!bench_right(&job, buffer, 8));
            job.verify = false;
            ck_assert(bench_right(&job, buffer, 8));
        }
}
END_TEST

START_TEST(test_roles)
{
    struct bench_job job = { .test = BENCH_LATENCY };
    struct bench_role role = bench_role(&job, 1, 5);

    ck_assert(role.takes_part && !role.leads);
    ck_assert_int_eq(role.out, 0);
    ck_assert(!bench_role(&job, 2, 5).takes_part);
    job.test = BENCH_PAIRS;
    ck_assert_int_eq(bench_participants(BENCH_PAIRS, 5), 4);
    ck_assert(bench_role(&job, 2, 5).leads);
    ck_assert_int_eq(bench_role(&job, 3, 5).in, 2);
    ck_assert(!bench_role(&job, 4, 5).takes_part);
    job.test = BENCH_RING;
    role = bench_role(&job, 4, 5);
    ck_assert_int_eq(role.out, 0);
    ck_assert_int_eq(role.in, 3);
    ck_assert(role.takes_part && !role.leads);
    ck_assert_int_eq(bench_participants(BENCH_RING, 1), 0);
}
END_TEST

/* In each step those who meet agree on it, and after all steps everybody has
 * met each other once. */
START_TEST(test_partners)
{
    for (int size = 2; size <= 33; size++)
        for (int rank = 0; rank < size; rank++) {
            uint64_t met = 0;
            int steps = size - 1 + size % 2;

            for (int step = 0; step < steps; step++) {
                int partner = bench_partner(rank, size, step);

                if (partner < 0) {
                    ck_assert_int_eq(size % 2, 1);
                    continue;
                }
                ck_assert_int_lt(partner, size);
                ck_assert_int_eq(bench_partner(partner, size, step), rank);
                met |= UINT64_C(1) << partner;
            }
            ck_assert_uint_eq(met, ((UINT64_C(1) << size) - 1)
                                   & ~(UINT64_C(1) << rank));
        }
}
END_TEST

static const struct bench_usage usage = {
    .program = "tpperf", .start = "tpperf", .purpose = "", .scope = BENCH_TP,
    .tests = BENCH_BIT(BENCH_TESTS) - 1
};

/* Parses a line of words; the words stay until the next call. */
static bool parse(const char *line, struct bench_options *options,
                  int *status)
{
    static char copy[512];
    char *words[32], *rest = copy;
    int count = 0;

    snprintf(copy, sizeof(copy), "%s", line);
    while (count < 31 && (words[count] = strtok_r(rest, " ", &rest)) != NULL)
        count++;
    words[count] = NULL;
    return bench_parse(count, words, &usage, options, status);
}

START_TEST(test_options)
{
    struct bench_options options;
    int status;

    ck_assert(parse("tpperf -s 8,4k --window 1,64 -r 3 -t 1.5 --fresh rate "
                    "-p thread latency", &options, &status));
    ck_assert_uint_eq(options.size_count, 2);
    ck_assert_uint_eq(options.sizes[1], 4096);
    ck_assert_uint_eq(options.window_count, 2);
    ck_assert_uint_eq(options.windows[1], 64);
    ck_assert_uint_eq(options.repetitions, 3);
    ck_assert_double_eq(options.time_ms, 1.5);
    ck_assert(options.fresh && !options.verify);
    ck_assert_str_eq(options.progress, "thread");
    ck_assert_uint_eq(options.tests, BENCH_BIT(BENCH_RATE)
                                     | BENCH_BIT(BENCH_LATENCY));
    ck_assert(parse("tpperf", &options, &status));
    ck_assert_uint_eq(options.size_count, 0);
    ck_assert_uint_eq(options.tests, BENCH_BIT(BENCH_BANDWIDTH)
                                     | BENCH_BIT(BENCH_LATENCY));
}
END_TEST

/* A list as long as there is room for, and one more. */
START_TEST(test_long_lists)
{
    char line[3 * BENCH_SIZES] = "tpperf -s 8";
    struct bench_options options;
    int status;

    for (int i = 1; i < BENCH_SIZES; i++)
        strcat(line, ",8");
    ck_assert(parse(line, &options, &status));
    ck_assert_uint_eq(options.size_count, BENCH_SIZES);
    strcat(line, ",8");
    ck_assert(!parse(line, &options, &status));
    ck_assert_int_eq(status, 2);
}
END_TEST

/* ---- the line through measured times ----------------------------------- */

static void points(struct pair_result *result, double latency, double speed)
{
    static const size_t bytes[] = { 8, 65536, 262144, 1048576, 4194304 };

    *result = (struct pair_result) { .point_count = TPB_COUNT(bytes) };
    for (unsigned i = 0; i < result->point_count; i++) {
        result->points[i].bytes = bytes[i];
        result->points[i].us = latency + (i > 0 ? (double)bytes[i] / speed
                                          : 0);
    }
}

START_TEST(test_fit)
{
    struct pair_result result;
    struct fit fit;

    points(&result, 0.25, 12000);
    ck_assert(fit_transport(&result, 65536, &fit));
    ck_assert_double_eq_tol(fit.latency_us, 0.25, 1e-9);
    ck_assert_double_eq_tol(fit.megabytes, 12000, 1e-6);
    ck_assert_double_lt(fit.error, 1e-9);
    /* One point that is off by a tenth moves it, and shows. */
    result.points[2].us *= 1.1;
    ck_assert(fit_transport(&result, 65536, &fit));
    ck_assert_double_gt(fit.megabytes, 11000);
    ck_assert_double_lt(fit.megabytes, 12000);
    ck_assert_double_gt(fit.error, 0.03);
    /* The smallest message took longest: a busy machine. */
    points(&result, 0.25, 12000);
    result.points[0].us = 4000;
    ck_assert(fit_transport(&result, 65536, &fit));
    ck_assert_double_eq_tol(fit.megabytes, 4194304 / (0.25 + 4194304 / 12e3),
                            1e-6);
    result.point_count = 1;
    ck_assert(!fit_transport(&result, 65536, &fit));
    result.point_count = 0;
    ck_assert(!fit_transport(&result, 65536, &fit));
}
END_TEST

START_TEST(test_fit_channel)
{
    struct pair_result result;
    struct fit fit;

    points(&result, 0.25 + 1.5, 20000);
    ck_assert(fit_channel(&result, 65536, 0.25, &fit));
    ck_assert_double_eq_tol(fit.latency_us, 1.5, 1e-9);
    ck_assert_double_eq_tol(fit.megabytes, 20000, 1e-6);
    /* What did not go through the channel does not count. */
    result.points[1].us = 1000;
    ck_assert(fit_channel(&result, 65537, 0.25, &fit));
    ck_assert_double_eq_tol(fit.latency_us, 1.5, 1e-9);
    ck_assert(!fit_channel(&result, 2 << 20, 0.25, &fit));
    ck_assert(!fit_channel(&result, SIZE_MAX, 0.25, &fit));
    /* A line from below the origin: no latency, and the best speed. */
    points(&result, 0.25 - 3, 20000);
    ck_assert(fit_channel(&result, 65536, 0.25, &fit));
    ck_assert_double_eq_tol(fit.latency_us, 0.001, 1e-9);
    ck_assert_double_gt(fit.megabytes, 20000);
}
END_TEST

START_TEST(test_pair_json)
{
    static const char good[] =
        "{\"plan\": {\"locality\": \"same L3\", \"candidates\": ["
        "{\"name\": \"shm\", \"role\": \"transport\", \"over\": null, "
        "\"reach\": \"host\", \"possible\": true, \"from_bytes\": null, "
        "\"model\": {\"latency_us\": 0.5, \"megabytes_per_second\": 100}}, "
        "{\"name\": \"rma\", \"role\": \"channel\", \"over\": \"ofi\", "
        "\"reach\": \"network\", \"possible\": false, \"from_bytes\": 4096}"
        "]}, \"results\": [{\"test\": \"latency\", \"bytes\": 8, "
        "\"low\": 1.5}, {\"test\": \"bandwidth\", \"bytes\": 9, "
        "\"low\": 2}]}";
    static const char *const bad[] = {
        "", "{", "[]", "{}", "{\"plan\": null, \"results\": []}",
        "{\"plan\": {\"locality\": \"same L3\"}, \"results\": []}"
    };
    struct pair_result result;

    ck_assert(pair_parse(good, &result));
    ck_assert_str_eq(result.locality, "same L3");
    ck_assert_uint_eq(result.backend_count, 2);
    ck_assert_str_eq(result.backends[0].name, "shm");
    ck_assert(result.backends[0].possible && !result.backends[0].channel);
    ck_assert_uint_eq(result.backends[0].from_bytes, UINT64_MAX);
    ck_assert_double_eq(result.backends[0].latency_us, 0.5);
    ck_assert(!result.backends[1].possible && result.backends[1].channel);
    ck_assert_str_eq(result.backends[1].over, "ofi");
    ck_assert_uint_eq(result.backends[1].from_bytes, 4096);
    ck_assert_uint_eq(result.point_count, 1);
    ck_assert_double_eq(result.points[0].us, 1.5);
    for (size_t i = 0; i < TPB_COUNT(bad); i++)
        ck_assert_msg(!pair_parse(bad[i], &result), "%s", bad[i]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("bench");
    TCase *tests = tcase_create("bench");

    tcase_add_test(tests, test_quantiles);
    tcase_add_test(tests, test_sizes);
    tcase_add_test(tests, test_contents);
    tcase_add_test(tests, test_roles);
    tcase_add_test(tests, test_partners);
    tcase_add_test(tests, test_options);
    tcase_add_test(tests, test_long_lists);
    tcase_add_test(tests, test_fit);
    tcase_add_test(tests, test_fit_channel);
    tcase_add_test(tests, test_pair_json);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}

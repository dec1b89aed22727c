/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How fast a backend is by itself, without messages: `measure BACKEND`.  Two
 * processes that poll; the half round trip of small frames, and a stream of
 * the biggest.  Not a test: figures are for people.
 */
#include "config.h"

#include <stdio.h>

#include "tests/conformance/side.h"

enum {
    MEASURE_WARM = 2000,
    MEASURE_TURNS = 40000,
    MEASURE_ROUNDS = 5,
    MEASURE_STREAM = 512 * 1024 * 1024,
    MEASURE_EPOLL = 256            /* progress() calls between looks at epoll */
};

static const struct tpf_backend *measure_backend;

static void measure_step(struct tpx_side *side)
{
    static unsigned turns;

    if (++turns % MEASURE_EPOLL == 0)
        tpx_side_step(side);
    else
        measure_backend->progress(side->endpoint);
}

static void measure_receive(struct tpx_link *link, size_t bytes)
{
    while (bytes > 0) {
        size_t size;

        while (measure_backend->peek(link->conn, &size) == NULL) {
            ck_assert_msg(!link->failed, "%s", link->text);
            measure_step(link->side);
        }
        measure_backend->pop(link->conn);
        bytes -= size < bytes ? size : bytes;
    }
}

static void measure_send(struct tpx_link *link, size_t size)
{
    void *room;

    while ((room = measure_backend->reserve(link->conn, size)) == NULL) {
        ck_assert_msg(!link->failed, "%s", link->text);
        measure_step(link->side);
    }
    memset(room, 1, size);
    measure_backend->commit(link->conn, size);
}

static const size_t measure_sizes[] = { 8, 64, 1024, 8192 };

static void measure_other(int control, void *arg)
{
    struct tpx_side *side = tpx_side_open(measure_backend);
    struct tpx_link *link;

    (void)arg;
    tpx_tell(control, side->address, side->address_length);
    TPX_UNTIL(tpx_side_step(side), side->incoming == 1);
    link = tpx_incoming(side, 0);
    link->hold = true;
    for (int round = 0; round < MEASURE_ROUNDS; round++) {
        for (size_t i = 0; i < TPB_COUNT(measure_sizes); i++)
            for (int k = 0; k < MEASURE_WARM + MEASURE_TURNS; k++) {
                measure_receive(link, measure_sizes[i]);
                measure_send(link, measure_sizes[i]);
            }
        measure_receive(link, MEASURE_STREAM);
        measure_send(link, 1);
    }
    TPX_UNTIL(tpx_side_step(side), link->failed);
    tpx_side_close(side);
}

static double measure_round_trip(struct tpx_link *link, size_t size)
{
    uint64_t begin = 0;

    for (int k = 0; k < MEASURE_WARM + MEASURE_TURNS; k++) {
        if (k == MEASURE_WARM)
            begin = tpb_now();
        measure_send(link, size);
        measure_receive(link, size);
    }
    return (double)(tpb_now() - begin) * 1e-3 / MEASURE_TURNS / 2;
}

static double measure_stream(struct tpx_link *link)
{
    size_t size = link->conn->max_frame, left = MEASURE_STREAM;
    uint64_t begin = tpb_now();

    while (left > 0) {
        size_t piece = left < size ? left : size;

        measure_send(link, piece);
        left -= piece;
    }
    measure_receive(link, 1);
    return MEASURE_STREAM / ((double)(tpb_now() - begin) * 1e-3);
}

static void measure_report(struct tpx_link *link)
{
    link->hold = true;
    for (int round = 0; round < MEASURE_ROUNDS; round++) {
        for (size_t i = 0; i < TPB_COUNT(measure_sizes); i++)
            printf("%5zu B: %7.2f us  ", measure_sizes[i],
                   measure_round_trip(link, measure_sizes[i]));
        printf("stream of %zu: %6.0f MB/s\n", link->conn->max_frame,
               measure_stream(link));
    }
}

/* In a test, because all of side.h wants to be in one. */
START_TEST(test_measure)
{
    uint8_t address[TPT_ADDRESS];
    struct tpx_child child;
    struct tpx_side *side;
    struct tpx_link *link;
    uint64_t begin;
    size_t length;

    tpx_child_start(&child, measure_other, NULL);
    length = tpx_hear(child.control, address, sizeof(address));
    begin = tpb_now();
    side = tpx_side_open(measure_backend);
    printf("%s: open %.3f ms", measure_backend->name,
           (double)(tpb_now() - begin) * 1e-6);
    begin = tpb_now();
    link = tpx_connect(side, address, length);
    TPX_UNTIL(tpx_side_step(side), link->connected || link->failed);
    ck_assert_msg(link->connected, "%s", link->text);
    printf(", first connection %.1f ms\n",
           (double)(tpb_now() - begin) * 1e-6);
    measure_report(link);
    tpx_side_close(side);
    tpx_child_end(&child);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite = suite_create("measure");
    TCase *tests = tcase_create("measure");

    measure_backend = argc == 2 ? tpf_backend_find(argv[1]) : NULL;
    if (measure_backend == NULL || measure_backend->flags & TPF_SELF) {
        fprintf(stderr, "usage: measure BACKEND (one that reaches another "
                        "process)\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    tcase_set_timeout(tests, 600);
    tcase_add_test(tests, test_measure);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}

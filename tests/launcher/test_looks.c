/* SPDX-License-Identifier: BSD-3-Clause */
/* The memory of a job's record, and what tptop makes of two looks at it. */
#include "config.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "launcher/tptop.h"
#include "tests/launcher/run.h"

/* Memory that is no record, or was damaged, is refused. */
START_TEST(test_damage)
{
    struct tpb_record record, copy;
    struct tpb_record_rank rank;
    struct tpb_record_pipe pipe;
    char text[64];
    int fd, other = memfd_create(TPB_RECORD_NAME, 0);

    ck_assert_int_eq(tpb_record_open(other, &copy, NULL), TP_ERR_INVALID);
    close(other);
    ck_assert_int_eq(tpb_record_make("job", 4, &record, &fd, text, NULL),
                     TP_OK);
    ck_assert_int_eq(tpb_record_open(fd, &copy, NULL), TP_OK);
    ck_assert(tpb_record_rank(&copy, 3, &rank));
    ck_assert(!tpb_record_rank(&copy, 4, &rank));
    ck_assert(tpb_record_pipe(&copy, 3, 0, &pipe));
    ck_assert(!tpb_record_pipe(&copy, 3, 1 << 20, &pipe));
    tpb_record_close(&copy);
    record.file->version++;
    ck_assert_int_eq(tpb_record_open(fd, &copy, NULL), TP_ERR_INVALID);
    record.file->version--;
    record.file->ranks = 1u << 30;
    ck_assert_int_eq(tpb_record_open(fd, &copy, NULL), TP_ERR_INVALID);
    ck_assert_int_eq(ftruncate(fd, 0), -1);
    tpb_record_close(&record);
    close(fd);
}
END_TEST

/* A rank can map all of the record and write to its header: who has opened it
 * before goes by what that said then. */
START_TEST(test_header)
{
    struct tpb_record record, copy;
    struct tpb_record_rank rank, *last;
    struct tpb_record_pipe pipe;
    char text[64];
    int fd;

    ck_assert_int_eq(tpb_record_make("job", 4, &record, &fd, text, NULL),
                     TP_OK);
    ck_assert_int_eq(tpb_record_open(fd, &copy, NULL), TP_OK);
    last = (void *)((char *)record.file + tpb_page()
                    + 3 * (size_t)record.file->stride);
    last->phase = TPB_PHASE_RUNNING;
    record.file->ranks = TPB_RECORD_RANKS;
    record.file->stride = 0;
    for (uint32_t i = 0; i < 4; i++) {
        ck_assert(tpb_record_rank(&copy, i, &rank));
        ck_assert_uint_eq(rank.phase != TPB_PHASE_NONE, i == 3);
        ck_assert(tpb_record_pipe(&copy, i, 0, &pipe));
    }
    ck_assert(!tpb_record_rank(&copy, 4, &rank));
    record.file->stride = UINT32_MAX;
    ck_assert(!tpb_record_pipe(&copy, 3, 1 << 20, &pipe));
    ck_assert(tpb_record_rank(&record, 3, &rank));
    tpb_record_close(&copy);
    tpb_record_close(&record);
    close(fd);
}
END_TEST

enum { SLOTS_TURNS = 1000000, SLOTS_AT_A_TIME = 3 };

/* Gives each pipe one number for everything that there is to count. */
static void *slots_write(void *arg)
{
    struct tpb_record_section *section = arg;
    struct tpb_record_pipe *pipes[SLOTS_AT_A_TIME] = { NULL };

    for (int i = 0; i < SLOTS_TURNS; i++) {
        struct tpb_record_pipe **pipe = &pipes[i % SLOTS_AT_A_TIME];
        char name[16];

        if (*pipe != NULL)
            tpb_record_give(section, *pipe);
        *pipe = tpb_record_take(section, i, (unsigned)i);
        if (*pipe == NULL)
            break;
        snprintf(name, sizeof(name), "%d", i);
        tpb_record_transport(*pipe, name);
        TPB_RECORD_SET((*pipe)->stats.bytes_sent, (uint64_t)i);
        TPB_RECORD_SET((*pipe)->stats.blocked, (uint64_t)i);
    }
    TPB_RECORD_SET(section->rank->phase, (uint32_t)TPB_PHASE_DONE);
    return NULL;
}

/* Not one value of another pipe; not yet written is as good. */
static void slots_check(const struct tpb_record_pipe *pipe)
{
    int i = pipe->peer;

    ck_assert_uint_eq(pipe->number, (unsigned)i);
    ck_assert(pipe->stats.bytes_sent == 0
              || pipe->stats.bytes_sent == (uint64_t)i);
    ck_assert(pipe->stats.blocked == 0 || pipe->stats.blocked == (uint64_t)i);
    ck_assert(pipe->stats.transport[0] == '\0'
              || atoi(pipe->stats.transport) == i);
}

/* Slots are used again and again, while somebody looks. */
START_TEST(test_slots)
{
    struct tpb_record record;
    struct tpb_record_section section = { .rank = NULL };
    struct tpb_record_rank rank = { .phase = TPB_PHASE_NONE };
    struct tpb_record_pipe pipe;
    pthread_t writer;
    char text[64];
    int fd;

    ck_assert_int_eq(tpb_record_make("job", 2, &record, &fd, text, NULL),
                     TP_OK);
    ck_assert_int_eq(tpb_record_attach(text, 1, &section, NULL), TP_OK);
    ck_assert_int_eq(pthread_create(&writer, NULL, slots_write, &section), 0);
    while (TPB_RECORD_GET(section.rank->phase) != TPB_PHASE_DONE)
        for (uint32_t i = 0; i < SLOTS_AT_A_TIME; i++) {
            ck_assert(tpb_record_pipe(&record, 1, i, &pipe));
            slots_check(&pipe);
        }
    pthread_join(writer, NULL);
    for (uint32_t i = 0; i < SLOTS_AT_A_TIME; i++) {
        ck_assert(tpb_record_pipe(&record, 1, i, &pipe));
        slots_check(&pipe);
        ck_assert_uint_ge(pipe.stats.blocked, SLOTS_TURNS - SLOTS_AT_A_TIME);
    }
    ck_assert(tpb_record_rank(&record, 1, &rank));
    ck_assert_uint_eq(rank.used, SLOTS_AT_A_TIME);
    ck_assert_uint_eq(rank.serial, SLOTS_TURNS);
    for (uint32_t i = rank.used; i < section.slots; i++)
        ck_assert_ptr_nonnull(tpb_record_take(&section, 0, 0));
    ck_assert_ptr_null(tpb_record_take(&section, 0, 0));
    tpb_record_give(&section, &section.pipes[5]);
    ck_assert(tpb_record_pipe(&record, 1, 5, &pipe));
    ck_assert_uint_eq(pipe.serial, 0);
    ck_assert_ptr_eq(tpb_record_take(&section, 0, 0), &section.pipes[5]);
    tpb_record_detach(&section);
    tpb_record_close(&record);
    close(fd);
}
END_TEST

/* So many of rank 0's pipe, since it began. */
static void gone_count(struct tpb_record_pipe *pipe, uint64_t count)
{
    pipe->stats.messages_sent = count;
    pipe->stats.messages_received = 2 * count;
    pipe->stats.bytes_sent = 3 * count;
    pipe->stats.bytes_received = 4 * count;
}

/* Looks: since the last time the rank has counted so many. */
static void gone_check(struct tptop_sample *sample,
                       const struct tpb_record *record, uint64_t count)
{
    struct tptop_rates rates;

    tpx_doze(0.01);
    ck_assert_int_eq(tptop_look(sample, record), TP_OK);
    rates = tptop_rank_rates(sample, 0);
    ck_assert_int_eq(lround(rates.messages_out * sample->seconds), count);
    ck_assert_int_eq(lround(rates.messages_in * sample->seconds), 2 * count);
    ck_assert_int_eq(lround(rates.bytes_out * sample->seconds), 3 * count);
    ck_assert_int_eq(lround(rates.bytes_in * sample->seconds), 4 * count);
}

/* What goes over a pipe counts for its rank, also if that has come and gone
 * between two looks. */
START_TEST(test_gone)
{
    struct tptop_sample sample = { .pid = 0 };
    struct tpb_record record;
    struct tpb_record_section section = { .rank = NULL };
    struct tpb_record_pipe *one, *two;
    char text[64];
    int fd;

    ck_assert_int_eq(tpb_record_make("job", 1, &record, &fd, text, NULL),
                     TP_OK);
    ck_assert_int_eq(tpb_record_attach(text, 0, &section, NULL), TP_OK);
    one = tpb_record_take(&section, -1, 0);
    gone_count(one, 100);
    ck_assert_int_eq(tptop_look(&sample, &record), TP_OK);
    gone_count(one, 130);
    gone_check(&sample, &record, 30);
    gone_count(one, 135);
    tpb_record_give(&section, one);
    two = tpb_record_take(&section, -1, 0);
    gone_count(two, 2);
    gone_check(&sample, &record, 7);
    tpb_record_give(&section, two);
    gone_check(&sample, &record, 0);
    for (int i = 0; i < 5; i++) {
        one = tpb_record_take(&section, -1, 0);
        gone_count(one, 11);
        tpb_record_give(&section, one);
    }
    gone_check(&sample, &record, 55);
    /* Another program of the rank's begins, maybe in the same process. */
    two = tpb_record_take(&section, 0, 0);
    gone_count(two, 50);
    gone_check(&sample, &record, 50);
    gone_count(two, 60);
    tpb_record_give(&section, two);
    TPB_RECORD_SET(section.rank->used, 0);
    gone_check(&sample, &record, 10);
    gone_count(tpb_record_take(&section, 0, 0), 1);
    gone_check(&sample, &record, 1);
    tptop_sample_fini(&sample);
    tpb_record_detach(&section);
    tpb_record_close(&record);
    close(fd);
}
END_TEST

enum { WHOLE_TURNS = 1000000 };

/* Pipes come and go, and over each goes something. */
static void *whole_write(void *arg)
{
    struct tpb_record_section *section = arg;

    for (int i = 0; i < WHOLE_TURNS; i++) {
        struct tpb_record_pipe *pipe = tpb_record_take(section, -1, 0);

        TPB_RECORD_SET(pipe->stats.messages_sent, 1);
        TPB_RECORD_SET(pipe->stats.bytes_received, 4);
        tpb_record_give(section, pipe);
    }
    TPB_RECORD_SET(section->rank->phase, (uint32_t)TPB_PHASE_DONE);
    return NULL;
}

/* Looks, as tptop does.  *sum: over pipes that are there, and that are gone;
 * false: some went meanwhile. */
static bool whole_look(const struct tpb_record *record,
                       struct tpb_record_pipe *pipe, struct tp_stats *sum)
{
    struct tpb_record_rank before, after;

    ck_assert(tpb_record_rank(record, 0, &before));
    ck_assert(tpb_record_pipe(record, 0, 0, pipe));
    ck_assert(tpb_record_rank(record, 0, &after));
    sum->messages_sent = before.gone.messages_sent + pipe->stats.messages_sent;
    sum->bytes_received = before.gone.bytes_received
                          + pipe->stats.bytes_received;
    return before.gone.changes == after.gone.changes
           && before.gone.changes % 2 == 0;
}

/* Nothing is counted twice, nor not at all, while pipes go. */
START_TEST(test_whole)
{
    struct tpb_record record;
    struct tpb_record_section section = { .rank = NULL };
    struct tpb_record_pipe pipe;
    struct tp_stats sum, last = { 0 };
    pthread_t writer;
    char text[64];
    int fd;

    ck_assert_int_eq(tpb_record_make("job", 1, &record, &fd, text, NULL),
                     TP_OK);
    /* In the same mapping, where ThreadSanitizer sees both sides. */
    section.rank = (void *)((char *)record.file + tpb_page());
    section.pipes = (void *)(section.rank + 1);
    section.slots = record.file->slots;
    ck_assert_int_eq(pthread_create(&writer, NULL, whole_write, &section), 0);
    while (TPB_RECORD_GET(section.rank->phase) != TPB_PHASE_DONE) {
        if (!whole_look(&record, &pipe, &sum))
            continue;
        ck_assert_uint_ge(sum.messages_sent, last.messages_sent);
        ck_assert_uint_ge(sum.bytes_received, last.bytes_received);
        last = sum;
    }
    pthread_join(writer, NULL);
    ck_assert(whole_look(&record, &pipe, &sum));
    ck_assert_uint_eq(sum.messages_sent, WHOLE_TURNS);
    ck_assert_uint_eq(sum.bytes_received, 4 * WHOLE_TURNS);
    tpb_record_close(&record);
    close(fd);
}
END_TEST

/* No state is wider than its column, which would move the others. */
START_TEST(test_state)
{
    static const int32_t peers[] = { -1, 0, TPB_RECORD_RANKS - 1 };
    struct tptop_rank rank = { .pipes = NULL };
    char text[64];

    for (uint32_t phase = 0; phase <= TPTOP_ENDED; phase++)
        for (uint32_t wait = 0; wait <= TPB_WAIT_ANY; wait++)
            for (size_t i = 0; i < TPB_COUNT(peers); i++) {
                rank.record.phase = phase;
                rank.record.wait = wait;
                rank.record.wait_peer = peers[i];
                tptop_state(&rank, text, sizeof(text));
                ck_assert_msg(strlen(text) <= TPTOP_STATE, "%s", text);
            }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("looks");
    TCase *tests = tcase_create("looks");

    tcase_set_timeout(tests, 300);
    tcase_add_test(tests, test_damage);
    tcase_add_test(tests, test_header);
    tcase_add_test(tests, test_slots);
    tcase_add_test(tests, test_gone);
    tcase_add_test(tests, test_whole);
    tcase_add_test(tests, test_state);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}

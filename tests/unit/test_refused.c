/* SPDX-License-Identifier: BSD-3-Clause */
/* tprun's doors, loop and output, when something is refused to them. */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "launcher/door.h"
#include "launcher/iof.h"
#include "runtime/base/alloc.h"
#include "runtime/base/door.h"
#include "runtime/base/io.h"
#include "tests/lib/tpx.h"

static struct {
    struct tpl_loop loop;
    struct tpb_door tprun;
    int rank;                      /* its socket */
    struct tpl_pmix_event last;    /* and how many: */
    int events;
    int sending, watching;         /* errno for the next calls; 0: none */
} door;

/* In the place of libc's, for all of this program. */
__attribute__((__visibility__("default")))
ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    errno = door.sending;
    return errno != 0 ? -1 : syscall(SYS_sendmsg, fd, message, flags);
}

__attribute__((__visibility__("default")))
int epoll_ctl(int epoll, int how, int fd, struct epoll_event *event)
{
    errno = door.watching;
    return errno != 0 ? -1 : (int)syscall(SYS_epoll_ctl, epoll, how, fd,
                                          event);
}

void tpl_pmix_dispatch(void)
{
}

static void door_heard(const struct tpl_pmix_event *event, void *arg)
{
    (void)arg;
    door.last = *event;
    door.events++;
}

static void door_setup(void)
{
    struct tpb_error error;
    char job[TPB_DOOR_NAME], name[TPB_DOOR_NAME];

    snprintf(job, sizeof(job), "test-door-%d", (int)getpid());
    ck_assert_int_eq(tpl_loop_init(&door.loop, &error), TP_OK);
    tpl_door_open(job, 2);
    ck_assert_int_eq(tpl_door_watch(&door.loop, door_heard), 0);
    ck_assert_ptr_nonnull(getenv("TP_DOOR"));
    ck_assert(tpb_door_parse(getenv("TP_DOOR"), &door.tprun));
    door.rank = tpb_door_open(name);
    ck_assert_int_ge(door.rank, 0);
}

static void door_teardown(void)
{
    tpl_door_close(&door.loop);
    tpl_loop_fini(&door.loop);
    tpb_close(&door.rank);
}

/* Rank `sender` says that of `rank`, with some words for a card. */
static void door_say(enum tpb_door_type type, int sender, int rank)
{
    struct {
        struct tpb_door_message message;
        char card[8];
    } letter = { { .type = (uint8_t)type, .alone = 1, .sender = sender,
                   .rank = rank, .program = { 1 } }, "a card" };
    struct sockaddr_storage name;
    socklen_t length = tpb_door_address(door.tprun.name, &name);

    memcpy(letter.message.magic, tpb_door_magic, 4);
    memcpy(letter.message.cookie, door.tprun.cookie, 16);
    ck_assert_int_gt(sendto(door.rank, &letter, sizeof(letter), 0,
                            (struct sockaddr *)&name, length), 0);
}

/* A card that there is no memory for is not just lost, wherever that happens:
 * others would wait for it. */
START_TEST(test_no_memory)
{
    int n = 0;

    do {
        door_say(TPB_DOOR_PUT, 0, 0);
        tpb_alloc_fail_at(++n);
        tpl_door_dispatch();
        tpb_alloc_fail_at(0);
        ck_assert_int_eq(door.events, n);
        if (door.last.what != TPL_PMIX_CONNECTED) {
            ck_assert_int_eq(door.last.what, TPL_PMIX_ABORT);
            ck_assert_int_eq(door.last.rank, 0);
            ck_assert_int_ne(door.last.status, 0);
            ck_assert_ptr_nonnull(strstr(door.last.reason, "memory"));
        }
        ck_assert_int_lt(n, 10);
    } while (door.last.what != TPL_PMIX_CONNECTED);
    ck_assert_int_gt(n, 2);
}
END_TEST

/* What standard error gets from that. */
static char *door_words(void (*act)(void))
{
    int fd = memfd_create("log", MFD_CLOEXEC), saved = dup(STDERR_FILENO);
    char *text = tpb_zalloc(2000);

    ck_assert_ptr_nonnull(text);
    ck_assert(fd >= 0 && saved >= 0);
    dup2(fd, STDERR_FILENO);
    act();
    dup2(saved, STDERR_FILENO);
    ck_assert_int_ge(pread(fd, text, 1999, 0), 0);
    close(fd);
    close(saved);
    return text;
}

static void door_ask_twice(void)
{
    for (int i = 0; i < 2; i++) {
        door_say(TPB_DOOR_GET, 1, 0);
        tpl_door_dispatch();
    }
}

static bool door_answered(void)
{
    struct tpb_door_message message;

    return recv(door.rank, &message, sizeof(message), MSG_DONTWAIT) > 0
           && message.type == TPB_DOOR_ANSWER;
}

/* A rank to which tprun may not speak waits for as long as it likes: the cause
 * is said, once.  Want of memory passes. */
START_TEST(test_no_answer)
{
    char *words;

    door_say(TPB_DOOR_PUT, 0, 0);
    door_say(TPB_DOOR_PUT, 1, 1);
    tpl_door_dispatch();
    door.sending = EPERM;
    words = door_words(door_ask_twice);
    ck_assert_msg(strstr(words, "rank 1 cannot be answered: Operation not"
                         " permitted") != NULL, "%s", words);
    ck_assert_ptr_eq(strchr(words, '\n'), words + strlen(words) - 1);
    tpb_free(words);
    door.sending = ENOMEM;
    words = door_words(door_ask_twice);
    ck_assert_str_eq(words, "");
    tpb_free(words);
    ck_assert(!door_answered());
    door.sending = 0;
    for (int i = 0; i < 1000 && !door_answered(); i++) {
        struct tpb_error error;

        ck_assert_int_lt(i, 999);
        ck_assert_int_eq(tpl_loop_turn(&door.loop, &error), TP_OK);
    }
}
END_TEST

/* Nothing would ever come of what epoll has no room for. */
START_TEST(test_no_watch)
{
    struct tpl_watch watch = { door.rank, 0, NULL };
    struct tpb_error error = { "" };

    door.watching = ENOSPC;
    ck_assert_int_eq(tpl_watch_set(&door.loop, &watch, EPOLLIN), -1);
    door.watching = 0;
    ck_assert_int_eq(tpl_loop_look(&door.loop, &error), TP_ERR_SYSTEM);
    ck_assert_ptr_nonnull(strstr(error.text, "max_user_watches"));
    door.loop.refused = 0;
    ck_assert_int_eq(tpl_loop_look(&door.loop, &error), TP_OK);
    /* A file is another matter. */
    door.watching = EPERM;
    ck_assert_int_eq(tpl_watch_set(&door.loop, &watch, EPOLLIN), -1);
    door.watching = 0;
    ck_assert_int_eq(tpl_loop_look(&door.loop, &error), TP_OK);
}
END_TEST

/* What a rank writes finds no memory, and cannot be left where it is. */
START_TEST(test_no_room)
{
    const struct tpl_iof_how how = { .tag = true };
    struct tpb_error error = { "" };
    struct tpl_iof *iof;
    int out, err;

    ck_assert_int_eq(tpl_iof_new(&door.loop, 1, &how, &error, &iof), TP_OK);
    ck_assert_int_eq(tpl_iof_open(iof, 0, &out, &err, &error), TP_OK);
    ck_assert_int_eq(write(out, "words\n", 6), 6);
    tpb_alloc_fail_at(1);
    ck_assert_int_eq(tpl_loop_look(&door.loop, &error), TP_OK);
    tpb_alloc_fail_at(0);
    ck_assert_int_eq(tpl_loop_look(&door.loop, &error), TP_ERR_NO_MEMORY);
    ck_assert_str_eq(error.text, "out of memory");
    tpl_iof_free(iof);
    close(out);
    close(err);
}
END_TEST

static void door_last_words(void)
{
    const struct tpl_iof_how how = { .tag = true };
    struct tpb_error error = { "" };
    struct tpl_iof *iof;

    ck_assert_int_eq(tpl_iof_new(&door.loop, 1, &how, &error, &iof), TP_OK);
    tpb_alloc_fail_at(1);
    tpl_iof_say(iof, "rank %d has failed", 0);
    tpb_alloc_fail_at(0);
    tpl_iof_free(iof);
}

/* What it says itself comes all the same. */
START_TEST(test_last_words)
{
    char *words = door_words(door_last_words);

    ck_assert_str_eq(words, "tprun: rank 0 has failed\n");
    tpb_free(words);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("refused");
    TCase *tests = tcase_create("refused");

    tcase_add_checked_fixture(tests, door_setup, door_teardown);
    tcase_add_test(tests, test_no_memory);
    tcase_add_test(tests, test_no_answer);
    tcase_add_test(tests, test_no_watch);
    tcase_add_test(tests, test_no_room);
    tcase_add_test(tests, test_last_words);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}

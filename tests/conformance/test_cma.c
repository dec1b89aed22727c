/* SPDX-License-Identifier: BSD-3-Clause */
/* The cma channel and a peer that becomes another program, which has memory at
 * the same place: not a byte of that one is taken for the peer's. */
#include "config.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fabric/channel.h"
#include "runtime/base/alloc.h"
#include "tests/lib/tpx.h"

enum { CMA_LENGTH = 4 * TPF_STRIDE, CMA_MINE = 0x55, CMA_OTHER = 0xaa };

/* Where nothing else is, also under sanitizers. */
#define CMA_PLACE ((void *)UINT64_C(0x7ea000000000))

extern const struct tpf_channel_kind tpf_cma;

static const char *cma_self;
static pid_t cma_child;
static enum tpf_progress cma_result;

static bool cma_fill(unsigned char byte)
{
    void *memory = mmap(CMA_PLACE, CMA_LENGTH, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1,
                        0);

    if (memory != CMA_PLACE)
        return false;
    memset(memory, byte, CMA_LENGTH);
    return true;
}

/* What a peer says once its memory is there. */
struct cma_news {
    bool placed;
    uint8_t length;
    uint8_t address[64];
};

static struct tpf_channel *cma_open(struct tpf_env *env,
                                    struct tpb_settings *settings)
{
    static struct tpt_card card;
    struct tpf_channel *channel = tpb_zalloc(tpf_cma.channel_size);
    struct tpb_error error = { "" };

    if (channel == NULL || tpb_settings_load(settings, &error) != TP_OK)
        abort();
    env->epoll = -1;
    env->settings = settings;
    env->card = &card;
    channel->kind = &tpf_cma;
    channel->env = env;
    if (tpf_cma.open(channel, &error) != TP_OK)
        abort();
    return channel;
}

/* The peer. */
static _Noreturn void cma_be_peer(int in, int out)
{
    struct tpb_settings settings;
    struct tpf_env env = { .epoll = -1 };
    struct tpf_channel *channel = cma_open(&env, &settings);
    struct cma_news news = { .placed = cma_fill(CMA_MINE) };
    char number[16], byte;

    news.length = (uint8_t)tpf_cma.address(channel, news.address,
                                           sizeof(news.address));
    if (write(out, &news, sizeof(news)) == sizeof(news)
        && read(in, &byte, 1) == 1) {
        snprintf(number, sizeof(number), "%d", out);
        execl(cma_self, cma_self, "another", number, (char *)NULL);
    }
    _exit(1);
}

/* ... and what becomes of it. */
static _Noreturn void cma_be_another(int out)
{
    struct cma_news news = { .placed = cma_fill(CMA_OTHER) };

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (write(out, &news, sizeof(news)) == sizeof(news))
        for (;;)
            pause();
    _exit(1);
}

static int cma_pid(struct tpf_conn *conn)
{
    (void)conn;
    return (int)cma_child;
}

static void cma_pulled(void *core, struct tpf_pull *pull,
                       enum tpf_progress result, const char *text)
{
    (void)core;
    (void)pull;
    ck_assert_str_ne(text, "");
    cma_result = result;
}

static void cma_exec(int in, int out)
{
    struct cma_news news;

    ck_assert_int_eq(write(in, "", 1), 1);
    ck_assert_int_eq(read(out, &news, sizeof(news)), sizeof(news));
    ck_assert(news.placed);
}

/* `_i` 0: before the pull begins; 1: in the middle of it. */
START_TEST(test_another_program)
{
    static const struct tpf_backend backend = { .peer_pid = cma_pid };
    static const struct tpf_upcalls upcalls = { .pulled = cma_pulled };
    struct tpf_conn conn = { .backend = &backend };
    struct tpt_card card = { .rank = 1 };
    uint64_t place = (uint64_t)(uintptr_t)CMA_PLACE;
    unsigned char *to = tpb_zalloc(CMA_LENGTH);
    struct tpf_pull *pull = tpb_zalloc(TPF_PULL);
    struct tpf_link *link = tpb_zalloc(tpf_cma.link_size);
    struct tpb_settings settings;
    struct tpf_env env = { .epoll = -1, .upcalls = &upcalls };
    struct tpf_channel *channel = cma_open(&env, &settings);
    struct tpb_error error = { "" };
    struct cma_news news;
    int in[2], out[2];

    if (tpf_cma.probe(&env, &error) != TP_OK) {
        tpx_skip("cma", error.text);
        return;
    }
    ck_assert_int_eq(pipe(in), 0);
    ck_assert_int_eq(pipe(out), 0);
    cma_child = fork();
    if (cma_child == 0)
        cma_be_peer(in[0], out[1]);
    ck_assert_int_eq(read(out[0], &news, sizeof(news)), sizeof(news));
    ck_assert(news.placed);
    *link = (struct tpf_link){ .kind = &tpf_cma, .channel = channel,
                               .conn = &conn, .card = &card };
    ck_assert_msg(tpf_cma.link(link, news.address, news.length, &error)
                  == TP_OK, "%s", error.text);
    pull->link = link;
    pull->to = (struct tpf_buffer){ .data = to, .length = CMA_LENGTH };
    memcpy(pull->source, &place, sizeof(place));
    pull->source_length = sizeof(place);
    cma_result = TPF_PULL_MORE;
    if (_i == 0) {
        cma_exec(in[1], out[0]);
        ck_assert_int_eq(tpf_cma.pull(pull, &error), TPF_PULL_REFUSED);
        ck_assert_str_ne(error.text, "");
    } else {
        ck_assert_int_eq(tpf_cma.pull(pull, &error), TPF_PULL_MORE);
        cma_exec(in[1], out[0]);
        while (cma_result == TPF_PULL_MORE)
            ck_assert(tpf_cma.progress(channel));
        ck_assert_int_eq(cma_result, TPF_PULL_REFUSED);
    }
    ck_assert_uint_eq(pull->moved, _i == 0 ? 0 : TPF_STRIDE);
    for (size_t i = 0; i < pull->moved; i++)
        if (to[i] != CMA_MINE)
            ck_abort_msg("byte %zu is another program's", i);
    kill(cma_child, SIGKILL);
    waitpid(cma_child, NULL, 0);
    tpb_settings_fini(&settings);
    tpb_free(channel);
    tpb_free(link);
    tpb_free(pull);
    tpb_free(to);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *suite = suite_create("cma");
    TCase *tests = tcase_create("cma");

    if (argc == 3 && strcmp(argv[1], "another") == 0)
        cma_be_another(atoi(argv[2]));
    cma_self = "/proc/self/exe";
    tcase_set_timeout(tests, 180);
    tcase_add_loop_test(tests, test_another_program, 0, 2);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* The cma channel and a peer that becomes another program, which has memory at
 * the same place: not a byte of that one is taken for the peer's, or
 * written. */
#include "config.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fabric/channel.h"
#include "fabric/share.h"
#include "runtime/base/alloc.h"
#include "tests/lib/tpx.h"

enum { CMA_LENGTH = 4 * TPF_STRIDE, CMA_MINE = 0x55, CMA_OTHER = 0xaa };

/* Where nothing else is, also under sanitizers. */
#define CMA_PLACE ((void *)UINT64_C(0x7ea000000000))

extern const struct tpf_channel_kind tpf_cma;

static const char *cma_self;
static pid_t cma_child;
static enum tpf_progress cma_result;

/* What the channel calls: the peer may become another program just before. */
static unsigned long cma_parts;        /* of the last call */
static void (*cma_first)(void);

ssize_t process_vm_readv(pid_t pid, const struct iovec *mine,
                         unsigned long my_count, const struct iovec *theirs,
                         unsigned long their_count, unsigned long flags)
{
    void (*first)(void) = cma_first;

    if (pid != getpid()) {             /* and not what it measures */
        cma_first = NULL;
        if (first != NULL)
            first();
        cma_parts = my_count;
    }
    return syscall(SYS_process_vm_readv, pid, mine, my_count, theirs,
                   their_count, flags);
}

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
    if (result == TPF_PULL_REFUSED)
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

/* A peer whose memory is there, and the pair's link. */
struct cma_pair {
    struct tpf_env env;
    struct tpf_conn conn;
    struct tpt_card card;
    struct tpb_settings settings;
    struct tpf_channel *channel;
    struct tpf_link *link;
    struct tpf_pull *pull;
    unsigned char *data;           /* of `pull`: CMA_LENGTH bytes */
    int in[2], out[2];
};

static struct tpf_share cma_share;

static void *cma_shared(struct tpf_conn *conn, bool mine)
{
    (void)conn;
    (void)mine;
    return &cma_share;
}

/* A new one of the pair's. */
static void cma_buffer(struct cma_pair *pair)
{
    memset(pair->pull, 0, TPF_PULL);
    pair->pull->link = pair->link;
    pair->pull->to = (struct tpf_buffer){ .data = pair->data,
                                          .length = CMA_LENGTH };
    tpb_list_init(&pair->pull->node);
}

/* False, and said: this machine has no cma.  `skew`: what is added to the
 * number of the clock that the peer's times are of. */
static bool cma_begin(struct cma_pair *pair, uint64_t skew)
{
    static const struct tpf_backend backend = { .peer_pid = cma_pid,
                                                .shared = cma_shared };
    static const struct tpf_upcalls upcalls = { .pulled = cma_pulled };
    struct tpb_error error = { "" };
    struct cma_news news;
    uint64_t clock;

    *pair = (struct cma_pair){ .env = { .upcalls = &upcalls },
                               .conn = { .backend = &backend },
                               .card = { .rank = 1 } };
    tpb_list_init(&pair->env.ready);
    if (tpf_cma.probe(&pair->env, &error) != TP_OK) {
        tpx_skip("cma", error.text);
        return false;
    }
    pair->channel = cma_open(&pair->env, &pair->settings);
    pair->link = tpb_zalloc(tpf_cma.link_size);
    pair->pull = tpb_zalloc(TPF_PULL);
    pair->data = tpb_zalloc(CMA_LENGTH);
    ck_assert_int_eq(pipe(pair->in), 0);
    ck_assert_int_eq(pipe(pair->out), 0);
    cma_child = fork();
    if (cma_child == 0)
        cma_be_peer(pair->in[0], pair->out[1]);
    ck_assert_int_eq(read(pair->out[0], &news, sizeof(news)), sizeof(news));
    ck_assert(news.placed);
    memcpy(&clock, news.address + 8, sizeof(clock));
    clock += skew;
    memcpy(news.address + 8, &clock, sizeof(clock));
    *pair->link = (struct tpf_link){ .kind = &tpf_cma,
                                     .channel = pair->channel,
                                     .conn = &pair->conn,
                                     .card = &pair->card };
    ck_assert_msg(tpf_cma.link(pair->link, news.address, news.length, &error)
                  == TP_OK, "%s", error.text);
    cma_buffer(pair);
    return true;
}

static void cma_end(struct cma_pair *pair)
{
    kill(cma_child, SIGKILL);
    waitpid(cma_child, NULL, 0);
    tpb_settings_fini(&pair->settings);
    tpf_cma.close(pair->channel);
    tpb_free(pair->channel);
    tpb_free(pair->link);
    tpb_free(pair->pull);
    tpb_free(pair->data);
}

/* As the sender describes a buffer. */
static void cma_describe(struct tpf_pull *pull, uint64_t when)
{
    struct { uint64_t place, when; } where = {
        (uint64_t)(uintptr_t)CMA_PLACE, when
    };

    memcpy(pull->source, &where, sizeof(where));
    pull->source_length = sizeof(where);
}

/* `_i` even: before the pull begins; odd: in the middle of it.  Of a buffer
 * that has just been described, and of an old one. */
START_TEST(test_another_program)
{
    struct tpb_error error = { "" };
    struct cma_pair pair;
    struct tpf_pull *pull;

    if (!cma_begin(&pair, 0))
        return;
    pull = pair.pull;
    cma_describe(pull, _i < 2 ? tpb_now() : 1);
    cma_result = TPF_PULL_MORE;
    if (_i % 2 == 0) {
        cma_exec(pair.in[1], pair.out[0]);
        ck_assert_int_eq(tpf_cma.pull(pull, &error), TPF_PULL_REFUSED);
        ck_assert_str_ne(error.text, "");
    } else {
        ck_assert_int_eq(tpf_cma.pull(pull, &error), TPF_PULL_MORE);
        cma_exec(pair.in[1], pair.out[0]);
        while (cma_result == TPF_PULL_MORE)
            ck_assert(tpf_cma.progress(pair.channel));
        ck_assert_int_eq(cma_result, TPF_PULL_REFUSED);
    }
    ck_assert_uint_eq(pull->moved, _i % 2 == 0 ? 0 : TPF_STRIDE);
    for (size_t i = 0; i < pull->moved; i++)
        if (pair.data[i] != CMA_MINE)
            ck_abort_msg("byte %zu is another program's", i);
    cma_end(&pair);
}
END_TEST

static struct cma_pair *cma_pair;

static void cma_exec_now(void)
{
    cma_exec(cma_pair->in[1], cma_pair->out[0]);
}

/* Is the token left out when it may be, and only then?  `_i`: of a source that
 * is new; old; of another clock; of the future; long; and the reader loses his
 * cpu before the bytes are read. */
START_TEST(test_token)
{
    static const bool without[] = { true, false, false, false, false, true };
    struct tpb_error error = { "" };
    enum tpf_progress result;
    struct cma_pair pair;

    if (!cma_begin(&pair, _i == 2))
        return;
    cma_pair = &pair;
    /* He may lose his cpu here, too. */
    for (int tries = 0; tries < 1000; tries++) {
        cma_buffer(&pair);
        if (_i != 4)
            pair.pull->to.length = 4096;
        if (_i == 5)
            cma_first = cma_exec_now;
        cma_describe(pair.pull,
                     _i == 1 ? 1 : tpb_now() + (_i == 3 ? 1000000000 : 0));
        result = tpf_cma.pull(pair.pull, &error);
        if (_i == 5 || !without[_i] || cma_parts == 1)
            break;
    }
    if (_i == 5) {
        /* Also if the bytes come without it, it is asked for then. */
        ck_assert_int_eq(result, TPF_PULL_REFUSED);
    } else {
        ck_assert_uint_eq(cma_parts, without[_i] ? 1 : 2);
        ck_assert_int_eq(result, _i == 4 ? TPF_PULL_MORE : TPF_PULL_DONE);
        ck_assert_uint_eq(pair.data[0], CMA_MINE);
    }
    if (result == TPF_PULL_MORE)
        ck_assert(tpf_cma.cancel(pair.pull));
    cma_end(&pair);
}
END_TEST

/* As the receiver calls: four pieces, of which the first is its own. */
struct cma_words {
    uint64_t length;
    uint32_t piece, pieces, number, zero;
    uint64_t place, when;
};

static bool cma_called(struct cma_pair *pair, uint64_t when, uint32_t number)
{
    struct cma_words words = { .length = CMA_LENGTH, .piece = CMA_LENGTH / 4,
                               .pieces = 4, .number = number,
                               .place = (uint64_t)(uintptr_t)CMA_PLACE,
                               .when = when };

    cma_buffer(pair);
    tpf_share_open(&cma_share, number, 1);
    if (!tpf_cma.help(pair->pull, (const unsigned char *)&words,
                      sizeof(words)))
        return false;
    while (!tpb_list_empty(&pair->pull->node))
        tpf_cma.progress(pair->channel);
    return true;
}

/* What is in the child where the buffer is. */
static void cma_look(unsigned char bytes[CMA_LENGTH])
{
    struct iovec mine = { bytes, CMA_LENGTH }, theirs = { CMA_PLACE,
                                                          CMA_LENGTH };

    ck_assert_int_eq(process_vm_readv(cma_child, &mine, 1, &theirs, 1, 0),
                     CMA_LENGTH);
}

/* A sender that hears a call writes; but not if he was stopped meanwhile, and
 * the caller has become another program. */
START_TEST(test_written_by_call)
{
    unsigned char *seen = tpb_zalloc(CMA_LENGTH);
    struct cma_pair pair;
    uint64_t when;
    bool failed;

    if (!cma_begin(&pair, 0))
        return;
    memset(pair.data, CMA_OTHER / 2, CMA_LENGTH);
    /* Old and new calls. */
    for (uint32_t call = 1; call <= 2; call++) {
        ck_assert(cma_called(&pair, call == 1 ? 1 : tpb_now(), call));
        ck_assert(tpf_share_settled(&cma_share, &failed));
        ck_assert(!failed);
    }
    cma_look(seen);
    for (size_t i = 0; i < CMA_LENGTH; i++)
        ck_assert_uint_eq(seen[i],
                          i < CMA_LENGTH / 4 ? CMA_MINE : CMA_OTHER / 2);
    when = tpb_now();
    cma_exec(pair.in[1], pair.out[0]);
    ck_assert(cma_called(&pair, when, 3));
    ck_assert(tpf_share_settled(&cma_share, &failed));
    ck_assert(failed);
    cma_look(seen);
    for (size_t i = 0; i < CMA_LENGTH; i++)
        if (seen[i] != CMA_OTHER)
            ck_abort_msg("byte %zu of another program was written", i);
    tpb_free(seen);
    cma_end(&pair);
}
END_TEST

/* Of a buffer that both copy: where the sender's piece begins.  He is early
 * with it, or late, and copies nothing. */
static size_t cma_sent(struct cma_pair *pair, bool late)
{
    enum { LENGTH = 128 * 1024 };
    struct tpf_pull *pull = pair->pull;
    struct tpb_error error = { "" };
    unsigned char call[TPF_CALL];
    struct cma_words words;
    size_t right = 0;
    uint32_t piece;

    cma_buffer(pair);
    pull->to.length = LENGTH;
    pull->alone = true;
    cma_describe(pull, tpb_now());
    memset(pair->data, 0, LENGTH);
    ck_assert_uint_eq(tpf_cma.call(pull, call), sizeof(words));
    memcpy(&words, call, sizeof(words));
    ck_assert_uint_eq(words.pieces, 2);
    ck_assert_uint_eq(tpf_share_claim(&cma_share, words.number, 2, true, 1,
                                      &piece), 1);
    ck_assert_uint_eq(piece, 1);
    if (!late)
        tpf_share_push(&cma_share, words.number, 1);
    cma_result = TPF_PULL_MORE;
    if (late) {
        ck_assert_int_eq(tpf_cma.pull(pull, &error), TPF_PULL_MORE);
        tpf_share_push(&cma_share, words.number, 1);
        while (cma_result == TPF_PULL_MORE)
            tpf_cma.progress(pair->channel);
        ck_assert_int_eq(cma_result, TPF_PULL_DONE);
    } else {
        ck_assert_int_eq(tpf_cma.pull(pull, &error), TPF_PULL_DONE);
    }
    /* One assertion: Check makes a call of the kernel for each. */
    while (right < LENGTH
           && pair->data[right] == (right < words.piece ? CMA_MINE : 0))
        right++;
    ck_assert_uint_eq(right, LENGTH);
    return words.piece;
}

/* Who is late gets less to do, but for a quarter; not for once. */
START_TEST(test_balance)
{
    struct cma_pair pair;
    size_t first, piece;

    if (!cma_begin(&pair, 0))
        return;
    first = cma_sent(&pair, false);
    ck_assert_uint_eq(first, 64 * 1024);
    for (int i = 0; i < 20; i++)
        piece = cma_sent(&pair, i % 2 == 0);
    ck_assert_uint_eq(piece, first);
    for (int i = 0; i < 200; i++)
        piece = cma_sent(&pair, false);
    ck_assert_uint_eq(piece, 32 * 1024);
    for (int i = 0; i < 400; i++)
        piece = cma_sent(&pair, true);
    ck_assert_uint_eq(piece, 96 * 1024);
    cma_end(&pair);
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
    tcase_add_loop_test(tests, test_another_program, 0, 4);
    tcase_add_loop_test(tests, test_token, 0, 6);
    tcase_add_test(tests, test_written_by_call);
    tcase_add_test(tests, test_balance);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A program that watches its memory, as garbage collectors and incremental
 * checkpoints do: pages are protected, and a handler of SIGSEGV notes that one
 * was touched and opens it.  Rank 0 sends from such memory and rank 1 reads
 * into it: watched MESSAGES LENGTH.  The bytes are right, and no way is given
 * up for it.
 *
 * Over TCP the kernel says EFAULT for such a page, in the middle of a frame.
 * libfabric then went on with the next one, whose bytes the reader took for the
 * rest of the first, and got wrong bytes with TP_OK.
 */
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/tp.h"

enum { WATCHED_DEPTH = 4 };            /* messages under way */

static unsigned char *watched_memory[WATCHED_DEPTH];
static size_t watched_length, watched_page;
static volatile sig_atomic_t watched_touched;

static void watched_open(int number, siginfo_t *info, void *context)
{
    uintptr_t at = (uintptr_t)info->si_addr & ~(uintptr_t)(watched_page - 1);

    (void)context;
    watched_touched++;
    for (size_t i = 0; i < WATCHED_DEPTH; i++) {
        uintptr_t from = (uintptr_t)watched_memory[i];

        if (at >= from && at < from + watched_length
            && mprotect((void *)at, watched_page,
                        PROT_READ | PROT_WRITE) == 0)
            return;
    }
    signal(number, SIG_DFL);
}

static void watched_check(bool good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "watched: %s\n", what);
    _exit(1);
}

static unsigned char watched_byte(size_t message, size_t at)
{
    return (unsigned char)(message * 31 + at + at / 4096);
}

/* Some page in the middle of each is protected. */
static void watched_protect(unsigned char *memory, int how)
{
    size_t middle = watched_length / 2 / watched_page * watched_page;

    watched_check(mprotect(memory + middle, watched_page, how) == 0,
                  "mprotect");
}

static void watched_written(tp_pipe *pipe, tp_status status,
                            tp_message *message, void *arg)
{
    (void)message;
    watched_check(status == TP_OK, tp_pipe_error(pipe));
    ++*(size_t *)arg;
}

static void watched_send(tp_context *context, tp_pipe *pipe, size_t messages)
{
    tp_payload payloads[WATCHED_DEPTH];
    tp_message written[WATCHED_DEPTH];
    size_t over = 0;

    for (size_t first = 0; first < messages; first += WATCHED_DEPTH) {
        for (size_t i = 0; i < WATCHED_DEPTH; i++) {
            for (size_t at = 0; at < watched_length; at++)
                watched_memory[i][at] = watched_byte(first + i, at);
            if (i % 2 == 1)
                watched_protect(watched_memory[i], PROT_NONE);
            payloads[i] = (tp_payload){ .data = watched_memory[i],
                                        .length = watched_length };
            written[i] = (tp_message){ .payloads = &payloads[i],
                                       .payload_count = 1 };
            watched_check(tp_pipe_write(pipe, &written[i], watched_written,
                                        &over) == TP_OK, "write");
        }
        while (over < first + WATCHED_DEPTH)
            watched_check(tp_wait(context, -1, NULL) == TP_OK, "wait");
    }
}

static void watched_receive(tp_pipe *pipe, size_t messages)
{
    for (size_t i = 0; i < messages; i++) {
        unsigned char *memory = watched_memory[i % WATCHED_DEPTH];
        size_t length = 0, wrong = 0;
        tp_status status;

        if (i % 4 >= 2)
            watched_protect(memory, PROT_READ);
        status = tp_pipe_recv(pipe, memory, watched_length, &length);
        watched_check(status == TP_OK && length == watched_length,
                      tp_pipe_error(pipe));
        for (size_t at = 0; at < length; at++)
            wrong += memory[at] != watched_byte(i, at);
        watched_check(wrong == 0, "wrong bytes");
    }
}

int main(int argc, char **argv)
{
    struct sigaction action = { .sa_sigaction = watched_open,
                                .sa_flags = SA_SIGINFO };
    size_t messages = argc > 2 ? strtoul(argv[1], NULL, 10) : 0;
    tp_options options = TP_OPTIONS_INIT;
    tp_context *context;
    tp_pipe *pipe;
    char *json;

    options.progress = TP_PROGRESS_MANUAL;
    watched_length = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;
    watched_page = (size_t)sysconf(_SC_PAGESIZE);
    for (size_t i = 0; i < WATCHED_DEPTH; i++) {
        watched_memory[i] = mmap(NULL, watched_length, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        watched_check(watched_memory[i] != MAP_FAILED, "mmap");
    }
    watched_check(sigaction(SIGSEGV, &action, NULL) == 0
                  && tp_init(&options, &context) == TP_OK
                  && tp_pipe_to_rank(context, !tp_rank(context), &pipe)
                     == TP_OK, "cannot begin");
    if (tp_rank(context) == 0)
        watched_send(context, pipe, messages);
    else
        watched_receive(pipe, messages);
    watched_check(watched_touched > 0, "nothing was touched");
    watched_check(tp_pipe_explain(pipe, &json) == TP_OK, "explain");
    watched_check(strstr(json, "cannot be") == NULL
                  && strstr(json, "Bad address") == NULL, json);
    free(json);
    return tp_finalize(context) == TP_OK ? 0 : 1;
}

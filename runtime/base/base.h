/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Small things everybody needs: attributes, array length, time, text buffers.
 * Depends on nothing of ours but tp.h.
 */
#ifndef TPB_BASE_H
#define TPB_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "runtime/tp.h"

#define TPB_COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define TPB_PRINTF(text, first) \
    __attribute__((__format__(__printf__, text, first)))
#define TPB_LIKELY(x) __builtin_expect(!!(x), 1)
#define TPB_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define TPB_CACHE_LINE 64
#define TPB_CONTAINER(pointer, type, member) \
    ((type *)(void *)((char *)(pointer) - offsetof(type, member)))

/* memcpy() of more than TPB_COPY_PIECE bytes: by pieces where `rep movsb`
 * crawls. */
void tpb_copy_long(void *to, const void *from, size_t length);
enum { TPB_COPY_PIECE = 2048, TPB_COPY_WHOLE = 7 * 1024 };

/* memcpy() for what is often a few bytes long: a call costs more than those. */
static inline void tpb_copy(void *to, const void *from, size_t length)
{
    unsigned char *end = (unsigned char *)to + length;
    const unsigned char *last = (const unsigned char *)from + length;
    struct { uint64_t words[2]; } first16, last16;
    uint64_t first8, last8;

    if (length == 0)
        return;
    if (length > 16 && length <= 32) {
        memcpy(&first16, from, 16);
        memcpy(&last16, last - 16, 16);
        memcpy(to, &first16, 16);
        memcpy(end - 16, &last16, 16);
        return;
    }
    if (TPB_UNLIKELY(length > TPB_COPY_PIECE)) {
        tpb_copy_long(to, from, length);
        return;
    }
    if (length < 8 || length > 16) {
        memcpy(to, from, length);
        return;
    }
    memcpy(&first8, from, 8);
    memcpy(&last8, last - 8, 8);
    memcpy(to, &first8, 8);
    memcpy(end - 8, &last8, 8);
}

/*
 * memcpy() by a loop, whatever the length.  From 2112 bytes on glibc's is `rep
 * movsb` where the processor calls that fast: it fetches no lines that it
 * overwrites, but begins 40 ns late unless both sides lie alike.  Compilers
 * make the same of a piece whose length they know.  From TPB_COPY_WHOLE on that
 * counts little where somebody waits for it.
 */
static inline void tpb_copy_pieces(void *to, const void *from, size_t length)
{
    unsigned char *into = to;
    const unsigned char *out_of = from;

    for (; length > TPB_COPY_PIECE; length -= TPB_COPY_PIECE) {
        size_t piece = TPB_COPY_PIECE;

        __asm__("" : "+r"(piece));
        memcpy(into, out_of, piece);
        into += TPB_COPY_PIECE;
        out_of += TPB_COPY_PIECE;
    }
    memcpy(into, out_of, length);
}

/*
 * Does `rep movsb` crawl there?  Where the bytes go to a place in their page
 * that is 1 to 31 bytes behind the one that they come from, it moves one or two
 * bytes in a nanosecond on some processors (AMD's Zen 3 and 4, which call it
 * fast), and a loop thirty.
 */
enum { TPB_COPY_PAGE = 4096, TPB_COPY_CRAWLS = 31 };
static inline bool tpb_copy_crawls(const void *to, const void *from)
{
    return ((uintptr_t)to - (uintptr_t)from - 1) % TPB_COPY_PAGE
           < TPB_COPY_CRAWLS;
}

/*
 * memcpy() for a part of something so long that caches do not keep it: the
 * bytes go past them.  They are there when it returns, as after memcpy(): the
 * next part may be another thread's.
 */
enum { TPB_COPY_PAST = 16 * 1024 * 1024 };     /* from here on it pays */
void tpb_copy_past(void *to, const void *from, size_t length);

/* Monotonic nanoseconds; only differences mean something. */
static inline uint64_t tpb_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The same as of some milliseconds ago at most, for a third of the time. */
static inline uint64_t tpb_tick(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/*
 * The time of the look before this one, for what judges lateness: what has come
 * since then is served first, so that nobody is late because we did not look.
 */
static inline uint64_t tpb_look(uint64_t *looked)
{
    uint64_t before = *looked;

    *looked = tpb_now();
    return before;
}

/* Is a deadline found so late, after `stopped` ns, that this process was
 * stopped, as perhaps were those that it waits for?  They get as long again, up
 * to `most` ns; once, which *longer says.  Not before it is over. */
static inline bool tpb_excuse(uint64_t *deadline, bool *longer, uint64_t now,
                              uint64_t stopped, uint64_t most)
{
    uint64_t late = now - *deadline;

    if (*longer || late < stopped)
        return false;
    *longer = true;
    *deadline = now + (late < most ? late : most);
    return true;
}

/* Tells the core that this is a spin loop. */
static inline void tpb_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Asks for a line that will be written.  For any x86-64 the compiler's own way
 * is a request to read, and the store then waits for the line once more.
 * Processors that do not know this instruction do nothing. */
static inline void tpb_prefetch_write(const void *memory)
{
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)memory));
#else
    __builtin_prefetch(memory, 1);
#endif
}

/*
 * Does that make a line this core's own which another has read?  AMD's bring it
 * as it is, to be read, where it was in this core's second-level cache: the
 * store still has to wait for the other core.  There only an earlier store
 * helps.
 */
bool tpb_prefetch_owns(void);

/* Gives up a line that was written, so that another core finds it in the cache
 * they share and need not ask this one.  Only where tpb_demotes(): others do
 * nothing, but a tool that emulates a processor may not know the
 * instruction. */
static inline void tpb_demote(const void *memory)
{
#if defined(__x86_64__)
    __asm__ volatile("cldemote %0" : : "m"(*(const char *)memory));
#else
    (void)memory;
#endif
}

bool tpb_demotes(void);

/* What others have written is to be in one line: control characters become
 * spaces. */
void tpb_one_line(char *text, size_t length);

/* The bytes of a page: 4096, on some machines 16 or 64 KiB. */
size_t tpb_page(void);

/* FNV-1a, 64 bits (Fowler, Noll, Vo; RFC 9923).  Each step is a bijection of
 * the state, so texts that differ in one byte never have the same hash. */
#define TPB_HASH_INIT 0xcbf29ce484222325u

static inline uint64_t tpb_hash(uint64_t hash, const void *data, size_t length)
{
    const uint8_t *bytes = data;

    for (size_t i = 0; i < length; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash;
}

/* 2 * `bytes` digits as %02x writes them; what follows is not looked at.
 * False: there are fewer, or other characters. */
bool tpb_hex(const char *text, size_t bytes, uint8_t *to);
/* 0 to 15; -1 for what is no such digit. */
int tpb_hex_digit(char c);

/*
 * An error in words, filled by set-up paths beside the status they return.
 * Truncated, always terminated.  NULL is allowed everywhere and ignored.
 */
struct tpb_error {
    char text[512];
};

/* Formats the text and returns `status`, so that it can stand in a return. */
tp_status tpb_fail(struct tpb_error *error, tp_status status,
                   const char *format, ...) TPB_PRINTF(3, 4);

/* As tpb_fail() with TP_ERR_SYSTEM, ": " and the words of `code` (an errno). */
tp_status tpb_fail_errno(struct tpb_error *error, int code,
                         const char *format, ...) TPB_PRINTF(3, 4);

/* Is less memory allowed to this process than there is (ulimit -v, -d)? */
bool tpb_memory_limited(void);

/* Does this process lock memory, of which it is allowed little (ulimit -l)?
 * Then a mapping may be refused with EAGAIN, and so a thread's stack. */
bool tpb_memory_locked(void);

/* What to do about it, as " (...)" behind its words; "" for most. */
const char *tpb_errno_remedy(int code);

/* As tpb_fail(), for what dlopen(3) or dlsym(3) just refused: `what`, ": " and
 * the words of dlerror(3). */
tp_status tpb_fail_load(struct tpb_error *error, tp_status status,
                        const char *what);

/* Bytes that nobody can guess; the process ends if the system has none. */
void tpb_random(void *buffer, size_t length);

/* Equal?  In time that does not depend on where they differ. */
bool tpb_equal_secret(const void *a, const void *b, size_t length);

/* A growing text.  Zeroed is empty; on lack of memory `failed` is set and
 * later appends do nothing.  The owner frees `text` with tpb_text_fini(). */
struct tpb_text {
    char *text;
    size_t length, capacity;
    bool failed;
};
void tpb_text_add(struct tpb_text *text, const char *format, ...)
    TPB_PRINTF(2, 3);
void tpb_text_fini(struct tpb_text *text);

#endif

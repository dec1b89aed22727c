/* SPDX-License-Identifier: BSD-3-Clause */
/* Errors in words, random bytes and growing texts. */
#include "config.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/base/base.h"
#include "runtime/base/io.h"

tp_status tpb_fail(struct tpb_error *error, tp_status status,
                   const char *format, ...)
{
    va_list args;

    if (error == NULL)
        return status;
    va_start(args, format);
    vsnprintf(error->text, sizeof(error->text), format, args);
    va_end(args);
    return status;
}

bool tpb_memory_limited(void)
{
    static const int kinds[] = { RLIMIT_AS, RLIMIT_DATA };
    struct rlimit limit;

    for (size_t i = 0; i < TPB_COUNT(kinds); i++)
        if (getrlimit(kinds[i], &limit) == 0
            && limit.rlim_cur != RLIM_INFINITY)
            return true;
    return false;
}

bool tpb_memory_locked(void)
{
    struct rlimit limit;
    uint64_t locked = 0;
    char *text = NULL;

    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0
        && limit.rlim_cur != RLIM_INFINITY)
        text = tpb_read_file("/proc/self/status", NULL);
    if (text != NULL)
        (void)tpb_text_number(text, "VmLck:", &locked);
    tpb_free(text);
    return locked > 0;
}

const char *tpb_errno_remedy(int code)
{
    if (code == ENOMEM)
        return tpb_memory_limited() ? " (see ulimit -v and -d)" : "";
    if (code == EAGAIN)
        return tpb_memory_locked() ? " (memory is locked, see ulimit -l)" : "";
    return code == EMFILE ? " (ulimit -n allows more)"
           : code == EFBIG ? " (see ulimit -f)"
           : code == ENXIO ? " (a socket, a FIFO that nobody reads, or a"
                             " device that is not there)" : "";
}

/* The loader tells no number, and names paths of any length. */
tp_status tpb_fail_load(struct tpb_error *error, tp_status status,
                        const char *what)
{
    const char *words = dlerror();

    if (words == NULL)
        words = "no reason is given";
    return tpb_fail(error, status, "%s: %.300s%s", what, words,
                    strstr(words, strerror(EMFILE)) != NULL
                    ? tpb_errno_remedy(EMFILE) : "");
}

tp_status tpb_fail_errno(struct tpb_error *error, int code,
                         const char *format, ...)
{
    va_list args;
    int used;

    if (error == NULL)
        return TP_ERR_SYSTEM;
    va_start(args, format);
    used = vsnprintf(error->text, sizeof(error->text), format, args);
    va_end(args);
    if (used >= 0 && (size_t)used < sizeof(error->text))
        snprintf(error->text + used, sizeof(error->text) - (size_t)used,
                 ": %s%s", strerror(code), tpb_errno_remedy(code));
    return TP_ERR_SYSTEM;
}

static bool base_owns(void)
{
#if defined(__x86_64__)
    enum { HYGON_EBX = 0x6f677948 };       /* "Hygo", as gcc has no name */
    unsigned a, b, c, d;

    return __get_cpuid(0, &a, &b, &c, &d) == 0
           || (b != signature_AMD_ebx && b != HYGON_EBX);
#else
    return true;
#endif
}

static bool base_demotes(void)
{
#if defined(__x86_64__)
    unsigned a, b, c, d;

    return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0
           && (c & bit_CLDEMOTE) != 0;
#else
    return false;
#endif
}

/* What a processor is asked once: in a virtual machine the host answers, which
 * takes tens of us. */
static bool base_once(_Atomic int *known, bool (*ask)(void))
{
    int answer = atomic_load_explicit(known, memory_order_relaxed);

    if (answer == 0) {
        answer = ask() ? 1 : -1;
        atomic_store_explicit(known, answer, memory_order_relaxed);
    }
    return answer > 0;
}

bool tpb_prefetch_owns(void)
{
    static _Atomic int known;

    return base_once(&known, base_owns);
}

bool tpb_demotes(void)
{
    static _Atomic int known;

    return base_once(&known, base_demotes);
}

void tpb_random(void *buffer, size_t length)
{
    unsigned char *bytes = buffer;

    while (length > 0) {
        ssize_t got = getrandom(bytes, length, 0);

        if (got < 0) {
            if (errno == EINTR)
                continue;
            /* Only a sandbox hinders it. */
            fprintf(stderr, "tp: the kernel gives no random bytes"
                    " (getrandom: %s)\n", strerror(errno));
            abort();
        }
        bytes += got;
        length -= (size_t)got;
    }
}

bool tpb_equal_secret(const void *a, const void *b, size_t length)
{
    const volatile unsigned char *x = a, *y = b;
    unsigned char differ = 0;

    for (size_t i = 0; i < length; i++)
        differ |= (unsigned char)(x[i] ^ y[i]);
    return differ == 0;
}

void tpb_text_add(struct tpb_text *text, const char *format, ...)
{
    va_list args;
    int need;

    if (text->failed)
        return;
    va_start(args, format);
    need = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (need < 0)
        return;
    if (text->length + (size_t)need + 1 > text->capacity) {
        size_t capacity = (text->length + (size_t)need + 1) * 2;
        char *grown = tpb_resize(text->text, capacity);

        if (grown == NULL) {
            text->failed = true;
            return;
        }
        text->text = grown;
        text->capacity = capacity;
    }
    va_start(args, format);
    vsnprintf(text->text + text->length, text->capacity - text->length,
              format, args);
    va_end(args);
    text->length += (size_t)need;
}

void tpb_text_fini(struct tpb_text *text)
{
    tpb_free(text->text);
    memset(text, 0, sizeof(*text));
}

void tpb_one_line(char *text, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)text[i] < ' ')
            text[i] = ' ';
}

size_t tpb_page(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* Every rank reads some of these as it starts, and sscanf(3) would measure all
 * of the text for each number. */
int tpb_hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool tpb_hex(const char *text, size_t bytes, uint8_t *to)
{
    for (size_t i = 0; i < bytes; i++) {
        int high = tpb_hex_digit(text[2 * i]);
        int low = high >= 0 ? tpb_hex_digit(text[2 * i + 1]) : -1;

        if (low < 0)
            return false;
        to[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

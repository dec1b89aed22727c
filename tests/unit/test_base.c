/* SPDX-License-Identifier: BSD-3-Clause */
/* The small things of runtime/base: lists, memory, texts, words, secrets. */
#include "config.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "runtime/base/alloc.h"
#include "runtime/base/library.h"
#include "runtime/base/list.h"
#include "tests/lib/tpx.h"

struct item {
    int number;
    struct tpb_list link;
};

START_TEST(test_list)
{
    struct item items[5];
    struct tpb_list head, *node;
    int expected = 0;

    tpb_list_init(&head);
    ck_assert(tpb_list_empty(&head));
    ck_assert_ptr_null(tpb_list_take(&head));
    for (int i = 0; i < 5; i++) {
        items[i].number = i;
        tpb_list_append(&head, &items[i].link);
    }
    TPB_LIST_EACH(at, &head)
        ck_assert_int_eq(TPB_CONTAINER(at, struct item, link)->number,
                         expected++);
    ck_assert_int_eq(expected, 5);
    /* The node at hand may go while we walk. */
    TPB_LIST_EACH(at, &head)
        if (TPB_CONTAINER(at, struct item, link)->number % 2 == 0)
            tpb_list_unlink(at);
    tpb_list_unlink(&items[0].link);       /* harmless */
    node = tpb_list_take(&head);
    ck_assert_ptr_eq(node, &items[1].link);
    ck_assert(tpb_list_empty(node));
    ck_assert_ptr_eq(tpb_list_take(&head), &items[3].link);
    ck_assert(tpb_list_empty(&head));
}
END_TEST

/* In pieces, at their ends and in between. */
START_TEST(test_copy_pieces)
{
    static const size_t lengths[] = { 0, 1, 100, TPB_COPY_PIECE - 1,
                                      TPB_COPY_PIECE, TPB_COPY_PIECE + 1,
                                      3 * TPB_COPY_PIECE,
                                      3 * TPB_COPY_PIECE + 77,
                                      TPB_COPY_WHOLE - 1, TPB_COPY_WHOLE };
    unsigned char from[4 * TPB_COPY_PIECE], to[4 * TPB_COPY_PIECE];

    for (size_t i = 0; i < sizeof(from); i++)
        from[i] = (unsigned char)(i % 251 + 1);
    for (size_t i = 0; i < TPB_COUNT(lengths); i++) {
        size_t length = lengths[i];

        memset(to, 0, sizeof(to));
        tpb_copy_pieces(to + 1, from + 24, length);
        ck_assert_int_eq(to[0], 0);
        ck_assert_int_eq(memcmp(to + 1, from + 24, length), 0);
        ck_assert_int_eq(to[1 + length], 0);
    }
}
END_TEST

/* From everywhere to everywhere within a line, and nothing beside it. */
START_TEST(test_copy)
{
    enum { LONG = 8 * TPB_CACHE_LINE };
    unsigned char from[LONG], to[LONG + 2 * TPB_CACHE_LINE];

    for (int i = 0; i < LONG; i++)
        from[i] = (unsigned char)(i % 251 + 1);
    for (size_t length = 0; length < LONG - TPB_CACHE_LINE; length += 13)
        for (size_t at = 1; at < TPB_CACHE_LINE; at += 3)
            for (int past = 0; past < 2; past++) {
                memset(to, 0, sizeof(to));
                if (past)
                    tpb_copy_past(to + at, from + at / 2, length);
                else
                    tpb_copy(to + at, from + at / 2, length);
                ck_assert_int_eq(to[at - 1], 0);
                ck_assert_int_eq(memcmp(to + at, from + at / 2, length), 0);
                ck_assert_int_eq(to[at + length], 0);
            }
}
END_TEST

/* Where `rep movsb` crawls, and beside that. */
START_TEST(test_copy_long)
{
    enum { LONG = 3 * TPB_COPY_PAGE };
    static const int behind[] = { -1, 0, 1, 16, 31, 32 };
    unsigned char *from = tpb_zalloc(LONG + TPB_COPY_PAGE);
    unsigned char *to = tpb_zalloc(LONG + 3 * TPB_COPY_PAGE);

    ck_assert_ptr_nonnull(from);
    ck_assert_ptr_nonnull(to);
    for (int i = 0; i < LONG; i++)
        from[i] = (unsigned char)(i % 251 + 1);
    for (size_t i = 0; i < TPB_COUNT(behind); i++)
        for (size_t length = TPB_COPY_PIECE; length <= LONG; length += 1021) {
            size_t same = ((uintptr_t)from - (uintptr_t)to) % TPB_COPY_PAGE;
            unsigned char *at = to + TPB_COPY_PAGE + same + behind[i];

            ck_assert_int_eq(tpb_copy_crawls(at, from),
                             behind[i] > 0 && behind[i] < 32);
            memset(to, 0, LONG + 3 * TPB_COPY_PAGE);
            tpb_copy(at, from, length);
            ck_assert_int_eq(at[-1], 0);
            ck_assert_int_eq(memcmp(at, from, length), 0);
            ck_assert_int_eq(at[length], 0);
        }
    tpb_free(from);
    tpb_free(to);
}
END_TEST

START_TEST(test_alloc)
{
    unsigned char *memory = tpb_zalloc(1000);
    volatile size_t most = SIZE_MAX / 2;   /* a compiler that sees it warns */
    char *copy;

    for (int i = 0; i < 1000; i++)
        ck_assert_uint_eq(memory[i], 0);
    memory[0] = 7;
    memory = tpb_resize(memory, 100000);
    ck_assert_uint_eq(memory[0], 7);
    tpb_free(memory);
    tpb_free(NULL);
    memory = tpb_zalloc(0);
    ck_assert_ptr_nonnull(memory);         /* NULL means no memory */
    tpb_free(memory);
    /* Sanitizers end the program instead of refusing. */
    if (!tpx_sanitized())
        ck_assert_ptr_null(tpb_array(most, 8));
    ck_assert_ptr_null(tpb_copy_string(NULL));
    copy = tpb_copy_string("text");
    ck_assert_str_eq(copy, "text");
    tpb_free(copy);
}
END_TEST

START_TEST(test_alloc_fails)
{
    void *first, *third;

    tpb_alloc_fail_at(2);
    first = tpb_zalloc(1);
    ck_assert_ptr_nonnull(first);
    ck_assert_ptr_null(tpb_copy_string("x"));
    third = tpb_array(1, 1);
    ck_assert_ptr_nonnull(third);          /* once only */
    tpb_alloc_fail_at(1);
    ck_assert_ptr_null(tpb_resize(first, 10));
    tpb_alloc_fail_at(1);
    tpb_alloc_fail_at(0);
    tpb_free(tpb_resize(first, 10));
    tpb_free(third);
}
END_TEST

START_TEST(test_text)
{
    struct tpb_text text = { 0 };

    for (int i = 0; i < 1000; i++)
        tpb_text_add(&text, "%d,", i);
    ck_assert(!text.failed);
    ck_assert_uint_eq(text.length, strlen(text.text));
    ck_assert_int_eq(strncmp(text.text, "0,1,2,", 6), 0);
    ck_assert_str_eq(text.text + text.length - 4, "999,");
    tpb_text_fini(&text);
    text = (struct tpb_text){ 0 };
    tpb_alloc_fail_at(1);
    tpb_text_add(&text, "lost");
    ck_assert(text.failed);
    tpb_text_add(&text, "later");
    ck_assert(text.failed);
    tpb_text_fini(&text);
}
END_TEST

START_TEST(test_words)
{
    struct tpb_error error = { "" };
    char longer[2000];

    for (int status = TP_OK; status <= TP_ERR_NOT_SUPPORTED; status++) {
        ck_assert_str_ne(tp_strerror((tp_status)status), "");
        for (int other = TP_OK; other < status; other++)
            ck_assert_str_ne(tp_strerror((tp_status)status),
                             tp_strerror((tp_status)other));
    }
    ck_assert_ptr_nonnull(tp_strerror((tp_status)-1));
    ck_assert_int_eq(tpb_fail(&error, TP_ERR_BACKEND, "%d of %s", 7, "nine"),
                     TP_ERR_BACKEND);
    ck_assert_str_eq(error.text, "7 of nine");
    ck_assert_int_eq(tpb_fail_errno(&error, 2, "opening"), TP_ERR_SYSTEM);
    ck_assert_str_eq(error.text, "opening: No such file or directory");
    tpb_fail_errno(&error, EMFILE, "opening");
    ck_assert_ptr_nonnull(strstr(error.text, "files (ulimit -n "));
    tpb_fail_errno(&error, EFBIG, "shared memory");
    ck_assert_str_eq(error.text,
                     "shared memory: File too large (see ulimit -f)");
    tpb_fail_errno(&error, ENXIO, "opening /dev/tty");
    ck_assert_ptr_nonnull(strstr(error.text, "or a device that is not there"));
    ck_assert_int_eq(tpb_fail(NULL, TP_ERR_CLOSED, "nobody"), TP_ERR_CLOSED);
    memset(longer, 'x', sizeof(longer));
    longer[sizeof(longer) - 1] = '\0';
    tpb_fail(&error, TP_ERR_SYSTEM, "%s", longer);
    ck_assert_uint_eq(strlen(error.text), sizeof(error.text) - 1);
    tpb_fail_errno(&error, 2, "%s", longer);
    ck_assert_uint_lt(strlen(error.text), sizeof(error.text));
}
END_TEST

/* The loader tells of descriptors in words only. */
START_TEST(test_load_remedy)
{
    struct rlimit limit, none;
    struct tpb_error error;

    ck_assert_ptr_null(dlopen("libtp-is-not-there.so.1", RTLD_NOW));
    ck_assert_int_eq(tpb_fail_load(&error, TP_ERR_BACKEND, "no library"),
                     TP_ERR_BACKEND);
    ck_assert_msg(strncmp(error.text, "no library: libtp-is-not-there", 30)
                  == 0 && strstr(error.text, "ulimit -n") == NULL, "%s",
                  error.text);
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = limit;
    none.rlim_cur = 0;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    ck_assert_ptr_null(dlopen("libtp-is-not-there.so.1", RTLD_NOW));
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    tpb_fail_load(&error, TP_ERR_BACKEND, "no library");
    ck_assert_msg(strstr(error.text, "ulimit -n") != NULL, "%s", error.text);
}
END_TEST

/* A library in a prefix of its own, where no name leads. */
START_TEST(test_library_place)
{
    Dl_info libc;
    void *handle;

    ck_assert_int_ne(dladdr((void *)(uintptr_t)strtoull, &libc), 0);
    handle = tpb_library_open("libtp-nowhere.so.1", libc.dli_fname, RTLD_NOW);
    ck_assert_ptr_nonnull(handle);
    ck_assert_ptr_nonnull(dlsym(handle, "strtoull"));
    dlclose(handle);
    ck_assert_ptr_null(tpb_library_open("libtp-nowhere.so.1",
                                        "/nowhere/libtp.so.1", RTLD_NOW));
}
END_TEST

START_TEST(test_secrets)
{
    unsigned char a[16], b[16];

    tpb_random(a, sizeof(a));
    tpb_random(b, sizeof(b));
    ck_assert(!tpb_equal_secret(a, b, sizeof(a)));
    memcpy(b, a, sizeof(b));
    ck_assert(tpb_equal_secret(a, b, sizeof(a)));
    for (size_t i = 0; i < sizeof(b); i++) {
        b[i] ^= 0x10;
        ck_assert(!tpb_equal_secret(a, b, sizeof(a)));
        b[i] ^= 0x10;
    }
    ck_assert(tpb_equal_secret(a, b, 0));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("base");
    TCase *tests = tcase_create("base");

    tcase_add_test(tests, test_list);
    tcase_add_test(tests, test_copy);
    tcase_add_test(tests, test_copy_long);
    tcase_add_test(tests, test_copy_pieces);
    tcase_add_test(tests, test_alloc);
    tcase_add_test(tests, test_alloc_fails);
    tcase_add_test(tests, test_text);
    tcase_add_test(tests, test_words);
    tcase_add_test(tests, test_load_remedy);
    tcase_add_test(tests, test_library_place);
    tcase_add_test(tests, test_secrets);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* Which memory is to have huge pages, and which is let alone. */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "runtime/base/pages.h"
#include "tests/lib/tpx.h"

#define MIB ((size_t)1 << 20)

static size_t page;

/* Memory that nobody has touched, at a multiple of 2 MiB. */
static unsigned char *fresh(size_t length)
{
    unsigned char *map = mmap(NULL, length + 2 * MIB, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    size_t head = -(uintptr_t)map & (2 * MIB - 1);

    ck_assert(map != MAP_FAILED);
    if (head > 0)
        ck_assert_int_eq(munmap(map, head), 0);
    ck_assert_int_eq(munmap(map + head + length, 2 * MIB - head), 0);
    return map + head;
}

/* How many pages from there on are. */
static size_t there(const unsigned char *from, size_t length)
{
    unsigned char *all = calloc(1, length / page);
    size_t count = 0;

    ck_assert(all != NULL);
    ck_assert_int_eq(mincore((void *)(uintptr_t)from, length, all), 0);
    for (size_t i = 0; i < length / page; i++)
        count += all[i] & 1;
    free(all);
    return count;
}

/* Is that part of the process's memory to have huge pages? */
static bool is_huge(const unsigned char *at)
{
    FILE *maps = fopen("/proc/self/smaps", "r");
    char line[512];
    unsigned long from, to;
    bool here = false, huge = false;

    ck_assert(maps != NULL);
    while (fgets(line, sizeof(line), maps) != NULL)
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            here = (uintptr_t)at >= from && (uintptr_t)at < to;
        else if (here && strncmp(line, "VmFlags:", 8) == 0)
            huge = strstr(line, " hg") != NULL;
    fclose(maps);
    return huge;
}

static bool has_huge(void)
{
    return access("/sys/kernel/mm/transparent_hugepage", F_OK) == 0;
}

#define HUGE_PAGES "/sys/kernel/mm/transparent_hugepage/"

static bool says_always(const char *path)
{
    char *text = tpb_read_file(path, NULL);
    bool always = text != NULL && strstr(text, "[always]") != NULL;

    tpb_free(text);
    return always;
}

/* Without being asked the kernel makes what nobody has written, too. */
static bool gets_unasked(void)
{
    return says_always(HUGE_PAGES "enabled")
           || says_always(HUGE_PAGES "hugepages-2048kB/enabled");
}

/* No huge page lies in it: nothing happens. */
START_TEST(test_short)
{
    unsigned char *memory = fresh(6 * MIB);
    uint8_t known = 0;

    tpb_pages_huge(memory, MIB, &known);
    tpb_pages_huge(memory + 1, 4 * MIB - 2, &known);
    tpb_pages_huge(memory + page, 2 * MIB, &known);
    ck_assert(!is_huge(memory) && !is_huge(memory + 2 * MIB));
    ck_assert_uint_eq(there(memory, 6 * MIB), 0);
    munmap(memory, 6 * MIB);
}
END_TEST

/* Huge pages are only those that lie in it, so nothing is made that is not
 * written. */
START_TEST(test_long)
{
    unsigned char *memory = fresh(10 * MIB);
    uint8_t known = 0;

    tpb_pages_huge(memory + MIB, 8 * MIB, &known);
    ck_assert_uint_eq(there(memory, 10 * MIB), 0);
    ck_assert(!is_huge(memory) && !is_huge(memory + 2 * MIB - 1));
    ck_assert(!is_huge(memory + 8 * MIB) && !is_huge(memory + 9 * MIB));
    if (has_huge())
        ck_assert(is_huge(memory + 2 * MIB) && is_huge(memory + 8 * MIB - 1));
    memset(memory + MIB, 'x', 8 * MIB);
    if (!gets_unasked()) {
        ck_assert_uint_eq(there(memory, MIB), 0);
        ck_assert_uint_eq(there(memory + 9 * MIB, MIB), 0);
    }
    munmap(memory, 10 * MIB);
}
END_TEST

/* What is there is let alone; and after some such not each is looked at, until
 * one is not there. */
START_TEST(test_known)
{
    unsigned char *old = fresh(4 * MIB), *memory = fresh(4 * MIB);
    uint8_t known = 0;
    int looks = 0;

    memset(old, 'o', 4 * MIB);
    for (int i = 0; i < 100; i++)
        tpb_pages_huge(old, 4 * MIB, &known);
    ck_assert(!is_huge(old));
    for (; !is_huge(memory) && looks < 100; looks++)
        tpb_pages_huge(memory, 4 * MIB, &known);
    ck_assert(!has_huge() || (looks > 0 && looks < 10));
    munmap(memory, 4 * MIB);
    memory = fresh(4 * MIB);
    tpb_pages_huge(memory, 4 * MIB, &known);
    ck_assert(!has_huge() || is_huge(memory));
    munmap(memory, 4 * MIB);
    munmap(old, 4 * MIB);
}
END_TEST

/* Memory that is not anybody's alone, and such as there is not. */
START_TEST(test_other_kinds)
{
    unsigned char *memory = fresh(6 * MIB);
    uint8_t known = 0;
    int fd;

    ck_assert_int_eq(munmap(memory + 2 * MIB, 2 * MIB), 0);
    tpb_pages_huge(memory, 6 * MIB, &known);    /* a hole */
    tpb_pages_huge(memory + 2 * MIB, 2 * MIB, &known);
    ck_assert_uint_eq(there(memory, 2 * MIB), 0);
    munmap(memory, 2 * MIB);
    munmap(memory + 4 * MIB, 2 * MIB);

    fd = tpb_shared_memory("pages", 4 * MIB);
    ck_assert_int_ge(fd, 0);
    memory = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert(memory != MAP_FAILED);
    tpb_pages_huge(memory, 4 * MIB, &known);
    ck_assert_uint_eq(there(memory, 4 * MIB), 0);
    memset(memory, 'x', 4 * MIB);
    munmap(memory, 4 * MIB);
    tpb_close(&fd);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pages");
    TCase *tests = tcase_create("pages");

    page = (size_t)sysconf(_SC_PAGESIZE);
    tcase_add_test(tests, test_short);
    tcase_add_test(tests, test_long);
    tcase_add_test(tests, test_known);
    tcase_add_test(tests, test_other_kinds);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}

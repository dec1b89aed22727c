/* SPDX-License-Identifier: BSD-3-Clause */
/* tprun(1) and `tprun --help` tell of the same options. */
#include "config.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "tests/launcher/run.h"

static const char *page_path(void)
{
    static char path[1024];
    const char *source = getenv("TP_TEST_SOURCE");

    snprintf(path, sizeof(path), "%s/man/man1/tprun.1",
             source != NULL ? source : ".");
    return path;
}

/* "Fl n Ar N , Fl \-np Ar N" becomes "-n N, --np N". */
static void page_item(const char *item, struct tpb_text *text)
{
    char copy[256], *save = NULL;
    const char *gap = "";
    bool flag = false;

    snprintf(copy, sizeof(copy), "%.*s", (int)strcspn(item, "\n"), item);
    for (char *word = strtok_r(copy, " ", &save); word != NULL;
         word = strtok_r(NULL, " ", &save)) {
        if (strcmp(word, "Fl") == 0 || strcmp(word, "Ar") == 0) {
            flag = word[0] == 'F';
            continue;
        }
        if (strcmp(word, ",") == 0) {
            tpb_text_add(text, ",");
            continue;
        }
        if (strncmp(word, "\\-", 2) == 0)
            word++, word[0] = '-';
        tpb_text_add(text, "%s%s%s", gap, flag ? "-" : "", word);
        gap = " ";
    }
    tpb_text_add(text, "\n");
}

/* The synopses of the OPTIONS section, a line each. */
static char *page_options(void)
{
    struct tpb_text text = { 0 };
    char *page = tpb_read_file(page_path(), NULL), *line, *end;

    ck_assert_msg(page != NULL, "cannot read %s", page_path());
    line = strstr(page, "\n.Sh OPTIONS\n");
    ck_assert_ptr_nonnull(line);
    end = strstr(line, "\n.El\n");
    ck_assert_ptr_nonnull(end);
    *end = '\0';
    while ((line = strstr(line, "\n.It ")) != NULL) {
        line += 5;
        page_item(line, &text);
    }
    tpb_free(page);
    return text.text;
}

/* The synopses that --help prints, a line each. */
static char *help_options(void)
{
    struct tpx_launch launch = { 0 };
    struct tpb_text text = { 0 };

    tpx_run_tprun(&launch, "--help");
    ck_assert_int_eq(launch.status, 0);
    for (char *line = launch.out; *line != '\0';) {
        size_t length = strcspn(line, "\n");

        if (strncmp(line, "  -", 3) == 0)
            tpb_text_add(&text, "%.*s\n", (int)length - 2, line + 2);
        ck_assert_msg(length <= 80, "over 80 columns: %.*s", (int)length,
                      line);
        line += length + (line[length] == '\n');
    }
    tpx_release(&launch);
    return text.text;
}

START_TEST(test_same_options)
{
    char *page = page_options(), *help = help_options();

    ck_assert_ptr_nonnull(page);
    ck_assert_ptr_nonnull(help);
    ck_assert_str_eq(page, help);
    tpb_free(page);
    tpb_free(help);
}
END_TEST

START_TEST(test_lint)
{
    char command[1200];

    if (system("mandoc -Tlint -W error </dev/null >/dev/null 2>&1") == 127
        || system("command -v mandoc >/dev/null") != 0) {
        tpx_skip("mandoc", "it is not installed");
        return;
    }
    snprintf(command, sizeof(command), "mandoc -Tlint -W warning '%s'",
             page_path());
    ck_assert_int_eq(system(command), 0);
}
END_TEST

START_TEST(test_version)
{
    struct tpx_launch launch = { 0 };

    tpx_run_tprun(&launch, "--version");
    ck_assert_int_eq(launch.status, 0);
    ck_assert_int_eq(tpx_count(launch.out, "tprun (tp) " PACKAGE_VERSION), 1);
    tpx_release(&launch);
    /* Nobody reads: an error, not silence. */
    launch.out_fd = open("/dev/full", O_WRONLY);
    if (launch.out_fd >= 0) {
        tpx_run_tprun(&launch, "--help");
        ck_assert_int_eq(launch.status, 1);
        ck_assert_str_eq(launch.err, "tprun: cannot write to standard output: "
                         "No space left on device\n");
        tpx_release(&launch);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("page");
    TCase *tests = tcase_create("page");

    tcase_set_timeout(tests, 180);
    tcase_add_test(tests, test_same_options);
    tcase_add_test(tests, test_lint);
    tcase_add_test(tests, test_version);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* What ranks print comes out whole, once, in order. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "tests/launcher/run.h"

enum { OUTPUT_RANKS = 8, OUTPUT_LINES = 20000 };

/* A number, after `before` and up to `after`; -1 if it is not so.  (sscanf
 * would look for the end of the whole text at every call.) */
static long take_number(const char **at, char before, char after)
{
    char *end;
    long number;

    if (before != 0 && *(*at)++ != before)
        return -1;
    number = strtol(*at, &end, 10);
    if (end == *at || *end != after)
        return -1;
    *at = end + 1;
    return number;
}

/* Checks the lines of `rank lines N` in one stream: each whole, each rank's
 * in order.  Returns how many there were. */
static int check_lines(const char *text, bool tagged)
{
    long next[OUTPUT_RANKS];
    int count = 0;

    for (int i = 0; i < OUTPUT_RANKS; i++)
        next[i] = -1;
    for (; *text != '\0'; text++) {
        const char *begin = text, *end = text + strcspn(text, "\n");
        long tag = tagged ? take_number(&text, '[', ']') : 0, rank, line;
        long wanted;
        unsigned sum = 0;

        text += tagged;
        rank = take_number(&text, '<', ' ');
        line = take_number(&text, 0, ' ');
        wanted = take_number(&text, 0, ' ');
        ck_assert_msg(tag >= 0 && rank >= 0 && line >= 0 && wanted >= 0
                      && rank < OUTPUT_RANKS && *end == '\n'
                      && end[-1] == '>', "torn: %.80s", begin);
        while (text < end - 1)
            sum = sum * 31 + (unsigned char)*text++;
        ck_assert_msg((long)sum == wanted, "damaged: %.80s", begin);
        ck_assert_msg(line > next[rank], "out of order: %.80s", begin);
        ck_assert(!tagged || tag == rank);
        next[rank] = line;
        count++;
        text = end;
    }
    return count;
}

START_TEST(test_whole_lines)
{
    struct tpx_launch launch = { 0 };
    int count, lines = tpx_sanitized() ? OUTPUT_LINES / 5 : OUTPUT_LINES;
    char number[16];

    snprintf(number, sizeof(number), "%d", lines);
    tpx_launch(&launch, -1, _i == 0
               ? (const char *const[]){ "-n", "8", "RANK", "lines", number,
                                        NULL }
               : (const char *const[]){ "--tag", "-n", "8", "RANK", "lines",
                                        number, NULL });
    tpx_finish(&launch, 120);
    ck_assert_int_eq(launch.status, 0);
    count = check_lines(launch.out, _i == 1) + check_lines(launch.err, _i == 1);
    ck_assert_int_eq(count, OUTPUT_RANKS * lines);
    tpx_release(&launch);
}
END_TEST

/* The same when both streams go to one file: one queue, no line in another. */
START_TEST(test_one_file)
{
    struct tpx_launch launch = { 0 };
    int copy;

    launch.out_fd = memfd_create("both", MFD_CLOEXEC);
    copy = dup(launch.out_fd);
    launch.err_fd = copy;
    tpx_run_tprun(&launch, "-n", "8", "RANK", "lines", "2000");
    ck_assert_int_eq(launch.status, 0);
    /* Each stream is in order, but not one against the other. */
    ck_assert_int_eq(tpx_count(launch.out, "\n"), OUTPUT_RANKS * 2000);
    ck_assert_int_eq(tpx_count(launch.out, "\n<"), OUTPUT_RANKS * 2000 - 1);
    ck_assert_int_eq(tpx_count(launch.out, ">\n"), OUTPUT_RANKS * 2000);
    tpx_release(&launch);
}
END_TEST

START_TEST(test_tags)
{
    struct tpx_launch launch = { 0 };

    tpx_run_tprun(&launch, "-n", "3", "--tag", "sh", "-c",
                  "printf 'one\\n\\nthree'; echo bad >&2");
    for (int i = 0; i < 3; i++) {
        char line[64];

        snprintf(line, sizeof(line), "[%d] one\n", i);
        ck_assert_int_eq(tpx_count(launch.out, line), 1);
        snprintf(line, sizeof(line), "[%d] \n", i);
        ck_assert_int_eq(tpx_count(launch.out, line), 1);
        snprintf(line, sizeof(line), "[%d] three", i);
        ck_assert_int_eq(tpx_count(launch.out, line), 1);
        snprintf(line, sizeof(line), "[%d] bad\n", i);
        ck_assert_int_eq(tpx_count(launch.err, line), 1);
    }
    /* Two of the unfinished lines had to be ended for the next. */
    ck_assert_int_eq(tpx_count(launch.out, "\n"), 8);
    tpx_release(&launch);
}
END_TEST

enum { TORRENT_RANKS = 64 };

/* What is known of a torrent so far. */
struct torrent {
    long next[TORRENT_RANKS];
    int ended;
    size_t bytes;
};

/* One line of it, without its newline. */
static void torrent_line(struct torrent *torrent, const char *line,
                         size_t length)
{
    const char *at = line;
    long rank, number;

    if (*at == 'e') {
        at += 3;
        rank = take_number(&at, ' ', ' ');
        ck_assert_int_eq(strtol(at, NULL, 10), torrent->next[rank]);
        torrent->ended++;
        return;
    }
    rank = take_number(&at, '<', ' ');
    number = take_number(&at, 0, ' ');
    ck_assert_msg(rank >= 0 && rank < TORRENT_RANKS && line[length - 1] == '>'
                  && line + length - at == number % 150 + 1
                  && number == torrent->next[rank], "torn: %.*s", (int)length,
                  line);
    torrent->next[rank]++;
}

/* 64 ranks, more than any buffer holds: nothing torn, nothing lost, and tprun
 * stays small.  make check-long: gigabytes. */
START_TEST(test_torrent)
{
    static char buffer[1 << 20];
    static struct torrent torrent;
    struct tpx_launch launch = { 0 };
    const char *much = getenv("TP_TEST_LONG") != NULL ? "64000000"
                       : tpx_sanitized() ? "400000" : "2000000";
    size_t used = 0;
    ssize_t got;
    int ends[2];

    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    launch.out_fd = ends[1];
    tpx_launch(&launch, -1, (const char *const[]){ "-n", "64", "RANK",
               "torrent", much, NULL });
    close(ends[1]);
    while ((got = read(ends[0], buffer + used, sizeof(buffer) - used)) > 0) {
        char *line = buffer, *end;

        torrent.bytes += (size_t)got;
        used += (size_t)got;
        while ((end = memchr(line, '\n',
                             used - (size_t)(line - buffer))) != NULL) {
            torrent_line(&torrent, line, (size_t)(end - line));
            line = end + 1;
        }
        used -= (size_t)(line - buffer);
        memmove(buffer, line, used);
    }
    close(ends[0]);
    launch.out_fd = memfd_create("none", MFD_CLOEXEC);
    tpx_finish(&launch, 120);
    ck_assert_msg(launch.status == 0, "%s", launch.err);
    ck_assert_int_eq(torrent.ended, TORRENT_RANKS);
    ck_assert_uint_gt(torrent.bytes, (size_t)TORRENT_RANKS
                      * strtoul(much, NULL, 10));
    /* Sanitizers keep what was freed for a while. */
    ck_assert_int_lt(launch.usage.ru_maxrss,
                     (tpx_sanitized() ? 800 : 100)
                     * 1024);
    tpx_release(&launch);
}
END_TEST

/* Who reads so slowly that the ranks have ended long before gets all the same
 * all that they had written: what fills the buffers, and their pipes. */
START_TEST(test_slow_reader)
{
    struct tpx_launch launch = { 0 };
    static char text[400000];
    size_t used = 0;
    ssize_t got;
    int ends[2];

    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    launch.out_fd = ends[1];
    tpx_launch(&launch, -1, (const char *const[]){ "-n", "2", "seq", "10000",
               "29999", NULL });
    close(ends[1]);
    sleep(4);
    while ((got = read(ends[0], text + used, sizeof(text) - used)) > 0)
        used += (size_t)got;
    close(ends[0]);
    launch.out_fd = memfd_create("none", MFD_CLOEXEC);
    tpx_finish(&launch, 60);
    ck_assert_int_eq(launch.status, 0);
    ck_assert_uint_eq(used, 2 * 20000 * 6);
    tpx_release(&launch);
}
END_TEST

/* One rank's bytes pass unchanged, whatever they are. */
START_TEST(test_bytes)
{
    static const char *const scripts[] = {
        "printf ''", "printf x", "printf '\\n'", "printf 'a\\r\\nb\\rc'",
        "printf 'a\\0b\\n\\0'", "printf '\\377\\376\\n\\n\\nx'",
    };
    static const struct { const char *bytes; size_t length; } wanted[] = {
        { "", 0 }, { "x", 1 }, { "\n", 1 }, { "a\r\nb\rc", 6 },
        { "a\0b\n\0", 5 }, { "\377\376\n\n\nx", 6 },
    };
    struct tpx_launch launch = { 0 };

    tpx_run_tprun(&launch, "sh", "-c", scripts[_i]);
    ck_assert_uint_eq(launch.out_length, wanted[_i].length);
    ck_assert_mem_eq(launch.out, wanted[_i].bytes, launch.out_length);
    tpx_release(&launch);
}
END_TEST

/* Lines far longer than any buffer stay whole. */
START_TEST(test_long_lines)
{
    struct tpx_launch launch = { 0 };
    const char *at;

    tpx_run_tprun(&launch, "-n", "4", "RANK", "long", "3000000");
    ck_assert_int_eq(launch.status, 0);
    ck_assert_uint_eq(launch.out_length, 4 * (3000000 + 1 + 6));
    at = launch.out;
    while (*at != '\0') {
        size_t length = strcspn(at, "\n");

        ck_assert(length == 5 || length == 3000000);
        ck_assert_uint_eq(length == 5 ? 1 : strspn(at, (char[]){ *at, 0 }),
                          length == 5 ? 1 : 3000000);
        at += length + 1;
    }
    /* Not gathered in memory: tprun itself takes some 20 MB. */
    ck_assert_int_lt(launch.usage.ru_maxrss, 400 * 1024);
    tpx_release(&launch);
}
END_TEST

/* A long line that stops in the middle does not hold the others for ever.  The
 * other rank waits for a line that it gets only once some of that is out. */
START_TEST(test_long_line_pauses)
{
    struct tpx_launch launch = { 0 };
    int input[2];

    ck_assert_int_eq(pipe2(input, O_CLOEXEC), 0);
    tpx_launch(&launch, input[0], (const char *const[]){ "-n", "2", "--stdin",
               "1", "sh", "-c", "if test $PMIX_RANK = 0; then "
               "head -c 200000 /dev/zero | tr '\\0' x; else "
               "read line; echo through; fi; sleep 600", NULL });
    tpx_await_output(&launch, "xxxx", 1);
    ck_assert_int_eq(write(input[1], "\n", 1), 1);
    tpx_await_output(&launch, "through\n", 1);
    close(input[0]);
    close(input[1]);
    kill(launch.pid, SIGTERM);
    tpx_finish(&launch, 90);
    ck_assert_int_eq(launch.status, 143);
    ck_assert_int_eq(tpx_count(launch.out, "x\nthrough\n"), 1);
    tpx_release(&launch);
}
END_TEST

/* Nobody reads: ranks wait, nothing is lost, memory stays. */
START_TEST(test_back_pressure)
{
    struct tpx_launch launch = { 0 };
    static char buffer[65536];
    size_t total = 0;
    ssize_t got;
    int ends[2];

    ck_assert_int_eq(pipe(ends), 0);
    launch.out_fd = ends[1];
    tpx_launch(&launch, -1, (const char *const[]){ "-n", "4", "sh", "-c",
               "yes 0123456789abcde | head -c 16000000", NULL });
    close(ends[1]);
    tpx_doze(0.5);
    while ((got = read(ends[0], buffer, sizeof(buffer))) > 0)
        total += (size_t)got;
    close(ends[0]);
    launch.out_fd = memfd_create("none", 0);
    tpx_finish(&launch, 120);
    ck_assert_int_eq(launch.status, 0);
    ck_assert_uint_eq(total, 4 * 16000000);
    tpx_release(&launch);
}
END_TEST

/* The reader goes away: ranks get SIGPIPE, as they would without tprun, or the
 * commands of a script do. */
START_TEST(test_reader_gone)
{
    static const char *const jobs[][5] = {
        { "-n", "2", "yes" }, { "-n", "2", "sh", "-c", "yes; exit $?" },
    };
    struct tpx_launch launch = { 0 };
    int ends[2];
    char byte;

    ck_assert_int_eq(pipe(ends), 0);
    launch.out_fd = ends[1];
    tpx_launch(&launch, -1, (const char *const[]){
               jobs[_i][0], jobs[_i][1], jobs[_i][2], jobs[_i][3],
               jobs[_i][4], NULL });
    close(ends[1]);
    ck_assert_int_eq(read(ends[0], &byte, 1), 1);
    close(ends[0]);
    launch.out_fd = memfd_create("none", 0);
    tpx_finish(&launch, 90);
    ck_assert_int_eq(launch.status, 128 + SIGPIPE);
    ck_assert_int_eq(tpx_count(launch.err, "; nobody reads the output of tprun "
                               "any more\n"), 1);
    ck_assert_int_eq(tpx_count(launch.err, _i == 0 ? "was killed by signal 13"
                               : "exited with status 141"), 1);
    tpx_release(&launch);
}
END_TEST

START_TEST(test_full_disk)
{
    struct tpx_launch launch = { 0 };

    launch.out_fd = open("/dev/full", O_WRONLY);
    if (launch.out_fd < 0) {
        tpx_skip("devfull", "/dev/full is not there");
        return;
    }
    tpx_run_tprun(&launch, "-n", "4", "RANK", "lines", "2000");
    ck_assert_int_eq(launch.status, 1);
    ck_assert_int_eq(tpx_count(launch.err, "tprun: cannot write to standard "
                               "output: No space left on device"), 1);
    tpx_release(&launch);
}
END_TEST

/* Standard streams that are closed altogether. */
START_TEST(test_closed_streams)
{
    char command[1200];

    snprintf(command, sizeof(command), "%s -n 2 echo hello <&- >&- 2>&-",
             tpx_program("launcher/tprun"));
    ck_assert_int_eq(system(command), 0);
    snprintf(command, sizeof(command), "test \"$(%s -n 2 cat <&- 2>&-)\" = ''",
             tpx_program("launcher/tprun"));
    ck_assert_int_eq(system(command), 0);
}
END_TEST

/* Job's own line comes last, after all that the ranks said. */
START_TEST(test_report_last)
{
    struct tpx_launch launch = { 0 };
    const char *line;

    tpx_run_tprun(&launch, "-n", "4", "sh", "-c",
                  "seq 1 5000 >&2; exit 3");
    ck_assert_int_eq(launch.status, 3);
    line = strstr(launch.err, "tprun: rank ");
    ck_assert_ptr_nonnull(line);
    ck_assert_uint_eq(strcspn(line, "\n") + 1, strlen(line));
    tpx_release(&launch);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("output");
    TCase *tests = tcase_create("output");

    tcase_set_timeout(tests, getenv("TP_TEST_LONG") != NULL ? 3600 : 300);
    tcase_add_loop_test(tests, test_whole_lines, 0, 2);
    tcase_add_test(tests, test_one_file);
    tcase_add_test(tests, test_tags);
    tcase_add_test(tests, test_torrent);
    tcase_add_test(tests, test_slow_reader);
    tcase_add_loop_test(tests, test_bytes, 0, 6);
    tcase_add_test(tests, test_long_lines);
    tcase_add_test(tests, test_long_line_pauses);
    tcase_add_test(tests, test_back_pressure);
    tcase_add_loop_test(tests, test_reader_gone, 0, 2);
    tcase_add_test(tests, test_full_disk);
    tcase_add_test(tests, test_closed_streams);
    tcase_add_test(tests, test_report_last);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}

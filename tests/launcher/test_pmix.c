/* SPDX-License-Identifier: BSD-3-Clause */
/* tprun as a PMIx server: what its clients can rely on. */
#include "config.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "tests/launcher/run.h"

static const char *const jobs[][7] = {
    { "-n", "1", "RANK", "modex" },
    { "-n", "2", "RANK", "modex" },
    { "-n", "16", "RANK", "modex" },
    { "-n", "1", "RANK", "info" },
    { "-n", "5", "RANK", "info" },
    { "-n", "4", "RANK", "publish" },
    /* Over libpmix's own limit of 2 s for a card that is not there yet. */
    { "-n", "3", "RANK", "late", "3" },
    { "-n", "32", "RANK", "init" },
    /* A program that is started by a rank, not as one. */
    { "-n", "3", "sh", "-c", "\"$TPX_RANK\" modex && true" },
};

START_TEST(test_jobs)
{
    struct tpx_launch launch = { 0 };

    setenv("TPX_RANK", tpx_rank_program(), 1);
    tpx_launch(&launch, -1, jobs[_i]);
    tpx_finish(&launch, 120);
    ck_assert_msg(launch.status == 0, "status %d: %s", launch.status,
                  launch.err);
    ck_assert_str_eq(launch.err, "");
    tpx_release(&launch);
}
END_TEST

/* Each of several programs is one to PMIx, as MPI_APPNUM tells. */
START_TEST(test_apps)
{
    struct tpx_launch launch = { 0 };

    tpx_run_tprun(&launch, "-n", "2", "RANK", "apps", "0", "2", "0", ":",
                  "-n", "3", "RANK", "apps", "1", "3", "2");
    ck_assert_msg(launch.status == 0, "%s", launch.err);
    ck_assert_str_eq(launch.err, "");
    tpx_release(&launch);
}
END_TEST

/* libpmix could not compress names of more than 50 letters; Linux allows 64. */
START_TEST(test_long_host)
{
    static const size_t lengths[] = { 49, 50, 64 };
    struct tpx_launch launch = { 0 };
    char name[65];

    memset(name, 'n', sizeof(name));
    if (unshare(CLONE_NEWUTS) < 0
        || sethostname(name, lengths[_i]) < 0) {
        tpx_skip("root", "no host name of our own");
        return;
    }
    tpx_run_tprun(&launch, "-n", "2", "RANK", "info");
    ck_assert_msg(launch.status == 0, "%s", launch.err);
    ck_assert_str_eq(launch.err, "");
    tpx_release(&launch);
}
END_TEST

/* Ranks that finalize and exit while tprun is busy with those that did so
 * before them have finalized all the same. */
START_TEST(test_many_ends)
{
    for (int i = 0; i < 8; i++) {
        struct tpx_launch launch = { 0 };

        tpx_run_tprun(&launch, "-n", "16", "RANK", "init");
        ck_assert_msg(launch.status == 0, "%s", launch.err);
        tpx_release(&launch);
    }
}
END_TEST

/* With --keep-going the others are told who died, and of what. */
START_TEST(test_events)
{
    static const struct { const char *how, *told; } deaths[] = {
        { "signal9", "aborted by a signal: rank 2 signal 9\n" },
        { "signal11", "aborted by a signal: rank 2 signal 11\n" },
        { "exit7", "ended without a word: rank 2 signal 0\n" },
        { "exit0", "ended without a word: rank 2 signal 0\n" },
    };
    struct tpx_launch launch = { 0 };

    tpx_run_tprun(&launch, "-n", "3", "--keep-going", "RANK", "events",
                  deaths[_i].how);
    ck_assert_int_ne(launch.status, 0);
    ck_assert_msg(tpx_count(launch.out, deaths[_i].told) == 2, "%s%s",
                  launch.out, launch.err);
    tpx_release(&launch);
}
END_TEST

/* Asking for what a rank took with it ends, with an error. */
START_TEST(test_get_from_the_dead)
{
    static const char *const ways[] = { "signal9", "exit3", "finalize" };
    struct tpx_launch launch = { 0 };

    tpx_run_tprun(&launch, "-n", "2", "--keep-going", "RANK", "get-dead",
                  ways[_i]);
    ck_assert_msg(tpx_count(launch.out, "error\n") == 1, "%s", launch.err);
    tpx_release(&launch);
}
END_TEST

START_TEST(test_nested)
{
    struct tpx_launch launch = { 0 };

    setenv("TPX_RANK", tpx_rank_program(), 1);
    setenv("TPX_TPRUN", tpx_program("launcher/tprun"), 1);
    tpx_run_tprun(&launch, "-n", "2", "--keep-going", "sh", "-c",
                  "\"$TPX_TPRUN\" -n 3 \"$TPX_RANK\" modex && "
                  "\"$TPX_TPRUN\" -n 3 sh -c 'echo in $PMIX_RANK' && "
                  "\"$TPX_TPRUN\" -n 2 sh -c 'exit $((PMIX_RANK * 9))'");
    ck_assert_int_eq(launch.status, 9);
    for (int i = 0; i < 3; i++) {
        char line[32];

        snprintf(line, sizeof(line), "in %d\n", i);
        ck_assert_int_eq(tpx_count(launch.out, line), 2);
    }
    tpx_release(&launch);
}
END_TEST

/* A tprun that is itself a rank of Open MPI's mpirun. */
START_TEST(test_under_mpirun)
{
    char command[3000];

    if (system("mpirun --version >/dev/null 2>&1") != 0) {
        tpx_skip("openmpi", "mpirun is not installed");
        return;
    }
    snprintf(command, sizeof(command),
             "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
             "timeout 170 mpirun --oversubscribe -n 2 %s -n 3 %s modex",
             tpx_program("launcher/tprun"), tpx_rank_program());
    ck_assert_int_eq(system(command), 0);
}
END_TEST

/* Surroundings in which others stumble. */
START_TEST(test_surroundings)
{
    struct tpx_launch launch = { 0 };
    char path[301];

    memset(path, 'x', sizeof(path) - 1);
    path[0] = '/';
    path[sizeof(path) - 1] = '\0';
    switch (_i) {
    case 0:
        setenv("TMPDIR", path, 1);
        break;
    case 1:
        setenv("TMPDIR", "/nonexistent", 1);
        break;
    case 2:
        unsetenv("HOME");
        break;
    case 3:
        setenv("HOME", "/nonexistent", 1);
        setenv("TMPDIR", "", 1);
        break;
    case 4:
        setenv("PMIX_NAMESPACE", "stale", 1);
        setenv("PMIX_RANK", "77", 1);
        setenv("PMIX_SERVER_URI41", "stale.0;tcp4://127.0.0.1:1", 1);
        setenv("PMIX_GDS_MODULE", "ds21", 1);
        break;
    }
    tpx_run_tprun(&launch, "-n", "4", "RANK", "modex");
    ck_assert_msg(launch.status == 0, "%s", launch.err);
    ck_assert_str_eq(launch.err, "");
    tpx_release(&launch);
}
END_TEST

/* What tprun tells its own libpmix and hwloc to leave out, the ranks' do not
 * hear of; what the user says reaches both. */
START_TEST(test_plug_ins)
{
    static const char *const own[] = {
        "PMIX_MCA_pcompress=", "PMIX_MCA_pcompress_base_silence_warning=",
        "PMIX_MCA_prm=", "PMIX_OUTPUT_STDERR_FD=", "HWLOC_PLUGINS_PATH="
    };
    struct tpx_launch launch = { 0 };

    unsetenv("HWLOC_PLUGINS_PATH");
    tpx_run_tprun(&launch, "-n", "1", "env");
    ck_assert_int_eq(launch.status, 0);
    ck_assert_int_eq(tpx_count(launch.out, "PMIX_RANK=0\n"), 1);
    for (size_t i = 0; i < TPB_COUNT(own); i++)
        ck_assert_msg(strstr(launch.out, own[i]) == NULL, "%s", own[i]);
    tpx_release(&launch);
    setenv("PMIX_MCA_prm", "default", 1);
    setenv("HWLOC_PLUGINS_PATH", "/elsewhere", 1);
    launch = (struct tpx_launch){ 0 };
    tpx_run_tprun(&launch, "-n", "1", "env");
    ck_assert_int_eq(launch.status, 0);
    ck_assert_int_eq(tpx_count(launch.out, "PMIX_MCA_prm=default\n"), 1);
    ck_assert_int_eq(tpx_count(launch.out,
                               "HWLOC_PLUGINS_PATH=/elsewhere\n"), 1);
    tpx_release(&launch);
}
END_TEST

/* What a sanitizer is told to read lies beside the build tree: it is named from
 * there, where we are. */
static void name_from_here(const char *variable)
{
    const char *value = getenv(variable), *found;
    char here[PATH_MAX], text[2 * PATH_MAX];

    ck_assert_ptr_nonnull(getcwd(here, sizeof(here)));
    found = value != NULL ? strstr(value, here) : NULL;
    if (found == NULL || found[strlen(here)] != '/')
        return;
    snprintf(text, sizeof(text), "%.*s%s", (int)(found - value), value,
             found + strlen(here) + 1);
    setenv(variable, text, 1);
}

/* /tmp and /dev/shm of our own, empty, with so many bytes; false if this user
 * may not have that. */
static bool private_places(const char *options)
{
    static const char *const places[] = { "/tmp", "/dev/shm" };

    /* The build tree may lie in /tmp; from now on it is `.`. */
    ck_assert_int_eq(chdir(tpx_program("")), 0);
    setenv("TP_TEST_BUILD", ".", 1);
    name_from_here("LSAN_OPTIONS");
    name_from_here("TSAN_OPTIONS");
    if (unshare(CLONE_NEWNS) < 0
        || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        return false;
    for (size_t i = 0; i < TPB_COUNT(places); i++)
        if (mount("tmpfs", places[i], "tmpfs", 0, options) < 0)
            return false;
    return true;
}

START_TEST(test_full_tmp)
{
    struct tpx_launch launch = { 0 };

    if (!private_places("size=4k,nr_inodes=1")) {
        tpx_skip("namespaces", "a mount namespace is not to be had");
        return;
    }
    tpx_run_tprun(&launch, "-n", "4", "RANK", "modex");
    ck_assert_msg(launch.status == 0, "%s", launch.err);
    ck_assert_str_eq(launch.err, "");
    tpx_release(&launch);
}
END_TEST

/* Nobody's user, who owns nothing. */
START_TEST(test_unprivileged)
{
    struct tpx_launch launch = { 0 };

    if (geteuid() != 0) {
        tpx_skip("root", "these tests run unprivileged already");
        return;
    }
    ck_assert_int_eq(setgid(65534), 0);
    ck_assert_int_eq(setuid(65534), 0);
    if (access(tpx_program("launcher/tprun"), X_OK) < 0) {
        tpx_skip("readable", "the build tree is closed to other users");
        return;
    }
    tpx_run_tprun(&launch, "-n", "4", "RANK", "modex");
    ck_assert_msg(launch.status == 0, "%s", launch.err);
    ck_assert_str_eq(launch.err, "");
    tpx_release(&launch);
}
END_TEST

/* Garbage and silence on the server's port must not stop the job from
 * ending. */
START_TEST(test_strangers)
{
    struct tpx_launch launch = { 0 };
    /* The port stands at the end of the URI; bash speaks TCP. */
    const char *script =
        "test $PMIX_RANK = 1 && exec sleep 0.5; "
        "port=${PMIX_SERVER_URI41##*:}; "
        "exec 7<>/dev/tcp/127.0.0.1/$port 8<>/dev/tcp/127.0.0.1/$port; "
        "head -c 4096 /dev/urandom >&8; sleep 1; exit 5";

    if (access("/bin/bash", X_OK) < 0) {
        tpx_skip("bash", "/bin/bash is not there");
        return;
    }
    tpx_run_tprun(&launch, "-n", "2", "bash", "-c", script);
    ck_assert_int_eq(launch.status, 5);
    tpx_release(&launch);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pmix");
    TCase *tests = tcase_create("pmix");

    tcase_set_timeout(tests, 180);
    tcase_add_loop_test(tests, test_jobs, 0, TPB_COUNT(jobs));
    tcase_add_test(tests, test_apps);
    tcase_add_loop_test(tests, test_long_host, 0, 3);
    tcase_add_test(tests, test_many_ends);
    tcase_add_loop_test(tests, test_events, 0, 4);
    tcase_add_loop_test(tests, test_get_from_the_dead, 0, 3);
    tcase_add_test(tests, test_nested);
    tcase_add_test(tests, test_under_mpirun);
    tcase_add_loop_test(tests, test_surroundings, 0, 5);
    tcase_add_test(tests, test_plug_ins);
    tcase_add_test(tests, test_full_tmp);
    tcase_add_test(tests, test_unprivileged);
    tcase_add_test(tests, test_strangers);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}

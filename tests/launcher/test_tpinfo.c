/* SPDX-License-Identifier: BSD-3-Clause */
/* tpinfo from the outside: each option, each mistake. */
#include "config.h"

#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/base/io.h"
#include "tests/lib/tpx.h"
#include "topology/discover.h"

enum { RUN_SECONDS = 60 };

/* What the last run left. */
static char out[1 << 20], err[8192];

static size_t read_all(int fd, char *buffer, size_t size)
{
    size_t length = 0;
    ssize_t got;

    while ((got = read(fd, buffer + length, size - 1 - length)) > 0)
        length += (size_t)got;
    buffer[length] = '\0';
    return length;
}

/* The child: its limits, its outputs, its program.  Files and not pipes, so
 * that it never waits for its reader. */
static void run_child(char **argv, const int fds[2])
{
    alarm(RUN_SECONDS);
    dup2(fds[0], STDOUT_FILENO);
    dup2(fds[1], STDERR_FILENO);
    execv(argv[0], argv);
    _exit(127);
}

static int temporary(void)
{
    char path[] = "/tmp/tp-test-XXXXXX";
    int fd = mkstemp(path);

    ck_assert_int_ge(fd, 0);
    unlink(path);
    return fd;
}

/* Runs `tpinfo ARGUMENTS` (parted at blanks) and returns the exit status. */
static int run(const char *arguments)
{
    char copy[1024], *argv[16], *save;
    int argc = 0, status, fds[2] = { temporary(), temporary() };
    pid_t pid;

    snprintf(copy, sizeof(copy), "%s %s", tpx_program("launcher/tpinfo"),
             arguments);
    for (char *word = strtok_r(copy, " ", &save); word != NULL;
         word = strtok_r(NULL, " ", &save))
        argv[argc++] = word;
    argv[argc] = NULL;
    pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0)
        run_child(argv, fds);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(lseek(fds[0], 0, SEEK_SET), 0);
    ck_assert_int_eq(lseek(fds[1], 0, SEEK_SET), 0);
    read_all(fds[0], out, sizeof(out));
    read_all(fds[1], err, sizeof(err));
    close(fds[0]);
    close(fds[1]);
    ck_assert_msg(WIFEXITED(status), "signal %d: %s", WTERMSIG(status), err);
    return WEXITSTATUS(status);
}

/* It works, says all the words, and nothing on standard error. */
static void good(const char *arguments, const char *const *words)
{
    ck_assert_msg(run(arguments) == 0, "tpinfo %s: %s", arguments, err);
    ck_assert_str_eq(err, "");
    for (; *words != NULL; words++)
        ck_assert_msg(strstr(out, *words) != NULL, "tpinfo %s: no \"%s\" in "
                      "%s", arguments, *words, out);
}
#define GOOD(arguments, ...) \
    good(arguments, (const char *const[]){ __VA_ARGS__, NULL })

/* It ends with that status, one line, nothing on standard output. */
static void bad(const char *arguments, int status, const char *word)
{
    ck_assert_int_eq(run(arguments), status);
    ck_assert_str_eq(out, "");
    ck_assert_msg(strncmp(err, "tpinfo: ", 8) == 0
                  && strstr(err, word) != NULL
                  && strchr(err, '\n') == err + strlen(err) - 1,
                  "tpinfo %s: %s", arguments, err);
}

static json_t *run_json(const char *arguments)
{
    json_error_t error;
    json_t *root;

    ck_assert_msg(run(arguments) == 0, "%s", err);
    root = json_loads(out, JSON_REJECT_DUPLICATES, &error);
    ck_assert_msg(root != NULL, "%s: %s", error.text, out);
    return root;
}

static const char *text_of(json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    ck_assert_msg(text != NULL, "%s is missing", key);
    return text;
}

/* "--plan --topo A[,B]" with the recorded machines of that name. */
static const char *recorded(const char *more, const char *a, const char *b)
{
    static char arguments[1024];
    const char *source = getenv("TP_TEST_SOURCE");
    int used;

    source = source != NULL ? source : ".";
    used = snprintf(arguments, sizeof(arguments),
                    "--plan %s --topo %s/tests/data/topology/%s.xml", more,
                    source, a);
    if (b != NULL)
        snprintf(arguments + used, sizeof(arguments) - (size_t)used,
                 ",%s/tests/data/topology/%s.xml", source, b);
    return arguments;
}

static void setup(void)
{
    static const char *const variables[] = {
        "TP_TOPOLOGY", "TP_TOPOLOGY_SHARED", "TP_BACKENDS", "TP_REQUIRE",
        "TP_SPIN", "TP_LOG", "TP_COSTS"
    };

    /* What was measured here is not for tests. */
    setenv("XDG_CACHE_HOME", "/nonexistent", 1);
    for (size_t i = 0; i < TPB_COUNT(variables); i++)
        unsetenv(variables[i]);
}

START_TEST(test_overview)
{
    GOOD("", "tp " PACKAGE_VERSION " on ", "Topology\n", "from this machine: ",
         "package 0", "Network\n", "Backends\n", "Settings\n",
         "0 of ", "`tpinfo --env` lists all");
    setenv("TP_SPIN", "17", 1);
    GOOD("", "TP_SPIN=17 (from the environment)", "1 of ");
}
END_TEST

START_TEST(test_sections)
{
    GOOD("--topology", "from this machine", "Network");
    ck_assert_ptr_null(strstr(out, "Backends"));
    GOOD("--backends", "Backends", "reaches", "shm", "loop", "ofi:tcp");
    ck_assert_ptr_null(strstr(out, "Topology"));
    GOOD("--topology --backends", "Topology", "Backends");
    setenv("TP_OFI_TCP", "tcp", 1);
    GOOD("--backends", "works, over libfabric 1.", "'s provider tcp\n");
    unsetenv("TP_OFI_TCP");
    setenv("TP_SPIN", "17", 1);
    GOOD("--env", "TP_LOG ", "TP_TOPOLOGY_SHARED", "environment", "default",
         "How long to poll before sleeping");
    for (size_t i = 0; i < TPB_SET_COUNT; i++)
        ck_assert_msg(strstr(out, tpb_setting_table[i].variable) != NULL,
                      "%s", tpb_setting_table[i].variable);
}
END_TEST

START_TEST(test_help_and_version)
{
    GOOD("--help", "usage: tpinfo [options]\n", "--topology", "--backends",
         "--costs", "--env", "--plan", "-n N",
         "--topo FILE[,FILE]", "--json", "--help",
         "--version");
    GOOD("-h", "usage: ");
    GOOD("--version", "tpinfo (tp) " PACKAGE_VERSION "\n");
    GOOD("-V", "tpinfo (tp) " PACKAGE_VERSION "\n");
}
END_TEST

/* What --help lists, tpinfo(1) explains. */
START_TEST(test_manual)
{
    const char *source = getenv("TP_TEST_SOURCE");
    char path[1024], option[64] = "\n.It Fl ", *page, *at;
    unsigned count = 0;

    snprintf(path, sizeof(path), "%s/man/man1/tpinfo.1",
             source != NULL ? source : ".");
    page = tpb_read_file(path, NULL);
    ck_assert_ptr_nonnull(page);
    ck_assert_int_eq(run("--help"), 0);
    for (at = out; (at = strstr(at, "\n  -")) != NULL; count++) {
        at += 4;               /* behind the first hyphen */
        snprintf(option + 8, sizeof(option) - 8, "%.*s",
                 (int)strcspn(at, " ,\n"), at);
        ck_assert_msg(strstr(page, option) != NULL, "%s", option);
    }
    ck_assert_uint_eq(count, 10);
    tpb_free(page);
}
END_TEST

START_TEST(test_mistakes)
{
    bad("--nonesuch", 2, "unknown option --nonesuch");
    bad("-x", 2, "unknown option -x");
    bad("-xh", 2, "unknown option -x");
    bad("--topology -xh", 2, "unknown option -x");
    bad("all", 2, "unexpected argument all");
    bad("--plan --topo", 2, "a value is missing after --topo");
    bad("--topo a.xml", 2, "--topo needs --plan");
    bad("--plan --env", 2, "--plan cannot be combined with another section");
    bad("--json=yes", 2, "no value is allowed after --json=yes");
    bad("-n 4", 2, "-n needs --plan");
    bad("--plan -n", 2, "a value is missing after -n");
    bad("--plan -n 1", 2, "-n: expected a number from 2 to 1024, not 1");
    bad("--plan -n 1025", 2, "not 1025");
    bad("--plan -n 4x", 2, "not 4x");
    bad("--plan --costs", 2, "--plan cannot be combined with another section");
}
END_TEST

START_TEST(test_bad_environment)
{
    setenv("TP_SPIN", "soon", 1);
    bad("", 1, "TP_SPIN=soon");
    unsetenv("TP_SPIN");
    setenv("TP_TOPOLOGY", "/nonexistent.xml", 1);
    bad("", 1, "/nonexistent.xml: No such file");
    setenv("TP_TOPOLOGY", "/etc/passwd", 1);
    bad("--json", 1, "lstopo");
    /* As /dev/zero, but that it ends. */
    setenv("TP_TOPOLOGY", "/dev/null", 1);
    bad("", 1, "/dev/null is not a topology file but a device");
    unsetenv("TP_TOPOLOGY");
    setenv("TP_REQUIRE", "node:nonesuch", 1);
    bad("--plan", 1, "unknown backend \"nonesuch\"; known here: ");
    setenv("TP_REQUIRE", "here:shm", 1);
    bad("--plan --json", 1, "unknown class \"here\"");
}
END_TEST

/* A backend that does not work names the setting that keeps it from it. */
START_TEST(test_what_hinders)
{
    static const struct { const char *variable, *value, *words; } rails[] = {
        { "TP_IFACE", "nonesuch0", "is up and allowed by TP_IFACE=nonesuch0" },
        { "TP_RAILS_OVER", ",", "TP_RAILS_OVER=, names no backend" },
    };

    for (size_t i = 0; i < TPB_COUNT(rails); i++) {
        char line[160] = "";
        const char *at;

        setenv(rails[i].variable, rails[i].value, 1);
        ck_assert_int_eq(run("--backends"), 0);
        unsetenv(rails[i].variable);
        at = strstr(out, "\n  rails ");
        ck_assert_ptr_nonnull(at);
        snprintf(line, sizeof(line), "%.*s", (int)strcspn(at + 1, "\n"),
                 at + 1);
        ck_assert_msg(strstr(line, rails[i].words) != NULL, "%s", line);
    }
}
END_TEST

START_TEST(test_no_room_for_output)
{
    int full = open("/dev/full", O_WRONLY), saved;
    pid_t pid;
    int status;

    if (full < 0) {
        tpx_skip("dev-full", "/dev/full is missing");
        return;
    }
    saved = temporary();
    pid = fork();
    if (pid == 0)
        run_child((char *[]){ (char *)tpx_program("launcher/tpinfo"), NULL },
                  (int[]){ full, saved });
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    lseek(saved, 0, SEEK_SET);
    read_all(saved, err, sizeof(err));
    ck_assert_str_eq(err, "tpinfo: cannot write standard output: No space "
                     "left on device\n");
    close(saved);
    close(full);
}
END_TEST

START_TEST(test_json)
{
    json_t *root = run_json("--json"), *backend;
    size_t i;

    ck_assert_str_eq(text_of(root, "tp"), PACKAGE_VERSION);
    ck_assert_str_eq(text_of(json_object_get(root, "machine"), "source"),
                     "this machine");
    ck_assert_uint_eq(json_array_size(json_object_get(root, "settings")),
                      TPB_SET_COUNT);
    ck_assert_uint_gt(json_array_size(json_object_get(root, "backends")), 1);
    json_array_foreach(json_object_get(root, "backends"), i, backend)
        /* What does not work says why. */
        ck_assert_int_eq(json_is_true(json_object_get(backend, "usable")),
                         text_of(backend, "why")[0] == '\0');
    json_decref(root);
}
END_TEST

START_TEST(test_topology_of_a_file)
{
    char path[1024];

    snprintf(path, sizeof(path), "%s/tests/data/topology/chiplets.xml",
             getenv("TP_TEST_SOURCE") != NULL ? getenv("TP_TEST_SOURCE")
             : ".");
    setenv("TP_TOPOLOGY", path, 1);
    GOOD("--topology", "chiplets.xml: 1 package, 1 NUMA node, 16 cores, 32 "
         "cpus", "L3 cache 3, 16 MiB: 4 cores, 8 cpus (24-31)");
}
END_TEST

START_TEST(test_plan_here)
{
    json_t *root, *first;

    GOOD("--plan", "rank 0 (", " and rank 1 (", "chosen: ",
         "not_same_process: ");
    root = run_json("--plan --json");
    first = json_array_get(json_object_get(root, "plans"), 0);
    ck_assert_str_eq(text_of(first, "class"), "node");
    ck_assert_str_eq(text_of(first, "chosen"), "shm");
    json_decref(root);
    setenv("TP_BACKENDS", "^shm", 1);
    GOOD("--plan", "forbidden: TP_BACKENDS=^shm here", "remedy: take shm out");
    setenv("TP_BACKENDS", "shm", 1);
    setenv("TP_REQUIRE", "node:ofi:tcp", 1);
    GOOD("--plan", "contract: TP_REQUIRE wants ofi:tcp for class node",
         "no backend connects them");
}
END_TEST

/* Each kind of neighbourhood that the machine has, nearest first. */
START_TEST(test_plan_of_one_machine)
{
    static const char *const expected[] = {
        "same L2", "same L3", "same NUMA node"
    };
    json_t *root = run_json(recorded("--json", "chiplets", NULL)), *plans;

    plans = json_object_get(root, "plans");
    ck_assert_uint_eq(json_array_size(plans), TPB_COUNT(expected));
    for (size_t i = 0; i < TPB_COUNT(expected); i++)
        ck_assert_str_eq(text_of(json_array_get(plans, i), "locality"),
                         expected[i]);
    json_decref(root);
    GOOD(recorded("", "two-socket", NULL), "rank 0 (two-socket) and rank 1 "
         "(two-socket): same L3\n", ": same host\n",
         "Recorded machines cannot be tried");
}
END_TEST

START_TEST(test_plan_of_two_machines)
{
    json_t *root, *plan;

    GOOD(recorded("", "nics-rdma", "nics-slow"),
         "rank 0 (nics-rdma) and rank 1 (nics-slow): other host\n",
         "shm ", "not_same_host: stays on one host; these are nics-rdma and "
         "nics-slow");
    GOOD(recorded("", "nics-slow", "nics-slow"),
         "remedy: nics-slow is a recorded machine: another one",
         "these are two, both called nics-slow\n",
         "mine_unusable: no RDMA device was recorded");
    /* The fastest NIC there is none for RDMA. */
    GOOD(recorded("", "uneven", "uneven"), "rma             16.30 us   22500 ",
         "model for other host, limited by NIC mlx5_0 of 200 Gb/s");
    GOOD(recorded("", "gpus-eight", "gpus-eight"),
         "cuda_gdr            -          -         -     mine_unusable: no "
         "RDMA device was recorded");
    root = run_json(recorded("--json", "nics-rdma", "nics-slow"));
    plan = json_array_get(json_object_get(root, "plans"), 0);
    ck_assert_uint_eq(json_array_size(json_object_get(root, "plans")), 1);
    ck_assert_str_eq(text_of(plan, "class"), "net");
    ck_assert_ptr_nonnull(strstr(text_of(plan, "chosen"), "ofi:"));
    json_decref(root);
    bad("--plan --topo ,", 1, "expected one file, or two");
    bad("--plan --topo a,b,c", 1, "expected one file, or two");
    bad("--plan --topo /nonexistent.xml", 1, "/nonexistent.xml: No such");
    bad(recorded("", "nics-rdma", "nonesuch"), 1, "nonesuch.xml: No such");
}
END_TEST

/* ---- a whole job ------------------------------------------------------- */

static unsigned pairs_of(json_t *plan, int a, int b, bool *has)
{
    json_t *list = json_object_get(plan, "pairs"), *pair;
    size_t i;

    json_array_foreach(list, i, pair)
        *has |= json_integer_value(json_array_get(pair, 0)) == a
                && json_integer_value(json_array_get(pair, 1)) == b;
    return (unsigned)json_array_size(list);
}

/* What hwloc is told to pretend is not called this machine; where it has cpus
 * but no cores, ranks are bound to these, as tprun does. */
START_TEST(test_plan_without_cores)
{
    setenv("HWLOC_SYNTHETIC", "numa:2 pu:2", 1);
    GOOD("--plan -n 4", ": same NUMA node\n", ": same host\n",
         "connected in 3 ways");
    GOOD("--topology", "from hwloc's own variables, HWLOC_*: 0 packages, 2 ");
}
END_TEST

/* 16 ranks on 8 + 12 cores: eight each. */
START_TEST(test_plan_of_a_job)
{
    static const struct {
        const char *locality;
        unsigned pairs;
        int a, b;
    } expected[] = {
        { "same L3", 6, 0, 1 }, { "same host", 16, 0, 4 },
        { "other host", 24, 0, 8 }, { "other host", 8, 0, 14 },
        { "same L3", 6, 4, 5 }, { "other host", 24, 4, 8 },
        { "other host", 8, 4, 14 }, { "same L3", 15, 8, 9 },
        { "same host", 12, 8, 14 }, { "same L3", 1, 14, 15 }
    };
    json_t *root = run_json(recorded("-n 16 --json", "nics-rdma",
                                     "two-socket"));
    json_t *plans = json_object_get(root, "plans");
    unsigned total = 0;

    ck_assert_uint_eq(json_array_size(plans), TPB_COUNT(expected));
    for (size_t i = 0; i < TPB_COUNT(expected); i++) {
        json_t *plan = json_array_get(plans, i);
        bool has = false;

        ck_assert_str_eq(text_of(plan, "locality"), expected[i].locality);
        ck_assert_uint_eq(pairs_of(plan, expected[i].a, expected[i].b, &has),
                          expected[i].pairs);
        ck_assert(has);
        ck_assert_int_eq(json_integer_value(json_object_get(
                             json_object_get(plan, "mine"), "rank")),
                         expected[i].a);
        total += expected[i].pairs;
    }
    ck_assert_uint_eq(total, 16 * 15 / 2);
    json_decref(root);
}
END_TEST

START_TEST(test_plan_of_jobs)
{
    GOOD("--plan -n 3", "3 ranks on 1 host, connected in ", "rank 0 (",
         "0-1");
    GOOD(recorded("-n 4", "small-vm", NULL), "4 ranks on 1 host, connected in "
         "1 way.  Recorded machines cannot be tried", "6 pairs: 0-1 0-2 0-3 "
         "1-2 1-3 2-3\n", "same NUMA node\n");
    /* More ranks than cores: they are not bound. */
    GOOD(recorded("-n 40", "chiplets", NULL), "780 pairs: 0-1 0-2 0-3 0-4 0-5 "
         "0-6 ...\n", ": same NUMA node\n");
    GOOD(recorded("-n 1024", "chiplets", "two-socket"), "1024 ranks on 2 hosts",
         "262144 pairs: ");
    GOOD(recorded("-n 2", "one-socket", "one-socket"), "other host\n");
    bad("--plan -n 2 --topo a,,b", 1, "No such file");
    bad("--plan -n 2 --topo ,", 1, "expected one to 16 files");
    setenv("TP_REQUIRE", "here:shm", 1);
    bad("--plan -n 2", 1, "unknown class \"here\"");
}
END_TEST

START_TEST(test_costs)
{
    char folder[] = "/tmp/tp-test-XXXXXX", command[64];

    setenv("TP_COSTS", "none", 1);
    GOOD("--costs", "Costs\n  the model's: TP_COSTS=none");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    setenv("TP_COSTS", folder, 1);
    GOOD("--costs", "`tpperf --calibrate` would write /tmp/tp-test-",
         "/costs-");
    snprintf(command, sizeof(command), "rmdir %s", folder);
    ck_assert_int_eq(system(command), 0);
}
END_TEST

/* As a rank does it: the launcher's topology, across exec. */
START_TEST(test_shared_topology)
{
    struct tpb_settings settings;
    struct tpt_topology *topology;
    struct tpb_error error = { "" };
    char text[64];
    json_t *root;
    tp_status status;
    int fd;

    ck_assert_int_eq(tpb_settings_load(&settings, NULL), TP_OK);
    ck_assert_int_eq(tpt_topology_load(&settings, &topology, NULL), TP_OK);
    status = tpt_topology_share(topology, &fd, text, &error);
    if (status == TP_OK) {
        setenv("TP_TOPOLOGY_SHARED", text, 1);
        root = run_json("--json");
        ck_assert_str_eq(text_of(json_object_get(root, "machine"), "source"),
                         "the launcher, shared");
        json_decref(root);
        close(fd);
        root = run_json("--json");
        ck_assert_str_eq(text_of(json_object_get(root, "machine"), "source"),
                         "this machine");
        json_decref(root);
    } else {
        tpx_skip("shared-topology", error.text);
    }
    tpt_topology_free(topology);
    tpb_settings_fini(&settings);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tpinfo");
    TCase *tests = tcase_create("tpinfo");

    tcase_set_timeout(tests, 180);
    tcase_add_checked_fixture(tests, setup, NULL);
    tcase_add_test(tests, test_overview);
    tcase_add_test(tests, test_sections);
    tcase_add_test(tests, test_help_and_version);
    tcase_add_test(tests, test_manual);
    tcase_add_test(tests, test_mistakes);
    tcase_add_test(tests, test_bad_environment);
    tcase_add_test(tests, test_what_hinders);
    tcase_add_test(tests, test_no_room_for_output);
    tcase_add_test(tests, test_json);
    tcase_add_test(tests, test_topology_of_a_file);
    tcase_add_test(tests, test_plan_here);
    tcase_add_test(tests, test_plan_of_one_machine);
    tcase_add_test(tests, test_plan_of_two_machines);
    tcase_add_test(tests, test_plan_without_cores);
    tcase_add_test(tests, test_plan_of_a_job);
    tcase_add_test(tests, test_plan_of_jobs);
    tcase_add_test(tests, test_costs);
    tcase_add_test(tests, test_shared_topology);
    suite_add_tcase(suite, tests);
    return tpx_run(suite);
}

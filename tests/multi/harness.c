/* SPDX-License-Identifier: BSD-3-Clause */
/* Forks ranks, watches them, tells how they ended. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fabric/backend.h"
#include "fabric/channel.h"
#include "tests/lib/tpx.h"
#include "tests/multi/harness.h"

enum {
    HARNESS_RANKS = 64, HARNESS_TEXT = 3000,
    HARNESS_OUTPUT = 65536,    /* that is looked at */
    HARNESS_HEAD = 800, HARNESS_TAIL = 1200    /* that is shown of more */
};

struct harness_rank {
    pid_t pid;                 /* 0: has ended */
    int status;
    int output;                /* memfd with its standard error */
};

struct harness_run {
    const struct tpx_job *job;
    char directory[64];
    struct harness_rank ranks[HARNESS_RANKS];
    char text[HARNESS_TEXT];   /* what is wrong */
    size_t used;
};

static void __attribute__((__format__(__printf__, 2, 3)))
harness_say(struct harness_run *run, const char *format, ...)
{
    va_list args;
    int length;

    va_start(args, format);
    length = vsnprintf(run->text + run->used, sizeof(run->text) - run->used,
                       format, args);
    va_end(args);
    run->used += (size_t)length;
    if (run->used >= sizeof(run->text))
        run->used = sizeof(run->text) - 1;
}

int tpx_patience_ms(int seconds)
{
    const char *chosen = getenv("TP_TEST_SECONDS");

    if (chosen != NULL)
        return atoi(chosen) * 1000;

    return (seconds > 0 ? seconds : 30) * (tpx_sanitized() ? 8 : 2) * 1000;
}

/* ---- a rank ------------------------------------------------------------- */

static void harness_environment(const struct harness_run *run, int rank)
{
    char text[128];

    snprintf(text, sizeof(text), "dir:%s", run->directory);
    setenv("TP_BOOTSTRAP", text, 1);
    snprintf(text, sizeof(text), "%d", rank);
    setenv("TP_RANK", text, 1);
    snprintf(text, sizeof(text), "%d", run->job->ranks);
    setenv("TP_SIZE", text, 1);
    if (run->job->backends != NULL)
        setenv("TP_BACKENDS", run->job->backends, 1);
    if (run->job->require != NULL)
        setenv("TP_REQUIRE", run->job->require, 1);
    if (run->job->progress != NULL)
        setenv("TP_PROGRESS", run->job->progress, 1);
    /* In one mode the ranks go over different providers of libfabric's for TCP,
     * which speak the same: others than the best one are tried by that, too. */
    if (run->job->progress != NULL && rank % 2 == 1
        && strcmp(run->job->progress, "thread") == 0)
        setenv("TP_OFI_TCP", "tcp", 0);
    for (char *const *more = run->job->environment;
         more != NULL && *more != NULL; more++)
        putenv(*more);
}

static _Noreturn void harness_rank(const struct harness_run *run, int rank,
                                   pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(3);
    dup2(run->ranks[rank].output, STDERR_FILENO);
    harness_environment(run, rank);
    tpx_rank_run(run->job->test, NULL);
    exit(0);                   /* not _exit(): LeakSanitizer looks then */
}

static void harness_start(struct harness_run *run)
{
    pid_t parent = getpid();

    fflush(NULL);
    for (int rank = 0; rank < run->job->ranks; rank++) {
        run->ranks[rank].output = memfd_create("rank-output", MFD_CLOEXEC);
        ck_assert_int_ge(run->ranks[rank].output, 0);
        /* Appends, whoever writes. */
        fcntl(run->ranks[rank].output, F_SETFL, O_APPEND);
        run->ranks[rank].pid = fork();
        ck_assert_int_ge(run->ranks[rank].pid, 0);
        if (run->ranks[rank].pid == 0)
            harness_rank(run, rank, parent);
    }
}

/* ---- its end ------------------------------------------------------------ */

static bool harness_ended_well(const struct harness_run *run, int status)
{
    return (WIFEXITED(status) && WEXITSTATUS(status) == 0)
           || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
               && (run->job->test->flags & TPX_KILLS) != 0);
}

/* Reaps who has ended.  True once nobody is left, or somebody ended badly. */
static bool harness_reap(struct harness_run *run)
{
    int left = 0;

    for (int rank = 0; rank < run->job->ranks; rank++) {
        struct harness_rank *child = &run->ranks[rank];

        if (child->pid != 0
            && waitpid(child->pid, &child->status, WNOHANG) == child->pid) {
            child->pid = 0;
            if (!harness_ended_well(run, child->status))
                return true;
        }
        left += child->pid != 0;
    }
    return left == 0;
}

static void harness_signal(struct harness_run *run, int number)
{
    for (int rank = 0; rank < run->job->ranks; rank++)
        if (run->ranks[rank].pid != 0)
            kill(run->ranks[rank].pid, number);
}

static void harness_wait(struct harness_run *run)
{
    uint64_t limit = (uint64_t)tpx_patience_ms(run->job->test->seconds);
    uint64_t deadline = tpb_now() + limit * 1000000u;

    while (!harness_reap(run)) {
        if (tpb_now() > deadline) {
            harness_say(run, "not over after %llu s\n",
                        (unsigned long long)limit / 1000);
            harness_signal(run, SIGCONT);
            harness_signal(run, SIGUSR1);
            usleep(300000);
            break;
        }
        usleep(500);
    }
    /* One ended badly: let the others tell their story, for a moment. */
    for (int i = 0; i < 200 && !harness_reap(run) && run->used == 0; i++)
        usleep(1000);
    for (int rank = 0; rank < run->job->ranks; rank++) {
        if (run->ranks[rank].pid == 0)
            continue;
        harness_say(run, "rank %d was still there\n", rank);
        kill(run->ranks[rank].pid, SIGKILL);
        waitpid(run->ranks[rank].pid, &run->ranks[rank].status, 0);
        run->ranks[rank].pid = 0;
        run->ranks[rank].status = 0;
    }
}

/* ---- the verdict -------------------------------------------------------- */

static size_t harness_read(int fd, char *buffer, size_t capacity)
{
    ssize_t got = pread(fd, buffer, capacity - 1, 0);

    buffer[got > 0 ? got : 0] = '\0';
    return got > 0 ? (size_t)got : 0;
}

/* Lines that begin with "note: " are shown whatever the verdict. */
static void harness_notes(const struct harness_run *run, const char *output)
{
    const char *note = output;

    while ((note = strstr(note, "note: ")) != NULL) {
        int length = (int)strcspn(note, "\n");

        printf("%s, %s: %.*s\n", run->job->test->name,
               run->job->progress != NULL ? run->job->progress : "default",
               length, note);
        note += length;
    }
}

/* How it began, and how it ended. */
static void harness_say_output(struct harness_run *run, const char *output)
{
    size_t length = strlen(output);

    if (length <= HARNESS_HEAD + HARNESS_TAIL)
        harness_say(run, "%s", output);
    else
        harness_say(run, "%.*s\n[...]\n%s", HARNESS_HEAD, output,
                    output + length - HARNESS_TAIL);
}

/* Has it logged a warning or an error?  One is no mistake: a peer that gets no
 * cpu for a second while it copies has stopped, for whoever waits for it. */
static bool harness_warned(const char *output)
{
    static const char stopped[] = ": warn: a peer has stopped while it copied";
    const char *at = output;

    while ((at = strstr(at, ": warn: ")) != NULL) {
        if (strncmp(at, stopped, sizeof(stopped) - 1) != 0)
            return true;
        at++;
    }
    return strstr(output, ": error: ") != NULL;
}

static void harness_judge(struct harness_run *run, int rank)
{
    struct harness_rank *child = &run->ranks[rank];
    char output[HARNESS_OUTPUT];
    bool bad = false;

    harness_read(child->output, output, sizeof(output));
    close(child->output);
    harness_notes(run, output);
    if (getenv("TP_TEST_SHOW") != NULL)
        printf("%s, rank %d:\n%s", run->job->test->name, rank, output);
    if (!harness_ended_well(run, child->status)) {
        bad = true;
        if (WIFSIGNALED(child->status))
            harness_say(run, "rank %d: killed by %s\n", rank,
                        strsignal(WTERMSIG(child->status)));
        else
            harness_say(run, "rank %d: exit status %d\n", rank,
                        WEXITSTATUS(child->status));
    } else if ((run->job->test->flags & TPX_WARNS) == 0
               && harness_warned(output)) {
        bad = true;
        harness_say(run, "rank %d logged what nobody expected\n", rank);
    }
    if (bad || (run->used > 0 && output[0] != '\0'))
        harness_say_output(run, output);
}

static void harness_go(struct harness_run *run)
{
    const char *root = getenv("TMPDIR");

    ck_assert_int_le(run->job->ranks, HARNESS_RANKS);
    snprintf(run->directory, sizeof(run->directory), "%.40s/tpx-XXXXXX",
             root != NULL ? root : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(run->directory));
    harness_start(run);
    harness_wait(run);
    for (int rank = 0; rank < run->job->ranks; rank++)
        harness_judge(run, rank);
    tpx_clear(run->directory);
    rmdir(run->directory);
}

bool tpx_job_fails(const struct tpx_job *job, char *text, size_t size)
{
    struct harness_run run = { .job = job };

    harness_go(&run);
    snprintf(text, size, "%s", run.text);
    return run.used > 0;
}

void tpx_job_run(const struct tpx_job *job)
{
    struct harness_run run = { .job = job };

    harness_go(&run);
    if (run.used > 0)
        ck_abort_msg("%s, %d ranks, backends %s, progress %s: %s",
                     job->test->name, job->ranks,
                     job->backends != NULL ? job->backends : "all",
                     job->progress != NULL ? job->progress : "default",
                     run.text);
}

/* ---- programs ----------------------------------------------------------- */

int tpx_execute(char *const *command, int seconds, char *output,
                size_t capacity)
{
    int fd = memfd_create("output", MFD_CLOEXEC), status = -1;
    uint64_t deadline = tpb_now()
                        + (uint64_t)tpx_patience_ms(seconds) * 1000000u;
    pid_t parent = getpid(), pid;

    ck_assert_int_ge(fd, 0);
    fflush(NULL);
    pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (getppid() != parent)
            _exit(3);
        setpgid(0, 0);
        fcntl(fd, F_SETFL, O_APPEND);
        dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
        dup2(fd, STDOUT_FILENO);
        dup2(fd, STDERR_FILENO);
        execv(command[0], command);
        dprintf(STDERR_FILENO, "%s: %s\n", command[0], strerror(errno));
        _exit(127);
    }
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (tpb_now() < deadline) {
            usleep(1000);
            continue;
        }
        /* Launchers pass it on, and ranks tell where they hang. */
        kill(pid, SIGUSR1);
        usleep(1000000);
        kill(pid, SIGTERM);
        usleep(500000);
        kill(-pid, SIGKILL);
        waitpid(pid, &status, 0);
        status = -1;
        break;
    }
    harness_read(fd, output, capacity);
    close(fd);
    return status;
}

/* ---- the suite ---------------------------------------------------------- */

static const char *const harness_modes[] = { "auto", "thread", "manual" };
enum { HARNESS_MODES = 3, HARNESS_BACKENDS = 16 };

static const struct tpx_spmd *harness_suite;
static char harness_backends[HARNESS_BACKENDS][64];
static const char *harness_require[HARNESS_BACKENDS];
static bool harness_polled[HARNESS_BACKENDS];   /* TPF_POLLED */
static int harness_backend_count;
static int harness_transport_count;             /* of them, without channels */

static void harness_bare(void)
{
}

/* Can two ranks meet over it on this machine?  Told by a job of one. */
static bool harness_usable(const char *backends)
{
    static const struct tpx_spmd probe = { "probe", harness_bare, 1, 0, 20 };
    pid_t pid;
    int status;

    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_WRONLY | O_CLOEXEC);

        dup2(null, STDERR_FILENO);
        setenv("TP_BOOTSTRAP", "single", 1);
        setenv("TP_BACKENDS", backends, 1);
        alarm((unsigned)tpx_patience_ms(60) / 1000);
        tpx_rank_run(&probe, NULL);
        _exit(0);
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status)
           && WEXITSTATUS(status) == 0;
}

/* Has this transport been found? */
static bool harness_has(const char *transport)
{
    for (int i = 0; i < harness_transport_count; i++)
        if (strcmp(harness_backends[i] + strlen("loop,"), transport) == 0)
            return true;
    return false;
}

/* Is there process_vm_readv(), which containers and emulators may lack? */
static bool harness_has_cma(void)
{
    extern const struct tpf_channel_kind tpf_cma;
    struct tpf_env env = { 0 };
    struct tpb_error error;

    if (tpf_cma.probe(&env, &error) == TP_OK)
        return true;
    tpx_skip("cma", error.text);
    return false;
}

/* The same tests with channels: all that there are, and one that must carry
 * every big buffer. */
static void harness_find_channels(void)
{
    static const struct {
        const char *over, *also;       /* the transport; or the channel */
        const char *backends, *require;
    } with[] = {
        { "shm", "cma", "loop,shm,map,cma", NULL },
        { "shm", "cma", "loop,shm,cma", "node:cma" },
        { "shm", "map", "loop,shm,map", NULL },        /* without cma */
        { "ofi:verbs", "rma", "loop,ofi:verbs,rma", "node:rma" },
    };
    const char *chosen = getenv("TP_TEST_BACKENDS");
    const char *left_out = harness_has_cma() ? "map" : "cma";

    for (size_t i = 0; i < TPB_COUNT(with); i++) {
        if (strcmp(with[i].also, left_out) == 0)
            continue;
        if (chosen != NULL && strcmp(chosen, with[i].over) != 0
            && strcmp(chosen, with[i].also) != 0)
            continue;
        if (strcmp(with[i].over, "shm") != 0 && !harness_has(with[i].over))
            continue;
        harness_require[harness_backend_count] = with[i].require;
        snprintf(harness_backends[harness_backend_count++],
                 sizeof(harness_backends[0]), "%s", with[i].backends);
    }
}

/* Every transport of the build that carries more than a rank to itself;
 * TP_TEST_BACKENDS may choose among them. */
static void harness_find_backends(void)
{
    const char *chosen = getenv("TP_TEST_BACKENDS");
    const struct tpf_backend *backends[HARNESS_BACKENDS];
    size_t count = tpf_backends_for(chosen, backends, HARNESS_BACKENDS);

    for (size_t i = 0; i < count; i++) {
        const struct tpf_backend *backend = backends[i];

        if ((backend->flags & TPF_SELF) != 0
            || harness_backend_count == HARNESS_BACKENDS - 3
            || !tpb_list_allows(chosen != NULL ? chosen : "", backend->name))
            continue;
        tpx_load(backend->name);
        if (!harness_usable(backend->name)) {
            tpx_skip(backend->name, "tp_init() with it alone fails; tpinfo"
                     " --backends tells why");
            continue;
        }
        harness_polled[harness_backend_count]
            = (backend->flags & TPF_POLLED) != 0;
        snprintf(harness_backends[harness_backend_count++],
                 sizeof(harness_backends[0]), "loop,%s", backend->name);
    }
    harness_transport_count = harness_backend_count;
    if (harness_has("ofi:tcp"))
        setenv("TPX_TCP", "1", 1); /* for tpx_prefer_cma() */
    harness_find_channels();
}

START_TEST(test_suite)
{
    int index = _i / (HARNESS_BACKENDS * HARNESS_MODES);
    int backend = _i / HARNESS_MODES % HARNESS_BACKENDS;
    const struct tpx_spmd *test = &harness_suite[index];
    struct tpx_job job = { .test = test, .ranks = test->ranks,
                           .backends = harness_backends[backend],
                           .require = harness_require[backend],
                           .progress = harness_modes[_i % HARNESS_MODES] };

    tpx_job_run(&job);
}
END_TEST

/* Sanitizers make tests slow: a test gets every second backend, in one mode,
 * both in turn; ThreadSanitizer those that the others leave out.  What is done
 * by hand in one thread has no races to find. */
static bool harness_is_short(void)
{
    return tpx_sanitized() && !tpx_is_set("TP_TEST_LONG");
}

static bool harness_backend_turn(int index, int backend)
{
    return !harness_is_short() || getenv("TP_TEST_BACKENDS") != NULL
           || (index + backend) % 2 == tpx_sanitized_thread();
}

static int harness_mode_turn(int index, int backend)
{
    return (index + backend) / 2 % (tpx_sanitized_thread() ? 2 : HARNESS_MODES);
}

static bool harness_mode_is_for(int index, int backend, int mode)
{
    const struct tpx_spmd *test = &harness_suite[index];

    /* An emulated machine: each test once. */
    if (tpx_is_set("TP_TEST_FEW"))
        return mode == ((test->flags & TPX_MANUAL) != 0 ? 2 : 0);
    /* Channels do not care who drives: all modes for their own tests, one for
     * the others. */
    if (backend >= harness_transport_count
        && (test->flags & (TPX_CHANNELS | TPX_ONCE | TPX_MANUAL)) == 0
        && !tpx_is_set("TP_TEST_LONG"))
        return mode == 0;
    if ((test->flags & TPX_ONCE) != 0)
        return mode == 0;
    if ((test->flags & TPX_MANUAL) != 0)
        return mode == 2;
    return !harness_is_short() || mode == harness_mode_turn(index, backend);
}

/* A backend that nothing can wake for is there to compare with and to fall
 * back on, and slow when ranks are more than cpus: in make check it gets the
 * tests of two ranks that run under launchers, in make check-long all.  On an
 * emulated machine a transport that a channel goes over gets the tests of
 * order alone; and with the channel all of them. */
static bool harness_backend_is_for(const struct tpx_spmd *test, int backend)
{
    if (tpx_is_set("TP_TEST_FEW") && backend < harness_transport_count
        && harness_transport_count < harness_backend_count)
        return strncmp(test->name, "order_pair", 10) == 0
               || strncmp(test->name, "order_all", 9) == 0;
    return !harness_polled[backend]
           || ((test->flags & TPX_LAUNCH) != 0 && test->ranks <= 2)
           || tpx_is_set("TP_TEST_LONG");
}

/* One TCase per test, since each has its own deadline. */
static void harness_add(Suite *suite, int index)
{
    const struct tpx_spmd *test = &harness_suite[index];
    TCase *tests = tcase_create(test->name);

    tcase_set_timeout(tests, tpx_patience_ms(test->seconds) / 1000.0 + 10);
    for (int backend = 0; backend < harness_backend_count; backend++)
        for (int mode = 0; mode < HARNESS_MODES; mode++) {
            int at = (index * HARNESS_BACKENDS + backend) * HARNESS_MODES
                     + mode;

            if (harness_backend_turn(index, backend)
                && harness_mode_is_for(index, backend, mode)
                && harness_backend_is_for(test, backend))
                tcase_add_loop_test(tests, test_suite, at, at + 1);
        }
    suite_add_tcase(suite, tests);
}

int tpx_multi_main(const char *name, const struct tpx_spmd *tests)
{
    Suite *suite = suite_create(name);

    harness_suite = tests;
    harness_find_backends();
    for (int i = 0; tests[i].name != NULL; i++)
        if ((tests[i].flags & TPX_REAL) != 0 && tpx_is_set("TP_TEST_FEW"))
            printf("left out: %s: too slow on an emulated machine for the "
                   "limits it sets itself\n", tests[i].name);
        else if (((tests[i].flags & TPX_LONG) == 0
             || tpx_is_set("TP_TEST_LONG"))
            && tpx_chosen(tests[i].name))
            harness_add(suite, i);
    return tpx_run(suite);
}

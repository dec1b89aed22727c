/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The program that the launcher's tests start as ranks: a PMIx client that
 * does, or fails to do, one thing per word of its command line.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <pmix.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BLOB = 512 };

/* Read by AddressSanitizer's runtime: what a PMIx client never gives back is
 * not ours. */
const char *__lsan_default_suppressions(void)
    __attribute__((__visibility__("default")));
const char *__lsan_default_suppressions(void)
{
    return "leak:libpmix\n";
}

const char *__lsan_default_options(void)
    __attribute__((__visibility__("default")));
const char *__lsan_default_options(void)
{
    return "print_suppressions=0";
}

static pmix_proc_t self;
static uint32_t size;

static void check(pmix_status_t status, const char *what)
{
    if (status == PMIX_SUCCESS)
        return;
    fprintf(stderr, "rank %u: %s: %s\n", self.rank, what,
            PMIx_Error_string(status));
    _exit(99);
}

static void require(int good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "rank %u: not so: %s\n", self.rank, what);
    _exit(98);
}

static void doze(double seconds)
{
    struct timespec time = { (time_t)seconds,
                             (long)((seconds - (double)(time_t)seconds)
                                    * 1e9) };

    nanosleep(&time, NULL);
}

static pmix_proc_t peer(uint32_t rank)
{
    pmix_proc_t proc;

    PMIX_LOAD_PROCID(&proc, self.nspace, rank);
    return proc;
}

static pmix_value_t *job_value(const char *key)
{
    pmix_proc_t job = peer(PMIX_RANK_WILDCARD);
    pmix_value_t *value;

    check(PMIx_Get(&job, key, NULL, 0, &value), key);
    return value;
}

static void start(void)
{
    check(PMIx_Init(&self, NULL, 0), "PMIx_Init");
    size = job_value(PMIX_JOB_SIZE)->data.uint32;
}

static void end(void)
{
    check(PMIx_Finalize(NULL, 0), "PMIx_Finalize");
}

static void fence(void)
{
    bool collect = true;
    pmix_info_t info;

    PMIX_INFO_LOAD(&info, PMIX_COLLECT_DATA, &collect, PMIX_BOOL);
    check(PMIx_Fence(NULL, 0, &info, 1), "PMIx_Fence");
}

static void fill(char *blob, uint32_t rank)
{
    for (int i = 0; i < BLOB; i++)
        blob[i] = (char)(rank * 31 + (uint32_t)i * 7);
}

static void put(void)
{
    static char blob[BLOB];
    pmix_value_t value;

    fill(blob, self.rank);
    value.type = PMIX_BYTE_OBJECT;
    value.data.bo.bytes = blob;
    value.data.bo.size = BLOB;
    check(PMIx_Put(PMIX_GLOBAL, "test.blob", &value), "PMIx_Put");
    check(PMIx_Commit(), "PMIx_Commit");
}

/* Asks again after a timeout, as everyone should. */
static pmix_status_t get(uint32_t rank, pmix_value_t **value, int tries)
{
    pmix_proc_t proc = peer(rank);
    uint32_t seconds = 1;
    pmix_info_t info;
    pmix_status_t status;

    PMIX_INFO_LOAD(&info, PMIX_TIMEOUT, &seconds, PMIX_UINT32);
    do
        status = PMIx_Get(&proc, "test.blob", &info, 1, value);
    while (status == PMIX_ERR_TIMEOUT && --tries > 0);
    return status;
}

static void get_and_compare(uint32_t rank)
{
    char blob[BLOB];
    pmix_value_t *value;

    check(get(rank, &value, 80), "PMIx_Get");
    fill(blob, rank);
    require(value->type == PMIX_BYTE_OBJECT && value->data.bo.size == BLOB
            && memcmp(value->data.bo.bytes, blob, BLOB) == 0, "blob");
    PMIX_VALUE_RELEASE(value);
}

/* Everyone's blob, before any fence and after one. */
static void do_modex(char **arg)
{
    (void)arg;
    start();
    put();
    for (uint32_t i = 1; i <= size; i++)
        get_and_compare((self.rank + i) % size);
    fence();
    for (uint32_t i = 0; i < size; i++)
        get_and_compare(i);
    end();
}

static void do_init(char **arg)
{
    (void)arg;
    start();
    end();
}

/* Rank 0 commits only after so many seconds; the others wait for it. */
static void do_late(char **arg)
{
    start();
    if (self.rank == 0)
        doze(atof(arg[0]));
    put();
    get_and_compare(0);
    fence();
    end();
}

static void require_number(const char *key, uint32_t rank, uint32_t wanted)
{
    pmix_proc_t proc = peer(rank);
    pmix_value_t *value;
    pmix_status_t status;
    uint32_t number = 0;

    check(PMIx_Get(&proc, key, NULL, 0, &value), key);
    PMIX_VALUE_GET_NUMBER(status, value, number, uint32_t);
    check(status, key);
    require(number == wanted, key);
}

/* All that the job's description promises. */
static void do_info(char **arg)
{
    static const char *const numbers[] = { PMIX_JOB_SIZE, PMIX_LOCAL_SIZE,
                                           PMIX_UNIV_SIZE, PMIX_NODE_SIZE };
    char host[256] = "";
    pmix_value_t *value;
    pmix_proc_t *procs;
    size_t count;
    char *nodes;

    (void)arg;
    start();
    gethostname(host, sizeof(host) - 1);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        require_number(numbers[i], PMIX_RANK_WILDCARD, size);
    require_number(PMIX_NUM_NODES, PMIX_RANK_WILDCARD, 1);
    require(strcmp(job_value(PMIX_NODE_LIST)->data.string, host) == 0,
            "node list");
    require(strncmp(job_value(PMIX_LOCAL_PEERS)->data.string, "0", 1) == 0,
            "local peers");
    for (uint32_t i = 0; i < size; i++) {
        pmix_proc_t proc = peer(i);

        require_number(PMIX_LOCAL_RANK, i, i);
        require_number(PMIX_NODE_RANK, i, i);
        require_number(PMIX_NODEID, i, 0);
        check(PMIx_Get(&proc, PMIX_LOCALITY_STRING, NULL, 0, &value),
              "locality");
        require(strncmp(value->data.string, "hwloc:", 6) == 0, "locality");
        check(PMIx_Get(&proc, PMIX_CPUSET, NULL, 0, &value), "cpuset");
        require(strncmp(value->data.string, "hwloc:", 6) == 0, "cpuset");
        check(PMIx_Get(&proc, PMIX_HOSTNAME, NULL, 0, &value), "host name");
        require(strcmp(value->data.string, host) == 0, "host name");
    }
    check(PMIx_Resolve_peers(host, self.nspace, &procs, &count), "peers");
    require(count == size, "peers");
    check(PMIx_Resolve_nodes(self.nspace, &nodes), "nodes");
    require(strcmp(nodes, host) == 0, "nodes");
    end();
}

/* What is said of a program, by its number. */
static void require_app(const char *key, uint32_t number, uint32_t expected)
{
    pmix_proc_t job = peer(PMIX_RANK_WILDCARD);
    uint32_t found = 0;
    bool on = true;
    pmix_status_t status = PMIX_SUCCESS;
    pmix_value_t *value;
    pmix_info_t info[2];

    PMIX_INFO_LOAD(&info[0], PMIX_APP_INFO, &on, PMIX_BOOL);
    PMIX_INFO_LOAD(&info[1], PMIX_APPNUM, &number, PMIX_UINT32);
    check(PMIx_Get(&job, key, info, 2, &value), key);
    PMIX_VALUE_GET_NUMBER(status, value, found, uint32_t);
    require(status == PMIX_SUCCESS && found == expected, key);
}

/* apps NUMBER RANKS FIRST: this rank's program, of two. */
static void do_apps(char **arg)
{
    uint32_t number = (uint32_t)atoi(arg[0]);
    uint32_t first = (uint32_t)atoi(arg[2]);

    start();
    require_number(PMIX_JOB_NUM_APPS, PMIX_RANK_WILDCARD, 2);
    require_number(PMIX_APPNUM, self.rank, number);
    require_number(PMIX_APP_RANK, self.rank, self.rank - first);
    require_app(PMIX_APP_SIZE, number, (uint32_t)atoi(arg[1]));
    require_app(PMIX_APPLDR, number, first);
    end();
}

/* Rank 0 publishes after the others asked; then takes it back. */
static void do_publish(char **arg)
{
    pmix_info_t info[2], directives[2];
    pmix_pdata_t data;
    int all = 0, seconds = 60;
    uint32_t number = 4711;
    char *keys[] = { (char *)"test.number", NULL };
    pmix_status_t status;

    (void)arg;
    start();
    PMIX_PDATA_CONSTRUCT(&data);
    PMIX_LOAD_KEY(data.key, keys[0]);
    require(PMIx_Lookup(&data, 1, NULL, 0) == PMIX_ERR_NOT_FOUND
            || self.rank != 0, "nothing there yet");
    if (self.rank == 0) {
        doze(0.2);
        PMIX_INFO_LOAD(&info[0], keys[0], &number, PMIX_UINT32);
        check(PMIx_Publish(info, 1), "PMIx_Publish");
        require(PMIx_Publish(info, 1) == PMIX_ERR_DUPLICATE_KEY,
                "published twice");
    } else {
        PMIX_INFO_LOAD(&directives[0], PMIX_WAIT, &all, PMIX_INT);
        PMIX_INFO_LOAD(&directives[1], PMIX_TIMEOUT, &seconds, PMIX_INT);
        check(PMIx_Lookup(&data, 1, directives, 2), "PMIx_Lookup");
        require(data.value.data.uint32 == number && data.proc.rank == 0,
                "looked up");
    }
    fence();
    if (self.rank == 0)
        check(PMIx_Unpublish(keys, NULL, 0), "PMIx_Unpublish");
    fence();
    PMIX_PDATA_DESTRUCT(&data);
    PMIX_PDATA_CONSTRUCT(&data);
    PMIX_LOAD_KEY(data.key, keys[0]);
    seconds = 1;
    PMIX_INFO_LOAD(&directives[0], PMIX_WAIT, &all, PMIX_INT);
    PMIX_INFO_LOAD(&directives[1], PMIX_TIMEOUT, &seconds, PMIX_INT);
    status = PMIx_Lookup(&data, 1, directives, 2);
    require(status == PMIX_ERR_TIMEOUT, "a lookup in vain");
    end();
}

static void do_abort(char **arg)
{
    start();
    put();
    if (self.rank == size - 1) {
        PMIx_Abort(atoi(arg[0]), arg[1], NULL, 0);
        require(0, "PMIx_Abort returned");
    }
    for (;;)
        pause();
}

/* Ends this process in one of several ways. */
static void die(const char *how)
{
    if (strncmp(how, "exit", 4) == 0)
        _exit(atoi(how + 4));
    if (strncmp(how, "signal", 6) == 0) {
        signal(atoi(how + 6), SIG_DFL);
        raise(atoi(how + 6));
    }
    require(0, "a way to die");
}

/* die HOW PHASE RANK: that rank dies in that phase, the others wait. */
static void do_die(char **arg)
{
    static const char *const phases[] = { "before", "init", "commit",
                                          "finalize" };
    const char *rank = getenv("PMIX_RANK");
    int victim = rank != NULL && strcmp(rank, arg[2]) == 0;

    for (int phase = 0; phase < 4; phase++) {
        if (phase == 1)
            start();
        else if (phase == 2)
            put();
        else if (phase == 3)
            end();
        if (victim && strcmp(arg[1], phases[phase]) == 0)
            die(arg[0]);
    }
    if (strcmp(arg[1], "finalize") == 0 && victim)
        require(0, "a phase");
    for (;;)
        pause();
}

static atomic_int event_code, event_rank, event_signal;

static void event_came(size_t handler, pmix_status_t status,
                       const pmix_proc_t *source, pmix_info_t info[],
                       size_t count, pmix_info_t results[], size_t results_n,
                       pmix_event_notification_cbfunc_fn_t done, void *arg)
{
    (void)handler, (void)source, (void)results, (void)results_n;
    for (size_t i = 0; i < count; i++)
        if (PMIX_CHECK_KEY(&info[i], PMIX_EVENT_AFFECTED_PROC))
            atomic_store(&event_rank, (int)info[i].value.data.proc->rank);
        else if (PMIX_CHECK_KEY(&info[i], "tp.signal"))
            atomic_store(&event_signal, info[i].value.data.integer);
    atomic_store(&event_code, status);
    if (done != NULL)
        done(PMIX_EVENT_ACTION_COMPLETE, NULL, 0, NULL, NULL, arg);
}

/* libpmix 5 has other words. */
static const char *event_words(int code)
{
    switch (code) {
    case PMIX_ERR_PROC_ABORTED_BY_SIG: return "aborted by a signal:";
    case PMIX_ERR_PROC_TERM_WO_SYNC: return "ended without a word:";
    default: return PMIx_Error_string(code);
    }
}

/* events HOW: the last rank dies; the others print what they are told. */
static void do_events(char **arg)
{
    pmix_status_t codes[] = { PMIX_ERR_PROC_ABORTED_BY_SIG,
                              PMIX_ERR_PROC_TERM_WO_SYNC,
                              PMIX_ERR_EXIT_NONZERO_TERM };

    start();
    PMIx_Register_event_handler(codes, 3, NULL, 0, event_came, NULL, NULL);
    put();
    fence();
    if (self.rank == size - 1)
        die(arg[0]);
    for (int i = 0; i < 6000 && atomic_load(&event_code) == 0; i++)
        doze(0.01);
    printf("%s rank %d signal %d\n", event_words(atomic_load(&event_code)),
           atomic_load(&event_rank), atomic_load(&event_signal));
    /* The survivors can still meet; that one is missing may be told. */
    PMIx_Fence(NULL, 0, NULL, 0);
    end();
}

/* Rank 1 is gone without a word; rank 0 asks for its blob. */
static void do_get_dead(char **arg)
{
    pmix_value_t *value;
    pmix_status_t status;

    start();
    if (self.rank == 1) {
        doze(0.5);
        if (strcmp(arg[0], "finalize") == 0) {
            end();
            exit(0);
        }
        die(arg[0]);
    }
    status = get(1, &value, 2);
    require(status != PMIX_SUCCESS, "an error in time");
    printf("error\n");
    end();
}

/* lines N: N lines of mixed length on both streams, each with its sum. */
static void do_lines(char **arg)
{
    const char *rank = getenv("PMIX_RANK");
    unsigned state = 12345u + (unsigned)atoi(rank);
    static char text[20000];

    for (int i = 0; i < atoi(arg[0]); i++) {
        FILE *stream = i % 3 == 0 ? stderr : stdout;
        unsigned sum = 0, length;

        state = state * 1103515245u + 12345u;
        length = (state >> 16) % 80;
        if (i % 997 == 0)
            length = 5000 + (state >> 16) % 14000;
        for (unsigned j = 0; j < length; j++) {
            text[j] = (char)('a' + (i + (int)j) % 26);
            sum = sum * 31 + (unsigned char)text[j];
        }
        text[length] = '\0';
        fprintf(stream, "<%s %d %u %s>\n", rank, i, sum, text);
        if (i % 7 == 0)
            fflush(stream);
    }
}

/* torrent N: N bytes or a little more, in numbered lines, at full speed. */
static void do_torrent(char **arg)
{
    static char text[1 << 16], pad[160];
    long left = atol(arg[0]);
    const char *rank = getenv("PMIX_RANK");
    unsigned long number = 0;

    memset(pad, 'x', sizeof(pad));
    while (left > 0) {
        size_t used = 0, done = 0;

        while (used < sizeof(text) - 256) {
            used += (size_t)sprintf(text + used, "<%s %lu %.*s>\n", rank,
                                    number, (int)(number % 150), pad);
            number++;
        }
        left -= (long)used;
        while (done < used) {
            ssize_t some = write(1, text + done, used - done);

            require(some > 0, "a write");
            done += (size_t)some;
        }
    }
    printf("end %s %lu\n", rank, number);
}

/* long N: one line of N bytes, then a short one. */
static void do_long(char **arg)
{
    long count = atol(arg[0]);

    for (long i = 0; i < count; i++)
        putchar('0' + atoi(getenv("PMIX_RANK")));
    printf("\nshort\n");
}

static volatile sig_atomic_t signals_seen[65];

static void signal_seen(int signal)
{
    signals_seen[signal] = 1;
}

/* Tells of a signal by a file, for when tprun is stopped and passes nothing
 * on. */
static void touch(const char *place)
{
    char path[512];

    snprintf(path, sizeof(path), "%s/%s", place, getenv("PMIX_RANK"));
    close(open(path, O_CREAT | O_WRONLY, 0600));
}

/* signals [DIR]: prints "ready", then the name of each signal, until TERM;
 * makes a file in DIR at TSTP. */
static void do_signals(char **arg)
{
    static const struct { int signal; const char *name; } names[] = {
        { SIGUSR1, "USR1" }, { SIGUSR2, "USR2" }, { SIGALRM, "ALRM" },
        { SIGCONT, "CONT" }, { SIGTSTP, "TSTP" },
    };
    struct sigaction action = { .sa_handler = signal_seen };
    sigset_t all, none;

    sigfillset(&all);
    sigemptyset(&none);
    sigprocmask(SIG_BLOCK, &all, NULL);
    sigaction(SIGTERM, &action, NULL);
    for (int i = 0; i < 5; i++)
        sigaction(names[i].signal, &action, NULL);
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("ready\n");
    while (!signals_seen[SIGTERM]) {
        sigsuspend(&none);
        for (int i = 0; i < 5; i++)
            if (signals_seen[names[i].signal]) {
                signals_seen[names[i].signal] = 0;
                if (names[i].signal == SIGTSTP && *arg != NULL)
                    touch(*arg);
                printf("%s\n", names[i].name);
            }
    }
    printf("TERM\n");
    exit(0);
}

/* stubborn: ignores SIGTERM; says "ready". */
static void do_stubborn(char **arg)
{
    (void)arg;
    signal(SIGTERM, SIG_IGN);
    printf("ready\n");
    fflush(stdout);
    for (;;)
        pause();
}

/* away: in tprun's process group instead of one of its own. */
static void do_away(char **arg)
{
    (void)arg;
    require(setpgid(0, getpgid(getppid())) == 0, "setpgid");
    printf("ready\n");
    fflush(stdout);
    doze(600);
}

/* family: children in the group, in their own session, and without any
 * environment; says "ready" and sleeps. */
static void do_family(char **arg)
{
    (void)arg;
    for (int i = 0; i < 2; i++)
        if (fork() == 0) {
            if (i == 1)
                setsid();
            if (fork() == 0)
                doze(600);
            doze(600);
            _exit(0);
        }
    printf("ready\n");
    fflush(stdout);
    doze(600);
}

static void *rest(void *arg)
{
    doze(600);
    return arg;
}

/* A process whose first thread has ended, which the other cannot see before
 * it is so. */
static void leave_thread(void)
{
    char path[64], text[128] = "";
    pthread_t thread;
    pid_t pid = fork();

    if (pid == 0) {
        setsid();
        if (pthread_create(&thread, NULL, rest, NULL) != 0)
            _exit(97);
        pthread_exit(NULL);
    }
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    while (strstr(text, ") Z ") == NULL) {
        FILE *file = fopen(path, "r");

        if (file != NULL && fgets(text, sizeof(text), file) == NULL)
            text[0] = '\0';
        require(file != NULL && fclose(file) == 0, path);
    }
    printf("left %d\n", (int)pid);
    fflush(stdout);
}

/* leave: a child that lives on, in a session of its own or not, or by a thread;
 * "stay" behind that does not let the rank end. */
static void do_leave(char **arg)
{
    if (strcmp(arg[0], "thread") == 0) {
        leave_thread();
        doze(arg[1] != NULL ? 600 : 0);
    } else if (fork() == 0) {
        if (strcmp(arg[0], "session") == 0)
            setsid();
        doze(600);
        _exit(0);
    }
}

/* state: descriptor limit, signal mask and dispositions, standard input. */
static void do_state(char **arg)
{
    sigset_t mask;
    struct sigaction action;
    char buffer[64];
    const char *doors = getenv("TP_DOOR");
    int door[2] = { -1, -1 };

    (void)arg;
    require(doors != NULL && sscanf(doors, "%d:%d:", &door[0], &door[1]) == 2,
            "doors");
    sigprocmask(SIG_SETMASK, NULL, &mask);
    for (int i = 1; i < 32; i++)
        require(!sigismember(&mask, i), "an empty signal mask");
    sigaction(SIGPIPE, NULL, &action);
    require(action.sa_handler == SIG_DFL, "SIGPIPE as usual");
    printf("limit %ld group %d input %zd fds", sysconf(_SC_OPEN_MAX),
           getpgrp() == getpid(), read(0, buffer, sizeof(buffer)));
    for (int fd = 3; fd < 256; fd++) {
        struct stat file;
        /* The topology's memory and the doors are meant to be there. */
        if (fd != door[0] && fd != door[1] && fcntl(fd, F_GETFD) >= 0
            && fstat(fd, &file) == 0 && !S_ISREG(file.st_mode))
            printf(" %d", fd);
    }
    printf("\n");
}

static const struct {
    const char *word;
    void (*run)(char **arg);
} modes[] = {
    { "modex", do_modex }, { "init", do_init }, { "late", do_late },
    { "info", do_info }, { "apps", do_apps }, { "publish", do_publish },
    { "abort", do_abort }, { "die", do_die }, { "events", do_events },
    { "get-dead", do_get_dead }, { "lines", do_lines }, { "long", do_long },
    { "torrent", do_torrent }, { "signals", do_signals },
    { "stubborn", do_stubborn }, { "family", do_family },
    { "away", do_away }, { "leave", do_leave }, { "state", do_state },
};

int main(int argc, char **argv)
{
    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++)
        if (argc > 1 && strcmp(argv[1], modes[i].word) == 0) {
            modes[i].run(argv + 2);
            return 0;
        }
    fprintf(stderr, "rank: no such thing: %s\n", argc > 1 ? argv[1] : "");
    return 97;
}

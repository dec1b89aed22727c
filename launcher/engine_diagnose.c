/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * An engine has not started a single rank.  Its own words are a page about
 * everything that it might be; we ask every host by ssh, as the engine did,
 * all at once and for a few seconds, and name what is wrong with which.
 */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "launcher/ask.h"
#include "launcher/engine.h"
#include "launcher/spawn.h"
#include "runtime/base/alloc.h"

enum { DIAGNOSE_PATIENCE = 8, DIAGNOSE_HOSTS = 256 };

/* What ssh says, and what helps. */
static const struct { const char *words, *remedy; } diagnose_table[] = {
    { "Could not resolve", "put it into /etc/hosts, or write its address" },
    { "No route to host", "is it up?" },
    { "timed out", "is it up?" },
    { "Network is unreachable", "is the network up here?" },
    { "Connection refused", "is sshd running there?" },
    { "Permission denied", "ssh must get in without a password (ssh-copy-id)" },
    { "Host key verification failed",
      "log in once by hand, to accept its key" },
};

static const char *diagnose_remedy(const char *line)
{
    for (size_t i = 0; i < TPB_COUNT(diagnose_table); i++)
        if (strstr(line, diagnose_table[i].words) != NULL)
            return diagnose_table[i].remedy;
    return "does `ssh` to it work by hand?";
}

static void diagnose_ask(const struct tpl_engine_plan *plan,
                         const struct tpl_host *host, const char *ssh,
                         struct tpl_ask *ask)
{
    struct tpl_arguments line = { 0 }, test = { 0 }, shell = { 0 };
    struct tpb_text script = { 0 }, command = { 0 };

    /* Paths are quoted for the shell at the other end, which is sh, whatever
     * one logs in to. */
    tpl_arguments_add(&test, "%s", plan->keeper);
    tpb_text_add(&script, "command -v %s >/dev/null || echo tp-no-engine; "
                 "test -x ", plan->engine == TPL_ENGINE_PRRTE
                             || plan->major >= 5 ? "prted" : "orted");
    tpl_arguments_show(&test, &script);
    tpb_text_add(&script, " || echo tp-no-keeper; test -w "
                 "\"${TMPDIR:-/tmp}\" || echo \"tp-no-tmp "
                 "${TMPDIR:-/tmp}\"; echo tp-reached");
    tpl_arguments_add(&line, "%s", ssh);
    tpl_arguments_add(&line, "-oBatchMode=yes");
    tpl_arguments_add(&line, "-oConnectTimeout=3");
    if (host->user != NULL)
        tpl_arguments_add(&line, "-l%s", host->user);
    tpl_arguments_add(&line, "%s", host->name);
    tpl_arguments_add(&shell, "sh");
    tpl_arguments_add(&shell, "-c");
    tpl_arguments_add(&shell, "%s", script.failed ? "true" : script.text);
    tpl_arguments_show(&shell, &command);
    tpl_arguments_add(&line, "%s", command.failed ? "true" : command.text);
    if (!line.failed)
        tpl_ask_start(ask, line.list);
    tpl_arguments_fini(&shell);
    tpb_text_fini(&command);
    tpl_arguments_fini(&line);
    tpl_arguments_fini(&test);
    tpb_text_fini(&script);
}

/* One host's answer; true if it tells what is wrong. */
static bool diagnose_tell(const struct tpl_engine_plan *plan,
                          const struct tpl_host *host, struct tpl_ask *ask)
{
    const char *line;
    char *place;

    if (strstr(ask->text, "tp-no-engine") != NULL) {
        dprintf(STDERR_FILENO, "tprun: %s: %s is not in the PATH that ssh "
                "gets there; install it on every host\n", host->name,
                plan->engine == TPL_ENGINE_PRRTE ? "PRRTE" : "Open MPI");
        return true;
    }
    if (strstr(ask->text, "tp-no-keeper") != NULL) {
        dprintf(STDERR_FILENO, "tprun: %s: %s is not there; install the same "
                "tp at the same place on every host\n", host->name,
                plan->keeper);
        return true;
    }
    place = strstr(ask->text, "tp-no-tmp ");
    if (place != NULL) {
        place += strlen("tp-no-tmp ");
        place[strcspn(place, "\r\n")] = '\0';
        tpb_one_line(place, strlen(place));
        dprintf(STDERR_FILENO, "tprun: %s: nothing can be written to %s, "
                "where %s keeps its files; is it there, and not read-only?\n",
                host->name, place,
                plan->engine == TPL_ENGINE_PRRTE ? "PRRTE" : "Open MPI");
        return true;
    }
    /* What its shell has started may hold on to ssh. */
    if (strstr(ask->text, "tp-reached") != NULL)
        return false;
    if (ask->status == -1) {
        dprintf(STDERR_FILENO, "tprun: %s: no answer to ssh in %d s; is it "
                "up?\n", host->name, DIAGNOSE_PATIENCE);
        return true;
    }
    line = tpl_ask_last_line(ask);
    dprintf(STDERR_FILENO, "tprun: %s: %s; %s\n", host->name,
            *line != '\0' ? line : "ssh failed without a word",
            diagnose_remedy(line));
    return true;
}

bool tpl_engine_diagnose(const struct tpl_engine_plan *plan)
{
    struct tpb_error error = { "" };
    struct tpl_ask *asks;
    char ssh[PATH_MAX];
    size_t count = plan->hosts.count;
    bool told = false;

    if (plan->engine == TPL_ENGINE_SLURM || count == 0)
        return false;
    if (tpl_spawn_find("ssh", ssh, &error) != 0) {
        dprintf(STDERR_FILENO, "tprun: ssh, which %s needs, is not in PATH "
                "(apt-get install openssh-client)\n",
                tpl_engine_name(plan->engine));
        return true;
    }
    if (count > DIAGNOSE_HOSTS)
        count = DIAGNOSE_HOSTS;
    asks = tpb_array(count, sizeof(*asks));
    if (asks == NULL)
        return false;
    for (size_t i = 0; i < count; i++) {
        asks[i].fd = -1;
        if (!plan->hosts.list[i].here && plan->hosts.list[i].ranks > 0)
            diagnose_ask(plan, &plan->hosts.list[i], ssh, &asks[i]);
    }
    tpl_ask_wait(asks, count, DIAGNOSE_PATIENCE);
    for (size_t i = 0; i < count; i++)
        if (!plan->hosts.list[i].here && plan->hosts.list[i].ranks > 0)
            told |= diagnose_tell(plan, &plan->hosts.list[i], &asks[i]);
    tpb_free(asks);
    return told;
}

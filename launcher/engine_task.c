/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * srun ends a step as soon as its own PMIx server misses a rank, and then a
 * mark of tprun-rank may be lost.  What srun says itself mostly is not: "srun:
 * error: host3: task 2: Killed", or "tasks 2,4-7: Exited with exit code 7".
 */
#include "config.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "launcher/engine_text.h"

static const char task_line[] = "srun: error: ";

/* What strsignal(3) calls it, and "Out Of Memory"; 0: none. */
static int task_signal(const char *words)
{
    static const char out_of_memory[] = "Out Of Memory";

    if (strncmp(words, out_of_memory, sizeof(out_of_memory) - 1) == 0)
        return SIGKILL;
    for (int i = 1; i < NSIG; i++) {
        const char *name = sigdescr_np(i);

        if (name != NULL && strncmp(words, name, strlen(name)) == 0
            && strchr("\n (", words[strlen(name)]) != NULL)
            return i;
    }
    return 0;
}

/* One line, from behind its beginning. */
static bool task_parse(const char *line, struct tpl_mark *mark)
{
    int used = 0;

    if (sscanf(line, "%*[^: \n]: task%*[s ]%d%n", &mark->rank, &used) < 1)
        return false;
    line += used;
    line += strcspn(line, ": \n");     /* the rest of a list */
    if (*line != ':')
        return false;
    line++;
    line += strspn(line, " ");
    snprintf(mark->words, sizeof(mark->words), "srun says: %.*s",
             (int)strcspn(line, "\n"), line);
    mark->kind = TPL_MARK_EXITED;
    if (sscanf(line, "Exited with exit code %d", &mark->value) == 1)
        return mark->value != 0;
    mark->kind = TPL_MARK_KILLED;
    mark->value = task_signal(line);
    return mark->value != 0;
}

bool tpl_engine_text_task(const struct tpl_engine_text *text,
                          const char **from, struct tpl_mark *mark)
{
    const char *line = *from != NULL ? *from : text->noise.text;

    while (line != NULL && (line = strstr(line, task_line)) != NULL) {
        *from = line += sizeof(task_line) - 1;
        if (task_parse(line, mark))
            return true;
    }
    return false;
}

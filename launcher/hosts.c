/* SPDX-License-Identifier: BSD-3-Clause */
/* Hosts as people write them. */
#include "config.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "launcher/hosts.h"
#include "runtime/base/alloc.h"
#include "runtime/base/io.h"

enum {
    HOSTS_NAME = 256, HOSTS_NUMBER = 1000000,
    HOSTS_RANGE = 999999999        /* in the name of a host */
};

/* Where we read, for messages, and what has been understood of one item. */
struct hosts_parse {
    struct tpl_hosts *hosts;
    const char *file;              /* or "--host" */
    int line;                      /* 0: no file */
    char user[HOSTS_NAME];
    int slots, most;
    struct tpb_error *error;
};

static tp_status hosts_bad(const struct hosts_parse *parse,
                           const char *format, ...) TPB_PRINTF(2, 3);
static tp_status hosts_bad(const struct hosts_parse *parse,
                           const char *format, ...)
{
    char text[384];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (parse->line > 0)
        return tpb_fail(parse->error, TP_ERR_INVALID, "%s:%d: %s",
                        parse->file, parse->line, text);
    return tpb_fail(parse->error, TP_ERR_INVALID, "%s: %s", parse->file,
                    text);
}

/* Digits only, up to the end of the text. */
static bool hosts_number(const char *text, int most, int *number)
{
    char *end;
    long value;

    if (!isdigit((unsigned char)*text))
        return false;
    errno = 0;
    value = strtol(text, &end, 10);
    if (*end != '\0' || errno != 0 || value > most)
        return false;
    *number = (int)value;
    return true;
}

/* Where the index has the name, or the first free place after it.  There may
 * be many thousands, each looked for before it is entered. */
static uint32_t *hosts_slot(const struct tpl_hosts *hosts, const char *name)
{
    size_t mask = 2 * hosts->room - 1, at;
    uint64_t hash = TPB_HASH_INIT;

    for (const char *c = name; *c != '\0'; c++) {
        char low = (char)tolower((unsigned char)*c);

        hash = tpb_hash(hash, &low, 1);
    }
    at = (size_t)(hash ^ hash >> 32) & mask;
    while (hosts->index[at] != 0
           && strcasecmp(hosts->list[hosts->index[at] - 1].name, name) != 0)
        at = (at + 1) & mask;
    return &hosts->index[at];
}

static struct tpl_host *hosts_find(const struct tpl_hosts *hosts,
                                   const char *name)
{
    uint32_t place = hosts->room > 0 ? *hosts_slot(hosts, name) : 0;

    return place > 0 ? &hosts->list[place - 1] : NULL;
}

static bool hosts_grow(struct tpl_hosts *hosts)
{
    size_t room = hosts->room == 0 ? 1 : hosts->room * 2;
    uint32_t *index = tpb_zalloc(2 * room * sizeof(*index));
    struct tpl_host *list = tpb_resize(hosts->list, room * sizeof(*list));

    if (list != NULL)
        hosts->list = list;
    if (list == NULL || index == NULL) {
        tpb_free(index);
        return false;
    }
    tpb_free(hosts->index);
    hosts->index = index;
    hosts->room = room;
    for (size_t i = 0; i < hosts->count; i++)
        *hosts_slot(hosts, hosts->list[i].name) = (uint32_t)i + 1;
    return true;
}

static struct tpl_host *hosts_new(struct tpl_hosts *hosts, const char *name)
{
    struct tpl_host *host;

    if (hosts->count == hosts->room && !hosts_grow(hosts))
        return NULL;
    host = &hosts->list[hosts->count];
    memset(host, 0, sizeof(*host));
    host->name = tpb_copy_string(name);
    if (host->name == NULL)
        return NULL;
    hosts->count++;
    *hosts_slot(hosts, name) = (uint32_t)hosts->count;
    return host;
}

/* One name, all ranges resolved. */
static tp_status hosts_enter(struct hosts_parse *parse, const char *name)
{
    struct tpl_host *host = hosts_find(parse->hosts, name);

    if (host != NULL) {
        int more = parse->slots > 0 ? parse->slots : 1;

        host->slots = (host->slots > 0 ? host->slots : 1) + more;
        if (host->slots > HOSTS_NUMBER)
            host->slots = HOSTS_NUMBER;
    } else {
        if (parse->hosts->count >= TPL_HOSTS_MAX)
            return hosts_bad(parse, "more than %d hosts", TPL_HOSTS_MAX);
        host = hosts_new(parse->hosts, name);
        if (host == NULL)
            return tpb_fail(parse->error, TP_ERR_NO_MEMORY, "out of memory");
        host->slots = parse->slots;
    }
    if (parse->most > 0)
        host->most = parse->most;
    if (host->most > 0 && host->slots > host->most)
        return hosts_bad(parse, "%s: %d slots, but max_slots is %d", name,
                         host->slots, host->most);
    if (parse->user[0] != '\0' && host->user == NULL) {
        host->user = tpb_copy_string(parse->user);
        if (host->user == NULL)
            return tpb_fail(parse->error, TP_ERR_NO_MEMORY, "out of memory");
    }
    return TP_OK;
}

/* A name may not look like an option to ssh, nor hold what a shell reads. */
static bool hosts_name_fits(const char *name)
{
    if (*name == '\0' || *name == '-')
        return false;
    for (; *name != '\0'; name++)
        if (!isalnum((unsigned char)*name) && strchr("-._:%", *name) == NULL)
            return false;
    return true;
}

static tp_status hosts_expand(struct hosts_parse *parse, const char *before,
                              const char *pattern);

/* "01-16" of node[01-16,20]x: `before` is "node", `after` is "x". */
static tp_status hosts_expand_range(struct hosts_parse *parse,
                                    const char *before, char *range,
                                    const char *after)
{
    char *dash = strchr(range, '-'), name[HOSTS_NAME];
    int first, last, width = (int)strlen(range);
    tp_status status = TP_OK;

    if (dash != NULL) {
        *dash++ = '\0';
        width = (int)strlen(range);
    }
    if (!hosts_number(range, HOSTS_RANGE, &first)
        || !hosts_number(dash != NULL ? dash : range, HOSTS_RANGE, &last))
        return hosts_bad(parse, "%s[...]: expected numbers such as [01-16] "
                         "or [1,3,5-8], of nine digits at most", before);
    if (first > last)
        return hosts_bad(parse, "%s[%s-%s]: the range runs backwards", before,
                         range, dash);
    if (last - first >= TPL_HOSTS_MAX)
        return hosts_bad(parse, "more than %d hosts", TPL_HOSTS_MAX);
    for (int i = first; i <= last && status == TP_OK; i++) {
        if (snprintf(name, sizeof(name), "%s%0*d", before, width, i)
            >= (int)sizeof(name))
            return hosts_bad(parse, "the name of the host is too long");
        status = hosts_expand(parse, name, after);
    }
    return status;
}

/* Enters every name that before + pattern stands for. */
static tp_status hosts_expand(struct hosts_parse *parse, const char *before,
                              const char *pattern)
{
    const char *open = strchr(pattern, '[');
    const char *close = open != NULL ? strchr(open, ']') : NULL;
    char name[HOSTS_NAME], ranges[HOSTS_NAME], *save = NULL;
    tp_status status = TP_OK;

    if (snprintf(name, sizeof(name), "%s%.*s", before,
                 (int)(open != NULL ? open - pattern : (long)HOSTS_NAME),
                 pattern) >= (int)sizeof(name))
        return hosts_bad(parse, "the name of the host is too long");
    if (open == NULL) {
        if (!hosts_name_fits(name))
            return hosts_bad(parse, "\"%s\" is not a valid host name", name);
        return hosts_enter(parse, name);
    }
    if (close == NULL)
        return hosts_bad(parse, "%s: a ] is missing", pattern);
    if (open + 1 + strspn(open + 1, ",") == close
        || close - open > (long)sizeof(ranges))
        return hosts_bad(parse, "%s: expected numbers such as [01-16]",
                         pattern);
    memcpy(ranges, open + 1, (size_t)(close - open - 1));
    ranges[close - open - 1] = '\0';
    for (char *range = strtok_r(ranges, ",", &save);
         range != NULL && status == TP_OK;
         range = strtok_r(NULL, ",", &save))
        status = hosts_expand_range(parse, name, range, close + 1);
    return status;
}

static tp_status hosts_set_slots(struct hosts_parse *parse, const char *text)
{
    if (hosts_number(text, HOSTS_NUMBER, &parse->slots) && parse->slots > 0)
        return TP_OK;
    return hosts_bad(parse, "\"%s\": expected a number of slots, 1 or more",
                     text);
}

static tp_status hosts_set_user(struct hosts_parse *parse, const char *text)
{
    if (!hosts_name_fits(text) || strchr(text, ':') != NULL
        || strlen(text) >= sizeof(parse->user))
        return hosts_bad(parse, "\"%s\" is not a valid user name", text);
    strcpy(parse->user, text);
    return TP_OK;
}

/* Is it an IPv6 address, perhaps with an interface (fe80::1%eth0)? */
static tp_status hosts_address(const struct hosts_parse *parse,
                               const char *text)
{
    struct in6_addr address;
    char number[INET6_ADDRSTRLEN];
    size_t length = strcspn(text, "%");

    snprintf(number, sizeof(number), "%.*s", (int)length, text);
    if (length < sizeof(number) && inet_pton(AF_INET6, number, &address) == 1)
        return TP_OK;
    return hosts_bad(parse, "\"%s\" is not an IPv6 address, and HOST:N has one "
                     "colon only", text);
}

/* [user@]name[:slots], where name may be [IPv6] or a bare IPv6 address.
 * `item` is ours to change. */
static tp_status hosts_item(struct hosts_parse *parse, char *item,
                            char **name)
{
    char *at = strchr(item, '@'), *colon;
    tp_status status = TP_OK;

    if (at != NULL) {
        *at = '\0';
        status = hosts_set_user(parse, item);
        item = at + 1;
    }
    if (status != TP_OK)
        return status;
    *name = item;
    colon = strchr(item, ':');
    if (item[0] == '[' && colon != NULL && strchr(item, ']') > colon) {
        char *close = strchr(item, ']');

        *close = '\0';
        *name = item + 1;
        status = hosts_address(parse, *name);
        if (status != TP_OK)
            return status;
        if (close[1] == '\0')
            return TP_OK;
        if (close[1] != ':')
            return hosts_bad(parse, "[%s]%s: expected :SLOTS after the ]",
                             *name, close + 1);
        return hosts_set_slots(parse, close + 2);
    }
    if (colon == NULL)
        return TP_OK;
    /* Two colons: an address. */
    if (strchr(colon + 1, ':') != NULL)
        return strchr(item, '[') != NULL ? TP_OK : hosts_address(parse, item);
    *colon = '\0';
    return hosts_set_slots(parse, colon + 1);
}

/* The next item of a comma list; commas in brackets do not count. */
static char *hosts_next(char **list)
{
    char *item = *list, *end = item;
    int depth = 0;

    if (item == NULL)
        return NULL;
    for (; *end != '\0' && (*end != ',' || depth > 0); end++)
        depth += (*end == '[') - (*end == ']');
    *list = *end == ',' ? end + 1 : NULL;
    *end = '\0';
    return item;
}

tp_status tpl_hosts_add_list(struct tpl_hosts *hosts, const char *where,
                             const char *list, struct tpb_error *error)
{
    struct hosts_parse parse = { .hosts = hosts, .file = where,
                                 .error = error };
    char *copy = tpb_copy_string(list), *rest = copy, *item, *name;
    tp_status status = TP_OK;

    if (copy == NULL)
        return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
    while (status == TP_OK && (item = hosts_next(&rest)) != NULL) {
        parse.slots = 0;
        parse.user[0] = '\0';
        if (*item == '\0')
            status = hosts_bad(&parse, "\"%s\": the name of a host is missing",
                               list);
        else
            status = hosts_item(&parse, item, &name);
        if (status == TP_OK)
            status = hosts_expand(&parse, "", name);
    }
    tpb_free(copy);
    return status;
}

/* name=value behind a host of a file. */
static tp_status hosts_property(struct hosts_parse *parse, const char *name,
                                const char *value)
{
    static const char *const slots[] = { "slots", "count", "cpu", "cpus" };
    static const char *const most[] = { "max_slots", "max-slots", "slots_max",
                                        "slots-max" };
    static const char *const user[] = { "user", "username", "user-name",
                                        "user_name" };

    for (size_t i = 0; i < TPB_COUNT(slots); i++) {
        if (strcmp(name, slots[i]) == 0)
            return hosts_set_slots(parse, value);
        if (strcmp(name, user[i]) == 0)
            return hosts_set_user(parse, value);
        if (strcmp(name, most[i]) == 0) {
            if (hosts_number(value, HOSTS_NUMBER, &parse->most)
                && parse->most > 0)
                return TP_OK;
            return hosts_bad(parse, "%s=%s: expected a number, 1 or more",
                             name, value);
        }
    }
    if (strcmp(name, "ifname") == 0)
        return hosts_bad(parse, "ifname= is for MPICH only; to choose network "
                         "interfaces set TP_IFACE");
    if (strcmp(name, "binding") == 0)
        return hosts_bad(parse, "binding= is for MPICH only; use --bind-to");
    return hosts_bad(parse, "%s=: expected slots=, max_slots= or user=",
                     name);
}

/* Closes the gaps around every '=', so that "slots = 4" is one word. */
static void hosts_close_gaps(char *line)
{
    char *to = line;

    for (char *from = line; *from != '\0'; from++) {
        if (*from == '=') {
            while (to > line && isspace((unsigned char)to[-1]))
                to--;
            while (isspace((unsigned char)from[1]))
                from++;
            *to++ = '=';
        } else {
            *to++ = *from;
        }
    }
    *to = '\0';
}

static tp_status hosts_line(struct hosts_parse *parse, char *line)
{
    static const char blank[] = " \t\r\f\v";
    static const char rankfile[] = "this is a rankfile; a hostfile names "
                                   "hosts";
    char *save = NULL, *item, *word, *name;
    tp_status status;

    line[strcspn(line, "#")] = '\0';
    hosts_close_gaps(line);
    item = strtok_r(line, blank, &save);
    if (item == NULL)
        return TP_OK;
    parse->slots = parse->most = 0;
    parse->user[0] = '\0';
    if (*item == '^' || *item == '+')
        return hosts_bad(parse, "%s: Open MPI's ^ and + are not understood; "
                         "name the hosts", item);
    if (strncmp(item, "rank=", 5) == 0)
        return hosts_bad(parse, rankfile);
    status = hosts_item(parse, item, &name);
    while (status == TP_OK
           && (word = strtok_r(NULL, blank, &save)) != NULL) {
        char *equals = strchr(word, '=');

        if (strcmp(name, "rank") == 0 && isdigit((unsigned char)*word))
            return hosts_bad(parse, rankfile);
        if (equals == NULL)
            return hosts_bad(parse, "%s: expected slots=N, or the next host "
                             "on a line of its own", word);
        *equals = '\0';
        status = hosts_property(parse, word, equals + 1);
    }
    return status == TP_OK ? hosts_expand(parse, "", name) : status;
}

tp_status tpl_hosts_add_text(struct tpl_hosts *hosts, const char *file,
                             const char *text, struct tpb_error *error)
{
    struct hosts_parse parse = { .hosts = hosts, .file = file,
                                 .error = error };
    size_t before = hosts->count;
    tp_status status = TP_OK;

    if (strncmp(text, "\xef\xbb\xbf", 3) == 0)
        text += 3;                 /* a byte order mark, which editors write */
    while (*text != '\0' && status == TP_OK) {
        size_t length = strcspn(text, "\n");
        char *line = tpb_zalloc(length + 1);

        if (line == NULL)
            return tpb_fail(error, TP_ERR_NO_MEMORY, "out of memory");
        memcpy(line, text, length);
        parse.line++;
        status = hosts_line(&parse, line);
        tpb_free(line);
        text += length + (text[length] == '\n');
    }
    if (status == TP_OK && hosts->count == before)
        return tpb_fail(error, TP_ERR_INVALID, "%s: it names no host", file);
    return status;
}

tp_status tpl_hosts_add_file(struct tpl_hosts *hosts, const char *file,
                             struct tpb_error *error)
{
    size_t length = 0;
    char *text = tpb_read_file(file, &length);
    tp_status status;

    if (text == NULL)
        return tpb_fail_errno(error, errno, "--hostfile %s", file);
    if (strlen(text) != length)
        status = tpb_fail(error, TP_ERR_INVALID, "%s: it is not a text file",
                          file);
    else
        status = tpl_hosts_add_text(hosts, file, text, error);
    tpb_free(text);
    return status;
}

tp_status tpl_hosts_choose(struct tpl_hosts *hosts, struct tpl_hosts *chosen,
                           struct tpb_error *error)
{
    struct tpl_hosts swap;

    for (size_t i = 0; i < chosen->count; i++) {
        struct tpl_host *to = &chosen->list[i];
        struct tpl_host *from = hosts_find(hosts, to->name);

        if (from == NULL)
            return tpb_fail(error, TP_ERR_INVALID,
                            "--host %s: it is not in the hostfile", to->name);
        to->most = from->most;
        if (to->slots == 0)
            to->slots = from->slots;
        if (to->user == NULL) {
            to->user = from->user;
            from->user = NULL;
        }
    }
    swap = *hosts;
    *hosts = *chosen;
    *chosen = swap;
    return TP_OK;
}

int tpl_hosts_slots(const struct tpl_hosts *hosts)
{
    long slots = 0;

    for (size_t i = 0; i < hosts->count; i++)
        slots += hosts->list[i].slots > 0 ? hosts->list[i].slots : 1;
    return slots > HOSTS_NUMBER ? HOSTS_NUMBER : (int)slots;
}

/* How many more this host takes in this round. */
static int hosts_room(const struct tpl_host *host)
{
    int room = host->slots > 0 ? host->slots : 1;

    if (host->most > 0 && room > host->most - host->ranks)
        room = host->most - host->ranks;
    return room;
}

static void hosts_place_even(struct tpl_hosts *hosts, int ranks)
{
    int count = (int)hosts->count;

    for (int i = 0; i < count; i++)
        hosts->list[i].ranks = ranks / count + (i < ranks % count);
}

tp_status tpl_hosts_place(struct tpl_hosts *hosts, int ranks,
                          struct tpb_error *error)
{
    bool said = false;
    int left = ranks;

    for (size_t i = 0; i < hosts->count; i++) {
        hosts->list[i].ranks = 0;
        said |= hosts->list[i].slots > 0 || hosts->list[i].most > 0;
    }
    if (!said) {
        hosts_place_even(hosts, ranks);
        return TP_OK;
    }
    while (left > 0) {
        int before = left;

        for (size_t i = 0; i < hosts->count && left > 0; i++) {
            int room = hosts_room(&hosts->list[i]);

            room = room < left ? room : left;
            hosts->list[i].ranks += room;
            left -= room;
        }
        if (left == before)
            return tpb_fail(error, TP_ERR_INVALID,
                            "%d ranks, but the hosts take %d (max_slots)",
                            ranks, ranks - left);
    }
    return TP_OK;
}

void tpl_hosts_fini(struct tpl_hosts *hosts)
{
    for (size_t i = 0; i < hosts->count; i++) {
        tpb_free(hosts->list[i].name);
        tpb_free(hosts->list[i].user);
    }
    tpb_free(hosts->list);
    tpb_free(hosts->index);
    memset(hosts, 0, sizeof(*hosts));
}

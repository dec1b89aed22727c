/* SPDX-License-Identifier: BSD-3-Clause */
/* The path contract: "node:shm,net:ofi:tcp". */
#include "config.h"

#include <stdio.h>

#include "topology/private.h"

static const char *const require_classes[] = { "self", "node", "net", "any",
                                              "cuda" };

/* One CLASS:BACKEND, pointing into the contract. */
struct require_item {
    const char *class, *backend;
    int class_length, backend_length;
};

/* Takes the next item off *cursor; its form is not judged. */
static void require_next(const char **cursor, struct require_item *item)
{
    const char *start = *cursor + strspn(*cursor, " ");
    size_t length = strcspn(start, ",");
    size_t class = strcspn(start, ":,");

    *cursor = start + length + (start[length] == ',');
    while (length > 0 && start[length - 1] == ' ')
        length--;
    if (class > length)
        class = length;
    item->class = start;
    item->class_length = (int)class;
    item->backend = start + class + (class < length);
    item->backend_length = (int)(length - (size_t)(item->backend - start));
}

static bool require_is(const char *text, int length, const char *word)
{
    return strlen(word) == (size_t)length
           && memcmp(text, word, (size_t)length) == 0;
}

bool tpt_name_within(const char *name, size_t length, const char *backend)
{
    return strncmp(name, backend, length) == 0
           && (backend[length] == '\0' || backend[length] == ':');
}

/* "ofi" allows "ofi" and "ofi:tcp"; "tcp" allows "ofi:tcp" too, unless there
 * is a "tcp" (as there is a "shm" beside "ofi:shm"). */
static bool require_matches(const struct require_item *item,
                            const struct tpt_known *known, size_t count,
                            const char *name)
{
    size_t length = (size_t)item->backend_length;

    if (tpt_name_within(item->backend, length, name))
        return true;
    for (size_t i = 0; i < count; i++)
        if (tpt_name_within(item->backend, length, known[i].name))
            return false;
    return strncmp(name, TPT_PROVIDER, sizeof(TPT_PROVIDER) - 1) == 0
           && tpt_name_within(item->backend, length,
                              name + sizeof(TPT_PROVIDER) - 1);
}

/* Is there one of that role, for devices or not, that the item names? */
static bool require_names(const struct require_item *item,
                          const struct tpt_known *known, size_t count,
                          enum tpt_role role, bool devices)
{
    for (size_t i = 0; i < count; i++)
        if (known[i].role == role && known[i].devices == devices
            && require_matches(item, known, count, known[i].name))
            return true;
    return false;
}

static const char *require_text(const char *require)
{
    return require != NULL ? require : "";
}

static tp_status require_judge(const struct require_item *item,
                               struct tpb_error *error)
{
    bool known = false;

    for (size_t i = 0; i < TPB_COUNT(require_classes); i++)
        known |= require_is(item->class, item->class_length,
                            require_classes[i]);
    if (item->class_length == 0 || item->backend_length == 0)
        return tpb_fail(error, TP_ERR_INVALID, "TP_REQUIRE: \"%.*s\" is not "
                        "CLASS:BACKEND, as in node:shm; classes are self, "
                        "node, net, any and cuda",
                        (int)(item->backend - item->class)
                        + item->backend_length, item->class);
    if (!known)
        return tpb_fail(error, TP_ERR_INVALID, "TP_REQUIRE: unknown class "
                        "\"%.*s\"; there are self, node, net, any and cuda",
                        item->class_length, item->class);
    return TP_OK;
}

/* "" is no contract; "," and "node:shm," are mistakes: there an empty item
 * stands at the end. */
static bool require_more(const char *require, const char *cursor)
{
    return *cursor != '\0' || (cursor > require && cursor[-1] == ',');
}

static bool require_is_cuda(const struct require_item *item)
{
    return require_is(item->class, item->class_length, "cuda");
}

/* Class cuda is of every locality; what it names is for devices. */
static bool require_concerns(const struct require_item *item,
                             enum tpt_locality locality)
{
    return require_is(item->class, item->class_length, "any")
           || require_is_cuda(item)
           || require_is(item->class, item->class_length,
                         tpt_locality_class(locality));
}

tp_status tpt_require_allows(const char *require, enum tpt_locality locality,
                             const struct tpt_known *known, size_t count,
                             const struct tpt_known *backend,
                             enum tpt_allowance *allowance,
                             struct tpb_error *error)
{
    const char *cursor = require = require_text(require);
    bool concerned = false, found = false;

    while (require_more(require, cursor)) {
        struct require_item item;
        tp_status status;

        require_next(&cursor, &item);
        status = require_judge(&item, error);
        if (status != TP_OK)
            return status;
        if (!require_concerns(&item, locality)
            || !require_names(&item, known, count, backend->role,
                              backend->devices))
            continue;
        concerned = true;
        found |= require_matches(&item, known, count, backend->name);
    }
    *allowance = found ? TPT_ALLOWED : concerned ? TPT_DENIED : TPT_FREE;
    return TP_OK;
}

bool tpt_require_speaks(const char *require, enum tpt_locality locality)
{
    const char *cursor = require = require_text(require);
    bool speaks = false;

    while (require_more(require, cursor) && !speaks) {
        struct require_item item;

        require_next(&cursor, &item);
        speaks = require_concerns(&item, locality) && !require_is_cuda(&item);
    }
    return speaks;
}

static tp_status require_unknown(const struct require_item *item,
                                 const struct tpt_known *known, size_t count,
                                 struct tpb_error *error)
{
    char names[256] = "none";
    size_t used = 0;

    for (size_t i = 0; i < count && used < sizeof(names); i++)
        used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s",
                                 i == 0 ? "" : ", ", known[i].name);
    return tpb_fail(error, TP_ERR_INVALID, "TP_REQUIRE: unknown backend "
                    "\"%.*s\"; known here: %s", item->backend_length,
                    item->backend, names);
}

tp_status tpt_require_form(const char *require, struct tpb_error *error)
{
    const char *cursor = require = require_text(require);
    tp_status status = TP_OK;

    while (status == TP_OK && require_more(require, cursor)) {
        struct require_item item;

        require_next(&cursor, &item);
        status = require_judge(&item, error);
    }
    return status;
}

tp_status tpt_require_check(const char *require, const struct tpt_known *known,
                            size_t count, struct tpb_error *error)
{
    const char *cursor = require = require_text(require);

    while (require_more(require, cursor)) {
        struct require_item item;
        tp_status status;
        bool found = false;

        require_next(&cursor, &item);
        status = require_judge(&item, error);
        if (status != TP_OK)
            return status;
        for (size_t i = 0; i < count; i++)
            found |= require_matches(&item, known, count, known[i].name);
        if (!found)
            return require_unknown(&item, known, count, error);
        if (require_is_cuda(&item)
            && !require_names(&item, known, count, TPT_ROLE_CHANNEL, true))
            return tpb_fail(error, TP_ERR_INVALID, "TP_REQUIRE: class cuda is "
                            "of GPUs' memory, and %.*s carries none; take "
                            "cuda_ipc, cuda_host, cuda_gdr or cuda_staged",
                            item.backend_length, item.backend);
    }
    return TP_OK;
}

void tpt_require_list(const char *require, enum tpt_locality locality,
                      const struct tpt_known *known, size_t count,
                      enum tpt_role role, bool devices, char *list,
                      size_t size)
{
    const char *cursor = require_text(require);
    size_t used = 0;

    list[0] = '\0';
    while (*cursor != '\0' && used < size) {
        struct require_item item;

        require_next(&cursor, &item);
        if (require_concerns(&item, locality)
            && require_names(&item, known, count, role, devices))
            used += (size_t)snprintf(list + used, size - used, "%s%.*s",
                                     used == 0 ? "" : ", ",
                                     item.backend_length, item.backend);
    }
}

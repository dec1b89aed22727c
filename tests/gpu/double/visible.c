/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Which of the host's devices this process sees, and under which number: by
 * CUDA_VISIBLE_DEVICES, of indexes or the beginnings of UUIDs.  As with the
 * driver the first word that means nothing ends the list, and no word may come
 * twice.
 */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "tests/gpu/double/double.h"

static int visible_places[DOUBLE_DEVICES];

void double_uuid(int place, cu_uuid *uuid)
{
    memset(uuid, 0, sizeof(*uuid));
    memcpy(uuid->bytes, "cudadouble", 10);
    uuid->bytes[15] = (unsigned char)(1 + place);
}

/* As nvidia-smi prints it. */
static void visible_text(int place, char text[48])
{
    cu_uuid uuid;
    size_t at = 4;

    double_uuid(place, &uuid);
    memcpy(text, "GPU-", 5);
    for (size_t i = 0; i < 16; i++)
        at += (size_t)snprintf(text + at, 48 - at, "%s%02x",
                               i == 4 || i == 6 || i == 8 || i == 10 ? "-"
                               : "", (unsigned char)uuid.bytes[i]);
}

/* The device that a word means, of so many; -1: none. */
static int visible_named(const char *word, int there)
{
    char *end, text[48];
    long index = strtol(word, &end, 10);

    if (end != word && *end == '\0')
        return index >= 0 && index < there ? (int)index : -1;
    for (int i = 0; i < there && strlen(word) > 4; i++) {
        visible_text(i, text);
        if (strncmp(text, word, strlen(word)) == 0)
            return i;
    }
    return -1;
}

/* How many of them are in the list. */
static int visible_listed(char *list, int there)
{
    char *rest = list, *word;
    int count = 0;

    while ((word = strsep(&rest, ",")) != NULL && count < DOUBLE_DEVICES) {
        int place = visible_named(word, there);

        if (place < 0)
            break;
        for (int i = 0; i < count; i++)
            if (visible_places[i] == place)
                return 0;
        visible_places[count++] = place;
    }
    return count;
}

int double_visible(int there, int first)
{
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    char *copy = list != NULL ? strdup(list) : NULL;

    if (copy != NULL)
        there = visible_listed(copy, there);
    else
        for (int i = 0; i < there; i++)
            visible_places[i] = i + first;
    free(copy);
    return there;
}

int double_place(int device)
{
    return visible_places[device];
}

int double_device(int place)
{
    for (int i = 0; i < double_settings.devices; i++)
        if (visible_places[i] == place)
            return i;
    return -1;
}

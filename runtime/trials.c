/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What became of the transports that were tried before the one that connects,
 * told to the other side, so that both explain the same.  It stands behind the
 * words of the channels' trials: name, zero, words, zero, and so on.
 */
#include "config.h"

#include <string.h>

#include "runtime/channels.h"
#include "runtime/core.h"

/* Channels have their own place. */
static bool trials_is_channel(const char *name)
{
    for (size_t i = 0; tpf_channel_kinds[i] != NULL; i++)
        if (strcmp(tpf_channel_kinds[i]->name, name) == 0)
            return true;
    return false;
}

void tpr_trials_tell(const struct tpr_peer *peer, struct tpr_verdicts *told)
{
    const char *name = NULL, *words;

    for (unsigned i = 0; peer->entry != NULL &&
         (words = tpt_entry_refused(peer->entry, i, &name)) != NULL; i++) {
        size_t first = strlen(name) + 1, second = strlen(words);

        if (second >= TPT_WORDS)
            second = TPT_WORDS - 1;
        if (trials_is_channel(name)
            || first + second + 1 > sizeof(told->words) - told->length)
            continue;
        memcpy(told->words + told->length, name, first);
        memcpy(told->words + told->length + first, words, second);
        told->length += first + second;
        told->words[told->length++] = '\0';
    }
}

void tpr_trials_hear(struct tpr_peer *peer, const char *words, size_t length)
{
    while (length > 0) {
        const char *middle = memchr(words, '\0', length);
        size_t first = middle != NULL ? (size_t)(middle - words) + 1 : length;
        const char *last = memchr(words + first, '\0', length - first);
        char text[TPT_WORDS];

        if (last == NULL)
            return;
        tpr_links_words(text, sizeof(text), words + first,
                        (size_t)(last - words) - first);
        if (text[0] != '\0' && !trials_is_channel(words))
            tpr_peer_tried(peer, TPT_YOURS, words, text);
        length -= (size_t)(last - words) + 1;
        words = last + 1;
    }
}

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * An intrusive, circular, doubly linked list.  A node that is not linked
 * points to itself, so unlinking twice is harmless.
 */
#ifndef TPB_LIST_H
#define TPB_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct tpb_list {
    struct tpb_list *next, *prev;
};

static inline void tpb_list_init(struct tpb_list *node)
{
    node->next = node->prev = node;
}

static inline bool tpb_list_empty(const struct tpb_list *head)
{
    return head->next == head;
}

static inline void tpb_list_append(struct tpb_list *head,
                                   struct tpb_list *node)
{
    node->prev = head->prev;
    node->next = head;
    head->prev->next = node;
    head->prev = node;
}

static inline void tpb_list_unlink(struct tpb_list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    node->next = node->prev = node;
}

/* The first node, unlinked; NULL if there is none. */
static inline struct tpb_list *tpb_list_take(struct tpb_list *head)
{
    struct tpb_list *node = head->next;

    if (node == head)
        return NULL;
    tpb_list_unlink(node);
    return node;
}

/* Steps the nodes in turn, each of which goes to the end, until one has moved:
 * what that called may have changed the list. */
static inline bool tpb_list_turn(struct tpb_list *head,
                                 bool (*step)(struct tpb_list *node))
{
    struct tpb_list *first = NULL, *node;

    while ((node = tpb_list_take(head)) != NULL) {
        tpb_list_append(head, node);
        if (node == first)
            break;
        if (first == NULL)
            first = node;
        if (step(node))
            return true;
    }
    return false;
}

#define TPB_LIST_EACH(node, head) \
    for (struct tpb_list *node = (head)->next, *next_##node = node->next; \
         node != (head); node = next_##node, next_##node = node->next)

#endif

/* list.h - an intrusive ring. A node belongs to at most one list; a zeroed node is in none. */
#ifndef BASE_LIST_H
#define BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct list {
    struct list *next, *prev;
};

#define LIST_OF(node, type, member) ((type *)((char *)(node)-offsetof(type, member)))
#define LIST_EACH(at, head)                                                                        \
    for (struct list *at = (head)->next, *after_ = at->next; at != (head);                         \
         at = after_, after_ = at->next)

static inline void list_init(struct list *head)
{
    head->next = head->prev = head;
}
static inline bool list_empty(const struct list *head)
{
    return head->next == head || !head->next;
}
static inline bool list_linked(const struct list *node)
{
    return node->next != NULL && node->next != node;
}
static inline void list_append(struct list *head, struct list *node)
{
    node->prev = head->prev;
    node->next = head;
    head->prev->next = node;
    head->prev = node;
}
static inline void list_prepend(struct list *head, struct list *node)
{
    list_append(head->next, node);
}
static inline void list_remove(struct list *node)
{
    if (!node->next)
        return;
    node->prev->next = node->next;
    node->next->prev = node->prev;
    node->next = node->prev = NULL;
}

#endif

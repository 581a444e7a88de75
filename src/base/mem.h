/* mem.h - heap memory that is always there: these abort when it is out, so every size a peer
 * controls has a limit before it gets here. Plus ownership by scope. */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include <stddef.h>

void *mem_alloc(size_t size) __attribute__((malloc, alloc_size(1)));
void *mem_zero(size_t size) __attribute__((malloc, alloc_size(1)));
void *mem_grow(void *old, size_t size) __attribute__((alloc_size(2)));
char *mem_dup(const char *text); /* NULL gives NULL */
char *mem_format(const char *format, ...) __attribute__((format(printf, 1, 2)));

void own_mem(void *pointer);
void own_fd(int *fd);

/* OWN(mem) char *path = ...; OWN(fd) int file = ...;  Other rooms define own_<noun>(struct noun
 * **). */
#define OWN(noun) __attribute__((cleanup(own_##noun)))

static inline int fd_take(int *fd)
{
    int taken = *fd;
    *fd = -1;
    return taken;
}

#define TAKE(pointer)                                                                              \
    ({                                                                                             \
        __typeof__(pointer) taken_ = (pointer);                                                    \
        (pointer) = NULL;                                                                          \
        taken_;                                                                                    \
    })

#define COUNT(array) (sizeof(array) / sizeof *(array))

#endif

#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"

void *mem_alloc(size_t size)
{
    void *memory = malloc(size ? size : 1);
    CHECK(memory);
    return memory;
}

void *mem_zero(size_t size)
{
    void *memory = calloc(1, size ? size : 1);
    CHECK(memory);
    return memory;
}

void *mem_grow(void *old, size_t size)
{
    void *memory = realloc(old, size ? size : 1);
    CHECK(memory);
    return memory;
}

char *mem_dup(const char *text)
{
    if (!text)
        return NULL;
    size_t size = strlen(text) + 1;
    return memcpy(mem_alloc(size), text, size);
}

char *mem_format(const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int size = vsnprintf(NULL, 0, format, args);
    va_end(args);
    CHECK(size >= 0);
    char *text = mem_alloc((size_t)size + 1);
    vsnprintf(text, (size_t)size + 1, format, again);
    va_end(again);
    return text;
}

void own_mem(void *pointer)
{
    free(*(void **)pointer);
}

void own_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
}

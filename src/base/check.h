/* check.h - CHECK(): for our own bugs, on in every build. Input from outside never reaches one. */
#ifndef BASE_CHECK_H
#define BASE_CHECK_H

_Noreturn void check_failed(const char *condition, const char *file, int line);

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (__builtin_expect(!(condition), 0))                                                     \
            check_failed(#condition, __FILE__, __LINE__);                                          \
    } while (0)

#endif

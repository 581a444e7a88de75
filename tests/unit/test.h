/* test.h - unit tests: TEST(a_sentence_about_behaviour) { EXPECT(...); }
 *
 * Each test runs in a process of its own with a deadline; a crash, a hang and a failed EXPECT are
 * told apart. SKIP("reason") skips, which is a failure when MUST_WORK=1 is in the environment. */
#ifndef TEST_H
#define TEST_H

#include <stdbool.h>
#include <stddef.h>

struct test {
    const char *name;
    void (*run)(void);
    const char *file;
    int line;
    unsigned seconds_max;
    struct test *next;
};

void test_register(struct test *test);
void test_fail(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
_Noreturn void test_skip(const char *format, ...) __attribute__((format(printf, 1, 2)));

#define TEST(test_name) TEST_WITHIN(test_name, 90)
#define TEST_WITHIN(test_name, seconds)                                                            \
    static void test_name(void);                                                                   \
    static struct test test_row_##test_name = {.name = #test_name,                                 \
                                               .run = test_name,                                   \
                                               .file = __FILE__,                                   \
                                               .line = __LINE__,                                   \
                                               .seconds_max = (seconds)};                          \
    __attribute__((constructor)) static void test_register_##test_name(void)                       \
    {                                                                                              \
        test_register(&test_row_##test_name);                                                      \
    }                                                                                              \
    static void test_name(void)

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            test_fail(__FILE__, __LINE__, "EXPECT(%s)", #condition);                               \
            return;                                                                                \
        }                                                                                          \
    } while (0)
#define EXPECT_INT(actual, expected)                                                               \
    do {                                                                                           \
        long long actual_ = (long long)(actual), expected_ = (long long)(expected);                \
        if (actual_ != expected_) {                                                                \
            test_fail(__FILE__, __LINE__, "%s is %lld, not %lld", #actual, actual_, expected_);    \
            return;                                                                                \
        }                                                                                          \
    } while (0)
#define EXPECT_TEXT(actual, expected)                                                              \
    do {                                                                                           \
        const char *actual_ = (actual), *expected_ = (expected);                                   \
        if (!actual_ || __builtin_strcmp(actual_, expected_) != 0) {                               \
            test_fail(__FILE__, __LINE__, "%s is \"%s\", not \"%s\"", #actual,                     \
                      actual_ ? actual_ : "(null)", expected_);                                    \
            return;                                                                                \
        }                                                                                          \
    } while (0)
#define EXPECT_STR(actual, expected)                                                               \
    do {                                                                                           \
        struct str actual_ = (actual), expected_ = (expected);                                     \
        if (!str_equal(actual_, expected_)) {                                                      \
            test_fail(__FILE__, __LINE__, "%s is \"%.*s\", not \"%.*s\"", #actual,                 \
                      STR_ARGS(actual_), STR_ARGS(expected_));                                     \
            return;                                                                                \
        }                                                                                          \
    } while (0)
#define SKIP(...) test_skip(__VA_ARGS__)

#endif

/* postern-terminus' parts: what a screen shows, what keys send, what an answer means, how a shell
 * in a terminal behaves. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/mem.h"
#include "terminus.h"
#include "test.h"

/* ---------------------------------------------------------------- the screen */

static void expect_screen(unsigned columns, unsigned rows, const char *bytes, const char *expected)
{
    /* Whole, and in the smallest pieces: a sequence may be cut anywhere. */
    for (size_t piece = 1; piece < 100; piece += 98) {
        struct screen *screen = screen_new(columns, rows, 4096);
        struct str rest = str_of(bytes);
        while (rest.size) {
            screen_write(screen, str_upto(rest, piece));
            rest = str_from(rest, str_upto(rest, piece).size);
        }
        OWN(buf) struct buf text = {0};
        screen_look(screen, SCREEN_WHOLE, &text);
        EXPECT_TEXT(buf_text(&text), expected);
        screen_free(screen);
    }
}

TEST(a_screen_shows_what_a_terminal_would_show)
{
    expect_screen(20, 5, "hello\r\nworld", "hello\nworld");
    expect_screen(20, 5, "a\tb\bc\x07", "a       c");
    expect_screen(20, 5, "50%\r100%\r\n\033[31mred\033[0m", "100%\nred");
    expect_screen(20, 5, "\033]0;a title\007x\033]2;b\033\\y\033Pq#0\033\\z", "xyz");
    expect_screen(20, 5, "abc\033[2D\033[K!\033[3;4Hdeep\033[A\033[Eup", "a!\n\nup deep");
    expect_screen(20, 5, "one\r\ntwo\033[2J\033[Hnew", "new");
    expect_screen(20, 5, "abcdef\033[4G\033[2@--\033[1G\033[P", "bc--def");
    expect_screen(20, 3, "1\r\n2\r\n3\r\n4", "2\n3\n4");
    expect_screen(20, 4, "1\r\n2\r\n3\r\n4\033[2;3r\033[3;1H\r\nx\033[r", "1\n3\nx\n4");
    expect_screen(20, 4, "1\r\n2\r\n3\033[2;1H\033[Lin\033[M", "1\n2\n3");
    expect_screen(20, 4, "\033(0lqk\033(B lqk", "┌─┐ lqk");
    expect_screen(20, 4, "\0337abc\0338X\033[sYZ\033[u!", "X!Z");
    expect_screen(20, 4, "\033[?7l12345678901234567890abc\033[?7h", "1234567890123456789c");
    expect_screen(20, 4, "x\033[999999;999999Hy\033[99999999999Dz", "x\n\n\nz                  y");
    expect_screen(20, 4, "\033[1;2;3;4;5;6;7;8;9;10;11;12;13;14;15;16;17;18;19mok", "ok");
    expect_screen(20, 4, "gone\033cnew", "new");
    expect_screen(20, 4, "\033[?25l\033[>c\033[!pok\033[5 q", "ok");
}

TEST(wide_combined_and_broken_characters_keep_their_place)
{
    expect_screen(20, 3, "日本x\033[1;5H!", "日本!");
    expect_screen(20, 3, "日本\033[1;2Hx", " x本");
    expect_screen(20, 3, "e\xcc\x81t\xc3\xa9", "e\xcc\x81t\xc3\xa9");
    expect_screen(20, 3, "a\xff\xc3(b\xe2\x82", "a\xef\xbf\xbd\xef\xbf\xbd(b");
    expect_screen(5, 3, "abcd日", "abcd日");
    expect_screen(20, 3, "🙂.", "🙂.");
}

TEST(a_wrapped_line_is_one_line)
{
    expect_screen(10, 5, "0123456789abcdef\r\nnext", "0123456789abcdef\nnext");
    expect_screen(10, 5, "0123456789\r\nnext", "0123456789\nnext");
}

static void expect_new(struct screen *screen, const char *bytes, const char *expected)
{
    OWN(buf) struct buf text = {0};
    screen_write(screen, str_of(bytes));
    screen_look(screen, SCREEN_NEW, &text);
    EXPECT_TEXT(buf_text(&text), expected);
}

TEST(what_is_new_is_told_once_also_when_it_is_longer_than_the_screen)
{
    struct screen *screen = screen_new(20, 4, 65536);
    expect_new(screen, "$ ", "$ ");
    expect_new(screen, "ls\r\na\r\nb\r\n$ ", "$ ls\na\nb\n$ ");
    expect_new(screen, "", "");
    expect_new(screen, "seq\r\n1\r\n2\r\n3\r\n4\r\n5\r\n6\r\n$ ", "$ seq\n1\n2\n3\n4\n5\n6\n$ ");
    expect_new(screen, "\033[?1049h\033[Hfull screen\033[3;1Hstatus", "full screen\n\nstatus");
    expect_new(screen, "\033[1;1HFULL", "FULL screen\n\nstatus");
    expect_new(screen, "\033[?1049l", "");
    expect_new(screen, "after\r\n$ ", "$ after\n$ ");
    expect_new(screen, "wc\r\n0123456789012345678901234567890123456789 long\r\n$ ",
               "$ wc\n0123456789012345678901234567890123456789 long\n$ ");
    screen_free(screen);
}

TEST(a_history_forgets_its_oldest_lines_and_says_so)
{
    struct screen *screen = screen_new(20, 4, 400);
    OWN(buf) struct buf text = {0}, bytes = {0};
    screen_look(screen, SCREEN_NEW, &text);
    for (int i = 0; i < 1000; i++)
        buf_format(&bytes, "line %d\r\n", i);
    screen_write(screen, buf_str(&bytes));
    buf_clear(&text);
    screen_look(screen, SCREEN_NEW, &text);
    EXPECT(text.size < 700);
    EXPECT(str_starts(buf_str(&text), STR("[... 9")));
    EXPECT(str_find(buf_str(&text), STR("lines left out ...]\nline 9")) > 0);
    EXPECT(str_ends(buf_str(&text), STR("line 998\nline 999\n")) ||
           str_ends(buf_str(&text), STR("line 998\nline 999")));
    screen_free(screen);
}

TEST(a_program_that_asks_where_the_cursor_is_gets_an_answer)
{
    struct screen *screen = screen_new(20, 4, 400);
    screen_write(screen, STR("\r\n  \033[6n\033[c\033[5n"));
    EXPECT_TEXT(buf_text(screen_answers(screen)), "\033[2;3R\033[?6c\033[0n");
    screen_write(screen, STR("\033[?1h"));
    EXPECT(screen_keys_are_application(screen));
    screen_free(screen);
}

TEST(any_bytes_are_survived)
{
    unsigned seed = 7;
    struct screen *screen = screen_new(7, 5, 300);
    for (int round = 0; round < 3000; round++) {
        char bytes[64];
        for (size_t i = 0; i < sizeof bytes; i++) {
            seed = seed * 1103515245 + 12345;
            unsigned pick = seed >> 16;
            static const char *const likely = "\033[;?0123456789ABCDGHJKLMPSTX@rhlsucn\r\n\t日";
            bytes[i] = pick % 3 ? likely[pick % strlen(likely)] : (char)(pick >> 3);
        }
        screen_write(screen, str_make(bytes, sizeof bytes));
        if (round % 10 == 0) {
            OWN(buf) struct buf text = {0};
            screen_look(screen, round % 20 ? SCREEN_NEW : SCREEN_WHOLE, &text);
            EXPECT(text.size < 100000);
        }
    }
    screen_free(screen);
}

/* ---------------------------------------------------------------- keys */

TEST(text_is_typed_as_it_is_and_names_of_keys_are_keys)
{
    static const struct {
        const char *keystrokes;
        bool application;
        const char *bytes;
        size_t size;
    } rows[] = {
        {"ls -la\n", false, "ls -la\r", 7},
        {"a\r\nb", false, "a\rb", 3},
        {"C-c", false, "\003", 1},
        {"c-c", false, "c-c", 3},
        {"C-d\n", false, "C-d\r", 4},
        {"^C", false, "\003", 1},
        {"C-Space", false, "\0", 1},
        {"C-[", false, "\033", 1},
        {"M-f", false, "\033f", 2},
        {"Up Up Enter", false, "\033[A\033[A\r", 7},
        {"Up", true, "\033OA", 3},
        {"Up the hill", false, "Up the hill", 11},
        {"Escape", false, "\033", 1},
        {"F5", false, "\033[15~", 5},
        {":wq\n", false, ":wq\r", 4},
        {"q", false, "q", 1},
        {"", false, "", 0},
        {"grün\n", false, "grün\r", 6},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        OWN(buf) struct buf bytes = {0};
        keys_encode(str_of(rows[i].keystrokes), rows[i].application, &bytes);
        if (!str_equal(buf_str(&bytes), str_make(rows[i].bytes, rows[i].size)))
            test_fail(__FILE__, __LINE__, "'%s' gave %zu bytes", rows[i].keystrokes, bytes.size);
    }
}

/* ---------------------------------------------------------------- answers */

#define WHOLE                                                                                      \
    "{\"analysis\":\"a\",\"plan\":\"p\",\"commands\":[{\"keystrokes\":\"ls\\n\",\"duration\":"     \
    "0.5}],\"task_complete\":false}"

TEST(an_answer_is_read_also_with_words_and_fences_around_it)
{
    static const struct {
        const char *text, *warning;
    } rows[] = {
        {WHOLE, NULL},
        {"```json\n" WHOLE "\n```", NULL},
        {"Sure! Here it is:\n" WHOLE, "before"},
        {WHOLE "\nThat should do {it}.", "after"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        OWN(arena) struct arena arena = {0};
        struct reply reply;
        struct err err = {0};
        EXPECT_INT(reply_read(str_of(rows[i].text), &arena, &reply, &err), 0);
        EXPECT_INT(reply.command_count, 1);
        EXPECT(str_is(reply.commands[0].keystrokes, "ls\n"));
        EXPECT(reply.commands[0].seconds == 0.5);
        EXPECT(str_is(reply.analysis, "a") && str_is(reply.plan, "p") && !reply.complete);
        if (rows[i].warning)
            EXPECT(strstr(buf_text(&reply.warnings), rows[i].warning) != NULL);
        else
            EXPECT_INT(reply.warnings.size, 0);
        buf_deinit(&reply.warnings);
    }
}

TEST(what_can_be_understood_is_taken_with_a_warning)
{
    static const struct {
        const char *text, *warning;
        size_t commands;
        bool complete;
    } rows[] = {
        {"{\"commands\":[],\"task_complete\":true}", "analysis", 0, true},
        {"{\"analysis\":\"\",\"plan\":\"\",\"commands\":[],\"task_complete\":\"true\"}", NULL, 0,
         true},
        {"{\"analysis\":\"\",\"plan\":\"\",\"commands\":[],\"task_complete\":1}", "task_complete",
         0, false},
        {"{\"analysis\":\"x\ny\",\"plan\":\"\",\"commands\":[]}", "escaped", 0, false},
        {"{\"analysis\":\"\",\"plan\":\"\",\"commands\":[],\"mood\":1}", "mood", 0, false},
        {"{\"analysis\":\"\",\"plan\":\"\",\"commands\":[{\"keystrokes\":\"x\",\"duration\":\"1\"}]"
         "}",
         "duration", 1, false},
        {"{\"analysis\":\"\",\"plan\":\"\",\"commands\":[{\"keystrokes\":\"cd a\"},{\"keystrokes\":"
         "\"ls\\n\"}]}",
         "newline", 2, false},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        OWN(arena) struct arena arena = {0};
        struct reply reply;
        struct err err = {0};
        EXPECT_INT(reply_read(str_of(rows[i].text), &arena, &reply, &err), 0);
        EXPECT_INT(reply.command_count, rows[i].commands);
        EXPECT_INT(reply.complete, rows[i].complete);
        const char *warnings = buf_text(&reply.warnings);
        if (rows[i].warning ? !strstr(warnings, rows[i].warning) : reply.warnings.size > 0)
            test_fail(__FILE__, __LINE__, "row %zu warns: %s", i, warnings);
        buf_deinit(&reply.warnings);
    }
}

TEST(what_cannot_be_understood_is_an_error_in_words_for_the_model)
{
    static const struct {
        const char *text, *why;
    } rows[] = {
        {"I am done.", "no JSON object"},
        {"", "no JSON object"},
        {"{\"analysis\":\"a\",\"commands\":[{\"keystrokes\":\"rm -rf /tmp/x", "not closed"},
        {"{\"analysis\":\"a\",,\"commands\":[]}", "not valid JSON"},
        {"{\"analysis\":\"a\",\"plan\":\"\"}", "\"commands\""},
        {"{\"commands\":\"ls\"}", "\"commands\""},
        {"{\"commands\":[\"ls\"]}", "command 1"},
        {"{\"commands\":[{\"keystrokes\":\"a\"},{\"keystroke\":\"ls\"}]}", "command 2"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        OWN(arena) struct arena arena = {0};
        struct reply reply;
        struct err err = {0};
        EXPECT_INT(reply_read(str_of(rows[i].text), &arena, &reply, &err), -1);
        if (!strstr(err.text, rows[i].why))
            test_fail(__FILE__, __LINE__, "row %zu says: %s", i, err.text);
        buf_deinit(&reply.warnings);
    }
}

/* ---------------------------------------------------------------- a shell in a terminal */

#define LONG_MS 60000

static struct terminal *open_terminal(void)
{
    struct err err = {0};
    struct terminal_options options = {.columns = 100, .rows = 20, .history_bytes_max = 1 << 20};
    (void)setenv("PS1", "prompt> ", 1);
    struct terminal *terminal = terminal_open(&options, &err);
    if (!terminal)
        test_fail(__FILE__, __LINE__, "%s", err.text);
    return terminal;
}

static bool shows(struct terminal *terminal, const char *text)
{
    OWN(buf) struct buf seen = {0};
    screen_look(terminal_screen(terminal), SCREEN_WHOLE, &seen);
    return strstr(buf_text(&seen), text) != NULL;
}

static void type(struct terminal *terminal, const char *keystrokes, uint64_t wait_ms)
{
    terminal_type(terminal, str_of(keystrokes), wait_ms, NEVER, true);
}

TEST(a_command_that_is_done_is_not_waited_for_and_one_that_runs_is)
{
    struct terminal *terminal = open_terminal();
    uint64_t start = clock_mono_ms();
    type(terminal, "echo $((6*7)) && sleep 0.3 && echo slept-$(sleep 0.4; echo well)\n", LONG_MS);
    EXPECT(shows(terminal, "\n42\n"));
    EXPECT(shows(terminal, "\nslept-well\n"));
    EXPECT(clock_mono_ms() - start < LONG_MS);
    /* Another program has the word: the time is waited for, and the keys go to it. */
    type(terminal, "cat\n", 200);
    type(terminal, "to the cat\n", 300);
    while (!shows(terminal, "to the cat\nto the cat")) /* the test's own deadline bounds it */
        type(terminal, "", 100);
    type(terminal, "C-d", LONG_MS);
    type(terminal, "sleep 1000\n", 300);
    type(terminal, "C-c", LONG_MS);
    type(terminal, "echo code $?\n", LONG_MS);
    EXPECT(shows(terminal, "code 130"));
    terminal_close(terminal);
}

TEST(a_long_input_arrives_whole_and_an_endless_output_does_not_hold_us)
{
    struct terminal *terminal = open_terminal();
    char path[] = "/tmp/postern-terminus-XXXXXX";
    int fd = mkstemp(path);
    EXPECT(fd >= 0);
    OWN(buf) struct buf keys = {0};
    buf_format(&keys, "cat > %s <<'EOF'\n", path);
    for (int i = 0; i < 600; i++)
        buf_format(&keys, "line %d of a file that is typed in one go\n", i);
    buf_format(&keys, "EOF\n");
    terminal_type(terminal, buf_str(&keys), LONG_MS, NEVER, true);
    buf_clear(&keys);
    buf_format(&keys, "wc -l < %s; tail -n 1 %s\n", path, path);
    terminal_type(terminal, buf_str(&keys), LONG_MS, NEVER, true);
    EXPECT(shows(terminal, "\n600\nline 599 of a file"));
    type(terminal, "yes\n", 300);
    type(terminal, "C-c", LONG_MS);
    type(terminal, "clear; echo still there\n", LONG_MS);
    EXPECT(shows(terminal, "still there\n"));
    close(fd);
    unlink(path);
    terminal_close(terminal);
}

TEST(a_shell_that_ends_is_replaced)
{
    struct terminal *terminal = open_terminal();
    int code;
    EXPECT(!terminal_was_restarted(terminal, &code));
    type(terminal, "exit 7\n", LONG_MS);
    EXPECT(terminal_was_restarted(terminal, &code));
    EXPECT_INT(code, 7);
    EXPECT(!terminal_was_restarted(terminal, &code));
    type(terminal, "echo new $((1+1))\n", LONG_MS);
    EXPECT(shows(terminal, "new 2"));
    terminal_close(terminal);
}

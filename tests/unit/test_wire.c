#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "test.h"
#include "wire/wire.h"

/* ---------------------------------------------------------------- frames */
TEST(the_example_in_the_documentation_is_what_is_sent)
{
    OWN(buf) struct buf out = {0};
    const char *args[] = {"echo", "hi", NULL};
    const char *env[] = {"A=1", NULL};
    struct wire_exec exec = {.timeout_ms = 60000};
    EXPECT(wire_exec_add(&out, 1, &exec, args, env, NULL) == 0);
    static const char bytes[] = "\x45\0\0\0"           /* length 69 */
                                "\x01\0\0\0"           /* stream 1 */
                                "\x10\0\0\0"           /* exec, no flags, reserved */
                                "\0\0\0\0"             /* exec flags */
                                "\0\0\0\0"             /* rows, columns */
                                "\x60\xea\0\0"         /* timeout 60000 ms */
                                "\0\0\0\0"             /* grace: default */
                                "\0\0\0\0\0\0\0\0"     /* output: no limit */
                                "\0\0\0\0"             /* cwd: default */
                                "\0\0\0\0"             /* user: default */
                                "\x02\0\0\0\x0e\0\0\0" /* two arguments, 14 bytes */
                                "\x04\0\0\0echo"
                                "\x02\0\0\0hi"
                                "\x01\0\0\0\x07\0\0\0" /* one variable, 7 bytes */
                                "\x03\0\0\0A=1";
    EXPECT_STR(buf_str(&out), str_make(bytes, sizeof bytes - 1));
}

TEST(frames_come_out_whole_however_the_bytes_arrive)
{
    OWN(buf) struct buf stream = {0};
    wire_hello_add(&stream, &(struct wire_hello){.version = 1, .window = 1000});
    wire_frame_add(&stream, 3, WIRE_DATA, WIRE_CHANNEL_ERR, STR("hello"));
    wire_credit_add(&stream, 3, 77);
    wire_frame_add(&stream, 3, WIRE_END, 0, STR_NONE);
    for (size_t step = 1; step <= stream.size; step++) {
        struct wire_decoder decoder = {.wipe = step % 2};
        struct wire_frame frame;
        struct err err = {0};
        int count = 0;
        for (size_t at = 0; at < stream.size; at += step) {
            wire_decoder_feed(&decoder, str_upto(str_from(buf_str(&stream), at), step));
            int result;
            while ((result = wire_decoder_next(&decoder, &frame, &err)) > 0) {
                count++;
                if (count == 2) {
                    EXPECT_INT(frame.flags, WIRE_CHANNEL_ERR);
                    EXPECT_STR(frame.payload, STR("hello"));
                }
                uint32_t credit;
                if (count == 3)
                    EXPECT(wire_credit_read(frame.payload, &credit, &err) == 0 && credit == 77);
            }
            EXPECT_INT(result, 0);
        }
        EXPECT_INT(count, 4);
        EXPECT_INT(frame.type, WIRE_END);
        wire_decoder_deinit(&decoder);
    }
}

TEST(a_message_of_several_frames_is_put_together_and_wiped)
{
    OWN(buf) struct buf stream = {0};
    OWN(mem) char *big = mem_zero(131072);
    memset(big, 'x', 131070);
    const char *args[] = {"cmd", big, big, big, NULL};
    struct wire_exec exec = {0};
    struct err err = {0};
    EXPECT(wire_exec_add(&stream, 5, &exec, args, NULL, &err) == 0);
    wire_frame_add(&stream, 5, WIRE_KILL, 0, STR_NONE);
    struct wire_decoder decoder = {.wipe = true};
    struct wire_frame frame;
    wire_decoder_feed(&decoder, buf_str(&stream));
    EXPECT_INT(wire_decoder_next(&decoder, &frame, &err), 1);
    EXPECT(frame.payload.size > 3 * 131070);
    EXPECT(wire_exec_read(frame.payload, &exec, &err) == 0);
    EXPECT_INT(exec.args.count, 4);
    struct str item;
    EXPECT(wire_list_next(&exec.args, &item) && str_is(item, "cmd"));
    EXPECT(wire_list_next(&exec.args, &item) && item.size == 131070);
    EXPECT_INT(wire_decoder_next(&decoder, &frame, &err), 1);
    EXPECT_INT(frame.type, WIRE_KILL);
    EXPECT(!memchr(decoder.in.start, 'x', decoder.in.capacity - WIRE_HEADER_SIZE));
    wire_decoder_deinit(&decoder);
}

static int next_of(const char *bytes, size_t size)
{
    struct wire_decoder decoder = {0};
    struct wire_frame frame;
    wire_decoder_feed(&decoder, str_make(bytes, size));
    int result = wire_decoder_next(&decoder, &frame, NULL);
    if (result < 0 && wire_decoder_next(&decoder, &frame, NULL) != -1)
        result = 99; /* broken must stay broken */
    wire_decoder_deinit(&decoder);
    return result;
}

TEST(frames_that_cannot_be_are_refused_by_their_header)
{
#define REFUSED(bytes) EXPECT_INT(next_of(bytes, sizeof bytes - 1), -1)
    EXPECT_INT(next_of("\0\0\0\0\x01\0\0\0\x22\0\0\0", 12), 1);
    REFUSED("\x01\0\x01\0\x01\0\0\0\x20\0\0\0"); /* longer than a frame may be */
    REFUSED("\0\0\0\0\x01\0\0\0\x7f\0\0\0");     /* no such type */
    REFUSED("\0\0\0\0\x01\0\0\0\0\0\0\0");       /* type 0 */
    REFUSED("\0\0\0\0\x01\0\0\0\x22\0\x01\0");   /* reserved */
    REFUSED("\0\0\0\0\x01\0\0\0\x22\x01\0\0");   /* flags of an END */
    REFUSED("\x01\0\0\0\x01\0\0\0\x20\x03\0\0"); /* channel 3 */
    REFUSED("\x01\0\0\0\x01\0\0\0\x20\x80\0\0"); /* DATA is never continued */
    REFUSED("\0\0\0\0\0\0\0\0\x22\0\0\0");       /* END of stream 0 */
    REFUSED("\x08\0\0\0\x01\0\0\0\x02\0\0\0");   /* PING of stream 1 */
    REFUSED("\0\0\0\0\x01\0\0\0\x20\0\0\0");     /* DATA without data */
    REFUSED("\x05\0\0\0\x01\0\0\0\x21\0\0\0");   /* CREDIT of five bytes */
    REFUSED("\0\0\0\0\x01\0\0\0\x10\x80\0\0");   /* an empty piece */
    /* Another frame in the middle of a message. */
    REFUSED("\x01\0\0\0\x01\0\0\0\x10\x80\0\0x\0\0\0\0\x01\0\0\0\x25\0\0\0");
}

TEST(a_message_longer_than_its_maximum_is_refused_before_it_is_kept)
{
    struct wire_decoder decoder = {0};
    struct wire_frame frame;
    OWN(buf) struct buf one = {0};
    OWN(mem) char *zeros = mem_zero(2 * WIRE_PAYLOAD_MAX);
    wire_frame_add(&one, 1, WIRE_EXEC, 0, str_make(zeros, WIRE_PAYLOAD_MAX + 1));
    int result = 0;
    for (unsigned i = 0; i < 1000 && result == 0; i++) {
        wire_decoder_feed(&decoder, str_upto(buf_str(&one), WIRE_HEADER_SIZE + WIRE_PAYLOAD_MAX));
        result = wire_decoder_next(&decoder, &frame, NULL);
        EXPECT(decoder.message.size <= WIRE_MESSAGE_MAX);
    }
    EXPECT_INT(result, -1);
    wire_decoder_deinit(&decoder);
}

TEST(a_hello_is_found_behind_a_banner)
{
    OWN(buf) struct buf bytes = {0};
    buf_str_append(&bytes, STR("Last login: yesterday\nPOSTERN\n"));
    EXPECT_INT(wire_hello_find(buf_str(&bytes)), -1);
    size_t at = bytes.size;
    wire_hello_add(&bytes, &(struct wire_hello){.version = 1, .window = 1});
    EXPECT_INT(wire_hello_find(buf_str(&bytes)), at);
}

/* ---------------------------------------------------------------- credit */
TEST(a_sender_stops_at_its_window_and_goes_on_when_it_is_granted_more)
{
    struct wire_credit sender, receiver;
    wire_credit_init(&sender, 1000);
    wire_credit_init(&receiver, 1000);
    wire_credit_sent(&sender, 1000);
    EXPECT_INT(sender.available, 0);
    EXPECT(wire_credit_received(&receiver, 1000));
    EXPECT(!wire_credit_received(&receiver, 1));
    EXPECT_INT(wire_credit_consumed(&receiver, 249), 0); /* not worth a frame yet */
    EXPECT_INT(wire_credit_consumed(&receiver, 1), 250);
    EXPECT(wire_credit_granted(&sender, 250));
    EXPECT_INT(sender.available, 250);
    EXPECT(wire_credit_received(&receiver, 250));
    EXPECT(!wire_credit_granted(&sender, 0));
    EXPECT(!wire_credit_granted(&sender, WIRE_WINDOW_MAX));
    EXPECT(!wire_credit_granted(&sender, UINT32_MAX));
}

/* ---------------------------------------------------------------- messages */
/* Every shorter version of a message, and every longer one, is refused. */
#define ONLY_WHOLE(payload, read, message)                                                         \
    do {                                                                                           \
        struct str whole_ = (payload);                                                             \
        EXPECT(read(whole_, message, NULL) == 0);                                                  \
        for (size_t size_ = 0; size_ < whole_.size; size_++)                                       \
            EXPECT(read(str_upto(whole_, size_), message, NULL) < 0);                              \
        OWN(buf) struct buf longer_ = {0};                                                         \
        buf_str_append(&longer_, whole_);                                                          \
        buf_byte(&longer_, 0);                                                                     \
        EXPECT(read(buf_str(&longer_), message, NULL) < 0);                                        \
        EXPECT(read(whole_, message, NULL) == 0);                                                  \
    } while (0)

static struct str payload_of(const struct buf *frame)
{
    return str_from(buf_str(frame), WIRE_HEADER_SIZE);
}

TEST(messages_make_the_round_trip_and_only_whole)
{
    OWN(buf) struct buf out = {0};
    struct err err = {0};

    wire_hello_add(&out, &(struct wire_hello){1, 13131, 3, WIRE_WINDOW, 42});
    struct wire_hello hello;
    ONLY_WHOLE(payload_of(&out), wire_hello_read, &hello);
    EXPECT(hello.inlet_port == 13131 && hello.features == 3 && hello.pid == 42);

    buf_clear(&out);
    const char *args[] = {"a", "", "b c", NULL}, *env[] = {"X=", NULL};
    struct wire_exec exec = {.flags = WIRE_EXEC_PTY | WIRE_EXEC_STDIN,
                             .rows = 24,
                             .columns = 80,
                             .timeout_ms = 1,
                             .grace_ms = 2,
                             .output_bytes_max = 1ull << 40,
                             .cwd = STR("/x"),
                             .user = STR("u")};
    EXPECT(wire_exec_add(&out, 1, &exec, args, env, &err) == 0);
    ONLY_WHOLE(payload_of(&out), wire_exec_read, &exec);
    EXPECT(exec.args.count == 3 && exec.env.count == 1 && exec.output_bytes_max == 1ull << 40);
    EXPECT(str_is(exec.cwd, "/x") && exec.rows == 24 && exec.columns == 80);

    buf_clear(&out);
    wire_exit_add(&out, 1,
                  &(struct wire_exit){.end = WIRE_END_SIGNALED,
                                      .signal_number = 9,
                                      .code = -1,
                                      .wall_us = 1ull << 50,
                                      .text = STR("so")});
    struct wire_exit exit;
    ONLY_WHOLE(payload_of(&out), wire_exit_read, &exit);
    EXPECT(exit.code == -1 && exit.wall_us == 1ull << 50 && str_is(exit.text, "so"));

    buf_clear(&out);
    struct wire_file file = {.mode = 0755, .user = STR("u"), .path = STR("/a\n\xff")};
    EXPECT(wire_file_add(&out, 1, WIRE_PUT, &file, &err) == 0);
    ONLY_WHOLE(payload_of(&out), wire_file_read, &file);
    EXPECT(str_is(file.path, "/a\n\xff") && file.mode == 0755);

    buf_clear(&out);
    wire_done_add(&out, 1, &(struct wire_done){.error = ENOENT, .count = 5, .text = STR("no")});
    struct wire_done done;
    ONLY_WHOLE(payload_of(&out), wire_done_read, &done);
    EXPECT(done.error == ENOENT && done.count == 5);

    buf_clear(&out);
    wire_stat_add(&out, 1, &(struct wire_stat){.kind = 2, .mode = 0700, .size = 9, .mtime_s = -5});
    struct wire_stat stat;
    ONLY_WHOLE(payload_of(&out), wire_stat_read, &stat);
    EXPECT(stat.kind == 2 && stat.mtime_s == -5);

    buf_clear(&out);
    uint16_t rows, columns;
    wire_resize_add(&out, 1, 300, 400);
    EXPECT(wire_resize_read(payload_of(&out), &rows, &columns, &err) == 0);
    EXPECT(rows == 300 && columns == 400);
    uint8_t number;
    EXPECT(wire_signal_read(STR("\x0f"), &number, &err) == 0 && number == 15);
    EXPECT(wire_signal_read(STR("\x41"), &number, &err) < 0);
    EXPECT(wire_signal_read(str_make("", 1), &number, &err) < 0);
}

TEST(a_string_with_a_nul_and_a_list_that_lies_are_refused)
{
    OWN(buf) struct buf out = {0};
    const char *args[] = {"abcd", NULL};
    struct wire_exec exec = {0};
    EXPECT(wire_exec_add(&out, 1, &exec, args, NULL, NULL) == 0);
    struct str payload = payload_of(&out);
    EXPECT(wire_exec_read(payload, &exec, NULL) == 0);
    char *bytes = (char *)payload.data;
    char *at = memmem(bytes, payload.size, "abcd", 4);
    at[1] = '\0';
    EXPECT(wire_exec_read(payload, &exec, NULL) < 0);
    at[1] = 'b';
    at[-12] = 2; /* two strings where there is one */
    EXPECT(wire_exec_read(payload, &exec, NULL) < 0);
    at[-12] = 0;
    EXPECT(wire_exec_read(payload, &exec, NULL) < 0);
    at[-12] = 1;
    at[-4] = 5; /* longer than the list */
    EXPECT(wire_exec_read(payload, &exec, NULL) < 0);
}

TEST(what_cannot_be_sent_is_named)
{
    OWN(buf) struct buf out = {0};
    struct err err = {0};
    struct wire_exec exec = {0};
    const char *none[] = {NULL}, *bad_env[] = {"OK=1", "novalue", NULL}, *args[] = {"x", NULL};
    EXPECT(wire_exec_add(&out, 1, &exec, none, NULL, &err) < 0);
    EXPECT_INT(err.kind, ERR_INPUT);
    EXPECT(wire_exec_add(&out, 1, &exec, args, bad_env, &err) < 0);
    EXPECT_TEXT(err.text, "environment entry 1 is not NAME=value");
    EXPECT(wire_file_add(&out, 1, WIRE_GET, &(struct wire_file){0}, &err) < 0);
    EXPECT_INT(out.size, 0);
}

TEST(a_looked_up_name_has_only_the_letters_of_names)
{
    struct str name;
    EXPECT(wire_lookup_read(STR("api.example-1.com"), &name, NULL) == 0);
    EXPECT(wire_lookup_read(STR(""), &name, NULL) < 0);
    EXPECT(wire_lookup_read(STR("a\nb"), &name, NULL) < 0);
    EXPECT(wire_lookup_read(STR("a\x1b[31m"), &name, NULL) < 0);
}

/* ---------------------------------------------------------------- trees */
TEST(paths_that_leave_the_tree_are_refused)
{
    EXPECT(wire_path_is_inside(STR("a")));
    EXPECT(wire_path_is_inside(STR("a/..b/-rf/\xff\n")));
    EXPECT(!wire_path_is_inside(STR("")));
    EXPECT(!wire_path_is_inside(STR("/a")));
    EXPECT(!wire_path_is_inside(STR("a/")));
    EXPECT(!wire_path_is_inside(STR("a//b")));
    EXPECT(!wire_path_is_inside(STR("..")));
    EXPECT(!wire_path_is_inside(STR("a/../b")));
    EXPECT(!wire_path_is_inside(STR("./a")));
    EXPECT(!wire_path_is_inside(str_make("a\0b", 3)));
}

struct scratch {
    char path[64];
    int dir;
};

static void scratch_open(struct scratch *scratch)
{
    strcpy(scratch->path, "/tmp/postern-wire-XXXXXX");
    if (!mkdtemp(scratch->path))
        abort();
    scratch->dir = open(scratch->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static void scratch_close(struct scratch *scratch)
{
    close(scratch->dir);
    file_remove_tree(scratch->path, NULL);
}

static int write_records(int dir, const struct wire_entry *entries, size_t count, struct err *err)
{
    OWN(buf) struct buf out = {0};
    for (size_t i = 0; i < count; i++) {
        wire_entry_add(&out, &entries[i]);
        for (uint64_t j = 0; j < entries[i].size; j++)
            buf_byte(&out, 'x');
    }
    struct wire_tree_limits limits = {0};
    struct wire_tree_writer *writer = wire_tree_writer_new(dir, &limits, err);
    int result = 0;
    for (size_t i = 0; i < out.size && result == 0; i++)
        result = wire_tree_write(writer, str_make(out.data + i, 1), err);
    if (result == 0)
        result = wire_tree_writer_end(writer, err);
    wire_tree_writer_free(writer);
    return result;
}

TEST(a_tree_that_plants_a_link_cannot_write_through_it)
{
    struct scratch outside, inside;
    struct err err = {0};
    scratch_open(&outside);
    scratch_open(&inside);
    struct wire_entry entries[] = {
        {.kind = WIRE_ENTRY_LINK, .path = STR("a"), .link = str_of(outside.path)},
        {.kind = WIRE_ENTRY_FILE, .mode = 0644, .size = 1, .path = STR("a/file")},
        {.kind = WIRE_ENTRY_END},
    };
    EXPECT(write_records(inside.dir, entries, 3, &err) < 0);
    EXPECT(faccessat(outside.dir, "file", F_OK, 0) < 0);
    /* The same through ENTER: a link is not a directory. */
    entries[1] = (struct wire_entry){.kind = WIRE_ENTRY_ENTER, .path = STR("a")};
    EXPECT(write_records(inside.dir, entries, 3, &err) < 0);
    scratch_close(&outside);
    scratch_close(&inside);
}

TEST(a_link_that_stands_where_a_file_goes_is_replaced_not_followed)
{
    struct scratch outside, inside;
    struct err err = {0};
    struct stat stat;
    scratch_open(&outside);
    scratch_open(&inside);
    OWN(mem) char *target = mem_format("%s/target", outside.path);
    EXPECT(symlinkat(target, inside.dir, "file") == 0);
    struct wire_entry entries[] = {
        {.kind = WIRE_ENTRY_FILE, .mode = 06755, .size = 3, .path = STR("file")},
        {.kind = WIRE_ENTRY_END},
    };
    EXPECT(write_records(inside.dir, entries, 2, &err) == 0);
    EXPECT(!file_exists(target));
    EXPECT(fstatat(inside.dir, "file", &stat, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(stat.st_mode));
    EXPECT_INT(stat.st_mode & 07777, 0755);
    EXPECT_INT(stat.st_size, 3);
    scratch_close(&outside);
    scratch_close(&inside);
}

TEST(a_tree_that_ends_in_the_middle_or_goes_on_after_its_end_is_refused)
{
    struct scratch inside;
    struct err err = {0};
    scratch_open(&inside);
    struct wire_entry entries[] = {
        {.kind = WIRE_ENTRY_END},
        {.kind = WIRE_ENTRY_FILE, .path = STR("late")},
    };
    EXPECT(write_records(inside.dir, entries, 2, &err) < 0);
    EXPECT_INT(err.kind, ERR_PROTOCOL);
    struct wire_entry half = {.kind = WIRE_ENTRY_FILE, .path = STR("half")};
    EXPECT(write_records(inside.dir, &half, 1, &err) < 0);
    EXPECT_TEXT(err.text, "the tree ended in the middle");
    scratch_close(&inside);
}

TEST(a_tree_is_read_in_slices_and_written_the_same)
{
    struct scratch from, to;
    struct err err = {0};
    scratch_open(&from);
    scratch_open(&to);
    EXPECT(mkdirat(from.dir, "d", 0750) == 0);
    OWN(mem) char *file = mem_format("%s/d/f", from.path);
    EXPECT(file_write(file, STR("content"), 0640, false, &err) == 0);
    EXPECT(symlinkat("f", from.dir, "d/l") == 0);
    EXPECT(fchmodat(from.dir, "d", 0550, 0) == 0);
    struct wire_tree_reader *reader = wire_tree_reader_new(from.dir, &err);
    struct wire_tree_limits limits = {0};
    struct wire_tree_writer *writer = wire_tree_writer_new(to.dir, &limits, &err);
    OWN(buf) struct buf slice = {0};
    int more;
    do {
        buf_clear(&slice);
        more = wire_tree_read(reader, &slice, 1, &err);
        EXPECT(more >= 0);
        EXPECT(wire_tree_write(writer, buf_str(&slice), &err) == 0);
    } while (more);
    EXPECT(wire_tree_writer_end(writer, &err) == 0);
    EXPECT_INT(wire_tree_writer_entries(writer), 3);
    wire_tree_reader_free(reader);
    wire_tree_writer_free(writer);
    OWN(mem) char *back = mem_format("%s/d/f", to.path);
    OWN(buf) struct buf content = {0};
    EXPECT(file_read(back, 100, &content, &err) == 0);
    EXPECT_STR(buf_str(&content), STR("content"));
    struct stat stat;
    EXPECT(fstatat(to.dir, "d", &stat, 0) == 0);
    EXPECT_INT(stat.st_mode & 07777, 0550);
    scratch_close(&from);
    scratch_close(&to);
}

/* ---------------------------------------------------------------- kept commands */
TEST(a_list_of_kept_commands_comes_back_as_it_was)
{
    struct wire_kept kept[2] = {
        {.stream = 3, .flags = WIRE_KEPT_OVER, .from = 1u << 20, .to = (1u << 20) + 77, .input = 5},
        {.stream = 9, .number = 41, .input_room = WIRE_WINDOW},
    };
    struct wire_kept back[WIRE_KEPT_MAX];
    OWN(buf) struct buf out = {0};
    struct wire_decoder decoder = {0};
    struct wire_frame frame;
    size_t count = 0;
    wire_kept_add(&out, kept, 2);
    wire_kept_add(&out, NULL, 0);
    wire_attach_add(&out, 9, 0x123456789abcdefull);
    wire_decoder_feed(&decoder, buf_str(&out));
    EXPECT_INT(wire_decoder_next(&decoder, &frame, NULL), 1);
    EXPECT_INT(wire_kept_read(frame.payload, back, &count, NULL), 0);
    EXPECT_INT(count, 2);
    EXPECT(back[0].stream == 3 && back[0].flags == WIRE_KEPT_OVER && back[0].from == 1u << 20 &&
           back[0].to == (1u << 20) + 77 && back[0].input == 5 && !back[0].input_room);
    EXPECT(back[1].stream == 9 && back[1].number == 41 && back[1].input_room == WIRE_WINDOW);
    EXPECT_INT(wire_decoder_next(&decoder, &frame, NULL), 1);
    EXPECT(wire_kept_read(frame.payload, back, &count, NULL) == 0 && count == 0);
    uint64_t position;
    EXPECT_INT(wire_decoder_next(&decoder, &frame, NULL), 1);
    EXPECT_INT(wire_attach_read(frame.payload, &position, NULL), 0);
    EXPECT(position == 0x123456789abcdefull && frame.stream == 9);
    wire_decoder_deinit(&decoder);
}

TEST(a_list_of_kept_commands_that_cannot_be_is_refused)
{
    struct wire_kept back[WIRE_KEPT_MAX];
    struct wire_kept wrong[][2] = {
        {{.stream = 2}, {.stream = 3, .number = 1}}, /* not the host's number */
        {{.stream = 3}, {.stream = 3, .number = 1}}, /* twice */
        {{.stream = 3, .number = 1}, {.stream = 5, .number = 1}},
        {{.stream = 3, .from = 2, .to = 1}, {.stream = 5, .number = 1}}, /* ends before it begins */
        {{.stream = 3, .to = WIRE_WINDOW + 1},
         {.stream = 5, .number = 1}}, /* more than can be kept */
        {{.stream = 3, .flags = 4}, {.stream = 5, .number = 1}},
        {{.stream = 3, .input_room = WIRE_WINDOW + 1}, {.stream = 5, .number = 1}},
    };
    for (size_t i = 0; i < COUNT(wrong); i++) {
        OWN(buf) struct buf out = {0};
        size_t count;
        wire_kept_add(&out, wrong[i], 2);
        struct str payload = str_from(buf_str(&out), WIRE_HEADER_SIZE);
        EXPECT_INT(wire_kept_read(payload, back, &count, NULL), -1);
        EXPECT_INT(wire_kept_read(str_upto(payload, payload.size - 1), back, &count, NULL), -1);
    }
}

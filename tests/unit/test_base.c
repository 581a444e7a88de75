#include <stdio.h>
#include <unistd.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/id.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/pile.h"
#include "base/rope.h"
#include "base/text.h"
#include "test.h"

TEST(an_error_is_wrapped_from_the_inside_out)
{
    struct err err = {0};
    errno = ENOENT;
    EXPECT_INT(err_errno(&err, "root '%s'", "/x"), -1);
    err_wrap(&err, "opening a %s sandbox", "local");
    EXPECT_TEXT(err.text, "opening a local sandbox: root '/x': No such file or directory");
    EXPECT_INT(err.kind, ERR_NOT_FOUND);
    EXPECT_INT(err_meaning(err.kind)->http_status, 404);
}

TEST(a_buffer_keeps_its_bytes_while_it_grows_and_is_consumed)
{
    OWN(buf) struct buf buf = {0};
    for (int i = 0; i < 10000; i++) {
        buf_format(&buf, "%05d", i);
        if (i % 3 == 2)
            buf_consume(&buf, 5);
    }
    EXPECT_INT(buf.size, (10000 - 3333) * 5);
    EXPECT_STR(str_upto(buf_str(&buf), 5), STR("03333"));
}

TEST(a_time_is_written_as_the_calendar_says)
{
    for (uint64_t seconds = 0; seconds < 253402300799u; seconds += 86399 * 5 + 1) {
        char text[32], right[32];
        time_t when = (time_t)seconds;
        struct tm parts;
        gmtime_r(&when, &parts);
        strftime(right, sizeof right, "%Y-%m-%dT%H:%M:%S.007Z", &parts);
        clock_format(seconds * 1000 + 7, text, sizeof text);
        EXPECT_TEXT(text, right);
    }
    char cut[11];
    clock_format(951782400000u, cut, sizeof cut);
    EXPECT_TEXT(cut, "2000-02-29");
}

static size_t let_go;

static void count_release(void *owner)
{
    (void)owner;
    let_go++;
}

/* A rope beside a buffer with the same bytes, changed at random: they stay the same. */
TEST(a_rope_is_the_row_of_its_bytes_whatever_hangs_in_it)
{
    static const char outside[] = "abcdefghijklmnopqrstuvwxyz";
    unsigned seed = 7;
    size_t hung = 0;
    struct rope rope = {0};
    OWN(buf) struct buf flat = {0};
    let_go = 0;
    for (int step = 0; step < 20000; step++) {
        seed = seed * 1103515245 + 12345;
        size_t size = (seed >> 16) % 26;
        struct str bytes = str_make(outside, size);
        switch ((seed >> 24) % 5) {
        case 0:
            rope_hang(&rope, bytes, &rope, count_release);
            buf_str_append(&flat, bytes);
            hung++;
            break;
        case 1:
            buf_str_append(&rope.text, bytes);
            buf_str_append(&flat, bytes);
            break;
        case 2: {
            struct rope more = {0};
            buf_str_append(&more.text, STR("[]"));
            rope_hang(&more, bytes, &rope, count_release);
            buf_str_append(&more.text, STR("()!"));
            rope_consume(&more, 1);
            rope_move(&rope, &more);
            buf_byte(&flat, ']');
            buf_str_append(&flat, bytes);
            buf_str_append(&flat, STR("()!"));
            EXPECT_INT(rope_size(&more), 0);
            hung++;
            break;
        }
        default:
            size = size * 2 < flat.size ? size * 2 : flat.size;
            rope_consume(&rope, size);
            buf_consume(&flat, size);
        }
        EXPECT_INT(rope_size(&rope), flat.size);
        struct iovec stretches[7];
        size_t count = rope_front(&rope, stretches, COUNT(stretches)), at = 0;
        for (size_t i = 0; i < count; i++) {
            EXPECT(memcmp(flat.data + at, stretches[i].iov_base, stretches[i].iov_len) == 0);
            at += stretches[i].iov_len;
        }
        EXPECT(at == flat.size || count == COUNT(stretches));
    }
    EXPECT(let_go > 1000 && let_go <= hung);
    rope_deinit(&rope);
    EXPECT_INT(let_go, hung);
}

TEST(a_rope_that_is_never_empty_takes_no_more_room_for_what_is_gone)
{
    struct rope rope = {0};
    let_go = 0;
    rope_hang(&rope, STR("abc"), &rope, count_release);
    for (size_t i = 0; i < 1000; i++) {
        rope_hang(&rope, STR("abc"), &rope, count_release);
        rope_consume(&rope, 3);
        EXPECT_INT(let_go, i + 1);
        EXPECT_INT(rope_size(&rope), 3);
    }
    EXPECT(rope.capacity <= 16);
    rope_deinit(&rope);
    EXPECT_INT(let_go, 1001);
}

TEST(a_map_finds_what_was_put_and_forgets_what_was_removed)
{
    struct map map = {0};
    int values[500];
    char key[16];
    for (int i = 0; i < 500; i++)
        EXPECT(
            !map_put(&map, str_make(key, (size_t)snprintf(key, sizeof key, "k%d", i)), &values[i]));
    for (int i = 0; i < 500; i += 2)
        EXPECT(map_remove(&map, str_make(key, (size_t)snprintf(key, sizeof key, "k%d", i))) ==
               &values[i]);
    for (int i = 0; i < 500; i++) {
        void *got = map_get(&map, str_make(key, (size_t)snprintf(key, sizeof key, "k%d", i)));
        EXPECT(got == (i % 2 ? (void *)&values[i] : NULL));
    }
    EXPECT_INT(map.count, 250);
    map_deinit(&map);
}

TEST(an_arena_stops_at_its_maximum)
{
    OWN(arena) struct arena arena = {.bytes_max = 10000};
    EXPECT(arena_alloc(&arena, 6000));
    EXPECT(!arena_alloc(&arena, 6000));
    EXPECT(arena_alloc(&arena, 2000));
}

TEST(durations_and_sizes_are_read_with_their_units)
{
    long long ms;
    unsigned long long bytes;
    EXPECT(str_to_duration_ms(STR("1.5s"), &ms) && ms == 1500);
    EXPECT(str_to_duration_ms(STR("20"), &ms) && ms == 20);
    EXPECT(!str_to_duration_ms(STR("20 s"), &ms));
    EXPECT(!str_to_duration_ms(STR(""), &ms));
    EXPECT(str_to_size(STR("2G"), &bytes) && bytes == 2ull << 30);
    EXPECT(str_to_size(STR("64KiB"), &bytes) && bytes == 65536);
    EXPECT(!str_to_size(STR("-1"), &bytes));
    EXPECT(!str_to_size(STR("1x"), &bytes));
}

TEST(utf8_is_told_from_other_bytes)
{
    EXPECT(str_is_utf8(STR("gr\xc3\xbc\xc3\x9f \xf0\x9f\x9a\xaa")));
    EXPECT(!str_is_utf8(STR("\xc0\x80")));
    EXPECT(!str_is_utf8(STR("\xed\xa0\x80")));
    EXPECT(!str_is_utf8(STR("abc\xff")));
    EXPECT(!str_is_utf8(STR("\xe2\x82")));
}

TEST(base64_makes_the_round_trip_at_every_length)
{
    char bytes[64];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (char)(i * 37 + 200);
    for (size_t size = 0; size < sizeof bytes; size++) {
        OWN(buf) struct buf text = {0};
        OWN(buf) struct buf back = {0};
        text_base64(&text, str_make(bytes, size));
        EXPECT(text_base64_read(&back, buf_str(&text)));
        EXPECT_STR(buf_str(&back), str_make(bytes, size));
    }
    OWN(buf) struct buf none = {0};
    EXPECT(!text_base64_read(&none, STR("a")));
    EXPECT(!text_base64_read(&none, STR("ab!d")));
}

TEST(ids_sort_by_time_and_do_not_repeat)
{
    char a[ID_MAX], b[ID_MAX];
    id_make(a, "r");
    id_make(b, "r");
    EXPECT(strcmp(a, b) != 0);
    EXPECT(strncmp(a, b, 8) <= 0);
    EXPECT_INT(strlen(a), 22);
}

TEST(ids_can_be_made_in_order_within_a_moment)
{
    char last[ID_MAX] = "", id[ID_MAX];
    for (int i = 0; i < 100000; i++) {
        id_make_after(id, "r", last);
        EXPECT(strcmp(id, last) > 0);
        EXPECT_INT(strlen(id), 22);
        memcpy(last, id, sizeof last);
    }
}

TEST(an_error_names_its_field)
{
    struct err err = {0};
    err_set(&err, ERR_INPUT, "wrong");
    EXPECT_STR(str_of(err.field), STR(""));
    err_below(&err, "memory");
    err_below(&err, "limits");
    EXPECT_STR(str_of(err.field), STR("limits.memory"));
    err_wrap(&err, "context");
    EXPECT_STR(str_of(err.field), STR("limits.memory"));
    err_set(&err, ERR_INPUT, "another");
    EXPECT_STR(str_of(err.field), STR(""));
    err_at(&err, "a.%d", 3);
    EXPECT_STR(str_of(err.field), STR("a.3"));
}

TEST(a_tree_is_removed_without_following_links)
{
    struct err err = {0};
    char top[] = "/tmp/postern-test-XXXXXX";
    EXPECT(mkdtemp(top));
    OWN(mem) char *deep = mem_format("%s/gone/a/b", top);
    OWN(mem) char *kept = mem_format("%s/kept", top);
    OWN(mem) char *file = mem_format("%s/kept/file", top);
    OWN(mem) char *link = mem_format("%s/gone/link", top);
    OWN(mem) char *gone = mem_format("%s/gone", top);
    EXPECT(file_make_dirs(deep, 0755, &err) == 0 && file_make_dirs(kept, 0755, &err) == 0);
    EXPECT(file_write(file, STR("x"), 0644, false, &err) == 0);
    EXPECT(symlink(kept, link) == 0);
    EXPECT(file_remove_tree(gone, &err) == 0);
    EXPECT(file_exists(file) && !file_exists(gone));
    EXPECT(file_remove_tree(top, &err) == 0);
}

TEST(the_nearest_name_is_offered_when_it_is_near)
{
    static const char *const names[] = {"black_box", "proxy", "gate"};
    EXPECT_TEXT(text_nearest("prxy", names, 3), "proxy");
    EXPECT(!text_nearest("zzzzzz", names, 3));
}

/* Programs join the two: what happened to a call, and whose it was. */
TEST(a_line_of_the_log_names_the_rollout_and_the_call)
{
    char text[1024];
    int ends[2], before = dup(STDERR_FILENO);
    EXPECT_INT(pipe(ends), 0);
    EXPECT(dup2(ends[1], STDERR_FILENO) >= 0);
    log_setup(LOG_INFO, true);
    log_write_of(LOG_INFO, "gateway", "r-1", "c-2", "it \"broke\"\n%d", 7);
    log_write(LOG_INFO, "gateway", "r-1", "alone");
    log_setup(LOG_INFO, false);
    log_write_of(LOG_INFO, "gateway", "r-1", "c-2", "in short");
    log_write_of(LOG_DEBUG, "gateway", "r-1", "c-2", "too little");
    EXPECT(dup2(before, STDERR_FILENO) >= 0);
    ssize_t size = read(ends[0], text, sizeof text - 1);
    EXPECT(size > 0);
    text[size > 0 ? size : 0] = '\0';
    EXPECT(strstr(text, "\"room\":\"gateway\",\"id\":\"c-2\",\"rollout\":\"r-1\","
                        "\"text\":\"it \\\"broke\\\"\\n7\"}\n"));
    EXPECT(strstr(text, "\"id\":\"r-1\",\"text\":\"alone\"}\n"));
    EXPECT(strstr(text, " gateway r-1 c-2: in short\n"));
    EXPECT(!strstr(text, "too little"));
    close(before);
    close(ends[0]);
    close(ends[1]);
}

TEST(a_pile_gives_back_what_was_added_in_order)
{
    struct pile pile = {0};
    OWN(buf) struct buf plain = {0}, copy = {0}, pieces = {0};
    EXPECT(!pile_next(&pile, &(const struct pile_block *){NULL}).data);
    for (size_t i = 0; i < 2000; i++) {
        char piece[300];
        size_t size = i * 7919 % (i % 97 ? sizeof piece : 1);
        memset(piece, (int)('a' + i % 26), sizeof piece);
        pile_append(&pile, str_make(piece, size));
        buf_append(&plain, piece, size);
    }
    OWN(buf) struct buf large = {0};
    memset(buf_reserve(&large, 100000), 'z', 100000);
    buf_added(&large, 100000);
    pile_append(&pile, buf_str(&large));
    pile_append(&pile, STR("end"));
    buf_str_append(&plain, buf_str(&large));
    buf_str_append(&plain, STR("end"));
    EXPECT_INT(pile.size, plain.size);
    pile_copy(&pile, &copy);
    EXPECT(str_equal(buf_str(&copy), buf_str(&plain)));
    const struct pile_block *block = NULL;
    size_t count = 0;
    for (struct str piece; (piece = pile_next(&pile, &block)).data; count++)
        buf_str_append(&pieces, piece);
    EXPECT(str_equal(buf_str(&pieces), buf_str(&plain)));
    EXPECT(count > 3);
    pile_deinit(&pile);
    EXPECT(!pile.size && !pile.first);
}

TEST(the_limit_of_open_files_is_raised_to_what_is_allowed)
{
    struct rlimit limit;
    EXPECT_INT(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = 64;
    EXPECT_INT(setrlimit(RLIMIT_NOFILE, &limit), 0);
    EXPECT_INT(fd_raise_limit(), limit.rlim_max);
    EXPECT_INT(getrlimit(RLIMIT_NOFILE, &limit), 0);
    EXPECT_INT(limit.rlim_cur, limit.rlim_max);
}

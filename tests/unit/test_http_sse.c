/* test_http_sse.c - server-sent events, URLs, query strings. */
#include <stdio.h>

#include "base/err.h"
#include "base/mem.h"
#include "http/http.h"
#include "test.h"

static struct buf seen;

static void on_event(void *context, struct str event, struct str data)
{
    (void)context;
    buf_format(&seen, "[%.*s|%.*s]", STR_ARGS(event), STR_ARGS(data));
}

/* clang-format off */
static const struct {
    struct str stream;
    const char *events;
} streams[] = {
    {STR("data: a\n\n"), "[|a]"},
    {STR("data:a\r\n\r\ndata: b\r\rdata:  c\n\n"), "[|a][|b][| c]"},
    {STR("event: x\ndata: a\ndata: b\n\ndata: c\n\n"), "[x|a\nb][|c]"},
    {STR(": comment\n\n:\n\ndata: a\n\n"), "[|a]"},
    {STR("event: lost\n\ndata: a\n\n"), "[|a]"},
    {STR("data\n\n"), "[|]"},
    {STR("data:\ndata\n\n"), "[|\n]"},
    {STR("\xEF\xBB\xBF" "data: a\n\n"), "[|a]"},
    {STR("id: 5\nretry: 10\nunknown: x\ndata: a\n\n"), "[|a]"},
    {STR("data: a\n\ndata: unfinished\n"), "[|a]"},
    {STR("data: {\"a\": \"b: c\"}\n\n"), "[|{\"a\": \"b: c\"}]"},
    {STR("data: a\r\ndata: b\r\n\r\n"), "[|a\nb]"},
    {STR("\n\n\n"), ""},
    {STR(""), ""},
};
/* clang-format on */

TEST(events_are_read_as_the_standard_says_however_they_are_cut)
{
    for (size_t i = 0; i < COUNT(streams); i++) {
        struct str all = streams[i].stream;
        for (size_t piece = 1; piece <= all.size + 1; piece++) {
            struct sse_parser parser = {.on_event = on_event};
            buf_clear(&seen);
            for (size_t at = 0; at < all.size; at += piece)
                EXPECT(sse_feed(&parser, str_upto(str_from(all, at), piece), NULL) == 0);
            EXPECT_STR(buf_str(&seen), str_of(streams[i].events));
            sse_deinit(&parser);
        }
    }
    buf_deinit(&seen);
}

TEST(an_event_has_a_maximum_size)
{
    struct sse_parser parser = {.on_event = on_event, .event_bytes_max = 100};
    struct err err = {0};
    EXPECT(sse_feed(&parser, STR("data: "), &err) == 0);
    int failed = 0;
    for (int i = 0; i < 200 && !failed; i++)
        failed = sse_feed(&parser, STR("x"), &err);
    EXPECT(failed && err.kind == ERR_LIMIT);
    sse_deinit(&parser);
    struct sse_parser lines = {.on_event = on_event, .event_bytes_max = 100};
    for (int i = 0; i < 200 && (failed = sse_feed(&lines, STR("data: x\n"), &err)) == 0; i++)
        ;
    EXPECT(failed && err.kind == ERR_LIMIT);
    sse_deinit(&lines);
}

TEST(what_is_written_is_read_back)
{
    OWN(buf) struct buf out = {0};
    sse_write(&out, STR_NONE, STR("plain"));
    sse_write(&out, STR("named\nevil: x"), STR("two\nlines"));
    sse_write(&out, STR(""), STR("a\r\nb\rc\n"));
    sse_write(&out, STR_NONE, STR_NONE);
    struct sse_parser parser = {.on_event = on_event};
    buf_clear(&seen);
    EXPECT(sse_feed(&parser, buf_str(&out), NULL) == 0);
    EXPECT_STR(buf_str(&seen), STR("[|plain][named|two\nlines][|a\nb\nc\n][|]"));
    sse_deinit(&parser);
    buf_deinit(&seen);
}

/* --- addresses --- */

TEST(addresses_are_taken_apart)
{
    struct http_url url;
    EXPECT(http_url_read("http://host", &url, NULL) == 0);
    EXPECT(!url.tls && url.port == 80 && str_is(url.host, "host") && str_is(url.path, "/"));
    EXPECT(http_url_read("https://host.name:8443/a/b?c=d#e", &url, NULL) == 0);
    EXPECT(url.tls && url.port == 8443 && str_is(url.host, "host.name"));
    EXPECT_STR(url.path, STR("/a/b?c=d"));
    EXPECT(http_url_read("http://[::1]:81/x", &url, NULL) == 0);
    EXPECT(url.port == 81 && str_is(url.host, "::1") && str_is(url.path, "/x"));
    EXPECT(http_url_read("http://[fe80::1]", &url, NULL) == 0 && url.port == 80);
    EXPECT(http_url_read("unix:/run/a.sock:/v1/x?y", &url, NULL) == 0);
    EXPECT(str_is(url.unix_path, "/run/a.sock") && str_is(url.path, "/v1/x?y"));
    EXPECT(http_url_read("unix:/run/a.sock", &url, NULL) == 0);
    EXPECT(str_is(url.unix_path, "/run/a.sock") && str_is(url.path, "/"));
}

TEST(addresses_that_are_none_are_refused)
{
    static const char *const bad[] = {
        "",           "host",         "http://",        "http:///x",    "http://h:0",
        "http://h:x", "http://h:",    "http://u@h/",    "http://[::1",  "http://[::1]x",
        "http://h?x", "http://h/a b", "http://h/\r\nA", "http://a:b:1", "unix:relative",
        "unix:",      "unix:/",       "ftp://h",        "http://h:-1",  "http://h:65536",
        "http://a,b", "HTTP://h\x01"};
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct http_url url;
        struct err err = {0};
        if (http_url_read(bad[i], &url, &err) == 0 && strcmp(bad[i], "http://h:") != 0)
            test_fail(__FILE__, __LINE__, "'%s' was taken", bad[i]);
    }
}

TEST(query_strings_are_searched_and_decoded)
{
    OWN(buf) struct buf value = {0};
    struct str query = STR("a=1&b=x%20y+z&empty=&flag&%63=%41%zz&d=%4");
    EXPECT(http_query_get(query, "a", &value));
    EXPECT_STR(buf_str(&value), STR("1"));
    buf_clear(&value);
    EXPECT(http_query_get(query, "b", &value));
    EXPECT_STR(buf_str(&value), STR("x y z"));
    buf_clear(&value);
    EXPECT(http_query_get(query, "empty", &value) && value.size == 0);
    EXPECT(http_query_get(query, "flag", &value) && value.size == 0);
    EXPECT(!http_query_get(query, "c", &value));
    EXPECT(!http_query_get(query, "d", &value));
    EXPECT(!http_query_get(query, "none", &value));
    EXPECT(!http_query_get(STR_NONE, "a", &value));
}

TEST(percent_encoding_goes_there_and_back)
{
    OWN(buf) struct buf out = {0};
    OWN(buf) struct buf back = {0};
    char all[256];
    for (int i = 0; i < 256; i++)
        all[i] = (char)i;
    http_percent_encode(str_make(all, 256), &out);
    EXPECT(http_percent_decode(buf_str(&out), &back));
    EXPECT_STR(buf_str(&back), str_make(all, 256));
    EXPECT(!http_percent_decode(STR("%"), &back) && !http_percent_decode(STR("%1g"), &back));
}

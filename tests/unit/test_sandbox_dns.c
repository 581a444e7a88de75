/* test_sandbox_dns.c - "no such name", at once, to anybody, whatever they send. */
#include "test.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/str.h"
#include "json/json.h"
#include "sandbox/dns.h"

static size_t ask(uint8_t *packet, const char *name, uint16_t type)
{
    static const uint8_t head[12] = {0xab, 0xcd, 0x01, 0x00, 0, 1};
    memcpy(packet, head, sizeof head);
    size_t at = sizeof head;
    struct str rest = str_of(name);
    while (rest.data && rest.size) {
        struct str label = str_cut(&rest, '.');
        packet[at++] = (uint8_t)label.size;
        memcpy(packet + at, label.data, label.size);
        at += label.size;
    }
    packet[at++] = 0;
    packet[at++] = (uint8_t)(type >> 8);
    packet[at++] = (uint8_t)type;
    packet[at++] = 0;
    packet[at++] = 1;
    return at;
}

TEST(a_query_is_answered_with_its_question_and_no_such_name)
{
    uint8_t query[512], answer[DNS_ANSWER_MAX];
    char name[DNS_NAME_MAX];
    size_t size = ask(query, "API.Example.com", 28);
    size_t got = dns_refuse(query, size, answer, name);
    EXPECT_INT(got, size);
    EXPECT_TEXT(name, "api.example.com");
    EXPECT(memcmp(answer, query, 2) == 0);
    EXPECT_INT(answer[2], 0x81); /* an answer, recursion desired */
    EXPECT_INT(answer[3], 0x83); /* recursion available, NXDOMAIN */
    EXPECT(memcmp(answer + 12, query + 12, size - 12) == 0);
    EXPECT_INT(answer[5], 1);
    EXPECT_INT(answer[7] + answer[9] + answer[11], 0);
}

TEST(what_follows_the_question_is_left_out_of_the_answer)
{
    uint8_t query[512], answer[DNS_ANSWER_MAX];
    char name[DNS_NAME_MAX];
    size_t size = ask(query, "example.com", 1);
    query[11] = 1; /* one additional record: EDNS */
    static const uint8_t edns[11] = {0, 0, 41, 4, 208};
    memcpy(query + size, edns, sizeof edns);
    EXPECT_INT(dns_refuse(query, size + sizeof edns, answer, name), size);
    EXPECT_INT(answer[11], 0);
}

TEST(every_cut_of_a_query_gets_an_error_or_silence)
{
    uint8_t query[512], answer[DNS_ANSWER_MAX];
    char name[DNS_NAME_MAX];
    size_t size = ask(query, "a.bc.example", 1);
    for (size_t cut = 0; cut < size; cut++) {
        size_t got = dns_refuse(query, cut, answer, name);
        EXPECT_INT(got, cut < 12 ? 0 : 12);
        if (got)
            EXPECT_INT(answer[3] & 15, 1);
        EXPECT_TEXT(name, "");
    }
}

TEST(an_answer_is_never_answered)
{
    uint8_t query[512], answer[DNS_ANSWER_MAX];
    char name[DNS_NAME_MAX];
    size_t size = ask(query, "example.com", 1);
    query[2] |= 0x80;
    EXPECT_INT(dns_refuse(query, size, answer, name), 0);
}

TEST(other_opcodes_are_not_implemented_and_pointers_are_malformed)
{
    uint8_t query[512], answer[DNS_ANSWER_MAX];
    char name[DNS_NAME_MAX];
    size_t size = ask(query, "example.com", 1);
    query[2] = 0x28;
    EXPECT_INT(dns_refuse(query, size, answer, name), 12);
    EXPECT_INT(answer[3] & 15, 4);
    static const uint8_t pointer[] = {0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xc0, 12, 0, 1, 0, 1};
    EXPECT_INT(dns_refuse(pointer, sizeof pointer, answer, name), 12);
    EXPECT_INT(answer[3] & 15, 1);
}

TEST(odd_bytes_in_a_name_are_escaped)
{
    uint8_t query[512], answer[DNS_ANSWER_MAX];
    char name[DNS_NAME_MAX];
    size_t size = ask(query, "a\"\n\xff.b", 1);
    EXPECT(dns_refuse(query, size, answer, name) > 12);
    EXPECT_TEXT(name, "a\\034\\010\\255.b");
}

TEST(the_tally_counts_a_bounded_number_of_names)
{
    struct dns_tally tally = {0};
    for (int i = 0; i < 1000; i++) {
        char name[32];
        snprintf(name, sizeof name, "host%d.example", i);
        dns_tally_add(&tally, name, 1);
    }
    dns_tally_add(&tally, "host7.example", 2);
    dns_tally_add(&tally, "", 5);
    OWN(buf) struct buf text = {0};
    struct json_writer writer = {.out = &text};
    dns_tally_write(&tally, &writer);
    dns_tally_deinit(&tally);
    OWN(json_doc) struct json_doc doc = {0};
    EXPECT_INT(json_read(&doc, buf_str(&text), NULL, NULL), 0);
    EXPECT_INT(json_size(json_root(&doc)), DNS_NAMES_MAX + 1);
    EXPECT_INT(json_int_or(json_get(json_root(&doc), "host7.example"), 0), 3);
    EXPECT_INT(json_int_or(json_get(json_root(&doc), "other"), 0), 1000 - DNS_NAMES_MAX);
}

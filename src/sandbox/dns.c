/* dns.c - a resolver that knows nothing, quickly.
 *
 * Inside a sandbox no name exists. A program that asks must learn so at once instead of waiting for
 * a resolver that never answers; that is why telemetry and update checks cost milliseconds here. So
 * each query (RFC 1035, section 4) is answered with its own question, no records, and NXDOMAIN.
 *
 * The sender is the agent, so the packet is hostile: it is read once, front to back, with no
 * pointer ever followed (a question has no use for compression). What cannot be read gets FORMERR
 * when at least the header is there; an answer is never answered, or two resolvers could talk for
 * ever. */
#include "sandbox/dns.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "json/json.h"

enum {
    HEADER_SIZE = 12,
    NAME_SIZE_MAX = 255, /* on the wire, length bytes included */
    LABEL_SIZE_MAX = 63,
    QUESTION_TAIL = 4, /* type and class */

    FLAG_RESPONSE = 0x80, /* third byte */
    OPCODE_MASK = 0x78,
    FLAG_RECURSION_DESIRED = 0x01,
    FLAG_RECURSION_AVAILABLE = 0x80, /* fourth byte */

    CODE_FORMAT_ERROR = 1,
    CODE_NO_SUCH_NAME = 3,
    CODE_NOT_IMPLEMENTED = 4,
};

struct dns_row {
    uint64_t count;
};

/* One byte of a label as text. Returns the number of characters, at most 4. */
static size_t put_byte(char *out, uint8_t byte)
{
    if (byte >= 'A' && byte <= 'Z')
        byte = (uint8_t)(byte - 'A' + 'a');
    bool plain =
        (byte >= 'a' && byte <= 'z') || (byte >= '0' && byte <= '9') || byte == '-' || byte == '_';
    if (plain) {
        out[0] = (char)byte;
        return 1;
    }
    char text[8];
    snprintf(text, sizeof text, "\\%03u", byte);
    memcpy(out, text, 4);
    return 4;
}

/* Reads the name at the start of `bytes`. Returns its size on the wire, 0 when it is not one.
 * `name` is left empty when it is the root or too long to be kept. */
static size_t read_name(const uint8_t *bytes, size_t size, char name[DNS_NAME_MAX])
{
    char text[NAME_SIZE_MAX * 4 + 8];
    size_t at = 0, length = 0;
    name[0] = '\0';
    for (;;) {
        if (at >= size)
            return 0;
        uint8_t label = bytes[at++];
        if (label == 0)
            break;
        if (label > LABEL_SIZE_MAX || label > size - at || at + label >= NAME_SIZE_MAX)
            return 0;
        if (length)
            text[length++] = '.';
        for (uint8_t i = 0; i < label; i++)
            length += put_byte(text + length, bytes[at + i]);
        at += label;
    }
    if (length < DNS_NAME_MAX) {
        memcpy(name, text, length);
        name[length] = '\0';
    }
    return at;
}

static size_t answer_header(const uint8_t *query, uint8_t code, uint8_t *answer)
{
    memset(answer, 0, HEADER_SIZE);
    memcpy(answer, query, 2); /* the id */
    answer[2] = (uint8_t)(FLAG_RESPONSE | (query[2] & (OPCODE_MASK | FLAG_RECURSION_DESIRED)));
    answer[3] = (uint8_t)(FLAG_RECURSION_AVAILABLE | code);
    return HEADER_SIZE;
}

size_t dns_refuse(const uint8_t *query, size_t size, uint8_t answer[DNS_ANSWER_MAX],
                  char name[DNS_NAME_MAX])
{
    name[0] = '\0';
    if (size < HEADER_SIZE || (query[2] & FLAG_RESPONSE))
        return 0;
    if (query[2] & OPCODE_MASK)
        return answer_header(query, CODE_NOT_IMPLEMENTED, answer);
    if (query[4] != 0 || query[5] != 1) /* exactly one question, as everybody asks */
        return answer_header(query, CODE_FORMAT_ERROR, answer);
    size_t name_size = read_name(query + HEADER_SIZE, size - HEADER_SIZE, name);
    if (name_size == 0 || size - HEADER_SIZE - name_size < QUESTION_TAIL) {
        name[0] = '\0';
        return answer_header(query, CODE_FORMAT_ERROR, answer);
    }
    answer_header(query, CODE_NO_SUCH_NAME, answer);
    answer[5] = 1;
    memcpy(answer + HEADER_SIZE, query + HEADER_SIZE, name_size + QUESTION_TAIL);
    return HEADER_SIZE + name_size + QUESTION_TAIL;
}

void dns_tally_add(struct dns_tally *tally, const char *name, uint64_t count)
{
    if (!name[0])
        return;
    struct dns_row *row = map_get(&tally->rows, str_of(name));
    if (!row) {
        if (tally->rows.count >= DNS_NAMES_MAX) {
            tally->other += count;
            return;
        }
        row = mem_zero(sizeof *row);
        map_put(&tally->rows, str_of(name), row);
    }
    row->count += count;
}

void dns_tally_write(const struct dns_tally *tally, struct json_writer *out)
{
    json_begin_object(out);
    size_t at = 0;
    struct str name;
    for (struct dns_row *row; (row = map_next(&tally->rows, &at, &name)) != NULL;) {
        json_key_str(out, name);
        json_put_int(out, (long long)row->count);
    }
    if (tally->other)
        json_set_int(out, "other", (long long)tally->other);
    json_end_object(out);
}

void dns_tally_deinit(struct dns_tally *tally)
{
    size_t at = 0;
    struct str name;
    for (struct dns_row *row; (row = map_next(&tally->rows, &at, &name)) != NULL;)
        free(row);
    map_deinit(&tally->rows);
    *tally = (struct dns_tally){0};
}

#include "base/text.h"

#include <stdio.h>

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void text_base64(struct buf *out, struct str bytes)
{
    const unsigned char *in = (const unsigned char *)bytes.data;
    char *to = buf_reserve(out, (bytes.size + 2) / 3 * 4 + 1);
    char *start = to;
    size_t i = 0;
    for (; i + 2 < bytes.size; i += 3) {
        unsigned word = (unsigned)in[i] << 16 | (unsigned)in[i + 1] << 8 | in[i + 2];
        *to++ = alphabet[word >> 18];
        *to++ = alphabet[word >> 12 & 63];
        *to++ = alphabet[word >> 6 & 63];
        *to++ = alphabet[word & 63];
    }
    if (i < bytes.size) {
        bool two = bytes.size - i == 2;
        unsigned word = (unsigned)in[i] << 16 | (two ? (unsigned)in[i + 1] << 8 : 0);
        *to++ = alphabet[word >> 18];
        *to++ = alphabet[word >> 12 & 63];
        *to++ = two ? alphabet[word >> 6 & 63] : '=';
        *to++ = '=';
    }
    buf_added(out, (size_t)(to - start));
}

bool text_base64_read(struct buf *out, struct str text)
{
    unsigned word = 0;
    int have = 0, padding = 0;
    for (size_t i = 0; i < text.size; i++) {
        char byte = text.data[i];
        if (byte == '=') {
            padding++;
            continue;
        }
        if (byte == '-')
            byte = '+';
        if (byte == '_')
            byte = '/';
        const char *hit = byte ? strchr(alphabet, byte) : NULL;
        if (!hit || padding)
            return false;
        word = word << 6 | (unsigned)(hit - alphabet);
        if (++have == 4) {
            char three[3] = {(char)(word >> 16), (char)(word >> 8), (char)word};
            buf_append(out, three, 3);
            have = 0;
            word = 0;
        }
    }
    if (have == 1 || padding > 2)
        return false;
    if (have == 2)
        buf_byte(out, (char)(word >> 4));
    if (have == 3) {
        buf_byte(out, (char)(word >> 10));
        buf_byte(out, (char)(word >> 2));
    }
    return true;
}

void text_hex(struct buf *out, struct str bytes)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < bytes.size; i++) {
        buf_byte(out, digits[(unsigned char)bytes.data[i] >> 4]);
        buf_byte(out, digits[(unsigned char)bytes.data[i] & 15]);
    }
}

void text_size(char *out, size_t size, uint64_t bytes)
{
    static const char *const units[] = {"B", "KB", "MB", "GB", "TB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1024 && unit < 4) {
        value /= 1024;
        unit++;
    }
    snprintf(out, size, unit && value < 100 ? "%.1f %s" : "%.0f %s", value, units[unit]);
}

void text_duration(char *out, size_t size, uint64_t ms)
{
    if (ms < 1000)
        snprintf(out, size, "%llu ms", (unsigned long long)ms);
    else if (ms < 60000)
        snprintf(out, size, "%.1f s", (double)ms / 1000);
    else
        snprintf(out, size, "%llu min %02llu s", (unsigned long long)(ms / 60000),
                 (unsigned long long)(ms / 1000 % 60));
}

static size_t distance(const char *a, const char *b)
{
    size_t row[65];
    size_t columns = strlen(b);
    if (columns > 64 || strlen(a) > 64)
        return 99;
    for (size_t j = 0; j <= columns; j++)
        row[j] = j;
    for (size_t i = 1; a[i - 1]; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= columns; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[columns];
}

const char *text_nearest(const char *word, const char *const *names, size_t count)
{
    const char *nearest = NULL;
    size_t least = strlen(word) / 3 + 2;
    for (size_t i = 0; i < count; i++) {
        size_t far = distance(word, names[i]);
        if (far < least) {
            least = far;
            nearest = names[i];
        }
    }
    return nearest;
}

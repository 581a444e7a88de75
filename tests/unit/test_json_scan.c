/* Scanning without a tape, and numbers without strtod(): both agree with the long way. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "json/json.h"
#include "test.h"

static uint64_t state = 1;

static uint32_t dice(uint32_t sides)
{
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(state >> 33) % sides;
}

/* A number of the grammar, with any number of digits and any exponent. */
static void make_number(char *out)
{
    char *at = out;
    if (dice(2))
        *at++ = '-';
    uint32_t whole = dice(22), part = dice(24);
    if (whole == 0)
        *at++ = '0';
    for (uint32_t i = 0; i < whole; i++)
        *at++ = (char)('0' + (i ? dice(10) : 1 + dice(9)));
    if (part)
        *at++ = '.';
    for (uint32_t i = 0; i < part; i++)
        *at++ = (char)('0' + (dice(3) ? dice(10) : 0));
    if (dice(2))
        at += sprintf(at, "%c%s%u", dice(2) ? 'e' : 'E', dice(3) == 0 ? "+" : "-", dice(330));
    *at = 0;
}

static bool reads_as_strtod(const char *text)
{
    struct json_doc doc = {0};
    double wanted = strtod(text, NULL), got = 0;
    bool good = json_read(&doc, str_of(text), NULL, NULL) == 0;
    bool finite = good && json_double(json_root(&doc), &got);
    good = good && finite == (isfinite(wanted) != 0) &&
           (!finite || memcmp(&wanted, &got, sizeof got) == 0);
    json_doc_deinit(&doc);
    struct json_scan scan = {text, text + strlen(text)};
    double scanned = 0;
    bool taken = json_scan_double(&scan, &scanned);
    return good && taken == finite && (!taken || memcmp(&wanted, &scanned, sizeof got) == 0);
}

TEST(a_number_is_what_strtod_makes_of_it)
{
    static const char *const edges[] = {"0",
                                        "-0",
                                        "-0.0e5",
                                        "18446744073709551616",
                                        "18446744073709551615e-27",
                                        "9007199254740993",
                                        "9007199254740992.5",
                                        "9007199254740993e-1",
                                        "0.5000000000000000001",
                                        "5e-324",
                                        "2.2250738585072014e-308",
                                        "1.7976931348623157e308",
                                        "1e999",
                                        "1e99999999999999999999",
                                        "0e99999999999999999999",
                                        "-1.1920928244535389e-07",
                                        "1e22",
                                        "1e23",
                                        "9007199254740992e22"};
    char text[128];
    for (size_t i = 0; i < COUNT(edges); i++)
        if (!reads_as_strtod(edges[i]))
            test_fail(__FILE__, __LINE__, "%s", edges[i]);
    for (int i = 0; i < 200000; i++) {
        if (i % 2)
            make_number(text);
        else /* as engines write log-probabilities */
            snprintf(text, sizeof text, "%.17g", (double)(-expf((float)dice(4000) / 100 - 30)));
        if (!reads_as_strtod(text)) {
            test_fail(__FILE__, __LINE__, "%s", text);
            return;
        }
    }
}

/* A number that lies in the middle between two doubles, or next to it. */
TEST(a_number_in_the_middle_is_rounded_as_strtod_does)
{
    char text[128];
    for (int i = 0; i < 50000; i++) {
        uint64_t whole = ((uint64_t)1 << 53) + ((uint64_t)dice(1u << 20) << 20) + dice(1u << 20);
        snprintf(text, sizeof text, "%llu%s", (unsigned long long)(whole | 1),
                 dice(2) ? "" : (dice(2) ? ".00" : "e-5"));
        if (!reads_as_strtod(text)) {
            test_fail(__FILE__, __LINE__, "%s", text);
            return;
        }
    }
}

TEST(what_a_scan_passes_over_is_well_formed)
{
    static const char seed[] =
        "{\"a\":[1,-2.5e3,true,false,null,\"x\\n\\u00e9\xc3\xa9\"],\"b\":{\"c\":{}},"
        " \"d\" : [ [ ] , \"\" ] }";
    struct json_doc doc = {0};
    int passed = 0;
    for (int i = 0; i < 100000; i++) {
        char text[sizeof seed];
        memcpy(text, seed, sizeof seed);
        size_t size = sizeof seed - 1;
        for (uint32_t count = dice(3); count; count--)
            text[dice((uint32_t)size)] = dice(2) ? seed[dice((uint32_t)size)] : (char)dice(256);
        struct json_scan scan = {text, text + size};
        bool good = json_read(&doc, str_make(text, size), NULL, NULL) == 0;
        bool scanned = json_scan_skip(&scan) && json_scan_end(&scan);
        passed += scanned;
        if (scanned != good) {
            test_fail(__FILE__, __LINE__, "%.*s", (int)size, text);
            break;
        }
    }
    json_doc_deinit(&doc);
    EXPECT(passed > 10000);
}

TEST(a_number_is_too_long_for_a_scan_when_it_is_for_a_tape)
{
    OWN(json_doc) struct json_doc doc = {0};
    char text[JSON_NUMBER_BYTES_MAX + 1];
    memset(text, '0', sizeof text);
    memcpy(text, "0.", 2);
    for (size_t size = JSON_NUMBER_BYTES_MAX; size <= sizeof text; size++) {
        struct json_scan skipped = {text, text + size}, read = skipped;
        double number;
        bool good = json_read(&doc, str_make(text, size), NULL, NULL) == 0;
        EXPECT(good == (size == JSON_NUMBER_BYTES_MAX));
        EXPECT(json_scan_skip(&skipped) == good);
        EXPECT(json_scan_double(&read, &number) == good);
    }
}

TEST(a_scan_gives_up_where_it_is_nested_deeply)
{
    char text[200];
    memset(text, '[', 100);
    memset(text + 100, ']', 100);
    struct json_scan deep = {text, text + 200}, flat = {text + 80, text + 120};
    EXPECT(!json_scan_skip(&deep));
    EXPECT(json_scan_skip(&flat) && json_scan_end(&flat));
}

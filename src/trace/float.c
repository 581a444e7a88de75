/* float.c - a float in as few digits as read back to it: 6 to 9, in the form of printf's %g.
 *
 * A float is m * 2^-s. For the magnitudes of log-probabilities m * 10^k fits into 128 bits, so the
 * digits, their rounding and whether they lead back are found with integers, exactly. Other floats
 * are left to printf and strtof. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json/json.h"
#include "trace/trace.h"

#define LEAST_DIGITS 6
#define MOST_DIGITS 9

static const uint64_t tens[] = {1ull,
                                10ull,
                                100ull,
                                1000ull,
                                10000ull,
                                100000ull,
                                1000000ull,
                                10000000ull,
                                100000000ull,
                                1000000000ull,
                                10000000000ull,
                                100000000000ull,
                                1000000000000ull,
                                10000000000000ull,
                                100000000000000ull,
                                1000000000000000ull,
                                10000000000000000ull,
                                100000000000000000ull,
                                1000000000000000000ull};

struct digits {
    uint64_t number; /* times 10^-scale is the value */
    int count, scale;
};

/* floor(log10(value)) for 1e-9 <= value < 1e6: no float lies between a power of ten and the double
 * next to it. */
static int exponent_of(double value)
{
    static const double powers[] = {1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2,
                                    1e-1, 1e0,  1e1,  1e2,  1e3,  1e4,  1e5};
    int at = (int)(sizeof powers / sizeof *powers) - 1;
    while (at > 0 && value < powers[at])
        at--;
    return at - 9;
}

/* False: it takes the long way. */
static bool find_digits(float value, struct digits *out)
{
    if (!(value >= 1e-9f && value < 1e6f))
        return false;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits); /* IEEE 754: 8 bits of exponent, 23 of the mantissa */
    uint32_t mantissa = (bits & 0x7fffff) | 0x800000;
    int shift = 150 - (int)(bits >> 23), exponent = exponent_of(value);
    if (shift < 1 || mantissa == 0x800000)
        return false; /* below a power of two its neighbours are nearer */
    for (int count = LEAST_DIGITS; count <= MOST_DIGITS; count++) {
        int scale = count - 1 - exponent;
        uint64_t ten = tens[scale];
        unsigned __int128 exact = (unsigned __int128)mantissa * ten, half = 1;
        unsigned __int128 rest = exact & ((half << shift) - 1);
        uint64_t number = (uint64_t)(exact >> shift);
        half <<= shift - 1;
        number += rest > half || (rest == half && (number & 1));
        unsigned __int128 there = (unsigned __int128)number << shift;
        unsigned __int128 off = there > exact ? there - exact : exact - there;
        if (2 * off < ten || (2 * off == ten && !(mantissa & 1))) {
            *out = (struct digits){number, count, scale};
            return true;
        }
    }
    return false;
}

static char *put_number(char *at, uint64_t number, int width)
{
    for (int i = width - 1; i >= 0; i--, number /= 10)
        at[i] = (char)('0' + number % 10);
    return at + width;
}

/* As "%.*g" writes them. */
static size_t put_digits(struct digits digits, char *out)
{
    char *at = out;
    int width = digits.count + (digits.number == tens[digits.count]); /* rounded up to a power */
    int exponent = width - 1 - digits.scale;
    while (width > 1 && digits.number % 10 == 0) {
        digits.number /= 10;
        digits.scale--;
        width--;
    }
    if (exponent < -4 || exponent >= digits.count) {
        *at++ = (char)('0' + digits.number / tens[width - 1]);
        if (width > 1)
            *at++ = '.';
        at = put_number(at, digits.number % tens[width - 1], width - 1);
        *at++ = 'e';
        *at++ = exponent < 0 ? '-' : '+';
        return (size_t)(put_number(at, (uint64_t)abs(exponent), 2) - out);
    }
    if (digits.scale <= 0)
        return (size_t)(put_number(at, digits.number * tens[-digits.scale], exponent + 1) - out);
    uint64_t unit = tens[digits.scale];
    at = put_number(at, digits.number / unit, exponent > 0 ? exponent + 1 : 1);
    *at++ = '.';
    return (size_t)(put_number(at, digits.number % unit, digits.scale) - out);
}

void trace_float_write(float value, struct json_writer *out)
{
    char text[40];
    struct digits digits;
    size_t size = 0;
    if (!isfinite(value)) {
        json_put_null(out);
        return;
    }
    if (find_digits(fabsf(value), &digits)) {
        size = signbit(value) != 0;
        text[0] = '-';
        size += put_digits(digits, text + size);
    } else {
        for (int count = LEAST_DIGITS; count <= MOST_DIGITS; count++) {
            size = (size_t)snprintf(text, sizeof text, "%.*g", count, (double)value);
            if (strtof(text, NULL) == value)
                break;
        }
    }
    json_put_raw(out, str_make(text, size));
}

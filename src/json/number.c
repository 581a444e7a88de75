/* number.c - numbers as JSON writes them, exactly as strtod() and strtoll() would have them, but
 * without a terminated copy and, for what is usual, without their generality.
 *
 * A decimal with at most 19 digits is m * 10^-k. With k up to 27 the divisor 5^k fits into 64 bits,
 * so a 128 by 64 bit division gives more bits than a double holds, and the remainder says on which
 * side of the middle it was: the result is rounded correctly. Everything else is left to strtod().
 */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "json/tape.h"

#define DIGITS_MAX 19
#define DIVISOR_MAX 27
#define EXACT_MAX 22 /* powers of ten that a double holds */

struct decimal {
    uint64_t digits;
    long exponent; /* of ten */
    bool negative;
};

static inline bool is_digit(char byte)
{
    return byte >= '0' && byte <= '9';
}

/* False: it has too many digits. The text is a number by the grammar. */
static bool read_decimal(struct str raw, struct decimal *out)
{
    const char *at = raw.data, *end = at + raw.size;
    unsigned count = 0;
    *out = (struct decimal){.negative = *at == '-'};
    at += out->negative;
    for (; at < end && is_digit(*at); at++) {
        out->digits = out->digits * 10 + (uint64_t)(*at - '0');
        count += count || *at != '0';
    }
    if (at < end && *at == '.')
        for (at++; at < end && is_digit(*at); at++) {
            out->digits = out->digits * 10 + (uint64_t)(*at - '0');
            count += count || *at != '0';
            out->exponent--;
        }
    if (at < end) {
        bool negative = *++at == '-';
        long exponent = 0;
        for (at += negative || *at == '+'; at < end && exponent < 10000; at++)
            exponent = exponent * 10 + (*at - '0');
        out->exponent += negative ? -exponent : exponent;
    }
    return count <= DIGITS_MAX;
}

static double divided(uint64_t digits, unsigned power)
{
    static const uint64_t fives[DIVISOR_MAX + 1] = {
        1u,
        5u,
        25u,
        125u,
        625u,
        3125u,
        15625u,
        78125u,
        390625u,
        1953125u,
        9765625u,
        48828125u,
        244140625u,
        1220703125u,
        6103515625u,
        30517578125u,
        152587890625u,
        762939453125u,
        3814697265625u,
        19073486328125u,
        95367431640625u,
        476837158203125u,
        2384185791015625u,
        11920928955078125u,
        59604644775390625u,
        298023223876953125u,
        1490116119384765625u,
        7450580596923828125u,
    };
    unsigned up = (unsigned)__builtin_clzll(digits),
             along = (unsigned)__builtin_clzll(fives[power]);
    uint64_t divisor = fives[power] << along;
    unsigned __int128 dividend = (unsigned __int128)(digits << up) << 63;
    uint64_t quotient = (uint64_t)(dividend / divisor); /* 63 or 64 bits */
    bool rest = dividend % divisor != 0;
    unsigned extra = 64 - (unsigned)__builtin_clzll(quotient) - DBL_MANT_DIG;
    uint64_t kept = quotient >> extra, cut = quotient & ((1ull << extra) - 1);
    uint64_t half = 1ull << (extra - 1);
    kept += cut > half || (cut == half && (rest || (kept & 1)));
    return ldexp((double)kept, (int)extra + (int)along - (int)up - 63 - (int)power);
}

double json_number(struct str raw)
{
    static const double tens[EXACT_MAX + 1] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                               1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                               1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    struct decimal decimal;
    if (read_decimal(raw, &decimal)) {
        double number = -1;
        if (decimal.digits == 0)
            number = 0;
        else if (decimal.exponent <= 0 && decimal.exponent >= -DIVISOR_MAX)
            number = divided(decimal.digits, (unsigned)-decimal.exponent);
        else if (decimal.exponent > 0 && decimal.exponent <= EXACT_MAX &&
                 decimal.digits <= 1ull << DBL_MANT_DIG)
            number = (double)decimal.digits * tens[decimal.exponent];
        if (number >= 0)
            return decimal.negative ? -number : number;
    }
    char small[64];
    OWN(mem) char *large = raw.size >= sizeof small ? str_dup(raw) : NULL;
    if (!large) {
        memcpy(small, raw.data, raw.size);
        small[raw.size] = 0;
    }
    return strtod(large ? large : small, NULL);
}

bool json_number_int(struct str raw, long long *out)
{
    bool negative = raw.size && raw.data[0] == '-';
    size_t at = negative;
    long long number = 0;
    if (raw.size - at == 0 || raw.size - at > 18)
        return false;
    for (; at < raw.size; at++) {
        if (!is_digit(raw.data[at]))
            return false;
        number = number * 10 + (raw.data[at] - '0');
    }
    *out = negative ? -number : number;
    return true;
}

/* err.c - setting, wrapping and ranking errors. One table says what each kind means outside. */
#include "base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* clang-format off */
static const struct err_meaning meanings[ERR_KINDS] = {
    [ERR_NONE]        = {"ok",          200,   0, false},
    [ERR_INPUT]       = {"bad_input",   400,   2, false},
    [ERR_NOT_FOUND]   = {"not_found",   404,   3, false},
    [ERR_CONFLICT]    = {"conflict",    409,   4, false},
    [ERR_DENIED]      = {"denied",      403,   5, false},
    [ERR_UNSUPPORTED] = {"unsupported", 422,   6, false},
    [ERR_LIMIT]       = {"limit",       413,   7, false},
    [ERR_TIMEOUT]     = {"timeout",     504,   8, true},
    [ERR_CAPACITY]    = {"capacity",    503,   9, true},
    [ERR_LOST]        = {"lost",        502,  10, true},
    [ERR_PROTOCOL]    = {"protocol",    502,  11, false},
    [ERR_CANCELLED]   = {"cancelled",   499, 130, false},
    [ERR_DISK_FULL]   = {"disk_full",   507,  12, true},
    [ERR_SYSTEM]      = {"system",      500,  13, false},
};
/* clang-format on */

const struct err_meaning *err_meaning(enum err_kind kind)
{
    return &meanings[kind < ERR_KINDS ? kind : ERR_SYSTEM];
}

enum err_kind err_kind_of_errno(int number)
{
    switch (number) {
    case 0:
        return ERR_NONE;
    case ENOENT:
    case ENOTDIR:
        return ERR_NOT_FOUND;
    case EACCES:
    case EPERM:
    case EROFS:
        return ERR_DENIED;
    case EEXIST:
    case ENOTEMPTY:
    case EBUSY:
        return ERR_CONFLICT;
    case ENOSPC:
    case EDQUOT:
        return ERR_DISK_FULL;
    case EMFILE:
    case ENFILE:
    case EAGAIN:
    case ENOMEM:
        return ERR_CAPACITY;
    case ETIMEDOUT:
        return ERR_TIMEOUT;
    case EPIPE:
    case ECONNRESET:
    case ECONNREFUSED:
    case ECONNABORTED:
    case ENOTCONN:
        return ERR_LOST;
    case ENOSYS:
    case EOPNOTSUPP:
        return ERR_UNSUPPORTED;
    default:
        return ERR_SYSTEM;
    }
}

static void format_text(char *text, const char *format, va_list args)
{
    vsnprintf(text, ERR_TEXT_MAX, format, args);
}

int err_set(struct err *err, enum err_kind kind, const char *format, ...)
{
    if (!err)
        return -1;
    va_list args;
    va_start(args, format);
    format_text(err->text, format, args);
    va_end(args);
    err->kind = kind;
    err->field[0] = '\0';
    return -1;
}

int err_errno(struct err *err, const char *format, ...)
{
    int number = errno;
    if (!err)
        return -1;
    va_list args;
    va_start(args, format);
    format_text(err->text, format, args);
    va_end(args);
    size_t used = strlen(err->text);
    snprintf(err->text + used, ERR_TEXT_MAX - used, ": %s", strerror(number));
    err->kind = err_kind_of_errno(number);
    if (err->kind == ERR_NONE)
        err->kind = ERR_SYSTEM;
    err->field[0] = '\0';
    return -1;
}

int err_wrap(struct err *err, const char *format, ...)
{
    if (!err)
        return -1;
    char context[ERR_TEXT_MAX];
    va_list args;
    va_start(args, format);
    format_text(context, format, args);
    va_end(args);
    char old[ERR_TEXT_MAX];
    memcpy(old, err->text, sizeof old);
    int used = snprintf(err->text, ERR_TEXT_MAX, "%s: ", context);
    if (used > 0 && used < ERR_TEXT_MAX)
        snprintf(err->text + used, ERR_TEXT_MAX - (size_t)used, "%s", old);
    return -1;
}

int err_at(struct err *err, const char *format, ...)
{
    if (!err)
        return -1;
    va_list args;
    va_start(args, format);
    vsnprintf(err->field, sizeof err->field, format, args);
    va_end(args);
    return -1;
}

int err_below(struct err *err, const char *format, ...)
{
    if (!err)
        return -1;
    char above[ERR_FIELD_MAX], old[ERR_FIELD_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(above, sizeof above, format, args);
    va_end(args);
    memcpy(old, err->field, sizeof old);
    snprintf(err->field, sizeof err->field, "%s%s%s", above, old[0] ? "." : "", old);
    return -1;
}

int err_copy(struct err *err, const struct err *from)
{
    if (err && err != from)
        *err = *from;
    return -1;
}

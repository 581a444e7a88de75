/* err.h - an error is a value on the caller's stack: `kind` for code, `text` for people.
 *
 * A function that can fail returns 0 or -1 (or a pointer or NULL) and takes `struct err *err` last.
 * Set it where it is found, wrap it where context is known, log it once where it ends. `err` may be
 * NULL everywhere; then only the return value speaks. */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include <stdbool.h>

enum err_kind {
    ERR_NONE = 0,
    ERR_INPUT,       /* what was asked is wrong: a flag, a file, a field */
    ERR_NOT_FOUND,   /* the named thing does not exist */
    ERR_CONFLICT,    /* the thing exists but is in another state */
    ERR_DENIED,      /* not allowed: permission, token, policy */
    ERR_UNSUPPORTED, /* this machine or backend lacks what is asked */
    ERR_LIMIT,       /* a declared maximum was reached */
    ERR_TIMEOUT,     /* a deadline passed */
    ERR_CAPACITY,    /* no room now; later there may be */
    ERR_LOST,        /* the peer went away */
    ERR_PROTOCOL,    /* the peer spoke nonsense */
    ERR_CANCELLED,   /* somebody asked for an end */
    ERR_DISK_FULL,   /* no space left */
    ERR_SYSTEM,      /* anything else the system said */
    ERR_KINDS
};

#define ERR_TEXT_MAX 512
#define ERR_FIELD_MAX 96

struct err {
    enum err_kind kind;
    char text[ERR_TEXT_MAX];
    char field[ERR_FIELD_MAX]; /* of what was asked: "task.verify"; "": none in particular */
};

/* One row per kind: its word, HTTP status, exit code, and whether trying again may help. */
struct err_meaning {
    const char *name;
    int http_status;
    int exit_code;
    bool retry;
};

const struct err_meaning *err_meaning(enum err_kind kind);

/* Sets the error, without a field; returns -1 so that `return err_set(...)` reads well. */
int err_set(struct err *err, enum err_kind kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same with ": <strerror(errno)>" appended; picks the kind from errno. */
int err_errno(struct err *err, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Puts "<context>: " before the text. Returns -1. Keeps the kind. */
int err_wrap(struct err *err, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Names the field that is wrong. Returns -1. */
int err_at(struct err *err, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The field, when there is one, is below this one; else it is this one. Returns -1. */
int err_below(struct err *err, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Copies; returns -1. */
int err_copy(struct err *err, const struct err *from);
enum err_kind err_kind_of_errno(int number);

#endif

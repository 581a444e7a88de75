/* settings.h - private to the config room: what a row of the table of settings says. */
#ifndef CONFIG_SETTINGS_H
#define CONFIG_SETTINGS_H

#include "config/config.h"

#define SETTINGS_MAX 80

/* Milliseconds and bytes. */
#define SECOND 1000ll
#define MINUTE (60 * SECOND)
#define HOUR (60 * MINUTE)
#define DAY (24 * HOUR)
#define KB 1024ll
#define MB (1024 * KB)
#define GB (1024 * MB)
#define TB (1024 * GB)

struct setting {
    const char *name;
    enum setting_type type;
    size_t offset;
    const char *fallback;
    int64_t min, max;
    const char *const *choices;
    bool filled; /* a text that must not be empty */
    const char *help;
};

extern const struct setting settings[];
extern const size_t setting_count; /* at most SETTINGS_MAX */

#endif

/* options.c - the porter's command line; README.md is its contract. Everything is checked here,
 * once, with one sentence for what is wrong. Filters are read to the end and their descriptors
 * closed. */
#include "porter.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fd.h"
#include "base/mem.h"

#define FILTER_MAX 4096 /* instructions, the kernel's own limit */

/* clang-format off */
static const struct { const char *name; int resource; } resources[] = {
    {"as", RLIMIT_AS}, {"core", RLIMIT_CORE}, {"cpu", RLIMIT_CPU}, {"data", RLIMIT_DATA},
    {"fsize", RLIMIT_FSIZE}, {"locks", RLIMIT_LOCKS}, {"memlock", RLIMIT_MEMLOCK},
    {"msgqueue", RLIMIT_MSGQUEUE}, {"nice", RLIMIT_NICE}, {"nofile", RLIMIT_NOFILE},
    {"nproc", RLIMIT_NPROC}, {"rss", RLIMIT_RSS}, {"rtprio", RLIMIT_RTPRIO}, {"rttime", RLIMIT_RTTIME},
    {"sigpending", RLIMIT_SIGPENDING}, {"stack", RLIMIT_STACK},
};
/* clang-format on */

static bool read_u64(struct str text, int base, uint64_t *out)
{
    char copy[32];
    if (!text.size || text.size >= sizeof copy || text.data[0] < '0')
        return false;
    memcpy(copy, text.data, text.size);
    copy[text.size] = '\0';
    char *end;
    errno = 0;
    *out = strtoull(copy, &end, base);
    return !*end && !errno;
}

static int read_fd(const char *name, const char *value, int *fd, struct err *err)
{
    uint64_t number;
    if (!read_u64(str_of(value), 10, &number) || number > 1 << 20 ||
        fcntl((int)number, F_GETFD) < 0)
        return err_set(err, ERR_INPUT, "%s '%s' is not an open descriptor", name, value);
    *fd = (int)number;
    return 0;
}

/* By position: the file may be shared with porters that read it right now. A pipe has none. */
static ssize_t read_from_start(int fd, char *data, size_t size)
{
    size_t used = 0;
    while (used < size) {
        ssize_t got = pread(fd, data + used, size - used, (off_t)used);
        if (got < 0 && errno == ESPIPE && !used)
            return fd_read_all(fd, data, size);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        if (got == 0)
            break;
        used += (size_t)got;
    }
    return (ssize_t)used;
}

static int read_filter(const char *name, const char *value, struct sock_fprog *out, struct err *err)
{
    OWN(fd) int fd = -1;
    if (read_fd(name, value, &fd, err) < 0)
        return -1;
    size_t room = FILTER_MAX * sizeof(struct sock_filter);
    struct sock_filter *filter = mem_alloc(room + 1);
    ssize_t size = read_from_start(fd, (char *)filter, room + 1);
    if (size <= 0 || (size_t)size > room || (size_t)size % sizeof *filter) {
        free(filter);
        return err_set(err, ERR_INPUT, "%s does not hold a filter program", name);
    }
    out->filter = filter;
    out->len = (unsigned short)((size_t)size / sizeof *filter);
    return 0;
}

static int read_limit(struct str text, rlim_t *out)
{
    uint64_t number;
    if (str_is(text, "unlimited"))
        *out = RLIM_INFINITY;
    else if (read_u64(text, 10, &number))
        *out = (rlim_t)number;
    else
        return -1;
    return 0;
}

static int read_rlimit(struct porter_options *options, const char *value, struct err *err)
{
    struct str rest = str_of(value);
    struct str name = str_cut(&rest, '=');
    struct str soft = str_cut(&rest, ':');
    struct rlimit limit;
    if (!rest.data || read_limit(soft, &limit.rlim_cur) < 0 ||
        read_limit(rest, &limit.rlim_max) < 0 || limit.rlim_cur > limit.rlim_max)
        return err_set(err, ERR_INPUT, "--rlimit '%s' is not NAME=SOFT:HARD", value);
    for (size_t i = 0; i < COUNT(resources); i++) {
        if (!str_is(name, resources[i].name))
            continue;
        if (options->rlimit_count == RLIMITS_MAX)
            return err_set(err, ERR_INPUT, "too many --rlimit");
        options->rlimits[options->rlimit_count].resource = resources[i].resource;
        options->rlimits[options->rlimit_count++].limit = limit;
        return 0;
    }
    return err_set(err, ERR_INPUT, "--rlimit '%s' names no limit", value);
}

static int read_user(struct porter_options *options, const char *value, struct err *err)
{
    struct str rest = str_of(value);
    struct str uid = str_cut(&rest, ':');
    uint32_t uid_number, gid_number;
    if (!rest.data || !user_number(uid, &uid_number) || !user_number(rest, &gid_number))
        return err_set(err, ERR_INPUT, "--default-user '%s' is not UID:GID", value);
    options->uid = uid_number;
    options->gid = gid_number;
    return 0;
}

static int add_env(struct porter_options *options, const char *entry, struct err *err)
{
    if (!strchr(entry, '=') || entry[0] == '=')
        return err_set(err, ERR_INPUT, "--default-env needs NAME=value");
    if (options->env_count == WIRE_ENV_MAX)
        return err_set(err, ERR_INPUT, "too many --default-env");
    options->env = mem_grow(options->env, (options->env_count + 2) * sizeof *options->env);
    options->env[options->env_count++] = mem_dup(entry);
    options->env[options->env_count] = NULL;
    return 0;
}

static int read_value(struct porter_options *options, const char *name, const char *value,
                      struct err *err)
{
    uint64_t number;
    if (strcmp(name, "--fd") == 0) {
        if (read_fd(name, value, &options->fd_in, err) < 0)
            return -1;
        options->fd_out = options->fd_in;
        return 0;
    }
    if (strcmp(name, "--control-fd") == 0)
        return read_fd(name, value, &options->fd_control, err);
    if (strcmp(name, "--default-env") == 0)
        return add_env(options, value, err);
    if (strcmp(name, "--default-cwd") == 0) {
        options->cwd = value;
        return value[0] == '/' ? 0 : err_set(err, ERR_INPUT, "--default-cwd must be absolute");
    }
    if (strcmp(name, "--default-user") == 0)
        return read_user(options, value, err);
    if (strcmp(name, "--root-caps") == 0) {
        if (!read_u64(str_of(value), 16, &options->root_caps))
            return err_set(err, ERR_INPUT, "--root-caps '%s' is not a hexadecimal mask", value);
        return 0;
    }
    if (strcmp(name, "--seccomp-fd") == 0)
        return read_filter(name, value, &options->filter, err);
    if (strcmp(name, "--seccomp-root-fd") == 0)
        return read_filter(name, value, &options->root_filter, err);
    if (strcmp(name, "--rlimit") == 0)
        return read_rlimit(options, value, err);
    if (strcmp(name, "--inlet-port") == 0) {
        if (!read_u64(str_of(value), 10, &number) || number < 1 || number > 65535)
            return err_set(err, ERR_INPUT, "--inlet-port '%s' is not a port", value);
        options->inlet_port = (uint16_t)number;
        return 0;
    }
    return err_set(err, ERR_INPUT, "unknown option '%s'", name);
}

void options_deinit(struct porter_options *options)
{
    for (size_t i = 0; i < options->env_count; i++)
        free(options->env[i]);
    free(options->env);
    free(options->filter.filter);
    free(options->root_filter.filter);
    *options = (struct porter_options){0};
}

int options_read(struct porter_options *options, int argc, char **argv, char **environment,
                 struct err *err)
{
    *options = (struct porter_options){.fd_in = -1,
                                       .fd_out = -1,
                                       .fd_control = -1,
                                       .cwd = "/",
                                       .uid = geteuid(),
                                       .gid = getegid()};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--version") == 0)
            return 1;
        if (strcmp(argv[i], "--die-with-parent") == 0) {
            options->die_with_parent = true;
        } else if (strcmp(argv[i], "--stdio") == 0) {
            options->fd_in = 0;
            options->fd_out = 1;
        } else if (strcmp(argv[i], "--inherit-env") == 0) {
            for (char **entry = environment; *entry; entry++)
                if (strchr(*entry, '=') && (*entry)[0] != '=' && add_env(options, *entry, err) < 0)
                    return -1;
        } else if (i + 1 == argc) {
            return err_set(err, ERR_INPUT, "'%s' is unknown or lacks its value", argv[i]);
        } else {
            if (read_value(options, argv[i], argv[i + 1], err) < 0)
                return -1;
            i++;
        }
    }
    if (options->fd_in < 0)
        return err_set(err, ERR_INPUT, "--fd N or --stdio is needed");
    if (!options->env)
        return add_env(options, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                       err);
    return 0;
}

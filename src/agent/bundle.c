/* bundle.c - agents built once on the host, mounted read-only into every sandbox.
 *
 *     <home>/bundles/NAME-VERSION-KEY/manifest.json
 *     <home>/bundles/NAME-VERSION-KEY/root/opt/postern/agents/NAME/...     the layer
 *
 * KEY is a checksum over everything in the spec that decides what is built, so that a changed spec
 * is another bundle and an old one is never taken for it. A bundle is built beside its place and
 * renamed when it is whole; a build that is cut off leaves nothing that could be mounted. What npm
 * fetched is compared with the checksums in the spec before anything of it is kept. */
#include "agent/agent.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <ftw.h>
#include <limits.h>
#include <openssl/evp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/bundle.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/id.h"
#include "base/mem.h"
#include "config/toml.h"
#include "json/json.h"

#define LOCK_FILE_BYTES_MAX (64u << 20)
#define SCRIPT_BYTES_MAX (16u << 20)

/* ---------------------------------------------------------------- reading the spec */
static const char *keep(struct agent_spec *spec, const char *text)
{
    return arena_text(&spec->arena, str_of(text));
}

/* Texts of a bundle know the version and the architecture, nothing of a rollout. */
static const char *expand(struct agent_spec *spec, const char *text)
{
    struct agent_values values = {0};
    agent_values_fixed(&spec->arena, spec, &values);
    return agent_expand(&spec->arena, text, &values);
}

static int read_texts(struct agent_spec *spec, struct toml_node *table, const char *key,
                      const char *const **out, struct err *err)
{
    const char *const *list = NULL;
    size_t count = 0;
    int found = toml_texts(table, key, &list, &count, err);
    if (found != 1)
        return found;
    const char **copy = arena_alloc(&spec->arena, (count + 1) * sizeof *copy);
    for (size_t i = 0; i < count; i++)
        copy[i] = expand(spec, list[i]);
    *out = copy;
    return 1;
}

static bool is_inside(const char *path)
{
    struct str rest = str_of(path);
    if (!rest.size || path[0] == '/')
        return false;
    while (rest.data)
        if (str_is(str_cut(&rest, '/'), ".."))
            return false;
    return true;
}

static int read_pairs(struct agent_spec *spec, struct toml_node *bundle, const char *key,
                      bool paths, struct agent_pair **out, size_t *count, struct err *err)
{
    struct toml_node *table = NULL;
    if (toml_table(bundle, key, &table, err) < 0)
        return -1;
    if (!table)
        return 0;
    *out = arena_alloc(&spec->arena, (table->count + 1) * sizeof **out);
    TOML_EACH(item, table)
    {
        const char *value = NULL;
        if (toml_need_text(table, item->key, &value, err) < 0)
            return -1;
        struct agent_pair pair = {expand(spec, item->key), expand(spec, value)};
        if (paths && (!is_inside(pair.key) || !is_inside(pair.value)))
            return toml_error(item, err, "paths in a bundle are relative and without '..'");
        (*out)[(*count)++] = pair;
    }
    return 0;
}

static int check_kind(struct agent_bundle *bundle, struct toml_node *table, struct err *err)
{
    bool packages = bundle->kind == AGENT_BUNDLE_NPM || bundle->kind == AGENT_BUNDLE_PYPI;
    if (packages && !bundle->packages)
        return toml_error(table, err, "this kind of bundle needs 'packages'");
    if (!packages && !bundle->source)
        return toml_error(table, err, "this kind of bundle needs 'source'");
    if (packages ? bundle->source != NULL : bundle->packages != NULL)
        return toml_error(table, err, "packages are for npm and pypi, a source for the others");
    bool fetched = bundle->kind == AGENT_BUNDLE_TARBALL || bundle->kind == AGENT_BUNDLE_BINARY;
    if (fetched && (!bundle->sha256 || strlen(bundle->sha256) != 64))
        return toml_error(table, err, "what is fetched needs its 'sha256', 64 hexadecimal digits");
    if (bundle->runtime && bundle->kind != AGENT_BUNDLE_PYPI)
        return toml_error(table, err, "'runtime' is for pypi: a Python of its own");
    for (size_t i = 0; packages && bundle->packages[i]; i++)
        if (bundle->packages[i][0] == '-')
            return toml_error(table, err, "'%s' is no package", bundle->packages[i]);
    return 0;
}

static void add_text(EVP_MD_CTX *sum, const char *text)
{
    (void)EVP_DigestUpdate(sum, text ? text : "", text ? strlen(text) + 1 : 1);
}

/* A path as it is, or beside the spec. */
static char *source_path(const struct agent_spec *spec)
{
    const char *source = spec->bundle.source, *slash = strrchr(spec->where, '/');
    if (source[0] == '/' || !slash)
        return realpath(source, NULL);
    OWN(mem) char *path = mem_format("%.*s/%s", (int)(slash - spec->where), spec->where, source);
    return realpath(path, NULL);
}

/* What a script says is part of what is built. */
static void add_file(EVP_MD_CTX *sum, const struct agent_spec *spec)
{
    OWN(mem) char *path = source_path(spec);
    OWN(buf) struct buf text = {0};
    if (path && file_read(path, SCRIPT_BYTES_MAX, &text, NULL) == 0)
        (void)EVP_DigestUpdate(sum, text.data, text.size);
}

static void hex(char *text, const unsigned char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
}

static void make_key(struct agent_spec *spec)
{
    struct agent_bundle *bundle = &spec->bundle;
    unsigned char digest[EVP_MAX_MD_SIZE] = {0};
    EVP_MD_CTX *sum = EVP_MD_CTX_new();
    char kind[16];
    (void)EVP_DigestInit_ex(sum, EVP_sha256(), NULL);
    snprintf(kind, sizeof kind, "%d.%d%s", (int)bundle->kind, bundle->scripts,
             bundle->runtime ? ".1" : "");
    add_text(sum, kind);
    add_text(sum, spec->name);
    add_text(sum, spec->version);
    for (size_t i = 0; bundle->packages && bundle->packages[i]; i++)
        add_text(sum, bundle->packages[i]);
    add_text(sum, bundle->source);
    add_text(sum, bundle->sha256);
    if (bundle->kind == AGENT_BUNDLE_SCRIPT && !bundle->sha256)
        add_file(sum, spec);
    for (size_t i = 0; i < bundle->integrity_count; i++) {
        add_text(sum, bundle->integrity[i].key);
        add_text(sum, bundle->integrity[i].value);
    }
    for (size_t i = 0; i < bundle->place_count; i++) {
        add_text(sum, bundle->place[i].key);
        add_text(sum, bundle->place[i].value);
    }
    for (size_t i = 0; bundle->drop && bundle->drop[i]; i++)
        add_text(sum, bundle->drop[i]);
    (void)EVP_DigestFinal_ex(sum, digest, NULL);
    EVP_MD_CTX_free(sum);
    hex(bundle->key, digest, sizeof bundle->key / 2);
}

int agent_bundle_read(struct agent_spec *spec, struct toml_node *root, struct err *err)
{
    static const char *const kinds[] = {"none", "npm", "pypi", "tarball", "binary", "script", NULL};
    struct agent_bundle *bundle = &spec->bundle;
    struct toml_node *table = NULL;
    const char *source = NULL, *sha256 = NULL;
    int kind = AGENT_BUNDLE_NONE;
    long long build_ms = 900000;
    if (toml_table(root, "bundle", &table, err) < 0)
        return -1;
    if (!table)
        return 0;
    if (toml_choice(table, "kind", kinds, &kind, err) < 0 ||
        toml_bool(table, "scripts", &bundle->scripts, err) < 0 ||
        toml_bool(table, "runtime", &bundle->runtime, err) < 0 ||
        toml_text(table, "source", &source, err) < 0 ||
        toml_text(table, "sha256", &sha256, err) < 0 ||
        toml_duration_ms(table, "timeout", 1000, 86400000, &build_ms, err) < 0)
        return -1;
    if (kind == AGENT_BUNDLE_NONE)
        return toml_error(table, err, "[bundle] needs 'kind'");
    for (const char *c = spec->version; *c; c++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-+_", *c) ||
            spec->version[0] == '.')
            return toml_error(table, err, "the version '%s' cannot be part of a file name",
                              spec->version);
    if (!spec->version[0])
        return toml_error(table, err, "a bundle needs the spec's 'version'");
    bundle->kind = (enum agent_bundle_kind)kind;
    bundle->build_ms_max = (uint32_t)build_ms;
    bundle->sha256 = sha256 ? keep(spec, sha256) : NULL;
    bundle->source = source ? expand(spec, source) : NULL;
    if (read_texts(spec, table, "packages", &bundle->packages, err) < 0 ||
        read_texts(spec, table, "drop", &bundle->drop, err) < 0 ||
        read_pairs(spec, table, "integrity", false, &bundle->integrity, &bundle->integrity_count,
                   err) < 0 ||
        read_pairs(spec, table, "place", true, &bundle->place, &bundle->place_count, err) < 0 ||
        check_kind(bundle, table, err) < 0)
        return -1;
    for (size_t i = 0; bundle->drop && bundle->drop[i]; i++)
        if (!is_inside(bundle->drop[i]))
            return toml_error(table, err, "paths in a bundle are relative and without '..'");
    make_key(spec);
    return 0;
}

/* ---------------------------------------------------------------- where it is */
bool agent_spec_has_bundle(const struct agent_spec *spec)
{
    return spec->bundle.kind != AGENT_BUNDLE_NONE;
}

static char *bundle_dir(const struct agent_spec *spec, const char *home)
{
    return mem_format("%s/bundles/%s-%s-%s", home, spec->name, spec->version, spec->bundle.key);
}

static bool is_installed(const char *dir)
{
    OWN(mem) char *manifest = mem_format("%s/manifest.json", dir);
    return file_exists(manifest);
}

char *agent_bundle_layer(const struct agent_spec *spec, const char *home, struct err *err)
{
    OWN(mem) char *dir = bundle_dir(spec, home);
    if (!is_installed(dir)) {
        err_set(err, ERR_NOT_FOUND, "the agent %s %s is not installed: postern agents install %s",
                spec->name, spec->version, spec->name);
        return NULL;
    }
    if (bundle_store_hold(dir, err) < 0)
        return NULL;
    OWN(mem) char *root = mem_format("%s/root", dir);
    char *real = realpath(root, NULL);
    if (!real)
        err_errno(err, "'%s'", root);
    return real;
}

void agent_bundle_write(const struct agent_spec *spec, const char *home, struct json_writer *out)
{
    OWN(mem) char *dir = bundle_dir(spec, home);
    OWN(mem) char *manifest = mem_format("%s/manifest.json", dir);
    OWN(buf) struct buf text = {0};
    OWN(json_doc) struct json_doc doc = {0};
    long long bytes = 0;
    bool there = file_read(manifest, 1 << 20, &text, NULL) == 0 &&
                 json_read(&doc, buf_str(&text), NULL, NULL) == 0;
    json_set_bool(out, "installed", there);
    if (!there)
        return;
    if (json_int(json_get(json_root(&doc), "bytes"), &bytes))
        json_set_int(out, "bytes", bytes);
    json_set_text(out, "bundle", dir);
}

/* ---------------------------------------------------------------- building */
static void log_tail(const char *path, char *text, size_t size)
{
    OWN(buf) struct buf log = {0};
    (void)file_read(path, 16 << 20, &log, NULL);
    struct str said = str_trim(buf_str(&log));
    if (said.size > size - 1)
        said = str_from(said, said.size - (size - 1));
    snprintf(text, size, "%.*s", STR_ARGS(said));
}

/* The child: its own process group, its own folder, nothing on stdin, output to the log. */
static void become(const char *const *argv, const char *cwd, const char *log)
{
    sigset_t none;
    (void)sigemptyset(&none);
    (void)pthread_sigmask(SIG_SETMASK, &none, NULL);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int file = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (setpgid(0, 0) < 0 || chdir(cwd) < 0 || null < 0 || file < 0 || dup2(null, 0) < 0 ||
        dup2(file, 1) < 0 || dup2(file, 2) < 0)
        _exit(126);
    execvp(argv[0], (char *const *)argv);
    dprintf(2, "%s: %s\n", argv[0], strerror(errno));
    _exit(127);
}

enum ending { ENDED, ENDED_BY_TIME, ENDED_BY_SIGNAL };

static enum ending await(const struct build *build, pid_t child)
{
    OWN(fd) int watch = pidfd_open(child, 0);
    struct pollfd both[] = {{.fd = watch, .events = POLLIN},
                            {.fd = build->signals, .events = POLLIN}};
    for (;;) {
        uint64_t now = clock_mono_ms();
        if (watch < 0 || now >= build->deadline_ms)
            return ENDED_BY_TIME;
        int ready = poll(both, COUNT(both), (int)(build->deadline_ms - now));
        if (ready > 0 && both[0].revents)
            return ENDED;
        if (ready > 0 && both[1].revents)
            return ENDED_BY_SIGNAL;
    }
}

int bundle_run(struct build *build, const char *const *argv, struct err *err)
{
    const char *log = arena_format(&build->arena, "%s/build.log", build->work);
    int status = 0;
    pid_t child = fork();
    if (child < 0)
        return err_errno(err, "starting %s", argv[0]);
    if (child == 0)
        become(argv, build->made, log);
    enum ending ending = await(build, child);
    if (ending != ENDED)
        (void)kill(-child, SIGKILL);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    if (ending == ENDED_BY_SIGNAL)
        return err_set(err, ERR_CANCELLED, "interrupted");
    char said[200];
    log_tail(log, said, sizeof said);
    if (ending == ENDED_BY_TIME)
        return err_set(err, ERR_TIMEOUT, "%s took longer than %u s: %s", argv[0],
                       build->spec->bundle.build_ms_max / 1000, said);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
        return err_set(err, ERR_NOT_FOUND, "%s is needed on this machine: %s", argv[0], said);
    return err_set(err, ERR_SYSTEM, "%s failed (%d): %s", argv[0],
                   WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), said);
}

static size_t list_size(const char *const *list)
{
    size_t count = 0;
    while (list && list[count])
        count++;
    return count;
}

int bundle_run_with_packages(struct build *build, const char *const *first, struct err *err)
{
    const char *const *packages = build->spec->bundle.packages;
    size_t used = list_size(first);
    const char **argv = arena_alloc(&build->arena, (used + list_size(packages) + 1) * sizeof *argv);
    memcpy(argv, first, used * sizeof *argv);
    for (size_t i = 0; packages[i]; i++)
        argv[used++] = packages[i];
    return bundle_run(build, argv, err);
}

/* A package for an architecture that is not this one's. */
static bool is_foreign(const char *package)
{
#if defined __x86_64__
    return strstr(package, "-arm64") != NULL;
#else
    return strstr(package, "-x64") != NULL;
#endif
}

/* npm has checked what it fetched against what its registry says; that this is what the spec says
 * is checked here. */
static int check_integrity(struct build *build, struct err *err)
{
    const struct agent_bundle *bundle = &build->spec->bundle;
    OWN(buf) struct buf text = {0};
    OWN(json_doc) struct json_doc doc = {0};
    OWN(mem) char *path = mem_format("%s/package-lock.json", build->made);
    if (file_read(path, LOCK_FILE_BYTES_MAX, &text, err) < 0 ||
        json_read(&doc, buf_str(&text), NULL, err) < 0)
        return -1;
    struct json packages = json_get(json_root(&doc), "packages");
    for (size_t i = 0; i < bundle->integrity_count; i++) {
        const struct agent_pair *pair = &bundle->integrity[i];
        const char *key = arena_format(&build->arena, "node_modules/%s", pair->key);
        struct json found = json_get(json_get(packages, key), "integrity");
        if (!json_exists(found) && is_foreign(pair->key))
            continue;
        if (!json_exists(found))
            return err_set(err, ERR_INPUT, "'%s' was not installed", pair->key);
        if (!json_is(found, pair->value))
            return err_set(err, ERR_INPUT, "'%s' has the checksum %.*s, not %s", pair->key,
                           STR_ARGS(json_raw(found)), pair->value);
    }
    return 0;
}

static int make_npm(struct build *build, struct err *err)
{
    OWN(mem) char *package = mem_format("%s/package.json", build->made);
    if (file_write(package, STR("{\"private\":true}\n"), 0644, false, err) < 0)
        return -1;
    const char *const careful[] = {"npm",        "install",          "--no-audit",
                                   "--no-fund",  "--save-exact",     "--loglevel=error",
                                   "--omit=dev", "--ignore-scripts", "--",
                                   NULL};
    const char *const trusting[] = {"npm",        "install",      "--no-audit",
                                    "--no-fund",  "--save-exact", "--loglevel=error",
                                    "--omit=dev", "--",           NULL};
    if (bundle_run_with_packages(build, build->spec->bundle.scripts ? trusting : careful, err) < 0)
        return -1;
    return check_integrity(build, err);
}

static int check_sha256(const char *path, const char *wanted, struct err *err)
{
    unsigned char digest[EVP_MAX_MD_SIZE], block[65536];
    char text[2 * EVP_MAX_MD_SIZE + 1];
    OWN(fd) int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(err, "'%s'", path);
    EVP_MD_CTX *sum = EVP_MD_CTX_new();
    bool good = sum && EVP_DigestInit_ex(sum, EVP_sha256(), NULL) == 1;
    ssize_t size = 0;
    while (good && (size = read(fd, block, sizeof block)) > 0)
        good = EVP_DigestUpdate(sum, block, (size_t)size) == 1;
    good = good && size == 0 && EVP_DigestFinal_ex(sum, digest, NULL) == 1;
    EVP_MD_CTX_free(sum);
    if (!good)
        return err_set(err, ERR_SYSTEM, "'%s' could not be read", path);
    hex(text, digest, 32);
    if (!str_equal_nocase(str_of(text), str_of(wanted)))
        return err_set(err, ERR_INPUT, "'%s' has the sha256 %s, not %s", path, text, wanted);
    return 0;
}

static int fetch(struct build *build, const char *to, struct err *err)
{
    const struct agent_bundle *bundle = &build->spec->bundle;
    OWN(mem) char *local = strstr(bundle->source, "://") ? NULL : source_path(build->spec);
    const char *const copy[] = {"cp", "--", local, to, NULL};
    const char *const curl[] = {"curl", "-fsSL", "--retry",      "3", "-o",
                                to,     "--",    bundle->source, NULL};
    if (!local && !strstr(bundle->source, "://"))
        return err_set(err, ERR_NOT_FOUND, "there is no '%s'", bundle->source);
    if (bundle_run(build, local ? copy : curl, err) < 0)
        return -1;
    return check_sha256(to, bundle->sha256, err);
}

static int make_tarball(struct build *build, struct err *err)
{
    const char *archive = arena_format(&build->arena, "%s/archive", build->work);
    const char *const unpack[] = {"tar", "--no-same-owner", "-xf", archive, NULL};
    if (fetch(build, archive, err) < 0)
        return -1;
    return bundle_run(build, unpack, err);
}

static int make_binary(struct build *build, struct err *err)
{
    const char *dir = arena_format(&build->arena, "%s/bin", build->made);
    const char *program = arena_format(&build->arena, "%s/%s", dir, build->spec->name);
    if (file_make_dirs(dir, 0755, err) < 0 || fetch(build, program, err) < 0)
        return -1;
    if (chmod(program, 0755) < 0)
        return err_errno(err, "'%s'", program);
    return 0;
}

static int make_script(struct build *build, struct err *err)
{
    OWN(mem) char *path = source_path(build->spec);
    if (!path)
        return err_set(err, ERR_NOT_FOUND, "there is no '%s'", build->spec->bundle.source);
    if (build->spec->bundle.sha256 && check_sha256(path, build->spec->bundle.sha256, err) < 0)
        return -1;
    const char *const argv[] = {"sh", "-e", path, NULL};
    return bundle_run(build, argv, err);
}

static int place_one(struct build *build, const struct agent_pair *pair, struct err *err)
{
    OWN(mem) char *from = mem_format("%s/%s", build->made, pair->value);
    OWN(mem) char *to = mem_format("%s/%s", build->out, pair->key);
    char *slash = strrchr(to, '/');
    *slash = '\0';
    if (file_make_dirs(to, 0755, err) < 0)
        return -1;
    *slash = '/';
    if (rename(from, to) < 0)
        return err_errno(err, "'%s', which the spec wants kept", pair->value);
    return 0;
}

/* Files whose path fits a pattern with '*'; '*' also stands for slashes. nftw() has no context. */
static __thread const char *drop_pattern;
static __thread size_t drop_prefix;
static int drop_fitting(const char *path, const struct stat *facts, int type, struct FTW *where)
{
    (void)facts, (void)where;
    bool file = type == FTW_F || type == FTW_SL;
    if (file && fnmatch(drop_pattern, path + drop_prefix, 0) == 0 && unlink(path) < 0)
        return -1;
    return 0;
}

static int drop(struct build *build, const char *what, struct err *err)
{
    OWN(mem) char *path = mem_format("%s/%s", build->made, what);
    if (!strchr(what, '*'))
        return file_remove_tree(path, err);
    drop_pattern = what;
    drop_prefix = strlen(build->made) + 1;
    if (nftw(build->made, drop_fitting, 16, FTW_PHYS) != 0)
        return err_errno(err, "dropping '%s'", what);
    return 0;
}

/* Drops first, then takes what is wanted; without a word about it, everything. */
static int place(struct build *build, struct err *err)
{
    const struct agent_bundle *bundle = &build->spec->bundle;
    for (size_t i = 0; bundle->drop && bundle->drop[i]; i++)
        if (drop(build, bundle->drop[i], err) < 0)
            return -1;
    for (size_t i = 0; i < bundle->place_count; i++)
        if (place_one(build, &bundle->place[i], err) < 0)
            return -1;
    if (bundle->place_count)
        return 0;
    if (rmdir(build->out) < 0 || rename(build->made, build->out) < 0)
        return err_errno(err, "'%s'", build->made);
    return 0;
}

static __thread uint64_t bytes_found;
static int add_size(const char *path, const struct stat *facts, int type, struct FTW *where)
{
    (void)path, (void)where;
    if (type == FTW_F)
        bytes_found += (uint64_t)facts->st_blocks * 512;
    return 0;
}

static int write_manifest(struct build *build, struct err *err)
{
    OWN(buf) struct buf text = {0};
    struct json_writer writer = {.out = &text};
    const struct agent_spec *spec = build->spec;
    bytes_found = 0;
    (void)nftw(build->out, add_size, 16, FTW_PHYS);
    json_begin_object(&writer);
    json_set_text(&writer, "name", spec->name);
    json_set_text(&writer, "version", spec->version);
    json_set_text(&writer, "key", spec->bundle.key);
    OWN(mem) char *where = realpath(spec->where, NULL);
    json_set_text(&writer, "spec", where ? where : spec->where);
    json_set_int(&writer, "bytes", (long long)bytes_found);
    json_set_int(&writer, "built_ms", (long long)clock_wall_ms());
    json_end_object(&writer);
    buf_byte(&text, '\n');
    OWN(mem) char *path = mem_format("%s/new/manifest.json", build->work);
    return file_write(path, buf_str(&text), 0644, true, err);
}

static int build_it(struct build *build, struct err *err)
{
    static int (*const makers[])(struct build *, struct err *) = {
        [AGENT_BUNDLE_NPM] = make_npm,         [AGENT_BUNDLE_PYPI] = bundle_make_pypi,
        [AGENT_BUNDLE_TARBALL] = make_tarball, [AGENT_BUNDLE_BINARY] = make_binary,
        [AGENT_BUNDLE_SCRIPT] = make_script,
    };
    if (file_make_dirs(build->made, 0755, err) < 0 || file_make_dirs(build->out, 0755, err) < 0)
        return -1;
    if (makers[build->spec->bundle.kind](build, err) < 0 || place(build, err) < 0)
        return -1;
    return write_manifest(build, err);
}

/* An interrupt was answered by the end of the build; it is not to be answered twice. */
static void take_signals(int signals, const sigset_t *before)
{
    struct signalfd_siginfo info;
    struct pollfd ready = {.fd = signals, .events = POLLIN};
    while (signals >= 0 && poll(&ready, 1, 0) > 0 && read(signals, &info, sizeof info) > 0)
        ;
    fd_close(&signals);
    (void)pthread_sigmask(SIG_SETMASK, before, NULL);
}

int agent_bundle_build(const struct agent_spec *spec, const char *home, struct err *err)
{
    OWN(mem) char *bundles = mem_format("%s/bundles", home);
    if (!agent_spec_has_bundle(spec))
        return err_set(err, ERR_INPUT,
                       "the agent %s has nothing to install: its spec has no "
                       "[bundle]",
                       spec->name);
    uint64_t deadline_ms = clock_mono_ms() + spec->bundle.build_ms_max;
    OWN(fd) int lock = bundle_store_lock(home, deadline_ms, err);
    if (lock < 0)
        return -1;
    OWN(mem) char *real = realpath(bundles, NULL);
    if (!real)
        return err_errno(err, "'%s'", bundles);
    OWN(mem) char *dir = bundle_dir(spec, home);
    if (is_installed(dir))
        return 0;
    char id[ID_MAX];
    id_make(id, "build");
    struct build build = {.spec = spec, .deadline_ms = deadline_ms};
    sigset_t ends, before;
    (void)sigemptyset(&ends);
    (void)sigaddset(&ends, SIGINT);
    (void)sigaddset(&ends, SIGTERM);
    (void)sigaddset(&ends, SIGHUP);
    (void)pthread_sigmask(SIG_BLOCK, &ends, &before);
    build.signals = signalfd(-1, &ends, SFD_CLOEXEC);
    build.work = mem_format("%s/.%s", real, id);
    build.made = mem_format("%s/made", build.work);
    build.out = mem_format("%s/new/root" AGENT_BUNDLES_INSIDE "/%s", build.work, spec->name);
    OWN(mem) char *whole = mem_format("%s/new", build.work);
    int result = build_it(&build, err);
    if (result == 0 && (file_remove_tree(dir, err) < 0 || rename(whole, dir) < 0))
        result = err_errno(err, "'%s'", dir);
    if (result < 0)
        err_wrap(err, "installing %s %s", spec->name, spec->version);
    (void)file_remove_tree(build.work, NULL);
    take_signals(build.signals, &before);
    free(build.work);
    free(build.made);
    free(build.out);
    arena_deinit(&build.arena);
    return result;
}

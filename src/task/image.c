/* image.c - images that tasks bring along or name: built or fetched once, kept for all.
 *
 *     hash the build context -> is it in home/images? -> builder build -> builder save -> import
 *
 * A builder is buildah, podman or docker, whichever is there, or a command line the operator gave.
 * What is built is known by the checksum of its context (files, modes, links), so that a task that
 * did not change is never built again, whoever asks: rollouts of this process wait for one thread,
 * other processes for its lock. The result lies in home/images like any imported image. Where the
 * backend is podman or docker itself, its own store is enough and nothing is imported.
 *
 * Builds run on threads of their own, a few at once: they take minutes, and the loop's workers have
 * other things to do. A build that failed is remembered for a while, so that a thousand rollouts of
 * a broken task do not try it a thousand times. */
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/list.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "loop/loop.h"
#include "sandbox/sandbox.h"
#include "task/internal.h"

enum {
    BUILD_MS = 600000,
    BUILDS_MAX = 2,
    WORDS_MAX = 64,
    ENTRIES_MAX = 1000000,
    FAILED_KEPT_MS = 30000,
    FAILED_MAX = 64,
    IMAGE_NAME_MAX = 100,
};
#define CONTEXT_BYTES_MAX (16ull << 30)

extern char **environ;

/* One image on its way, with everybody who waits for it. */
struct making {
    struct list node;
    char *key; /* home and what is to be made */
    struct list waiters;
    char *home, *builder, *flags, *build_dir, *name;
    bool own_store;
    bool abandoned; /* nobody waits any more */
    pid_t child;    /* the builder, a session of its own; 0: none runs */
    uint32_t ms_max;
    char *root; /* the outcome, or */
    struct err err;
};
struct task_image_job {
    struct list node; /* in making->waiters; unlinked: over */
    struct making *making;
    struct loop *loop;
    char *root;
    struct err err;
    bool closed, delivered;
    void (*on_done)(void *context, const char *root, const struct err *err);
    void *context;
};
struct failure {
    char *key;
    uint64_t at_ms;
    struct err err;
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t free_place;
    struct list all;
    unsigned building;
    struct failure failures[FAILED_MAX];
    size_t failure_at;
} images = {.lock = PTHREAD_MUTEX_INITIALIZER,
            .free_place = PTHREAD_COND_INITIALIZER,
            .all = {&images.all, &images.all}};

/* ---------------------------------------------------------------- the context */
static int hash_file(EVP_MD_CTX *hash, const char *path, uint64_t *left, struct err *err)
{
    OWN(fd) int file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    char bytes[65536];
    if (file < 0)
        return err_errno(err, "'%s'", path);
    for (ssize_t got; (got = read(file, bytes, sizeof bytes)) != 0;) {
        if (got < 0)
            return err_errno(err, "'%s'", path);
        if ((uint64_t)got > *left)
            return err_set(err, ERR_LIMIT, "'%s': the build context is too large", path);
        *left -= (uint64_t)got;
        EVP_DigestUpdate(hash, bytes, (size_t)got);
    }
    return 0;
}

static int hash_entry(EVP_MD_CTX *hash, FTSENT *entry, size_t prefix, uint64_t *left,
                      struct err *err)
{
    char head[64], target[4096];
    const struct stat *facts = entry->fts_statp;
    int size = snprintf(head, sizeof head, "%d %o %lld ", entry->fts_info, facts->st_mode,
                        S_ISREG(facts->st_mode) ? (long long)facts->st_size : 0ll);
    EVP_DigestUpdate(hash, head, (size_t)size);
    EVP_DigestUpdate(hash, entry->fts_path + prefix, strlen(entry->fts_path + prefix) + 1);
    if (S_ISREG(facts->st_mode))
        return hash_file(hash, entry->fts_path, left, err);
    if (S_ISLNK(facts->st_mode)) {
        ssize_t got = readlink(entry->fts_path, target, sizeof target);
        if (got > 0)
            EVP_DigestUpdate(hash, target, (size_t)got);
    }
    return 0;
}

static int by_name(const FTSENT **a, const FTSENT **b)
{
    return strcmp((*a)->fts_name, (*b)->fts_name);
}

static int hash_tree(EVP_MD_CTX *hash, const char *dir, struct err *err)
{
    char *const roots[] = {(char *)dir, NULL};
    FTS *walk = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, by_name);
    uint64_t left = CONTEXT_BYTES_MAX;
    size_t entries = 0;
    int result = walk ? 0 : err_errno(err, "'%s'", dir);
    for (FTSENT *entry; result == 0 && (entry = fts_read(walk));) {
        if (entry->fts_info == FTS_DP)
            continue;
        if (entry->fts_info == FTS_ERR || entry->fts_info == FTS_DNR || entry->fts_info == FTS_NS) {
            errno = entry->fts_errno;
            result = err_errno(err, "'%s'", entry->fts_path);
        } else if (++entries > ENTRIES_MAX) {
            result = err_set(err, ERR_LIMIT, "'%s': the build context has too many files", dir);
        } else {
            result = hash_entry(hash, entry, strlen(dir), &left, err);
        }
    }
    if (walk)
        fts_close(walk);
    return result;
}

/* "task-0123456789abcdef01234567" */
static int context_name(const char *dir, char name[64], struct err *err)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    EVP_MD_CTX *hash = EVP_MD_CTX_new();
    if (!hash || !EVP_DigestInit_ex(hash, EVP_sha256(), NULL)) {
        EVP_MD_CTX_free(hash);
        return err_set(err, ERR_SYSTEM, "no SHA-256");
    }
    int result = hash_tree(hash, dir, err);
    EVP_DigestFinal_ex(hash, digest, &size);
    EVP_MD_CTX_free(hash);
    OWN(buf) struct buf hex = {0};
    text_hex(&hex, str_make(digest, 12));
    snprintf(name, 64, "task-%s", buf_text(&hex));
    return result;
}

/* ---------------------------------------------------------------- the builder */
struct command {
    const char *words[WORDS_MAX + 1];
    size_t count;
};

static void add(struct command *command, const char *word)
{
    if (command->count < WORDS_MAX)
        command->words[command->count++] = word;
    command->words[command->count] = NULL;
}

/* Words separated by blanks; no quoting: paths with blanks have no place in a setting. */
static void add_words(struct command *command, struct arena *arena, const char *text)
{
    struct str rest = str_of(text ? text : "");
    while (rest.data) {
        struct str word = str_cut(&rest, ' ');
        if (word.size)
            add(command, arena_text(arena, word));
    }
}

static bool in_path(const char *name)
{
    const char *path = getenv("PATH");
    for (struct str rest = str_of(path ? path : ""); rest.data;) {
        struct str dir = str_cut(&rest, ':');
        OWN(mem) char *file = mem_format("%.*s/%s", STR_ARGS(dir), name);
        if (dir.size && access(file, X_OK) == 0)
            return true;
    }
    return false;
}

static int find_builder(const struct making *making, struct command *builder, struct arena *arena,
                        const char **kind, struct err *err)
{
    static const char *const known[] = {"buildah", "podman", "docker"};
    const char *asked = making->builder && making->builder[0] ? making->builder : "auto";
    if (strcmp(asked, "auto") != 0)
        add_words(builder, arena, asked);
    for (size_t i = 0; !builder->count && i < COUNT(known); i++)
        if (in_path(known[i]))
            add(builder, known[i]);
    if (!builder->count)
        return err_set(
            err, ERR_UNSUPPORTED,
            "the task needs %s%s, and neither buildah, podman nor docker is here to make "
            "it; install one, or import an image and name it with --root image:NAME",
            making->build_dir ? "the image of Dockerfile in " : "the image ",
            making->build_dir ? making->build_dir : making->name);
    const char *slash = strrchr(builder->words[0], '/');
    const char *base = slash ? slash + 1 : builder->words[0];
    for (size_t i = 0; i < COUNT(known); i++)
        if (strcmp(base, known[i]) == 0) {
            *kind = known[i];
            return 0;
        }
    return err_set(err, ERR_INPUT, "the builder '%s' is none of buildah, podman, docker", base);
}

/* Postern's own variables stay here. */
static char **builder_env(struct arena *arena)
{
    size_t count = 0, used = 0;
    while (environ[count])
        count++;
    char **env = arena_alloc(arena, (count + 1) * sizeof *env);
    for (size_t i = 0; i < count; i++)
        if (strncmp(environ[i], "POSTERN_", 8) != 0)
            env[used++] = environ[i];
    return env;
}

static int start(const struct command *command, const char *log, char **env, pid_t *child)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t none, pipes;
    sigemptyset(&none);
    sigemptyset(&pipes);
    sigaddset(&pipes, SIGPIPE);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, 1, log, O_WRONLY | O_CREAT | O_APPEND, 0644);
    posix_spawn_file_actions_adddup2(&files, 1, 2);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &pipes);
    posix_spawnattr_setflags(&attributes,
                             POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    int failed = posix_spawnp(child, command->words[0], &files, &attributes,
                              (char *const *)command->words, env);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
    errno = failed;
    return failed ? -1 : 0;
}

static void log_tail(const char *path, char *text, size_t size)
{
    OWN(buf) struct buf whole = {0};
    text[0] = '\0';
    if (file_read(path, 16u << 20, &whole, NULL) < 0)
        return;
    for (size_t i = 0; i < whole.size; i++)
        if ((unsigned char)whole.data[i] < ' ')
            whole.data[i] = ' ';
    struct str said = str_trim(buf_str(&whole));
    if (said.size > size - 1)
        said = str_from(said, said.size - (size - 1));
    snprintf(text, size, "%.*s", STR_ARGS(said));
}

struct maker {
    struct making *making;
    struct arena arena;
    struct command builder;
    const char *kind, *work, *log, *tag;
    uint64_t deadline_ms;
};

/* From here on, and until it is reaped, whoever abandons the build may kill it. */
static bool set_child(struct making *making, pid_t child)
{
    pthread_mutex_lock(&images.lock);
    making->child = child;
    bool wanted = !making->abandoned;
    pthread_mutex_unlock(&images.lock);
    return wanted;
}

static int run(struct maker *maker, const struct command *command, struct err *err)
{
    const char *log = maker->log;
    uint64_t deadline_ms = maker->deadline_ms;
    pid_t child = -1;
    int status = 0, ready = 0;
    if (start(command, log, builder_env(&maker->arena), &child) < 0)
        return err_errno(err, "starting %s", command->words[0]);
    if (!set_child(maker->making, child))
        (void)kill(-child, SIGKILL);
    OWN(fd) int watch = pidfd_open(child, 0);
    struct pollfd poll_fd = {.fd = watch, .events = POLLIN};
    do {
        uint64_t now = clock_mono_ms();
        ready = watch < 0 || now >= deadline_ms ? 0 : poll(&poll_fd, 1, (int)(deadline_ms - now));
    } while (ready < 0 && errno == EINTR);
    if (ready <= 0)
        (void)kill(-child, SIGKILL);
    (void)set_child(maker->making, 0);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    char said[300];
    log_tail(log, said, sizeof said);
    if (ready <= 0)
        return err_set(err, ERR_TIMEOUT, "%s did not end in time: %s", command->words[0], said);
    return err_set(err, ERR_INPUT, "%s ended with %d: %s", command->words[0],
                   WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), said);
}

/* ---------------------------------------------------------------- making one */
static int build(struct maker *maker, struct err *err)
{
    const struct making *making = maker->making;
    struct command command = maker->builder;
    if (making->build_dir) {
        add(&command, strcmp(maker->kind, "buildah") == 0 ? "bud" : "build");
        add_words(&command, &maker->arena, making->flags);
        add(&command, "-t");
        add(&command, maker->tag);
        add(&command, making->build_dir);
        return run(maker, &command, err);
    }
    /* What the builder has already need not be fetched. */
    add(&command, strcmp(maker->kind, "buildah") == 0 ? "inspect" : "image");
    if (strcmp(maker->kind, "buildah") == 0) {
        add(&command, "--type");
        add(&command, "image");
    } else {
        add(&command, "inspect");
    }
    add(&command, making->name);
    if (run(maker, &command, NULL) == 0)
        return 0;
    command = maker->builder;
    add(&command, "pull");
    add(&command, making->name);
    return run(maker, &command, err);
}

static int save(struct maker *maker, const char *archive, struct err *err)
{
    struct command command = maker->builder;
    if (strcmp(maker->kind, "buildah") == 0) {
        add(&command, "push");
        add(&command, maker->tag);
        add(&command, arena_format(&maker->arena, "oci-archive:%s", archive));
    } else {
        add(&command, "save");
        if (strcmp(maker->kind, "podman") == 0) {
            add(&command, "--format");
            add(&command, "oci-archive");
        }
        add(&command, "-o");
        add(&command, archive);
        add(&command, maker->tag);
    }
    return run(maker, &command, err);
}

static int make(struct maker *maker, const char *image, const char *images_dir, struct err *err)
{
    struct making *making = maker->making;
    maker->work = arena_format(&maker->arena, "%s/.build-%s", images_dir, image);
    maker->log = arena_format(&maker->arena, "%s/log", maker->work);
    maker->deadline_ms = clock_mono_ms() + (making->ms_max ? making->ms_max : BUILD_MS);
    const char *archive = arena_format(&maker->arena, "%s/image.tar", maker->work);
    if (file_remove_tree(maker->work, err) < 0 || file_make_dirs(maker->work, 0700, err) < 0)
        return -1;
    LOG_INFO("task", image, "%s %s with %s", making->build_dir ? "building" : "fetching",
             making->build_dir ? making->build_dir : making->name, maker->kind);
    if (build(maker, err) < 0)
        return err_wrap(err,
                        making->build_dir ? "building the image of %s" : "fetching the image %s",
                        making->build_dir ? making->build_dir : making->name);
    if (making->own_store)
        return 0;
    if (save(maker, archive, err) < 0 ||
        sandbox_image_import(making->home, archive, image, err) < 0)
        return -1;
    return file_remove_tree(maker->work, err);
}

static int make_locked(struct maker *maker, const char *image, struct err *err)
{
    struct making *making = maker->making;
    const char *images_dir = arena_format(&maker->arena, "%s/images", making->home);
    const char *lock_path = arena_format(&maker->arena, "%s/.lock-%s", images_dir, image);
    const char *made = arena_format(&maker->arena, "%s/%s/root", images_dir, image);
    if (!making->own_store && file_exists(made))
        return 0;
    if (find_builder(making, &maker->builder, &maker->arena, &maker->kind, err) < 0)
        return -1;
    if (file_make_dirs(making->home, 0700, err) < 0 || file_make_dirs(images_dir, 0700, err) < 0)
        return -1;
    OWN(fd) int lock = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (lock < 0 || flock(lock, LOCK_EX) < 0)
        return err_errno(err, "'%s'", lock_path);
    if (!making->own_store && file_exists(made))
        return 0; /* another process was faster */
    return make(maker, image, images_dir, err);
}

/* A name that is the name of an imported image already, else one made of it. */
static const char *image_name(struct maker *maker, char buffer[64], struct err *err)
{
    const struct making *making = maker->making;
    if (making->build_dir) {
        if (context_name(making->build_dir, buffer, err) < 0)
            return NULL;
        maker->tag = arena_format(&maker->arena, "localhost/postern/%s", buffer);
        return buffer;
    }
    maker->tag = making->name;
    char *name = arena_text(&maker->arena, str_of(making->name));
    for (char *at = name; *at; at++)
        if (*at == '/' || *at == '@')
            *at = '_';
    if (strlen(name) <= IMAGE_NAME_MAX)
        return name;
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    OWN(buf) struct buf hex = {0};
    if (!EVP_Digest(name, strlen(name), digest, &size, EVP_sha256(), NULL)) {
        err_set(err, ERR_SYSTEM, "no SHA-256");
        return NULL;
    }
    text_hex(&hex, str_make(digest, 12));
    snprintf(buffer, 64, "image-%s", buf_text(&hex));
    return buffer;
}

static void work(struct making *making)
{
    struct maker maker = {.making = making};
    char buffer[64];
    const char *image = image_name(&maker, buffer, &making->err);
    if (image && make_locked(&maker, image, &making->err) == 0)
        making->root = mem_format("image:%s", making->own_store ? maker.tag : image);
    arena_deinit(&maker.arena);
    /* The process may end while this thread does: what OpenSSL keeps for it goes before. */
    OPENSSL_thread_stop();
}

/* ---------------------------------------------------------------- who waits for it */
static void deliver(void *argument)
{
    struct task_image_job *job = argument;
    if (job->closed) {
        free(job->root);
        free(job);
        return;
    }
    job->delivered = true;
    job->on_done(job->context, job->root, job->root ? NULL : &job->err);
}

static void making_free(struct making *making)
{
    free(making->key);
    free(making->home);
    free(making->builder);
    free(making->flags);
    free(making->build_dir);
    free(making->name);
    free(making->root);
    free(making);
}

static void remember_failure(const struct making *making)
{
    struct failure *failure = &images.failures[images.failure_at++ % FAILED_MAX];
    free(failure->key);
    failure->key = mem_dup(making->key);
    failure->at_ms = clock_mono_ms();
    failure->err = making->err;
}

static void *maker_thread(void *argument)
{
    struct making *making = argument;
    pthread_mutex_lock(&images.lock);
    while (images.building >= BUILDS_MAX)
        pthread_cond_wait(&images.free_place, &images.lock);
    images.building++;
    pthread_mutex_unlock(&images.lock);
    work(making);
    pthread_mutex_lock(&images.lock);
    images.building--;
    pthread_cond_signal(&images.free_place);
    list_remove(&making->node);
    if (!making->root && !making->abandoned)
        remember_failure(making);
    while (!list_empty(&making->waiters)) {
        struct task_image_job *job = LIST_OF(making->waiters.next, struct task_image_job, node);
        list_remove(&job->node);
        job->root = mem_dup(making->root);
        job->err = making->err;
        loop_post(job->loop, deliver, job);
    }
    pthread_mutex_unlock(&images.lock);
    making_free(making);
    return NULL;
}

static int start_thread(struct making *making)
{
    sigset_t all, before;
    pthread_t thread;
    pthread_attr_t attributes;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    int failed = pthread_create(&thread, &attributes, maker_thread, making);
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = failed;
    return failed ? -1 : 0;
}

static const struct failure *recent_failure(const char *key)
{
    uint64_t now = clock_mono_ms();
    for (size_t i = 0; i < FAILED_MAX; i++) {
        const struct failure *failure = &images.failures[i];
        if (failure->key && now - failure->at_ms < FAILED_KEPT_MS && strcmp(failure->key, key) == 0)
            return failure;
    }
    return NULL;
}

static struct making *find_making(const char *key)
{
    LIST_EACH (at, &images.all) {
        struct making *making = LIST_OF(at, struct making, node);
        if (!making->abandoned && strcmp(making->key, key) == 0)
            return making;
    }
    return NULL;
}

static struct making *making_new(const struct task_image *image,
                                 const struct task_image_options *options, const char *key)
{
    struct making *making = mem_zero(sizeof *making);
    making->key = mem_dup(key);
    making->home = mem_dup(options->home);
    making->builder = mem_dup(options->builder);
    making->flags = mem_dup(options->flags);
    making->build_dir = mem_dup(image->build_dir);
    making->name = mem_dup(image->name);
    making->own_store = options->own_store;
    making->ms_max = image->build_ms_max;
    list_init(&making->waiters);
    return making;
}

/* Two wishes for the same. A Dockerfile that was changed is another one, also after a failure. */
static char *key_of(const struct task_image *image, const struct task_image_options *options)
{
    struct stat facts = {0};
    if (!image->build_dir)
        return mem_format("%s\n%d\n%s", options->home, options->own_store, image->name);
    OWN(mem) char *path = mem_format("%s/Dockerfile", image->build_dir);
    (void)stat(path, &facts);
    return mem_format("%s\n%d\n%s\n%lld.%ld", options->home, options->own_store, image->build_dir,
                      (long long)facts.st_mtim.tv_sec, facts.st_mtim.tv_nsec);
}

struct task_image_job *task_image_make(struct loop *loop, const struct task_image *image,
                                       const struct task_image_options *options,
                                       void (*on_done)(void *, const char *, const struct err *),
                                       void *context)
{
    struct task_image_job *job = mem_zero(sizeof *job);
    job->loop = loop;
    job->on_done = on_done;
    job->context = context;
    OWN(mem) char *key = key_of(image, options);
    pthread_mutex_lock(&images.lock);
    const struct failure *failure = recent_failure(key);
    struct making *making = failure ? NULL : find_making(key);
    if (failure) {
        job->err = failure->err;
        loop_post(loop, deliver, job);
    } else if (making) {
        job->making = making;
        list_append(&making->waiters, &job->node);
    } else {
        making = making_new(image, options, key);
        if (start_thread(making) < 0) {
            err_errno(&job->err, "a thread for the image");
            making_free(making);
            loop_post(loop, deliver, job);
        } else {
            list_append(&images.all, &making->node);
            job->making = making;
            list_append(&making->waiters, &job->node);
        }
    }
    pthread_mutex_unlock(&images.lock);
    return job;
}

void task_image_job_close(struct task_image_job *job)
{
    if (!job)
        return;
    pthread_mutex_lock(&images.lock);
    bool waits = list_linked(&job->node);
    if (waits)
        list_remove(&job->node);
    if (waits && list_empty(&job->making->waiters)) {
        job->making->abandoned = true;
        if (job->making->child > 0)
            (void)kill(-job->making->child, SIGKILL);
    }
    pthread_mutex_unlock(&images.lock);
    job->closed = true;
    if (waits || job->delivered) {
        free(job->root);
        free(job);
    } /* else its delivery is on its way to this loop, and frees it */
}

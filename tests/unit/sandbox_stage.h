/* sandbox_stage.h - a stage for tests of the sandbox room: a loop, a manager, one sandbox, and
 * calls that wait for their callback. Targets say where sandboxes come from; each prepares what its
 * backend needs (a real sshd, a podman store with a small image) or says why it cannot. Included by
 * one .c each. */
#ifndef SANDBOX_STAGE_H
#define SANDBOX_STAGE_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "json/json.h"
#include "loop/loop.h"
#include "sandbox/sandbox.h"
#include "test.h"

#define STAGE_UNUSED __attribute__((unused))

struct stage;

/* What results point to; each test is a process, so nobody frees it. */
static struct arena stage_memory;

struct target {
    const char *name;    /* for people */
    const char *backend; /* sandbox_spec.backend */
    const char *root;    /* sandbox_spec.root */
    bool local;
    const char *(*prepare)(struct stage *stage); /* NULL, or why it cannot be had here */
    const char *(*left)(struct stage *stage);    /* NULL, or what was left behind after closing */
    /* Makes what a killed server would leave behind, with this id and the label "old"; may be NULL.
     */
    bool (*forge)(struct stage *stage, const char *id);
};

struct stage {
    const struct target *target;
    char dir[64];       /* removed at the end */
    char programs[512]; /* where postern-porter is */
    char inside[600];   /* the helper, compiled */
    char text[1024];
    struct loop *loop;
    struct sandboxes *boxes;
    struct sandbox_spec spec;
    struct sandbox *box;
    pid_t sshd;
};

struct result {
    struct sandbox_exit exit;
    char *out, *err_out; /* terminated, in stage_memory */
    size_t out_size;
    bool truncated, done;
};

/* ---------------------------------------------------------------- programs on the host */

/* Runs a program quietly; its exit code, or -1. */
static int host_run(const char *const *argv)
{
    pid_t pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_RDWR);
        dup2(null, 0);
        if (!getenv("STAGE_LOUD")) {
            dup2(null, 1);
            dup2(null, 2);
        }
        execvp(argv[0], (char *const *)argv);
        _exit(127);
    }
    int status = 0;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
#define HOST(...) host_run((const char *const[]){__VA_ARGS__, NULL})

static STAGE_UNUSED bool host_has(const char *program)
{
    char script[256];
    snprintf(script, sizeof script, "command -v %s", program);
    return HOST("sh", "-c", script) == 0;
}

static void host_write(const char *path, mode_t mode, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    FILE *file = fopen(path, "w");
    if (!file)
        abort();
    vfprintf(file, format, args);
    fclose(file);
    chmod(path, mode);
    va_end(args);
}

/* A directory for the whole run (a podman store, the helper): made by the first test that needs it,
 * removed by the runner at its end. */
static char shared_dir[64];
static pid_t shared_owner;

__attribute__((constructor)) static void shared_name(void)
{
    shared_owner = getpid();
    snprintf(shared_dir, sizeof shared_dir, "/tmp/postern-shared-%d", (int)shared_owner);
}

__attribute__((destructor)) static void shared_remove(void)
{
    if (getpid() != shared_owner || access(shared_dir, F_OK) < 0)
        return;
    (void)HOST("sh", "-c",
               "for m in $(grep -o \" $0/[^ ]*\" /proc/mounts | sort -r); do umount \"$m\"; done; "
               "rm -rf \"$0\" || podman unshare rm -rf \"$0\"",
               shared_dir);
}

/* The program for inside, compiled once per run. */
static STAGE_UNUSED bool compile_inside(char *path, size_t size)
{
    (void)mkdir(shared_dir, 0755);
    snprintf(path, size, "%s/inside", shared_dir);
    return access(path, X_OK) == 0 ||
           HOST("cc", "-std=gnu17", "-D_GNU_SOURCE", "-O1", "-static", "-o", path,
                POSTERN_SOURCE_DIR "/tests/unit/inside.c") == 0;
}

/* ---------------------------------------------------------------- the stage */

static STAGE_UNUSED const char *stage_skip_reason(struct stage *stage)
{
    char path[700];
    snprintf(path, sizeof path, "%s/postern-porter", stage->programs);
    if (access(path, X_OK) < 0)
        return "postern-porter is not built";
    return NULL;
}

static void stage_begin(struct stage *stage, const struct target *target)
{
    *stage = (struct stage){.target = target};
    strcpy(stage->dir, "/tmp/postern-test-XXXXXX");
    if (!mkdtemp(stage->dir))
        abort();
    chmod(stage->dir, 0755);
    ssize_t size = readlink("/proc/self/exe", stage->programs, sizeof stage->programs - 1);
    stage->programs[size > 0 ? size : 0] = '\0';
    for (int i = 0; i < 2; i++) { /* <build>/unit/test_x -> <build> */
        char *slash = strrchr(stage->programs, '/');
        if (slash)
            *slash = '\0';
    }
}

static STAGE_UNUSED void stage_open_manager(struct stage *stage, uint32_t starting_max,
                                            uint32_t create_ms_max)
{
    struct err err = {0};
    static const char *const dirs[] = {POSTERN_SOURCE_DIR "/backends"};
    char *home = arena_format(&stage_memory, "%s/home", stage->dir);
    (void)mkdir(home, 0755);
    struct sandbox_options options = {
        .home = home,
        .program_dir = stage->programs,
        .backend_dirs = dirs,
        .backend_dir_count = 1,
        .starting_max = starting_max,
        .create_ms_max = create_ms_max,
        .keeper_private = true,
    };
    stage->loop = loop_new(&err);
    stage->boxes = stage->loop ? sandboxes_new(stage->loop, &options, &err) : NULL;
    if (!stage->boxes) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
}

static STAGE_UNUSED void stage_until(struct stage *stage, const bool *done)
{
    while (!*done)
        loop_once(stage->loop, 1000);
}

static void stage_set(void *context)
{
    *(bool *)context = true;
}

static STAGE_UNUSED void stage_close_manager(struct stage *stage)
{
    bool closed = false;
    if (!stage->boxes)
        return;
    sandboxes_close(stage->boxes, stage_set, &closed);
    stage_until(stage, &closed);
    loop_once(stage->loop, 0); /* what was deferred */
    loop_once(stage->loop, 0);
    loop_free(stage->loop);
    stage->boxes = NULL;
}

static STAGE_UNUSED void stage_end(struct stage *stage)
{
    stage_close_manager(stage);
    if (stage->target && stage->target->left) {
        const char *left = stage->target->left(stage);
        if (left)
            test_fail(__FILE__, __LINE__, "%s left behind: %s", stage->target->name, left);
    }
    if (stage->sshd > 0) {
        kill(stage->sshd, SIGTERM);
        waitpid(stage->sshd, NULL, 0);
    }
    (void)file_remove_tree(stage->dir, NULL);
}

/* ---------------------------------------------------------------- waiting calls */

struct opening {
    bool done;
    struct sandbox *box;
    struct err err;
};

static STAGE_UNUSED void stage_on_open(void *context, struct sandbox *box, const struct err *err)
{
    struct opening *opening = context;
    opening->done = true;
    opening->box = box;
    if (err)
        opening->err = *err;
}

/* 0, or -1 with the error. */
static STAGE_UNUSED int stage_open(struct stage *stage, const struct sandbox_spec *spec,
                                   struct sandbox **box, struct err *err)
{
    struct opening opening = {0};
    struct sandbox *handle = sandbox_open(stage->boxes, spec, stage_on_open, &opening);
    stage_until(stage, &opening.done);
    *box = opening.box;
    if (opening.box)
        return 0;
    sandbox_close(handle, NULL, NULL);
    return err_copy(err, &opening.err);
}

struct waiting {
    bool done;
    struct err err;
    char *content;
    size_t size;
    struct sandbox_stat stat;
};

static STAGE_UNUSED void stage_on_done(void *context, const struct err *err)
{
    struct waiting *waiting = context;
    waiting->done = true;
    waiting->err = err ? *err : (struct err){0};
}

static STAGE_UNUSED int stage_close(struct stage *stage, struct sandbox *box, struct err *err)
{
    struct waiting waiting = {0};
    sandbox_close(box, stage_on_done, &waiting);
    stage_until(stage, &waiting.done);
    return waiting.err.kind ? err_copy(err, &waiting.err) : 0;
}

static STAGE_UNUSED void stage_on_whole(void *context, const struct sandbox_outcome *outcome)
{
    struct result *result = context;
    result->exit = outcome->exit;
    result->out = arena_text(&stage_memory, outcome->out);
    result->out_size = outcome->out.size;
    result->err_out = arena_text(&stage_memory, outcome->err_out);
    result->truncated = outcome->truncated;
    result->done = true;
}

static STAGE_UNUSED struct result stage_run(struct stage *stage, struct sandbox *box,
                                            struct sandbox_command command, struct str input)
{
    struct result result = {0};
    command.stdin_open = command.stdin_open || input.data;
    if (!command.timeout_ms)
        command.timeout_ms = 20000;
    sandbox_run_whole(box, &command, input, 1 << 20, stage_on_whole, &result);
    stage_until(stage, &result.done);
    return result;
}
#define ARGV(...)                                                                                  \
    .argv = (const char *const[])                                                                  \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }
#define RUN(...) stage_run(stage, stage->box, (struct sandbox_command){__VA_ARGS__}, STR_NONE)
/* The helper inside: INSIDE("exit", "42"). */
#define INSIDE(...) RUN(ARGV(INSIDE_PATH, __VA_ARGS__))
#define INSIDE_PATH "/tmp/inside"

static STAGE_UNUSED int stage_put(struct stage *stage, struct sandbox *box, const char *path,
                                  struct str content, uint32_t mode, struct err *err)
{
    struct waiting waiting = {0};
    sandbox_put(box, path, content, mode, NULL, stage_on_done, &waiting);
    stage_until(stage, &waiting.done);
    return waiting.err.kind ? err_copy(err, &waiting.err) : 0;
}

static STAGE_UNUSED int stage_put_file(struct stage *stage, struct sandbox *box, const char *path,
                                       const char *host_path, uint32_t mode, struct err *err)
{
    struct waiting waiting = {0};
    OWN(fd) int fd = open(host_path, O_RDONLY | O_CLOEXEC);
    sandbox_put_fd(box, path, fd, mode, NULL, stage_on_done, &waiting);
    stage_until(stage, &waiting.done);
    return waiting.err.kind ? err_copy(err, &waiting.err) : 0;
}

static STAGE_UNUSED void stage_on_content(void *context, struct str content, const struct err *err)
{
    struct waiting *waiting = context;
    waiting->done = true;
    waiting->err = err ? *err : (struct err){0};
    waiting->content = arena_text(&stage_memory, content);
    waiting->size = content.size;
}

static STAGE_UNUSED int stage_get(struct stage *stage, struct sandbox *box, const char *path,
                                  struct str *content, struct err *err)
{
    struct waiting waiting = {0};
    sandbox_get(box, path, 1 << 20, stage_on_content, &waiting);
    stage_until(stage, &waiting.done);
    *content = str_make(waiting.content, waiting.size);
    return waiting.err.kind ? err_copy(err, &waiting.err) : 0;
}

static STAGE_UNUSED void stage_on_stat(void *context, const struct sandbox_stat *stat,
                                       const struct err *err)
{
    struct waiting *waiting = context;
    waiting->done = true;
    waiting->err = err ? *err : (struct err){0};
    if (stat)
        waiting->stat = *stat;
}

static STAGE_UNUSED struct sandbox_stat stage_stat(struct stage *stage, struct sandbox *box,
                                                   const char *path, struct err *err)
{
    struct waiting waiting = {0};
    sandbox_stat(box, path, stage_on_stat, &waiting);
    stage_until(stage, &waiting.done);
    *err = waiting.err;
    return waiting.stat;
}

/* ---------------------------------------------------------------- targets */

/* Does no process have `dir` ("/tmp/p...") in its arguments any more? Monitors take a moment to
 * end. The brackets keep the search from finding itself; sshd of the test itself does not count. */
static STAGE_UNUSED bool host_quiet(struct stage *stage, const char *dir)
{
    snprintf(stage->text, sizeof stage->text,
             "for i in $(seq 100); do "
             "grep -lzs '/tmp/[p]%s' /proc/[0-9]*/cmdline | grep -v /%d/cmdline || exit 0; "
             "sleep 0.1; done; exit 1",
             dir + strlen("/tmp/p"), (int)stage->sshd);
    return HOST("sh", "-c", stage->text) == 0;
}

static STAGE_UNUSED const char *prepare_local(struct stage *stage)
{
    char path[700];
    snprintf(path, sizeof path, "%s/postern-keeper", stage->programs);
    if (access(path, X_OK) < 0)
        return "postern-keeper is not built";
    return NULL;
}

/* A real sshd on a free port of the loopback, with keys and configuration of its own. */
static STAGE_UNUSED int free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;
    OWN(fd) int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(fd, (struct sockaddr *)&address, size) < 0 ||
        getsockname(fd, (struct sockaddr *)&address, &size) < 0)
        abort();
    return ntohs(address.sin_port);
}

static STAGE_UNUSED bool port_answers(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr = {htonl(INADDR_LOOPBACK)},
                                  .sin_port = htons((uint16_t)port)};
    OWN(fd) int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return connect(fd, (struct sockaddr *)&address, sizeof address) == 0;
}

/* Returns its port, or 0. */
static STAGE_UNUSED int start_sshd(struct stage *stage, const char *key, const char *host_key)
{
    char config[128], log[128];
    int port = free_port();
    snprintf(config, sizeof config, "%s/sshd_config", stage->dir);
    snprintf(log, sizeof log, "%s/sshd.log", stage->dir);
    host_write(config, 0600,
               "Port %d\nListenAddress 127.0.0.1\nHostKey %s\nAuthorizedKeysFile %s.pub\n"
               "StrictModes no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
               "PermitRootLogin yes\nUsePAM no\nPidFile none\nLogLevel ERROR\nMaxStartups 100\n"
               "MaxSessions 100\n",
               port, host_key, key);
    stage->sshd = fork();
    if (stage->sshd == 0) {
        execl("/usr/sbin/sshd", "/usr/sbin/sshd", "-D", "-f", config, "-E", log, NULL);
        _exit(127);
    }
    while (!port_answers(port)) {
        if (waitpid(stage->sshd, NULL, WNOHANG) != 0) {
            stage->sshd = 0;
            return 0;
        }
        usleep(5000);
    }
    return port;
}

static STAGE_UNUSED const char *prepare_sshd(struct stage *stage, const char *prefix)
{
    const char *dir = stage->dir;
    if (access("/usr/sbin/sshd", X_OK) < 0 || !host_has("ssh") || !host_has("ssh-keygen"))
        return "openssh (server and client) is not installed";
    const struct passwd *user = getpwuid(getuid());
    if (!user)
        return "this user has no name";
    if (getuid() == 0)
        (void)mkdir("/run/sshd", 0755);
    char key[128], host_key[128];
    snprintf(key, sizeof key, "%s/key", dir);
    snprintf(host_key, sizeof host_key, "%s/host_key", dir);
    if (HOST("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key) != 0 ||
        HOST("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", host_key) != 0)
        return "ssh-keygen does not work";
    int port = 0; /* somebody else may have taken it meanwhile */
    for (int i = 0; i < 5 && !port; i++)
        port = start_sshd(stage, key, host_key);
    if (!port)
        return "sshd does not start here";
    OWN(buf) struct buf public_key = {0};
    char path[160], variable[64];
    snprintf(path, sizeof path, "%s.pub", host_key);
    if (file_read(path, 4096, &public_key, NULL) < 0)
        return "no host key";
    snprintf(path, sizeof path, "%s/known_hosts", dir);
    host_write(path, 0600, "[127.0.0.1]:%d %s", port, buf_text(&public_key));
    snprintf(path, sizeof path, "%s/ssh_config", dir);
    host_write(path, 0600,
               "Host target\nHostName 127.0.0.1\nPort %d\nUser %s\nIdentityFile %s\n"
               "IdentitiesOnly yes\nStrictHostKeyChecking yes\nUserKnownHostsFile %s/known_hosts\n"
               "GlobalKnownHostsFile /dev/null\nLogLevel ERROR\n",
               port, user->pw_name, key, dir);
    snprintf(variable, sizeof variable, "BACKEND_%s_CONFIG", prefix);
    setenv(variable, path, 1);
    snprintf(variable, sizeof variable, "BACKEND_%s_DIR", prefix);
    snprintf(path, sizeof path, "%s/remote", dir);
    setenv(variable, path, 1);
    return NULL;
}

static STAGE_UNUSED const char *prepare_ssh(struct stage *stage)
{
    if (!host_has("bwrap") || HOST("bwrap", "--unshare-all", "--ro-bind", "/", "/", "true") != 0)
        return "bwrap does not work here";
    return prepare_sshd(stage, "SSH");
}

static STAGE_UNUSED const char *prepare_ssh_plain(struct stage *stage)
{
    return prepare_sshd(stage, "SSH_PLAIN");
}

static STAGE_UNUSED const char *left_ssh(struct stage *stage)
{
    snprintf(stage->text, sizeof stage->text, "test -z \"$(ls %s/remote/sandboxes 2>&1)\"",
             stage->dir);
    char path[128];
    snprintf(path, sizeof path, "%s/remote/sandboxes", stage->dir);
    if (file_exists(path) && HOST("sh", "-c", stage->text) != 0)
        return "a directory below sandboxes/";
    return host_quiet(stage, stage->dir) ? NULL : "a process";
}

static STAGE_UNUSED bool forge_ssh(struct stage *stage, const char *id)
{
    snprintf(stage->text, sizeof stage->text,
             "cd %s/remote/sandboxes && mkdir %s && cd %s && printf old > label && "
             "touch -d '5 minutes ago' label && echo 999999999 1 > process",
             stage->dir, id, id);
    return HOST("sh", "-c", stage->text) == 0;
}

#define PODMAN(...)                                                                                \
    HOST("podman", "--root", getenv("BACKEND_PODMAN_STORE"), "--runroot",                          \
         getenv("BACKEND_PODMAN_RUNROOT"), "--storage-driver", "vfs", "--cgroup-manager",          \
         "cgroupfs", "--runtime", getenv("BACKEND_PODMAN_RUNTIME"), __VA_ARGS__)

static STAGE_UNUSED const char *prepare_podman(struct stage *stage)
{
    (void)stage;
    if (!host_has("podman"))
        return "podman is not installed";
    char path[128];
    (void)mkdir(shared_dir, 0755);
    snprintf(path, sizeof path, "%s/store", shared_dir);
    setenv("BACKEND_PODMAN_STORE", path, 1);
    snprintf(path, sizeof path, "%s/run", shared_dir);
    setenv("BACKEND_PODMAN_RUNROOT", path, 1);
    setenv("BACKEND_PODMAN_DRIVER", "vfs", 1);
    setenv("BACKEND_PODMAN_CGROUP_MANAGER", "cgroupfs", 1);
    /* crun refuses a machine with both cgroup versions. */
    bool hybrid = access("/sys/fs/cgroup/unified", F_OK) == 0;
    setenv("BACKEND_PODMAN_RUNTIME", hybrid && host_has("runc") ? "runc" : "crun", 1);
    snprintf(path, sizeof path, "%s/image", shared_dir);
    if (access(path, F_OK) == 0)
        return NULL;
    static const char script[] =
        "set -e; mkdir -p \"$0\"; cd \"$0\"; mkdir -p bin lib64 lib tmp proc sys dev etc home; "
        "chmod 1777 tmp; "
        "for p in sh cat head sleep id ls mkdir rm ln readlink stat env printf true false; do "
        "f=$(command -v $p); case $f in /*) ;; *) f=/usr/bin/$p;; esac; "
        "cp -L \"$f\" bin/$p; "
        "for l in $(ldd \"$f\" | grep -o '/[^ ]*'); do mkdir -p \".$(dirname $l)\"; "
        "cp -Ln \"$l\" \".$l\"; done; done; "
        "printf 'root:x:0:0::/:/bin/sh\\nagent:x:1000:1000::/home/agent:/bin/sh\\n' > etc/passwd; "
        "printf 'root:x:0:\\nagent:x:1000:\\n' > etc/group; "
        "tar -c . > ../image.tar";
    snprintf(path, sizeof path, "%s/rootfs", shared_dir);
    if (HOST("sh", "-c", script, path) != 0)
        return "a small image could not be made of this machine's files";
    snprintf(path, sizeof path, "%s/image.tar", shared_dir);
    if (PODMAN("import", path, "localhost/postern-test") != 0)
        return "podman cannot import an image here";
    if (PODMAN("run", "--rm", "--network", "none", "--ulimit", "nofile=4096:4096", "--ulimit",
               "nproc=4096:4096", "localhost/postern-test", "true") != 0)
        return "podman cannot run a container here";
    snprintf(path, sizeof path, "%s/image", shared_dir);
    host_write(path, 0644, "made\n");
    return NULL;
}

static STAGE_UNUSED const char *left_podman(struct stage *stage)
{
    snprintf(stage->text, sizeof stage->text,
             "test -z \"$(podman --root %s/store --runroot %s/run --storage-driver vfs "
             "--cgroup-manager cgroupfs ps --all --quiet)\"",
             shared_dir, shared_dir);
    if (HOST("sh", "-c", stage->text) != 0)
        return "a container";
    return host_quiet(stage, shared_dir) ? NULL : "a process";
}

static STAGE_UNUSED bool forge_podman(struct stage *stage, const char *id)
{
    (void)stage;
    return PODMAN("run", "--name", id, "--label", "postern.sandbox=1", "--label",
                  "postern.label=old", "--network", "none", "--ulimit", "nofile=4096:4096",
                  "--ulimit", "nproc=4096:4096", "localhost/postern-test", "true") == 0;
}

#endif

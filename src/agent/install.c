/* install.c - an agent's files and install commands into a sandbox.
 *
 *     check (exit 0: all there) -> the bundle, where it could not be mounted -> put each file
 *         -> each command, tried again with a growing pause -> check again
 *
 * A command is believed by its exit code, and a pipe by the worst of its parts where the shell can
 * (pipefail); where it cannot, "fetch | unpack" may fail unseen, and the second check sees it. Then
 * the commands are tried again from the first.
 *
 * Files belong to root inside, so that the agent cannot change what it is made of; where a sandbox
 * has but one user (made by an ordinary user of the host) they belong to that one. */
#include "agent/agent.h"

#include <stdio.h>
#include <stdlib.h>

#include "agent/internal.h"
#include "base/clock.h"
#include "base/mem.h"
#include "loop/loop.h"

#define OUTPUT_KEPT 2000

enum install_step {
    INSTALL_CHECK,
    INSTALL_BUNDLE,
    INSTALL_FILES,
    INSTALL_COMMANDS,
    INSTALL_CHECK_AGAIN,
    INSTALL_DONE
};

#define PIPEFAIL "if (set -o pipefail) 2> /dev/null; then set -o pipefail; fi\n"

struct agent_install {
    struct loop *loop;
    struct agent_spec *spec;
    struct sandbox *sandbox;
    char *bundle; /* the agent's folder on the host, to be copied; NULL: mounted, or none */
    enum install_step step;
    size_t at;
    uint32_t tries;  /* of the command at hand */
    uint32_t rounds; /* of all of them */
    bool one_user;   /* there is no root inside */
    uint64_t deadline_ms;
    struct loop_timer timer; /* the pause before another try; also the first, deferred step */
    struct err err;
    void (*on_done)(void *, const struct err *);
    void *context;
};

static void step(struct agent_install *install);

static void finish(struct agent_install *install)
{
    install->step = INSTALL_DONE;
    install->on_done(install->context, &install->err);
}

static void on_pause_over(struct loop_timer *timer)
{
    step(timer->context);
}

static uint32_t time_left(const struct agent_install *install)
{
    uint64_t now = clock_mono_ms();
    return install->deadline_ms > now ? (uint32_t)(install->deadline_ms - now) : 1;
}

static void on_checked(void *context, const struct sandbox_outcome *outcome)
{
    struct agent_install *install = context;
    bool there = outcome->exit.end == SANDBOX_EXITED && outcome->exit.code == 0;
    install->step = there ? INSTALL_DONE : INSTALL_BUNDLE;
    if (outcome->exit.end == SANDBOX_LOST) {
        err_set(&install->err, ERR_LOST, "the sandbox was lost: %s", outcome->exit.text);
        finish(install);
        return;
    }
    step(install);
}

static void on_put(void *context, const struct err *err)
{
    struct agent_install *install = context;
    bool bad = err && err->kind != ERR_NONE;
    if (bad && !install->one_user && err->kind != ERR_LOST) {
        install->one_user = true;
        step(install);
        return;
    }
    if (bad) {
        install->err = *err;
        err_wrap(&install->err, "putting '%s' into the sandbox",
                 install->step == INSTALL_BUNDLE ? install->spec->name
                                                 : install->spec->files[install->at].to);
        finish(install);
        return;
    }
    if (install->step == INSTALL_BUNDLE)
        install->step = INSTALL_FILES;
    else
        install->at++;
    step(install);
}

static bool try_again(struct agent_install *install, const struct sandbox_exit *exit)
{
    if (exit->end == SANDBOX_LOST || ++install->tries >= install->spec->install_tries_max ||
        time_left(install) <= 1)
        return false;
    loop_timer_start(install->loop, &install->timer, 500u << install->tries, on_pause_over,
                     install);
    return true;
}

static void last_words(const struct sandbox_outcome *outcome, char *text, size_t size)
{
    struct str said = str_trim(outcome->err_out.size ? outcome->err_out : outcome->out);
    if (said.size > size - 1)
        said = str_from(said, said.size - (size - 1));
    snprintf(text, size, "%.*s", STR_ARGS(said));
}

static void on_command(void *context, const struct sandbox_outcome *outcome)
{
    struct agent_install *install = context;
    const struct sandbox_exit *exit = &outcome->exit;
    if (exit->end == SANDBOX_EXITED && exit->code == 0) {
        install->tries = 0;
        install->at++;
        step(install);
        return;
    }
    if (try_again(install, exit))
        return;
    char said[201];
    last_words(outcome, said, sizeof said);
    err_set(&install->err, exit->end == SANDBOX_LOST ? ERR_LOST : ERR_SYSTEM,
            "installing with '%.100s' failed %u times: %s: %s", install->spec->install[install->at],
            install->tries, exit->text, said);
    finish(install);
}

static void on_checked_again(void *context, const struct sandbox_outcome *outcome)
{
    struct agent_install *install = context;
    const struct sandbox_exit *exit = &outcome->exit;
    install->step = INSTALL_DONE;
    if (exit->end == SANDBOX_EXITED && exit->code == 0) {
        step(install);
        return;
    }
    install->at = 0;
    install->step = INSTALL_COMMANDS;
    install->rounds++;
    install->tries = install->rounds - 1;
    if (try_again(install, exit))
        return;
    char said[201];
    last_words(outcome, said, sizeof said);
    err_set(&install->err, exit->end == SANDBOX_LOST ? ERR_LOST : ERR_SYSTEM,
            "installed %u times, and still '%.100s' fails: %s: %s", install->rounds,
            install->spec->check[0], exit->text, said);
    finish(install);
}

static void step(struct agent_install *install)
{
    struct agent_spec *spec = install->spec;
    switch (install->step) {
    case INSTALL_CHECK:
        if (spec->check) {
            struct sandbox_command check = {.argv = spec->check, .timeout_ms = 60000};
            sandbox_run_whole(install->sandbox, &check, STR_NONE, OUTPUT_KEPT, on_checked, install);
            return;
        }
        install->step = INSTALL_BUNDLE;
        /* fall through */
    case INSTALL_BUNDLE:
        if (install->bundle) {
            char to[128];
            snprintf(to, sizeof to, AGENT_BUNDLES_INSIDE "/%s", spec->name);
            sandbox_put_tree(install->sandbox, install->bundle, to,
                             install->one_user ? NULL : "root", on_put, install);
            return;
        }
        install->step = INSTALL_FILES;
        /* fall through */
    case INSTALL_FILES:
        while (install->at < spec->file_count && !spec->files[install->at].from)
            install->at++;
        if (install->at < spec->file_count) {
            struct agent_file *file = &spec->files[install->at];
            sandbox_put(install->sandbox, file->to, buf_str(&file->content), file->mode,
                        install->one_user ? NULL : "root", on_put, install);
            return;
        }
        install->at = 0;
        install->step = INSTALL_COMMANDS;
        /* fall through */
    case INSTALL_COMMANDS:
        if (spec->install && spec->install[install->at]) {
            OWN(mem) char *text = mem_format(PIPEFAIL "%s", spec->install[install->at]);
            struct sandbox_command command = {.shell = text,
                                              .user = spec->root ? "root" : NULL,
                                              .timeout_ms = time_left(install)};
            sandbox_run_whole(install->sandbox, &command, STR_NONE, OUTPUT_KEPT, on_command,
                              install);
            return;
        }
        install->step = INSTALL_CHECK_AGAIN;
        /* fall through */
    case INSTALL_CHECK_AGAIN:
        if (spec->check && spec->install && spec->install[0]) {
            struct sandbox_command check = {.argv = spec->check, .timeout_ms = 60000};
            sandbox_run_whole(install->sandbox, &check, STR_NONE, OUTPUT_KEPT, on_checked_again,
                              install);
            return;
        }
        install->step = INSTALL_DONE;
        /* fall through */
    case INSTALL_DONE:
        finish(install);
        return;
    }
}

struct agent_install *agent_install(struct loop *loop, struct agent_spec *spec,
                                    struct sandbox *sandbox, const char *layer,
                                    void (*on_done)(void *context, const struct err *err),
                                    void *context)
{
    struct agent_install *install = mem_zero(sizeof *install);
    install->loop = loop;
    install->spec = agent_spec_ref(spec);
    install->sandbox = sandbox;
    if (layer)
        install->bundle = mem_format("%s" AGENT_BUNDLES_INSIDE "/%s", layer, spec->name);
    install->on_done = on_done;
    install->context = context;
    install->deadline_ms = clock_mono_ms() + spec->install_ms_max;
    loop_timer_start(loop, &install->timer, 0, on_pause_over, install);
    return install;
}

void agent_install_close(struct agent_install *install)
{
    if (!install)
        return;
    loop_timer_stop(&install->timer);
    agent_spec_unref(install->spec);
    free(install->bundle);
    free(install);
}

/* terminal.c - a shell on a pseudo terminal: typing, reading, and knowing when it is done.
 *
 * The shell is interactive and has job control, so the terminal's foreground group tells who has
 * the word. A command is believed to be over when the shell is in the foreground and asleep, has
 * read all that was typed, nobody else runs in its group (a $(...) does), and nothing was printed
 * for a moment. Where /proc does not tell, the whole time is waited for. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/mem.h"
#include "terminus.h"

#define STEP_MS 20
#define QUIET_MS 120    /* without output, at the prompt: it is over */
#define STRANGE_MS 1000 /* the same where no prompt is to be seen */
#define PROMPT_MS 5000  /* for the first prompt of a new shell */
#define TYPING_MS 10000 /* for a program that does not read what is typed */
#define RESTARTS_MAX                                                                               \
    100 /* of shells that end; a shell that cannot live is not started for ever                    \
         */

struct terminal {
    struct terminal_options options;
    struct screen *screen;
    int master, slave;
    pid_t shell;
    bool restarted;
    int exit_code;
    unsigned restarts;
    uint64_t quiet_since_ms; /* the last output */
    uint64_t word_since_ms;  /* the shell is in the foreground and has read all; NEVER: it is not */
};

static volatile sig_atomic_t running_shell;

void terminal_kill(void)
{
    pid_t shell = (pid_t)running_shell;
    if (!shell)
        return;
    (void)kill(-shell, SIGHUP);
    if (kill(-shell, SIGKILL) < 0)
        (void)kill(shell, SIGKILL); /* it does not lead a group yet */
}

/* ---------------------------------------------------------------- starting */

_Noreturn static void become_shell(int slave)
{
    (void)setsid();
    (void)ioctl(slave, TIOCSCTTY, 0);
    for (int number = 1; number < NSIG; number++)
        (void)signal(number, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    if (dup2(slave, 0) < 0 || dup2(slave, 1) < 0 || dup2(slave, 2) < 0)
        _exit(126);
    (void)syscall(SYS_close_range, 3, ~0u, 0); /* what we inherited is not theirs either */
    (void)setenv("TERM", "xterm", 1);
    (void)setenv("HISTFILE", "/dev/null", 1); /* what was typed is no file of the task */
    (void)unsetenv("COLUMNS");
    (void)unsetenv("LINES");
    execl("/bin/bash", "bash", "-i", NULL);
    execl("/usr/bin/bash", "bash", "-i", NULL);
    execl("/usr/local/bin/bash", "bash", "-i", NULL);
    execl("/bin/sh", "sh", "-i", NULL);
    dprintf(2, "no shell: %s\n", strerror(errno));
    _exit(127);
}

static int open_pty(struct terminal *terminal, struct err *err)
{
    OWN(fd) int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
    if (master < 0)
        return err_errno(err, "a pseudo terminal (/dev/ptmx)");
    int locked = 0;
    if (ioctl(master, TIOCSPTLCK, &locked) < 0)
        return err_errno(err, "a pseudo terminal");
#ifdef TIOCGPTPEER
    OWN(fd) int slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
#else
    OWN(fd) int slave = -1;
#endif
    if (slave < 0) { /* before Linux 4.13 */
        int number;
        char path[32];
        if (ioctl(master, TIOCGPTN, &number) < 0)
            return err_errno(err, "a pseudo terminal");
        snprintf(path, sizeof path, "/dev/pts/%d", number);
        slave = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
        if (slave < 0)
            return err_errno(err, "'%s'", path);
    }
    struct winsize size = {.ws_row = (unsigned short)terminal->options.rows,
                           .ws_col = (unsigned short)terminal->options.columns};
    (void)ioctl(slave, TIOCSWINSZ, &size);
    terminal->master = fd_take(&master);
    terminal->slave = fd_take(&slave);
    return 0;
}

static int start_shell(struct terminal *terminal, struct err *err)
{
    if (open_pty(terminal, err) < 0)
        return -1;
    sigset_t all, mask;
    sigfillset(&all);
    (void)sigprocmask(SIG_SETMASK, &all, &mask); /* a signal that ends us finds who is started */
    pid_t child = fork();
    if (child == 0)
        become_shell(terminal->slave);
    running_shell = child > 0 ? (sig_atomic_t)child : 0;
    (void)sigprocmask(SIG_SETMASK, &mask, NULL);
    if (child < 0)
        return err_errno(err, "fork");
    terminal->shell = child;
    terminal->quiet_since_ms = clock_mono_ms();
    return 0;
}

static void end_shell(struct terminal *terminal)
{
    if (terminal->shell > 0) {
        (void)kill(-terminal->shell, SIGHUP);
        (void)kill(-terminal->shell, SIGKILL);
        (void)kill(terminal->shell, SIGKILL); /* also when it does not lead a group yet */
        (void)waitpid(terminal->shell, NULL, 0);
    }
    terminal->shell = 0;
    running_shell = 0;
    fd_close(&terminal->master);
    fd_close(&terminal->slave);
    terminal->master = terminal->slave = -1;
}

/* ---------------------------------------------------------------- reading and writing */

/* Takes what is there; true: there was something. */
static bool take_output(struct terminal *terminal)
{
    char bytes[16384];
    bool any = false;
    for (int round = 0; round < 64; round++) { /* a program that never stops must not keep us */
        ssize_t got = read(terminal->master, bytes, sizeof bytes);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        any = true;
        screen_write(terminal->screen, str_make(bytes, (size_t)got));
        struct buf *answers = screen_answers(terminal->screen);
        if (answers->size)
            (void)!write(terminal->master, answers->data, answers->size);
        buf_clear(answers);
    }
    if (any)
        terminal->quiet_since_ms = clock_mono_ms();
    return any;
}

static void wait_for_output(const struct terminal *terminal, short events, int wait_ms)
{
    struct pollfd entry = {.fd = terminal->master, .events = events};
    (void)poll(&entry, 1, wait_ms);
}

/* False: the shell is gone. */
static bool shell_lives(struct terminal *terminal)
{
    int status;
    pid_t ended = terminal->shell > 0 ? waitpid(terminal->shell, &status, WNOHANG) : -1;
    if (ended == 0)
        return true;
    if (ended == terminal->shell)
        terminal->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    (void)take_output(terminal);
    terminal->shell = ended == terminal->shell ? 0 : terminal->shell;
    return false;
}

static void type_bytes(struct terminal *terminal, struct str bytes, uint64_t deadline_ms)
{
    uint64_t until = clock_mono_ms() + TYPING_MS;
    if (until > deadline_ms)
        until = deadline_ms;
    while (bytes.size && clock_mono_ms() < until) {
        /* Not more than a line discipline takes at once: the rest would be lost, not refused. */
        struct str piece = str_upto(bytes, 1024);
        int unread = 0;
        if (ioctl(terminal->slave, FIONREAD, &unread) == 0 && unread > 2048) {
            wait_for_output(terminal, POLLIN, STEP_MS);
            (void)take_output(terminal);
            continue;
        }
        ssize_t sent = write(terminal->master, piece.data, piece.size);
        if (sent > 0)
            bytes = str_from(bytes, (size_t)sent);
        else if (errno != EAGAIN && errno != EINTR)
            return;
        else
            wait_for_output(terminal, POLLIN | POLLOUT, STEP_MS);
        (void)take_output(terminal);
        if (!shell_lives(terminal))
            return;
    }
}

/* ---------------------------------------------------------------- who has the word */

/* State and process group out of /proc/PID/stat. */
static bool read_stat(const char *pid, char *state, long *group)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%s/stat", pid);
    OWN(fd) int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (size <= 0)
        return false;
    text[size] = 0;
    const char *end = strrchr(text, ')'); /* the name may hold anything */
    return end && sscanf(end + 1, " %c %*d %ld", state, group) == 2;
}

/* The shell sleeps, and nobody else is in its group. */
static bool shell_is_alone(const struct terminal *terminal)
{
    char own[16], state;
    long group;
    snprintf(own, sizeof own, "%d", (int)terminal->shell);
    if (!read_stat(own, &state, &group) || state != 'S')
        return false;
    DIR *processes = opendir("/proc");
    if (!processes)
        return false;
    bool alone = true;
    struct dirent *entry;
    while (alone && (entry = readdir(processes)) != NULL) {
        if (entry->d_name[0] < '1' || entry->d_name[0] > '9' || strcmp(entry->d_name, own) == 0)
            continue;
        if (read_stat(entry->d_name, &state, &group) && group == terminal->shell && state != 'Z')
            alone = false;
    }
    closedir(processes);
    return alone;
}

static bool has_the_word(const struct terminal *terminal)
{
    int unread = 0;
    return tcgetpgrp(terminal->master) == terminal->shell &&
           ioctl(terminal->slave, FIONREAD, &unread) == 0 && unread == 0;
}

/* A prompt leaves the cursor behind it. At the start of a line there is none, or a strange one. */
static bool is_settled(const struct terminal *terminal, uint64_t now)
{
    uint64_t quiet_ms = screen_cursor_column(terminal->screen) ? QUIET_MS : STRANGE_MS;
    return now - terminal->word_since_ms >= quiet_ms &&
           now - terminal->quiet_since_ms >= quiet_ms && shell_is_alone(terminal);
}

/* Reads until `until_ms`, or until the shell waits for a command. False: the shell ended. */
static bool attend(struct terminal *terminal, uint64_t until_ms, bool or_idle)
{
    terminal->word_since_ms = NEVER;
    for (;;) {
        (void)take_output(terminal);
        if (!shell_lives(terminal))
            return false;
        uint64_t now = clock_mono_ms();
        if (now >= until_ms)
            return true;
        if (!has_the_word(terminal))
            terminal->word_since_ms = NEVER;
        else if (terminal->word_since_ms == NEVER)
            terminal->word_since_ms = now;
        if (or_idle && terminal->word_since_ms != NEVER && is_settled(terminal, now))
            return true;
        uint64_t left = until_ms - now;
        wait_for_output(terminal, POLLIN, left < STEP_MS ? (int)left : STEP_MS);
    }
}

static void restart(struct terminal *terminal)
{
    int code = terminal->exit_code;
    end_shell(terminal);
    struct err err = {0};
    screen_write(terminal->screen, STR("\r\n"));
    terminal->restarted = true;
    if (++terminal->restarts <= RESTARTS_MAX && start_shell(terminal, &err) == 0)
        (void)attend(terminal, clock_mono_ms() + PROMPT_MS, true);
    terminal->exit_code = code;
}

/* ---------------------------------------------------------------- the door */

struct terminal *terminal_open(const struct terminal_options *options, struct err *err)
{
    struct terminal *terminal = mem_zero(sizeof *terminal);
    terminal->options = *options;
    terminal->master = terminal->slave = -1;
    terminal->screen = screen_new(options->columns, options->rows, options->history_bytes_max);
    if (start_shell(terminal, err) < 0) {
        terminal_close(terminal);
        return NULL;
    }
    (void)attend(terminal, clock_mono_ms() + PROMPT_MS, true);
    return terminal;
}

void terminal_close(struct terminal *terminal)
{
    if (!terminal)
        return;
    end_shell(terminal);
    screen_free(terminal->screen);
    free(terminal);
}

struct screen *terminal_screen(struct terminal *terminal)
{
    return terminal->screen;
}

void terminal_type(struct terminal *terminal, struct str keystrokes, uint64_t wait_ms,
                   uint64_t deadline_ms, bool or_idle)
{
    OWN(buf) struct buf bytes = {0};
    keys_encode(keystrokes, screen_keys_are_application(terminal->screen), &bytes);
    if (terminal->shell <= 0)
        return;
    type_bytes(terminal, buf_str(&bytes), deadline_ms);
    uint64_t start = clock_mono_ms();
    uint64_t until = start + wait_ms < deadline_ms ? start + wait_ms : deadline_ms;
    if (!attend(terminal, until, or_idle))
        restart(terminal);
}

bool terminal_was_restarted(struct terminal *terminal, int *exit_code)
{
    bool restarted = terminal->restarted;
    *exit_code = terminal->exit_code;
    terminal->restarted = false;
    return restarted;
}

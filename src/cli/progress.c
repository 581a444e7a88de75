/* progress.c - rollouts as they go, for people or programs.
 *
 *     table   a terminal: finished rollouts scroll up as lines, those under way are redrawn below
 *     lines   anything else: one line per finished rollout
 *     json    one result object per line on standard output and nothing else there
 *
 * Only plain ANSI: cursor up, clear to the end of the screen, colours. */
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"
#include "runtime/runtime.h"

#define SHOWN_MAX 64
#define KINDS_MAX 16
#define TASKS_MAX 1024

struct active {
    size_t index;
    char id[40], task[40], stage[16], activity[96];
    uint64_t since_ms, stage_since_ms; /* monotonic */
    uint32_t turns;
};
struct kind {
    char name[24];
    size_t count;
};
struct task_sum {
    char name[64];
    size_t total, rewarded;
    double reward_sum, reward_min, reward_max;
};

struct progress {
    enum progress_form form;
    bool colour;
    size_t total, final;
    uint32_t parallel;
    uint64_t began_ms;
    struct active *active;
    size_t active_count, active_room;
    struct kind kinds[KINDS_MAX];
    size_t kind_count;
    struct task_sum *tasks;
    size_t task_count;
    size_t rewarded;
    double reward_sum;
    int drawn; /* lines of the live part on the screen */
    struct buf screen;
};

/* ---------------------------------------------------------------- words */
static const char *colour_of(const struct progress *progress, const char *fate)
{
    if (!progress->colour)
        return "";
    if (strcmp(fate, "ok") == 0)
        return "\033[32m";
    if (strcmp(fate, "agent_failed") == 0 || strcmp(fate, "timed_out") == 0 ||
        strcmp(fate, "limit") == 0 || strcmp(fate, "stopped") == 0 ||
        strcmp(fate, "out_of_memory") == 0)
        return "\033[33m";
    return "\033[31m";
}

static const char *plain(const struct progress *progress)
{
    return progress->colour ? "\033[0m" : "";
}

static const char *faint(const struct progress *progress)
{
    return progress->colour ? "\033[2m" : "";
}

static void reward_text(char *out, size_t size, bool known, double value)
{
    if (known)
        snprintf(out, size, "%.2f", value);
    else
        snprintf(out, size, "-");
}

static void put_line(struct progress *progress, const struct runtime_row *row, struct buf *out)
{
    OWN(arena) struct arena arena = {0};
    char reward[32], time[32];
    struct str task = cli_harmless(str_of(row->task), &arena);
    struct str error = cli_harmless(str_of(row->error), &arena);
    reward_text(reward, sizeof reward, row->rewarded, row->reward);
    text_duration(time, sizeof time, row->wall_ms);
    buf_format(out, "%-22s  %-20.20s  %s%-15s%s reward %-5s  %2u turns  %8s", row->id, task.data,
               colour_of(progress, row->fate), row->fate, plain(progress), reward, row->turns,
               time);
    if (row->error[0])
        buf_format(out, "  %s%s%s", faint(progress), error.data, plain(progress));
    buf_byte(out, '\n');
}

/* ---------------------------------------------------------------- counting */
static void count_kind(struct progress *progress, const char *name)
{
    for (size_t i = 0; i < progress->kind_count; i++)
        if (strcmp(progress->kinds[i].name, name) == 0) {
            progress->kinds[i].count++;
            return;
        }
    if (progress->kind_count == KINDS_MAX)
        return;
    struct kind *kind = &progress->kinds[progress->kind_count++];
    snprintf(kind->name, sizeof kind->name, "%s", name);
    kind->count = 1;
}

static void count_task(struct progress *progress, const struct runtime_row *row)
{
    struct task_sum *sum = NULL;
    for (size_t i = 0; !sum && i < progress->task_count; i++)
        if (strncmp(progress->tasks[i].name, row->task, sizeof sum->name - 1) == 0)
            sum = &progress->tasks[i];
    if (!sum) {
        if (progress->task_count == TASKS_MAX)
            return;
        progress->tasks =
            mem_grow(progress->tasks, (progress->task_count + 1) * sizeof *progress->tasks);
        sum = &progress->tasks[progress->task_count++];
        *sum = (struct task_sum){0};
        snprintf(sum->name, sizeof sum->name, "%s", row->task);
    }
    sum->total++;
    if (!row->rewarded)
        return;
    if (!sum->rewarded || row->reward < sum->reward_min)
        sum->reward_min = row->reward;
    if (!sum->rewarded || row->reward > sum->reward_max)
        sum->reward_max = row->reward;
    sum->rewarded++;
    sum->reward_sum += row->reward;
}

static void count_final(struct progress *progress, const struct runtime_row *row)
{
    progress->final++;
    count_kind(progress, row->fate);
    count_task(progress, row);
    if (row->rewarded) {
        progress->rewarded++;
        progress->reward_sum += row->reward;
    }
}

/* ---------------------------------------------------------------- the live part */
static struct active *find_active(struct progress *progress, size_t index)
{
    for (size_t i = 0; i < progress->active_count; i++)
        if (progress->active[i].index == index)
            return &progress->active[i];
    return NULL;
}

static void drop_active(struct progress *progress, size_t index)
{
    struct active *active = find_active(progress, index);
    if (!active)
        return;
    size_t at = (size_t)(active - progress->active);
    memmove(active, active + 1, (progress->active_count - at - 1) * sizeof *active);
    progress->active_count--;
}

static void note_active(struct progress *progress, const struct runtime_row *row)
{
    struct active *active = find_active(progress, row->index);
    if (!active) {
        if (progress->active_count == progress->active_room) {
            progress->active_room = progress->active_room ? progress->active_room * 2 : 64;
            progress->active =
                mem_grow(progress->active, progress->active_room * sizeof *progress->active);
        }
        active = &progress->active[progress->active_count++];
        *active = (struct active){.index = row->index};
        snprintf(active->id, sizeof active->id, "%s", row->id);
        OWN(arena) struct arena words = {0};
        snprintf(active->task, sizeof active->task, "%s",
                 cli_harmless(str_of(row->task), &words).data);
    }
    uint64_t now = clock_mono_ms();
    active->since_ms = now - row->wall_ms;
    active->stage_since_ms = now - row->stage_ms;
    active->turns = row->turns;
    snprintf(active->stage, sizeof active->stage, "%s", row->stage);
    OWN(arena) struct arena arena = {0};
    snprintf(active->activity, sizeof active->activity, "%s",
             cli_harmless(str_of(row->activity), &arena).data);
}

static void screen_size(int *rows, int *columns)
{
    struct winsize size;
    *rows = 24;
    *columns = 80;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) < 0 || !size.ws_row || !size.ws_col)
        return;
    *rows = size.ws_row;
    *columns = size.ws_col;
}

/* Cuts what was appended since `start` to the width of the screen; colours are added afterwards. */
static void cut_line(struct buf *out, size_t start, int columns)
{
    size_t width = (size_t)(columns > 1 ? columns - 1 : 1);
    if (out->size - start > width)
        out->size = start + width;
    while (out->size > start && ((unsigned char)out->data[out->size - 1] & 0xc0) == 0x80)
        out->size--;
    if (out->size > start && (unsigned char)out->data[out->size - 1] >= 0xc0)
        out->size--;
}

static void put_counts(struct progress *progress, struct buf *out)
{
    char time[32];
    text_duration(time, sizeof time, clock_mono_ms() - progress->began_ms);
    buf_format(out, "%zu/%zu done, %zu running", progress->final, progress->total,
               progress->active_count);
    for (size_t i = 0; i < progress->kind_count; i++)
        buf_format(out, ", %zu %s", progress->kinds[i].count, progress->kinds[i].name);
    if (progress->rewarded)
        buf_format(out, ", mean reward %.2f", progress->reward_sum / (double)progress->rewarded);
    buf_format(out, ", %s", time);
}

static void put_bar(struct progress *progress, struct buf *out)
{
    enum { WIDTH = 24 };
    size_t full = progress->total ? progress->final * WIDTH / progress->total : 0;
    buf_byte(out, '[');
    for (size_t i = 0; i < WIDTH; i++)
        buf_byte(out, i < full ? '#' : '.');
    buf_format(out, "] ");
}

static void draw(struct progress *progress)
{
    struct buf *out = &progress->screen;
    int rows, columns;
    screen_size(&rows, &columns);
    size_t room = rows > 4 ? (size_t)rows - 3 : 1;
    if (room > SHOWN_MAX)
        room = SHOWN_MAX;
    progress->drawn = 0;
    uint64_t now = clock_mono_ms();
    for (size_t i = 0; i < progress->active_count && i < room; i++) {
        struct active *active = &progress->active[i];
        char time[32];
        text_duration(time, sizeof time, now - active->since_ms);
        size_t start = out->size;
        buf_format(out, "  %-14.14s  %-18.18s  %-12s %8s  %2u turns  %s", active->id, active->task,
                   active->stage, time, active->turns, active->activity);
        cut_line(out, start, columns);
        buf_format(out, "\033[K\n");
        progress->drawn++;
    }
    size_t start = out->size;
    put_bar(progress, out);
    put_counts(progress, out);
    cut_line(out, start, columns);
    buf_format(out, "\033[K\n");
    progress->drawn++;
}

static void erase(struct progress *progress)
{
    if (progress->drawn)
        buf_format(&progress->screen, "\033[%dA\r\033[J", progress->drawn);
    progress->drawn = 0;
}

static void show_screen(struct progress *progress)
{
    cli_write_buf(buf_str(&progress->screen));
    (void)fflush(stdout);
    buf_clear(&progress->screen);
}

/* ---------------------------------------------------------------- what the runtime calls */
static void on_start(void *context, size_t total, uint32_t parallel)
{
    struct progress *progress = context;
    progress->total = total;
    progress->parallel = parallel;
    progress->began_ms = clock_mono_ms();
    if (progress->form == PROGRESS_LINES)
        printf("%zu rollout%s, up to %u at once\n", total, total == 1 ? "" : "s", parallel);
    (void)fflush(stdout);
}

static void on_row(void *context, const struct runtime_row *row)
{
    struct progress *progress = context;
    if (!row->final) {
        note_active(progress, row);
        return;
    }
    drop_active(progress, row->index);
    count_final(progress, row);
    switch (progress->form) {
    case PROGRESS_JSON:
        puts(row->result);
        (void)fflush(stdout);
        return;
    case PROGRESS_LINES:
        put_line(progress, row, &progress->screen);
        show_screen(progress);
        return;
    case PROGRESS_TABLE:
        erase(progress);
        put_line(progress, row, &progress->screen);
        draw(progress);
        show_screen(progress);
        return;
    }
}

static void on_tick(void *context)
{
    struct progress *progress = context;
    if (progress->form != PROGRESS_TABLE)
        return;
    erase(progress);
    draw(progress);
    show_screen(progress);
}

static void on_note(void *context, const char *text)
{
    struct progress *progress = context;
    if (progress->form != PROGRESS_TABLE) {
        fprintf(stderr, "postern: %s\n", text);
        return;
    }
    erase(progress);
    buf_format(&progress->screen, "%s%s%s\n", faint(progress), text, plain(progress));
    draw(progress);
    show_screen(progress);
}

/* ---------------------------------------------------------------- the end */
static void put_task_sums(struct progress *progress, struct buf *out)
{
    if (progress->task_count)
        buf_format(out, "\n%-24s %8s %8s %8s %8s\n", "task", "rollouts", "mean", "least", "most");
    for (size_t i = 0; i < progress->task_count; i++) {
        struct task_sum *sum = &progress->tasks[i];
        if (sum->rewarded)
            buf_format(out, "%-24.24s %8zu %8.2f %8.2f %8.2f\n", sum->name, sum->total,
                       sum->reward_sum / (double)sum->rewarded, sum->reward_min, sum->reward_max);
        else
            buf_format(out, "%-24.24s %8zu %8s %8s %8s\n", sum->name, sum->total, "-", "-", "-");
    }
}

void progress_finish(struct progress *progress, const struct runtime_sum *sum, const char *home)
{
    struct buf *out = &progress->screen;
    if (progress->form == PROGRESS_JSON)
        return;
    if (progress->form == PROGRESS_TABLE)
        erase(progress);
    progress->active_count = 0;
    char time[32];
    text_duration(time, sizeof time, sum->wall_ms);
    put_task_sums(progress, out);
    buf_format(out, "\n%zu of %zu rollouts in %s:", sum->final, sum->total, time);
    for (size_t i = 0; i < progress->kind_count; i++)
        buf_format(out, "%s %zu %s", i ? "," : "", progress->kinds[i].count,
                   progress->kinds[i].name);
    if (sum->rewarded)
        buf_format(out, "; mean reward %.3f over %zu", sum->reward_sum / (double)sum->rewarded,
                   sum->rewarded);
    if (sum->failed)
        buf_format(out, "; %zu failed and have no reward", sum->failed);
    buf_format(out, "\nEverything is in %s/rollouts/; look with: postern ls, postern show ID\n",
               home);
    show_screen(progress);
}

int progress_code(const struct runtime_sum *sum)
{
    if (sum->cancelled)
        return 130;
    return sum->failed || sum->final < sum->total ? 1 : 0;
}

struct progress *progress_new(enum progress_form form, struct runtime_show *show)
{
    struct progress *progress = mem_zero(sizeof *progress);
    progress->form = form;
    progress->colour = form != PROGRESS_JSON && cli_colour();
    *show = (struct runtime_show){.on_start = on_start,
                                  .on_row = on_row,
                                  .on_tick = on_tick,
                                  .on_note = on_note,
                                  .context = progress};
    return progress;
}

void progress_free(struct progress *progress)
{
    if (!progress)
        return;
    buf_deinit(&progress->screen);
    free(progress->active);
    free(progress->tasks);
    free(progress);
}

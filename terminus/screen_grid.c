/* screen_grid.c - the cells of a screen, and what scrolled out of it.
 *
 * Every line of the main screen has a number that counts from the start of the session, so that
 * "what is new" is simply: from the lowest number that was touched since the last look. Lines that
 * scroll out of the top go into the history, which forgets its oldest bytes. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "screen_inner.h"

/* ---------------------------------------------------------------- rows */

struct row *grid_new(const struct screen *screen)
{
    struct row *rows = mem_zero(screen->rows * sizeof *rows);
    for (unsigned i = 0; i < screen->rows; i++)
        rows[i].cells = mem_zero(screen->columns * sizeof *rows[i].cells);
    return rows;
}

void grid_free(const struct screen *screen, struct row *rows)
{
    for (unsigned i = 0; rows && i < screen->rows; i++)
        free(rows[i].cells);
    free(rows);
}

void grid_touch(struct screen *screen, unsigned row)
{
    if (screen->grid != screen->main)
        return;
    uint64_t number = screen->lines_before + row;
    if (number < screen->touched)
        screen->touched = number;
}

static void row_text(const struct screen *screen, const struct row *row, struct buf *out)
{
    unsigned end = screen->columns;
    while (end > 0 && row->cells[end - 1].size == 0 && !row->cells[end - 1].tail)
        end--;
    for (unsigned i = 0; i < end; i++) {
        const struct cell *cell = &row->cells[i];
        if (cell->size)
            buf_append(out, cell->bytes, cell->size);
        else if (!cell->tail)
            buf_byte(out, ' ');
    }
}

void grid_erase(struct screen *screen, unsigned row, unsigned from, unsigned to)
{
    if (from >= to)
        return;
    struct row *line = &screen->grid[row];
    memset(line->cells + from, 0, (to - from) * sizeof *line->cells);
    if (to == screen->columns)
        line->wrapped = false;
    grid_touch(screen, row);
}

/* The oldest rows go. */
static void history_trim(struct screen *screen)
{
    struct buf *history = &screen->history;
    size_t over = history->size - screen->history_bytes_max;
    for (size_t at = 0; at < history->size; at++) {
        if (history->data[at] != '\n' && history->data[at] != '\r')
            continue;
        screen->history_line++;
        if (at + 1 >= over) {
            buf_consume(history, at + 1);
            return;
        }
    }
}

/* Rows are what is numbered: in the history '\n' ends a row, and '\r' one that goes on in the next.
 */
static void history_add(struct screen *screen, const struct row *row)
{
    row_text(screen, row, &screen->history);
    buf_byte(&screen->history, row->wrapped ? '\r' : '\n');
    if (screen->history.size > screen->history_bytes_max + screen->history_bytes_max / 4)
        history_trim(screen);
}

void grid_scroll_up(struct screen *screen, unsigned top, unsigned bottom, unsigned count)
{
    while (count--) {
        struct row first = screen->grid[top];
        if (top == 0 && screen->grid == screen->main) {
            history_add(screen, &first);
            screen->lines_before++;
        }
        memmove(screen->grid + top, screen->grid + top + 1, (bottom - top) * sizeof *screen->grid);
        memset(first.cells, 0, screen->columns * sizeof *first.cells);
        first.wrapped = false;
        screen->grid[bottom] = first;
        /* What moved into the history kept its number, and so did what follows it; rows below the
         * region did not. */
        grid_touch(screen, top == 0 ? bottom : top);
    }
}

void grid_scroll_down(struct screen *screen, unsigned top, unsigned bottom, unsigned count)
{
    while (count--) {
        struct row last = screen->grid[bottom];
        memmove(screen->grid + top + 1, screen->grid + top, (bottom - top) * sizeof *screen->grid);
        memset(last.cells, 0, screen->columns * sizeof *last.cells);
        last.wrapped = false;
        screen->grid[top] = last;
        grid_touch(screen, top);
    }
}

/* ---------------------------------------------------------------- looking */

static void grid_text(const struct screen *screen, unsigned from, struct buf *out)
{
    unsigned end = screen->rows;
    OWN(buf) struct buf line = {0};
    for (; end > from; end--) {
        row_text(screen, &screen->grid[end - 1], &line);
        if (line.size)
            break;
    }
    for (unsigned row = from; row < end; row++) {
        row_text(screen, &screen->grid[row], out);
        if (row + 1 < end && !screen->grid[row].wrapped)
            buf_byte(out, '\n');
    }
}

/* What the history has from line `number` on; '\r' marks where a line was wrapped. */
static void history_text(const struct screen *screen, uint64_t number, struct buf *out)
{
    struct str rest = buf_str(&screen->history);
    uint64_t line = screen->history_line;
    size_t at = 0;
    for (; line < number && at < rest.size; at++)
        line += rest.data[at] == '\n' || rest.data[at] == '\r';
    if (screen->history_line > number)
        buf_format(out, "[... %llu lines left out ...]\n",
                   (unsigned long long)(screen->history_line - number));
    for (; at < rest.size; at++)
        if (rest.data[at] != '\r')
            buf_byte(out, rest.data[at]);
}

void screen_look(struct screen *screen, enum screen_look look, struct buf *out)
{
    bool whole = look == SCREEN_WHOLE || screen->grid == screen->other;
    if (whole) {
        grid_text(screen, 0, out);
    } else if (screen->touched != UINT64_MAX) {
        unsigned from = 0;
        if (screen->touched < screen->lines_before)
            history_text(screen, screen->touched, out);
        else
            from = (unsigned)(screen->touched - screen->lines_before);
        grid_text(screen, from, out);
    }
    screen->touched = UINT64_MAX;
}

/* screen.c - a small terminal: bytes of a program in, lines of text out.
 *
 * The subset of xterm that line tools, REPLs, pagers and editors use: cursor movement, erasing,
 * inserting, scroll regions, the alternate screen, line-drawing characters. Colours and titles are
 * read over. Cells hold UTF-8 as it came; a wide character takes two of them. Where they end up
 * is screen_grid.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "screen_inner.h"

#define STRING_BYTES_MAX 65536 /* of a title or the like; then it is believed to be over */

/* ---------------------------------------------------------------- characters */

static void line_feed(struct screen *screen)
{
    struct cursor *cursor = &screen->cursor;
    cursor->pending = false;
    if (cursor->row == screen->bottom)
        grid_scroll_up(screen, screen->top, screen->bottom, 1);
    else if (cursor->row + 1 < screen->rows)
        cursor->row++;
    grid_touch(screen, cursor->row);
}

static uint32_t decode(const char *bytes, unsigned size)
{
    static const unsigned char masks[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    uint32_t point = (unsigned char)bytes[0] & masks[size];
    for (unsigned i = 1; i < size; i++)
        point = point << 6 | ((unsigned char)bytes[i] & 0x3f);
    return point;
}

static unsigned width_of(uint32_t point)
{
    /* clang-format off */
    static const struct { uint32_t from, to; } none[] = {
        {0x300, 0x36f}, {0x483, 0x489}, {0x591, 0x5bd}, {0x610, 0x61a}, {0x64b, 0x65f},
        {0x1ab0, 0x1aff}, {0x1dc0, 0x1dff}, {0x200b, 0x200f}, {0x202a, 0x202e}, {0x2060, 0x2064},
        {0x20d0, 0x20ff}, {0xfe00, 0xfe0f}, {0xfe20, 0xfe2f}, {0xfeff, 0xfeff}, {0xe0100, 0xe01ef},
    }, two[] = {
        {0x1100, 0x115f}, {0x231a, 0x231b}, {0x23e9, 0x23ec}, {0x2e80, 0x303e}, {0x3041, 0xa4cf},
        {0xa960, 0xa97c}, {0xac00, 0xd7a3}, {0xf900, 0xfaff}, {0xfe30, 0xfe6f}, {0xff01, 0xff60},
        {0xffe0, 0xffe6}, {0x1f300, 0x1f64f}, {0x1f680, 0x1f6ff}, {0x1f900, 0x1f9ff},
        {0x20000, 0x3fffd},
    };
    /* clang-format on */
    for (size_t i = 0; i < COUNT(none); i++)
        if (point >= none[i].from && point <= none[i].to)
            return 0;
    for (size_t i = 0; i < COUNT(two); i++)
        if (point >= two[i].from && point <= two[i].to)
            return 2;
    return 1;
}

static void combine(struct screen *screen, const char *bytes, unsigned size)
{
    struct cursor *cursor = &screen->cursor;
    unsigned column = cursor->pending ? cursor->column : cursor->column ? cursor->column - 1 : 0;
    struct cell *cells = screen->grid[cursor->row].cells;
    if (cells[column].tail && column)
        column--;
    if (cells[column].size == 0 || cells[column].size + size > CELL_BYTES_MAX)
        return;
    memcpy(cells[column].bytes + cells[column].size, bytes, size);
    cells[column].size = (uint8_t)(cells[column].size + size);
    grid_touch(screen, cursor->row);
}

/* A character that loses one half loses the other. */
static void unpair(struct screen *screen, unsigned row, unsigned column)
{
    struct cell *cells = screen->grid[row].cells;
    if (cells[column].tail && column)
        cells[column - 1] = (struct cell){.bytes = " ", .size = 1};
    if (column + 1 < screen->columns && cells[column + 1].tail)
        cells[column + 1] = (struct cell){.bytes = " ", .size = 1};
}

static void put(struct screen *screen, const char *bytes, unsigned size)
{
    struct cursor *cursor = &screen->cursor;
    unsigned width = size == 1 ? 1 : width_of(decode(bytes, size));
    if (width == 0) {
        combine(screen, bytes, size);
        return;
    }
    if (width > screen->columns)
        width = 1;
    if (cursor->pending || cursor->column + width > screen->columns) {
        if (screen->wraps) {
            screen->grid[cursor->row].wrapped = true;
            line_feed(screen);
            cursor->column = 0;
        } else {
            cursor->column = screen->columns - width;
        }
        cursor->pending = false;
    }
    struct row *row = &screen->grid[cursor->row];
    if (screen->inserting)
        memmove(row->cells + cursor->column + width, row->cells + cursor->column,
                (screen->columns - cursor->column - width) * sizeof *row->cells);
    unpair(screen, cursor->row, cursor->column);
    struct cell *cell = &row->cells[cursor->column];
    memcpy(cell->bytes, bytes, size);
    cell->size = (uint8_t)size;
    cell->tail = false;
    if (width == 2) {
        unpair(screen, cursor->row, cursor->column + 1);
        row->cells[cursor->column + 1] = (struct cell){.tail = true};
        cell->size = (uint8_t)size;
        memcpy(cell->bytes, bytes, size);
    }
    grid_touch(screen, cursor->row);
    cursor->column += width;
    if (cursor->column >= screen->columns) {
        cursor->column = screen->columns - 1;
        cursor->pending = true;
    }
}

static void put_drawing(struct screen *screen, char byte)
{
    static const char *const shapes = "jklmnqtuvwx";
    static const char *const drawn[] = {"┘", "┐", "┌", "└", "┼", "─", "├", "┤", "┴", "┬", "│"};
    const char *at = strchr(shapes, byte);
    if (at && byte)
        put(screen, drawn[at - shapes], 3);
    else
        put(screen, &byte, 1);
}

/* ---------------------------------------------------------------- sequences */

static long parameter(const struct screen *screen, unsigned index, long fallback)
{
    if (index >= screen->parameter_count || screen->parameters[index] <= 0)
        return fallback;
    return screen->parameters[index];
}

static void move_to(struct screen *screen, long row, long column)
{
    struct cursor *cursor = &screen->cursor;
    long last_row = (long)screen->rows - 1, last_column = (long)screen->columns - 1;
    cursor->row = (unsigned)(row < 0 ? 0 : row > last_row ? last_row : row);
    cursor->column = (unsigned)(column < 0 ? 0 : column > last_column ? last_column : column);
    cursor->pending = false;
}

static void move_by(struct screen *screen, long rows, long columns)
{
    move_to(screen, (long)screen->cursor.row + rows, (long)screen->cursor.column + columns);
}

static void erase_display(struct screen *screen, long how)
{
    const struct cursor *cursor = &screen->cursor;
    if (how == 0)
        grid_erase(screen, cursor->row, cursor->column, screen->columns);
    else if (how == 1)
        grid_erase(screen, cursor->row, 0, cursor->column + 1);
    unsigned from = how == 0 ? cursor->row + 1 : 0;
    unsigned to = how == 1 ? cursor->row : screen->rows;
    for (unsigned row = from; row < to && how <= 2; row++)
        grid_erase(screen, row, 0, screen->columns);
}

static void erase_line(struct screen *screen, long how)
{
    const struct cursor *cursor = &screen->cursor;
    unsigned from = how == 0 ? cursor->column : 0;
    grid_erase(screen, cursor->row, from, how == 1 ? cursor->column + 1 : screen->columns);
}

/* Opens (or closes) a gap of blanks at the cursor. */
static void shift_cells(struct screen *screen, long count, bool open)
{
    struct row *row = &screen->grid[screen->cursor.row];
    unsigned at = screen->cursor.column, room = screen->columns - at;
    unsigned by = count > (long)room ? room : (unsigned)count;
    struct cell *cells = row->cells + at;
    if (open)
        memmove(cells + by, cells, (room - by) * sizeof *cells);
    else
        memmove(cells, cells + by, (room - by) * sizeof *cells);
    memset(open ? cells : cells + room - by, 0, by * sizeof *cells);
    grid_touch(screen, screen->cursor.row);
}

static void shift_lines(struct screen *screen, long count, bool open)
{
    unsigned row = screen->cursor.row;
    if (row < screen->top || row > screen->bottom)
        return;
    unsigned room = screen->bottom - row + 1;
    unsigned by = count > (long)room ? room : (unsigned)count;
    /* Deleted lines are gone; they are no history. */
    while (by--) {
        if (open) {
            grid_scroll_down(screen, row, screen->bottom, 1);
            continue;
        }
        struct row first = screen->grid[row];
        memmove(screen->grid + row, screen->grid + row + 1,
                (screen->bottom - row) * sizeof *screen->grid);
        memset(first.cells, 0, screen->columns * sizeof *first.cells);
        first.wrapped = false;
        screen->grid[screen->bottom] = first;
        grid_touch(screen, row);
    }
}

static void alternate(struct screen *screen, bool on)
{
    if (on == (screen->grid == screen->other))
        return;
    if (on) {
        screen->main_cursor = screen->cursor;
        screen->grid = screen->other;
        erase_display(screen, 2);
    } else {
        screen->grid = screen->main;
        screen->cursor = screen->main_cursor;
    }
    screen->top = 0;
    screen->bottom = screen->rows - 1;
}

static void set_mode(struct screen *screen, bool on)
{
    for (unsigned i = 0; i < screen->parameter_count; i++) {
        long mode = screen->parameters[i];
        if (!screen->private) {
            if (mode == 4)
                screen->inserting = on;
        } else if (mode == 1) {
            screen->application = on;
        } else if (mode == 7) {
            screen->wraps = on;
        } else if (mode == 47 || mode == 1047 || mode == 1049) {
            alternate(screen, on);
        }
    }
}

static void set_region(struct screen *screen)
{
    long top = parameter(screen, 0, 1), bottom = parameter(screen, 1, screen->rows);
    if (bottom > (long)screen->rows)
        bottom = screen->rows;
    if (top >= bottom)
        return;
    screen->top = (unsigned)top - 1;
    screen->bottom = (unsigned)bottom - 1;
    move_to(screen, 0, 0);
}

static void report(struct screen *screen)
{
    long what = parameter(screen, 0, 0);
    if (screen->answers.size > 256)
        return; /* nobody reads them */
    if (what == 5)
        buf_format(&screen->answers, "\033[0n");
    else if (what == 6)
        buf_format(&screen->answers, "\033[%u;%uR", screen->cursor.row + 1,
                   screen->cursor.column + 1);
}

static unsigned clamp(const struct screen *screen, long count)
{
    return count > (long)screen->rows ? screen->rows : (unsigned)count;
}

static void run_csi(struct screen *screen, char final)
{
    long n = parameter(screen, 0, 1);
    struct cursor *cursor = &screen->cursor;
    if (n > 65535)
        n = 65535;
    if (screen->private && final != 'h' && final != 'l')
        return;
    switch (final) {
    case 'A':
        move_by(screen, -n, 0);
        return;
    case 'B':
    case 'e':
        move_by(screen, n, 0);
        return;
    case 'C':
    case 'a':
        move_by(screen, 0, n);
        return;
    case 'D':
        move_by(screen, 0, -n);
        return;
    case 'E':
        move_to(screen, (long)cursor->row + n, 0);
        return;
    case 'F':
        move_to(screen, (long)cursor->row - n, 0);
        return;
    case 'G':
    case '`':
        move_to(screen, cursor->row, n - 1);
        return;
    case 'd':
        move_to(screen, n - 1, cursor->column);
        return;
    case 'H':
    case 'f':
        move_to(screen, n - 1, parameter(screen, 1, 1) - 1);
        return;
    case 'J':
        erase_display(screen, parameter(screen, 0, 0));
        return;
    case 'K':
        erase_line(screen, parameter(screen, 0, 0));
        return;
    case 'L':
    case 'M':
        shift_lines(screen, n, final == 'L');
        return;
    case '@':
    case 'P':
        shift_cells(screen, n, final == '@');
        return;
    case 'X':
        grid_erase(screen, cursor->row, cursor->column,
                   cursor->column + n > (long)screen->columns ? screen->columns
                                                              : cursor->column + (unsigned)n);
        return;
    case 'S':
        grid_scroll_up(screen, screen->top, screen->bottom, clamp(screen, n));
        return;
    case 'T':
        grid_scroll_down(screen, screen->top, screen->bottom, clamp(screen, n));
        return;
    case 'h':
    case 'l':
        set_mode(screen, final == 'h');
        return;
    case 'r':
        set_region(screen);
        return;
    case 's':
        screen->saved = *cursor;
        return;
    case 'u':
        *cursor = screen->saved;
        return;
    case 'n':
        report(screen);
        return;
    case 'c':
        if (screen->answers.size <= 256)
            buf_format(&screen->answers, "\033[?6c");
        return;
    default: /* colours, titles, whatever else: nothing to see */
        return;
    }
}

static void reset(struct screen *screen)
{
    screen->grid = screen->main;
    screen->cursor = screen->saved = (struct cursor){0};
    screen->top = 0;
    screen->bottom = screen->rows - 1;
    screen->wraps = true;
    screen->application = screen->inserting = false;
}

static enum state run_escape(struct screen *screen, char byte)
{
    switch (byte) {
    case '[':
        screen->parameter_count = 0;
        screen->private = screen->ignored = false;
        return STATE_CSI;
    case ']':
    case 'P':
    case '_':
    case '^':
    case 'X':
        screen->string_bytes = 0;
        return STATE_STRING;
    case '(':
    case ')':
    case '*':
    case '+':
    case '#':
    case '%':
    case ' ':
        screen->shift = byte;
        return STATE_SHIFT;
    case '7':
        screen->saved = screen->cursor;
        break;
    case '8':
        screen->cursor = screen->saved;
        break;
    case 'D':
        line_feed(screen);
        break;
    case 'E':
        line_feed(screen);
        screen->cursor.column = 0;
        break;
    case 'M':
        screen->cursor.pending = false;
        if (screen->cursor.row == screen->top)
            grid_scroll_down(screen, screen->top, screen->bottom, 1);
        else if (screen->cursor.row)
            screen->cursor.row--;
        break;
    case 'c':
        reset(screen);
        erase_display(screen, 2);
        break;
    default:
        break;
    }
    return STATE_TEXT;
}

static void take_csi(struct screen *screen, char byte)
{
    if (byte >= '0' && byte <= '9') {
        if (screen->parameter_count == 0)
            screen->parameters[screen->parameter_count++] = 0;
        long *value = &screen->parameters[screen->parameter_count - 1];
        if (*value < 100000)
            *value = *value * 10 + (byte - '0');
    } else if (byte == ';' || byte == ':') {
        if (screen->parameter_count == 0)
            screen->parameters[screen->parameter_count++] = 0;
        if (screen->parameter_count < PARAMETERS_MAX)
            screen->parameters[screen->parameter_count++] = 0;
    } else if (byte == '?') {
        screen->private = true;
    } else if (byte >= 0x20 && byte < 0x40) {
        screen->ignored = true;
    } else {
        screen->state = STATE_TEXT;
        if (!screen->ignored && byte >= 0x40)
            run_csi(screen, byte);
    }
}

static void take_control(struct screen *screen, char byte)
{
    struct cursor *cursor = &screen->cursor;
    if (byte == '\r') {
        cursor->column = 0;
        cursor->pending = false;
    } else if (byte == '\n' || byte == '\v' || byte == '\f') {
        line_feed(screen);
    } else if (byte == '\b') {
        if (cursor->column && !cursor->pending)
            cursor->column--;
        cursor->pending = false;
    } else if (byte == '\t') {
        move_to(screen, cursor->row, (cursor->column / 8 + 1) * 8);
    } else if (byte == 0x0e || byte == 0x0f) {
        cursor->drawing = byte == 0x0e;
    }
}

static void take_text(struct screen *screen, char byte)
{
    unsigned char value = (unsigned char)byte;
    if (screen->partial_size) {
        if ((value & 0xc0) == 0x80) {
            screen->partial[screen->partial_size++] = byte;
            if (screen->partial_size == screen->partial_wanted) {
                screen->partial_size = 0;
                put(screen, screen->partial, screen->partial_wanted);
            }
            return;
        }
        screen->partial_size = 0;
        put(screen, "\xef\xbf\xbd", 3); /* it was none */
    }
    if (value < 0x20) {
        take_control(screen, byte);
    } else if (value < 0x7f) {
        if (screen->cursor.drawing)
            put_drawing(screen, byte);
        else
            put(screen, &byte, 1);
    } else if (value >= 0xc2 && value < 0xf5) {
        screen->partial[0] = byte;
        screen->partial_size = 1;
        screen->partial_wanted = value >= 0xf0 ? 4 : value >= 0xe0 ? 3 : 2;
    } else if (value != 0x7f) {
        put(screen, "\xef\xbf\xbd", 3);
    }
}

static void take_byte(struct screen *screen, char byte)
{
    if (byte == 0x18 || byte == 0x1a) { /* CAN, SUB: whatever it was, it is over */
        screen->state = STATE_TEXT;
        return;
    }
    switch (screen->state) {
    case STATE_TEXT:
        if (byte == 0x1b)
            screen->state = STATE_ESCAPE;
        else
            take_text(screen, byte);
        return;
    case STATE_ESCAPE:
        screen->state = byte == 0x1b ? STATE_ESCAPE : run_escape(screen, byte);
        return;
    case STATE_SHIFT:
        if (screen->shift == '(')
            screen->cursor.drawing = byte == '0';
        screen->state = STATE_TEXT;
        return;
    case STATE_CSI:
        if (byte == 0x1b)
            screen->state = STATE_ESCAPE;
        else if ((unsigned char)byte < 0x20)
            take_control(screen, byte);
        else
            take_csi(screen, byte);
        return;
    case STATE_STRING:
        if (byte == 0x1b)
            screen->state = STATE_STRING_ESCAPE;
        else if (byte == 0x07 || ++screen->string_bytes > STRING_BYTES_MAX)
            screen->state = STATE_TEXT;
        return;
    case STATE_STRING_ESCAPE:
        screen->state = byte == '\\' ? STATE_TEXT : run_escape(screen, byte);
        return;
    }
}

/* ---------------------------------------------------------------- the door */

struct screen *screen_new(unsigned columns, unsigned rows, size_t history_bytes_max)
{
    struct screen *screen = mem_zero(sizeof *screen);
    screen->columns = columns;
    screen->rows = rows;
    screen->history_bytes_max = history_bytes_max;
    screen->main = grid_new(screen);
    screen->other = grid_new(screen);
    screen->touched = 0;
    reset(screen);
    return screen;
}

void screen_free(struct screen *screen)
{
    if (!screen)
        return;
    grid_free(screen, screen->main);
    grid_free(screen, screen->other);
    buf_deinit(&screen->history);
    buf_deinit(&screen->answers);
    free(screen);
}

void screen_write(struct screen *screen, struct str bytes)
{
    for (size_t i = 0; i < bytes.size; i++)
        take_byte(screen, bytes.data[i]);
}

struct buf *screen_answers(struct screen *screen)
{
    return &screen->answers;
}

unsigned screen_cursor_column(const struct screen *screen)
{
    return screen->cursor.column;
}

bool screen_is_alternate(const struct screen *screen)
{
    return screen->grid == screen->other;
}

bool screen_keys_are_application(const struct screen *screen)
{
    return screen->application;
}

/* screen_inner.h - private to the screen: screen.c reads what a program writes, screen_grid.c has
 * the cells it ends up in. */
#ifndef TERMINUS_SCREEN_INNER_H
#define TERMINUS_SCREEN_INNER_H

#include "terminus.h"

#define CELL_BYTES_MAX 14 /* a character and what combines with it */
#define PARAMETERS_MAX 16

struct cell {
    char bytes[CELL_BYTES_MAX];
    uint8_t size; /* 0: blank */
    bool tail;    /* the second half of a wide character */
};

struct row {
    struct cell *cells;
    bool wrapped; /* goes on in the next row */
};

struct cursor {
    unsigned row, column;
    bool pending; /* the last column is full; the next character wraps */
    bool drawing; /* line-drawing characters */
};

enum state {
    STATE_TEXT,
    STATE_ESCAPE,
    STATE_SHIFT, /* ESC ( and its like: one more byte */
    STATE_CSI,
    STATE_STRING,       /* OSC, DCS, APC, PM: until ST or BEL */
    STATE_STRING_ESCAPE /* perhaps the ST */
};

struct screen {
    unsigned columns, rows;
    struct row *main, *other, *grid; /* grid: whichever is shown */
    struct cursor cursor, saved, main_cursor;
    unsigned top, bottom; /* scroll region, inclusive */
    bool wraps, application, inserting;

    enum state state;
    char shift;
    long parameters[PARAMETERS_MAX];
    unsigned parameter_count;
    bool private, ignored; /* '?' sequences; those with bytes we do not know */
    size_t string_bytes;
    char partial[4]; /* of a UTF-8 character */
    unsigned partial_size, partial_wanted;

    struct buf history;    /* rows that left at the top */
    uint64_t history_line; /* number of its first line */
    uint64_t lines_before; /* number of the main screen's first row */
    size_t history_bytes_max;
    uint64_t touched; /* lowest number since the last look; UINT64_MAX: none */
    struct buf answers;
};

/* ---------------------------------------------------------------- screen_grid.c */
struct row *grid_new(const struct screen *screen);
void grid_free(const struct screen *screen, struct row *rows);
void grid_touch(struct screen *screen, unsigned row);
void grid_erase(struct screen *screen, unsigned row, unsigned from, unsigned to);
/* Rows `top` to `bottom`; what leaves the main screen at its top goes into the history. */
void grid_scroll_up(struct screen *screen, unsigned top, unsigned bottom, unsigned count);
void grid_scroll_down(struct screen *screen, unsigned top, unsigned bottom, unsigned count);

#endif

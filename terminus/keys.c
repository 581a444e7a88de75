/* keys.c - what the model wants typed, as the bytes a keyboard would send.
 *
 * Text goes as it is; an end of line is the Enter key. Keystrokes that consist of nothing but names
 * of keys ("C-c", "Up Up Enter") are those keys. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "terminus.h"

struct key {
    const char *name, *bytes;
    const char *application; /* in the mode of that name; NULL: the same */
};

/* clang-format off */
static const struct key keys[] = {
    {"Enter", "\r", NULL}, {"Return", "\r", NULL}, {"Tab", "\t", NULL}, {"BTab", "\033[Z", NULL},
    {"Escape", "\033", NULL}, {"Esc", "\033", NULL}, {"Space", " ", NULL},
    {"BSpace", "\177", NULL}, {"Backspace", "\177", NULL},
    {"Up", "\033[A", "\033OA"}, {"Down", "\033[B", "\033OB"},
    {"Right", "\033[C", "\033OC"}, {"Left", "\033[D", "\033OD"},
    {"Home", "\033[H", "\033OH"}, {"End", "\033[F", "\033OF"},
    {"PageUp", "\033[5~", NULL}, {"PgUp", "\033[5~", NULL}, {"PPage", "\033[5~", NULL},
    {"PageDown", "\033[6~", NULL}, {"PgDn", "\033[6~", NULL}, {"NPage", "\033[6~", NULL},
    {"Insert", "\033[2~", NULL}, {"IC", "\033[2~", NULL},
    {"Delete", "\033[3~", NULL}, {"DC", "\033[3~", NULL},
    {"F1", "\033OP", NULL}, {"F2", "\033OQ", NULL}, {"F3", "\033OR", NULL}, {"F4", "\033OS", NULL},
    {"F5", "\033[15~", NULL}, {"F6", "\033[17~", NULL}, {"F7", "\033[18~", NULL},
    {"F8", "\033[19~", NULL}, {"F9", "\033[20~", NULL}, {"F10", "\033[21~", NULL},
    {"F11", "\033[23~", NULL}, {"F12", "\033[24~", NULL},
};
/* clang-format on */

/* C-c, C-Space, M-x, ^C. */
static bool add_modified(struct str word, struct buf *out)
{
    bool caret = word.size == 2 && word.data[0] == '^';
    if (!caret && (word.size < 3 || word.data[1] != '-'))
        return false;
    struct str rest = str_from(word, caret ? 1 : 2);
    if (word.data[0] == 'M' && !caret && rest.size == 1) {
        buf_byte(out, '\033');
        buf_byte(out, rest.data[0]);
        return true;
    }
    if (word.data[0] != 'C' && !caret)
        return false;
    if (str_is(rest, "Space") || str_is(rest, "@")) {
        buf_byte(out, 0);
        return true;
    }
    if (rest.size != 1)
        return false;
    char key = rest.data[0];
    if (key >= 'a' && key <= 'z')
        key = (char)(key - 'a' + 'A');
    if (key == '?') {
        buf_byte(out, 0x7f);
        return true;
    }
    if (key < 'A' || key > '_')
        return false;
    buf_byte(out, (char)(key & 0x1f));
    return true;
}

static bool add_named(struct str word, bool application, struct buf *out)
{
    for (size_t i = 0; i < COUNT(keys); i++) {
        if (!str_is(word, keys[i].name))
            continue;
        const char *bytes =
            application && keys[i].application ? keys[i].application : keys[i].bytes;
        buf_str_append(out, str_of(bytes));
        return true;
    }
    return add_modified(word, out);
}

static bool are_names(struct str keystrokes, bool application, struct buf *out)
{
    if (keystrokes.size == 0 || memchr(keystrokes.data, '\n', keystrokes.size))
        return false;
    OWN(buf) struct buf bytes = {0};
    while (keystrokes.size) {
        struct str word = str_cut(&keystrokes, ' ');
        if (!add_named(word, application, &bytes))
            return false;
    }
    buf_str_append(out, buf_str(&bytes));
    return true;
}

void keys_encode(struct str keystrokes, bool application, struct buf *out)
{
    if (are_names(keystrokes, application, out))
        return;
    for (size_t i = 0; i < keystrokes.size; i++) {
        char byte = keystrokes.data[i];
        if (byte == '\r' && i + 1 < keystrokes.size && keystrokes.data[i + 1] == '\n')
            continue;
        buf_byte(out, byte == '\n' ? '\r' : byte);
    }
}

/* clip.c - text that may be long, of which a model gets the head and the tail. */
#include "chat.h"

void chat_clip_add(struct chat_clip *clip, struct str bytes)
{
    clip->total += bytes.size;
    if (clip->head.size < clip->half_max) {
        struct str front = str_upto(bytes, clip->half_max - clip->head.size);
        buf_str_append(&clip->head, front);
        bytes = str_from(bytes, front.size);
    }
    if (bytes.size > clip->half_max)
        bytes = str_from(bytes, bytes.size - clip->half_max);
    buf_str_append(&clip->tail, bytes);
    if (clip->tail.size > clip->half_max)
        buf_consume(&clip->tail, clip->tail.size - clip->half_max);
}

static bool continues(char byte)
{
    return ((unsigned char)byte & 0xc0) == 0x80;
}

/* Without the beginning of a character whose rest is missing. */
static struct str trim_end(struct str s)
{
    size_t at = s.size;
    while (at > 0 && s.size - at < 3 && continues(s.data[at - 1]))
        at--;
    if (at == 0)
        return s;
    unsigned char lead = (unsigned char)s.data[at - 1];
    size_t wanted = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
    return s.size - (at - 1) < wanted ? str_upto(s, at - 1) : s;
}

static struct str trim_start(struct str s)
{
    for (int i = 0; i < 3 && s.size && continues(s.data[0]); i++)
        s = str_from(s, 1);
    return s;
}

void chat_clip_finish(struct chat_clip *clip, struct buf *out)
{
    struct str head = buf_str(&clip->head), tail = buf_str(&clip->tail);
    bool cut = clip->total > clip->head.size + clip->tail.size;
    if (cut) {
        head = trim_end(head);
        tail = trim_start(tail);
    }
    buf_str_append(out, head);
    if (cut)
        buf_format(out, "\n[... %llu bytes left out ...]\n",
                   (unsigned long long)(clip->total - head.size - tail.size));
    buf_str_append(out, tail);
    buf_deinit(&clip->head);
    buf_deinit(&clip->tail);
}

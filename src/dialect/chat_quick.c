/* chat_quick.c - the usual chunk of a chat stream, in one pass over its text and without a tape.
 *
 *     {..., "choices":[{"index":0, "delta":{"content":"..."}, "logprobs":{...},
 * "token_ids":[...]}]}
 *
 * (or, in the delta, a piece of one tool call). A stream is thousands of these. What is captured
 * and what is stripped is found in the same pass; nothing is done before all of the text was seen.
 * Whatever is not of this shape (a finish reason, usage, several tool calls or choices, an error, a
 * key that comes twice, a member of a choice or a delta that is not known here) is refused and goes
 * the general way of dialect_chat.c, which must come to the same result for what is accepted here:
 * fuzz_dialect_chat.c and test_dialect_quick.c compare the two. */
#include "dialect/chat.h"

#define TOKENS_MAX 64

enum part { ROOT, CHOICE, DELTA, CALL, FUNCTION, LOGPROBS, ENTRY };

/* What a member means to us. */
enum known {
    KNOWN_IDLE,    /* nothing */
    KNOWN_STRANGE, /* not known, and of the usual shape only while it is null */
    KNOWN_REFUSED, /* not of the usual shape */
    KNOWN_ID,      /* from here on: a member that may be there only once */
    KNOWN_MODEL,
    KNOWN_CREATED,
    KNOWN_OBJECT,
    KNOWN_USAGE,
    KNOWN_CHOICES,
    KNOWN_PROMPT_IDS,
    KNOWN_PROMPT_LOGPROBS,
    KNOWN_INDEX,
    KNOWN_DELTA,
    KNOWN_LOGPROBS,
    KNOWN_IDS,
    KNOWN_TEXT,
    KNOWN_REASONING_CONTENT,
    KNOWN_REASONING,
    KNOWN_REFUSAL,
    KNOWN_CALLS,
    KNOWN_CALL_INDEX,
    KNOWN_CALL_ID,
    KNOWN_FUNCTION,
    KNOWN_NAME,
    KNOWN_ARGUMENTS,
    KNOWN_LIST,
    KNOWN_LOGPROB,
    KNOWN_TOKEN,
    KNOWN_TOKEN_ID,
};

_Static_assert(KNOWN_TOKEN_ID < 32, "seen in a word");

enum deed { KEEP, REMOVE, BLANK };

struct quick {
    struct json_scan scan;
    const struct dialect_reader_options *options;
    struct buf *out;
    const char *written; /* up to here the text is in `out`; NULL: it is relayed as it is */
    const char *start;
    struct json_text id, model, text, reasoning_content, reasoning, refusal;
    struct json_text call_id, call_name, arguments;
    bool has_call;
    long long call_index, created;
    bool has_ids, has_logprobs;
    uint32_t id_count, logprob_count, entry_id_count;
    int32_t token_id, named_id; /* of the entry that is being read; -1: none */
    int32_t ids[TOKENS_MAX], entry_ids[TOKENS_MAX];
    float logprobs[TOKENS_MAX];
};

static bool read_object(struct quick *quick, enum part part);

/* The bytes from..to do not go on. Cuts come in order. */
static void cut(struct quick *quick, const char *from, const char *to)
{
    const char *written = quick->written ? quick->written : quick->start;
    buf_append(quick->out, written, (size_t)(from - written));
    quick->written = to;
}

/* ---------------------------------------------------------------- what a key means */

#define IS(text) str_equal(key, STR(text))

static enum known known_in_root(struct str key)
{
    switch (key.size) {
    case 2:
        return IS("id") ? KNOWN_ID : KNOWN_IDLE;
    case 5:
        return IS("model")   ? KNOWN_MODEL
               : IS("usage") ? KNOWN_USAGE
               : IS("error") ? KNOWN_REFUSED
                             : KNOWN_IDLE;
    case 6:
        return IS("object") ? KNOWN_OBJECT : KNOWN_IDLE;
    case 7:
        return IS("choices") ? KNOWN_CHOICES : IS("created") ? KNOWN_CREATED : KNOWN_IDLE;
    case 15:
        return IS("prompt_logprobs") ? KNOWN_PROMPT_LOGPROBS : KNOWN_IDLE;
    case 16:
        return IS("prompt_token_ids") ? KNOWN_PROMPT_IDS : KNOWN_IDLE;
    }
    return KNOWN_IDLE;
}

static enum known known_in_choice(struct str key)
{
    switch (key.size) {
    case 5:
        return IS("index") ? KNOWN_INDEX : IS("delta") ? KNOWN_DELTA : KNOWN_STRANGE;
    case 8:
        return IS("logprobs") ? KNOWN_LOGPROBS : KNOWN_STRANGE;
    case 9:
        return IS("token_ids") ? KNOWN_IDS : IS("meta_info") ? KNOWN_REFUSED : KNOWN_STRANGE;
    case 16:
        return IS("prompt_token_ids") ? KNOWN_PROMPT_IDS : KNOWN_STRANGE;
    }
    return KNOWN_STRANGE;
}

static enum known known_in_delta(struct str key)
{
    switch (key.size) {
    case 4:
        return IS("role") ? KNOWN_IDLE : KNOWN_STRANGE;
    case 7:
        return IS("content") ? KNOWN_TEXT : IS("refusal") ? KNOWN_REFUSAL : KNOWN_STRANGE;
    case 9:
        return IS("reasoning") ? KNOWN_REASONING : KNOWN_STRANGE;
    case 10:
        return IS("tool_calls") ? KNOWN_CALLS : KNOWN_STRANGE;
    case 17:
        return IS("reasoning_content") ? KNOWN_REASONING_CONTENT : KNOWN_STRANGE;
    }
    return KNOWN_STRANGE;
}

static enum known known_in_entry(struct str key)
{
    return IS("logprob")    ? KNOWN_LOGPROB
           : IS("token")    ? KNOWN_TOKEN
           : IS("token_id") ? KNOWN_TOKEN_ID
                            : KNOWN_IDLE;
}

static enum known known_in(enum part part, struct str key)
{
    switch (part) {
    case ROOT:
        return known_in_root(key);
    case CHOICE:
        return known_in_choice(key);
    case DELTA:
        return known_in_delta(key);
    case CALL:
        return IS("index")      ? KNOWN_CALL_INDEX
               : IS("function") ? KNOWN_FUNCTION
               : IS("id")       ? KNOWN_CALL_ID
               : IS("type")     ? KNOWN_IDLE
                                : KNOWN_STRANGE;
    case FUNCTION:
        return IS("arguments") ? KNOWN_ARGUMENTS : IS("name") ? KNOWN_NAME : KNOWN_STRANGE;
    case LOGPROBS:
        return IS("content") ? KNOWN_LIST : KNOWN_IDLE;
    case ENTRY:
        return known_in_entry(key);
    }
    return KNOWN_REFUSED;
}

/* What chat_strip() would do with the member, whose value comes next. */
static enum deed deed_for(struct quick *quick, enum known known)
{
    const struct dialect_reader_options *options = quick->options;
    if (known == KNOWN_IDS || known == KNOWN_PROMPT_IDS)
        return options->strip_token_ids ? REMOVE : KEEP;
    if (known == KNOWN_PROMPT_LOGPROBS)
        return options->strip_logprobs ? REMOVE : KEEP;
    if (known == KNOWN_LOGPROBS && options->strip_logprobs)
        return json_scan_peek(&quick->scan) != 'n' ? BLANK : KEEP;
    return KEEP;
}

/* ---------------------------------------------------------------- values */

static bool read_piece(struct quick *quick, struct json_text *out)
{
    return json_scan_peek(&quick->scan) == 'n' ? json_scan_null(&quick->scan)
                                               : json_scan_string(&quick->scan, out);
}

static bool read_ids(struct quick *quick)
{
    struct json_scan *scan = &quick->scan;
    if (json_scan_peek(scan) == 'n')
        return json_scan_null(scan);
    if (!json_scan_byte(scan, '['))
        return false;
    quick->has_ids = true;
    if (json_scan_byte(scan, ']'))
        return true;
    do {
        long long id;
        if (quick->id_count == TOKENS_MAX || !json_scan_int(scan, &id) || id < 0 || id > INT32_MAX)
            return false;
        quick->ids[quick->id_count++] = (int32_t)id;
    } while (json_scan_byte(scan, ','));
    return json_scan_byte(scan, ']');
}

static bool read_entries(struct quick *quick)
{
    struct json_scan *scan = &quick->scan;
    if (json_scan_peek(scan) == 'n')
        return json_scan_null(scan);
    if (!json_scan_byte(scan, '['))
        return false;
    quick->has_logprobs = true;
    if (json_scan_byte(scan, ']'))
        return true;
    do {
        quick->token_id = quick->named_id = -1;
        if (quick->logprob_count == TOKENS_MAX || !read_object(quick, ENTRY))
            return false;
        quick->logprob_count++;
        int32_t id = quick->token_id >= 0 ? quick->token_id : quick->named_id;
        if (id >= 0)
            quick->entry_ids[quick->entry_id_count++] = id;
    } while (json_scan_byte(scan, ','));
    return json_scan_byte(scan, ']');
}

/* "token_id:17" has the id, other tokens have none. */
static bool read_token(struct quick *quick)
{
    struct json_text token;
    if (!json_scan_string(&quick->scan, &token))
        return false;
    struct str text = token.content, front = STR("token_id:");
    if (!str_starts(text, front))
        return !token.escaped || (text.data[0] != 't' && text.data[1] != 'u');
    struct json_scan digits = {text.data + front.size, text.data + text.size};
    long long id;
    bool plain = digits.at < digits.end && *digits.at >= '0' && *digits.at <= '9';
    if (!plain || !json_scan_int(&digits, &id) || digits.at != digits.end || id > INT32_MAX)
        return false;
    quick->named_id = (int32_t)id;
    return true;
}

/* Exactly one, and no blanks around it: stripping would drop them. */
static bool read_choices(struct quick *quick)
{
    struct json_scan *scan = &quick->scan;
    return json_scan_byte(scan, '[') && scan->at < scan->end && *scan->at == '{' &&
           read_object(quick, CHOICE) && scan->at < scan->end && *scan->at++ == ']';
}

/* One, or none. */
static bool read_calls(struct quick *quick)
{
    struct json_scan *scan = &quick->scan;
    if (json_scan_peek(scan) == 'n')
        return json_scan_null(scan);
    if (!json_scan_byte(scan, '['))
        return false;
    if (json_scan_byte(scan, ']'))
        return true;
    quick->has_call = true;
    return read_object(quick, CALL) && json_scan_byte(scan, ']');
}

static bool read_object_kind(struct quick *quick)
{
    struct json_text kind;
    return json_scan_string(&quick->scan, &kind) && !kind.escaped && !str_is(kind.content, "error");
}

static bool read_index(struct quick *quick)
{
    long long index;
    return json_scan_int(&quick->scan, &index) && index == 0;
}

static bool read_logprob(struct quick *quick)
{
    double logprob;
    if (!json_scan_double(&quick->scan, &logprob))
        return false;
    quick->logprobs[quick->logprob_count] = (float)logprob;
    return true;
}

static bool read_token_id(struct quick *quick)
{
    long long id;
    if (!json_scan_int(&quick->scan, &id) || id < 0 || id > INT32_MAX)
        return false;
    quick->token_id = (int32_t)id;
    return true;
}

static bool read_value(struct quick *quick, enum known known)
{
    struct json_scan *scan = &quick->scan;
    switch (known) {
    case KNOWN_ID:
        return json_scan_string(scan, &quick->id);
    case KNOWN_MODEL:
        return json_scan_string(scan, &quick->model);
    case KNOWN_CREATED:
        return json_scan_int(scan, &quick->created);
    case KNOWN_OBJECT:
        return read_object_kind(quick);
    case KNOWN_CHOICES:
        return read_choices(quick);
    case KNOWN_INDEX:
        return read_index(quick);
    case KNOWN_DELTA:
        return read_object(quick, DELTA);
    case KNOWN_LOGPROBS:
        return json_scan_peek(scan) == 'n' ? json_scan_null(scan) : read_object(quick, LOGPROBS);
    case KNOWN_IDS:
        return read_ids(quick);
    case KNOWN_TEXT:
        return read_piece(quick, &quick->text);
    case KNOWN_REASONING_CONTENT:
        return read_piece(quick, &quick->reasoning_content);
    case KNOWN_REASONING:
        return read_piece(quick, &quick->reasoning);
    case KNOWN_REFUSAL:
        return read_piece(quick, &quick->refusal);
    case KNOWN_CALLS:
        return read_calls(quick);
    case KNOWN_CALL_INDEX:
        return json_scan_int(scan, &quick->call_index);
    case KNOWN_CALL_ID:
        return read_piece(quick, &quick->call_id);
    case KNOWN_FUNCTION:
        return read_object(quick, FUNCTION);
    case KNOWN_NAME:
        return read_piece(quick, &quick->call_name);
    case KNOWN_ARGUMENTS:
        return read_piece(quick, &quick->arguments);
    case KNOWN_LIST:
        return read_entries(quick);
    case KNOWN_LOGPROB:
        return read_logprob(quick);
    case KNOWN_TOKEN:
        return read_token(quick);
    case KNOWN_TOKEN_ID:
        return read_token_id(quick);
    case KNOWN_USAGE:
    case KNOWN_PROMPT_IDS:
    case KNOWN_PROMPT_LOGPROBS:
    case KNOWN_STRANGE: /* finish_reason, and whatever else may come */
        return json_scan_null(scan);
    case KNOWN_REFUSED:
        return false;
    case KNOWN_IDLE:
        break;
    }
    return json_scan_skip(scan);
}

/* Walks the members as json_splice() does: a member that goes takes what stands before it along,
 * and the first one that stays has nothing before it unless it is the first of all. */
static bool read_object(struct quick *quick, enum part part)
{
    struct json_scan *scan = &quick->scan;
    if (!json_scan_byte(scan, '{'))
        return false;
    const char *first = scan->at, *before = first;
    bool any = false;
    unsigned seen = 0;
    if (json_scan_byte(scan, '}'))
        return part != ENTRY;
    do {
        struct json_text key;
        (void)json_scan_peek(scan);
        const char *start = scan->at;
        if (!json_scan_string(scan, &key) || key.escaped || !json_scan_byte(scan, ':'))
            return false;
        enum known known = known_in(part, key.content);
        enum deed deed = deed_for(quick, known);
        if (known >= KNOWN_ID && seen & 1u << known)
            return false;
        seen |= 1u << known;
        if (deed != REMOVE && !any && before != first)
            cut(quick, before, start);
        (void)json_scan_peek(scan);
        const char *value = scan->at;
        if (!read_value(quick, known))
            return false;
        if (deed == REMOVE)
            cut(quick, before, scan->at);
        any |= deed != REMOVE;
        if (deed == BLANK) {
            cut(quick, value, scan->at);
            buf_append(quick->out, "null", 4);
        }
        before = scan->at;
    } while (json_scan_byte(scan, ','));
    if (part == ENTRY && !(seen & 1u << KNOWN_LOGPROB))
        return false;
    if (part == ROOT && !(seen & 1u << KNOWN_CHOICES))
        return false;
    return json_scan_byte(scan, '}');
}

/* ---------------------------------------------------------------- what comes of it */

static void add_piece(struct answer_builder *builder, enum trace_delta_kind kind,
                      struct json_text text, struct arena *scratch)
{
    if (text.content.size)
        answer_add(builder, kind, json_text_str(text, scratch));
}

static void apply(const struct quick *quick, struct answer_builder *builder, struct arena *scratch)
{
    if (!builder->named) {
        answer_set(&builder->id, json_text_str(quick->id, scratch));
        answer_set(&builder->model, json_text_str(quick->model, scratch));
        if (!builder->created_s)
            builder->created_s = quick->created;
        builder->named = builder->id.size && builder->model.size && builder->created_s;
    }
    builder->has_ids |= quick->has_ids;
    builder->has_logprobs |= quick->has_logprobs;
    buf_append(&builder->ids, quick->ids, quick->id_count * sizeof *quick->ids);
    buf_append(&builder->logprobs, quick->logprobs, quick->logprob_count * sizeof *quick->logprobs);
    if (!builder->has_ids)
        buf_append(&builder->logprob_ids, quick->entry_ids,
                   quick->entry_id_count * sizeof *quick->entry_ids);
    add_piece(builder, TRACE_DELTA_REASONING,
              quick->reasoning_content.content.data ? quick->reasoning_content : quick->reasoning,
              scratch);
    add_piece(builder, TRACE_DELTA_TEXT, quick->text, scratch);
    add_piece(builder, TRACE_DELTA_REFUSAL, quick->refusal, scratch);
    if (!quick->has_call)
        return;
    struct str id = json_text_str(quick->call_id, scratch);
    struct str name = json_text_str(quick->call_name, scratch);
    struct answer_call *call = answer_call(builder, quick->call_index, id, name);
    if (call) /* there was room */
        answer_call_add(builder, call, id, name, json_text_str(quick->arguments, scratch));
}

bool chat_quick_event(struct answer_builder *builder, struct str data,
                      const struct dialect_reader_options *options, struct arena *scratch,
                      struct buf *out)
{
    struct quick quick;
    const struct json_text none = {0};
    quick.scan = (struct json_scan){data.data, data.data + data.size};
    quick.options = options;
    quick.out = out;
    quick.written = NULL;
    (void)json_scan_peek(&quick.scan);
    quick.start = quick.scan.at;
    quick.id = quick.model = quick.text = quick.refusal = none;
    quick.reasoning_content = quick.reasoning = none;
    quick.call_id = quick.call_name = quick.arguments = none;
    quick.has_call = false;
    quick.call_index = -1;
    quick.created = 0;
    quick.has_ids = quick.has_logprobs = false;
    quick.id_count = quick.logprob_count = quick.entry_id_count = 0;
    bool usual = read_object(&quick, ROOT);
    const char *end = quick.scan.at;
    bool room = !quick.has_call || builder->call_count < ANSWER_CALLS_MAX;
    if (!usual || !room || !json_scan_end(&quick.scan)) {
        buf_clear(out);
        return false;
    }
    if (quick.written)
        cut(&quick, end, end);
    apply(&quick, builder, scratch);
    return true;
}

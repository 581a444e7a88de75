/* dialect.c - the registry and the thin layer in front of the descriptors.
 *
 * To add a dialect: write dialect_<name>.c and name it here. */
#include "dialect/dialect.h"

#include "base/err.h"
#include "base/mem.h"
#include "dialect/descriptor.h"

static const struct dialect *const dialects[] = {
    &dialect_chat, &dialect_messages, &dialect_responses, &dialect_google, &dialect_completions,
};

const char *dialect_name(const struct dialect *dialect)
{
    return dialect->name;
}

const struct dialect *dialect_find(const char *name)
{
    for (size_t i = 0; i < COUNT(dialects); i++)
        if (strcmp(dialects[i]->name, name) == 0)
            return dialects[i];
    return NULL;
}

/* Names like "org/model" are common; what could be taken for another path is none. */
static bool is_model(struct str name)
{
    for (struct str rest = name; rest.data;) {
        struct str part = str_cut(&rest, '/');
        if (!part.size || str_is(part, ".") || str_is(part, ".."))
            return false;
    }
    return true;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* A name as it stands in a path; one that is no text when decoded, or another path, stays as it is.
 */
static struct str decode_model(struct str name, struct arena *arena)
{
    OWN(buf) struct buf out = {0};
    for (size_t i = 0; i < name.size; i++) {
        bool code = name.data[i] == '%' && i + 2 < name.size;
        int high = code ? hex_digit(name.data[i + 1]) : -1;
        int low = code ? hex_digit(name.data[i + 2]) : -1;
        if (high >= 0 && low >= 0 && high + low > 0) {
            buf_byte(&out, (char)(high * 16 + low));
            i += 2;
        } else {
            buf_byte(&out, name.data[i]);
        }
    }
    bool fine = str_is_utf8(buf_str(&out)) && is_model(buf_str(&out));
    return arena_str(arena, fine ? buf_str(&out) : name);
}

/* "/x/:verb" against "/x/{model}:verb". */
static bool matches_model_path(struct str wanted, struct str path, struct str *model)
{
    long at = str_find(wanted, STR("/:"));
    struct str before = str_upto(wanted, (size_t)at + 1), verb = str_from(wanted, (size_t)at + 1);
    if (!str_starts(path, before) || !str_ends(path, verb) || path.size <= before.size + verb.size)
        return false;
    *model = str_upto(str_from(path, before.size), path.size - before.size - verb.size);
    return is_model(*model);
}

static bool path_matches(const struct dialect_path *row, struct str path, struct str *model)
{
    struct str wanted = str_of(row->path);
    if (str_find(wanted, STR("/:")) >= 0)
        return matches_model_path(wanted, path, model);
    if (!row->prefix)
        return str_equal(path, wanted);
    if (!str_starts(path, wanted) || (path.size > wanted.size && path.data[wanted.size] != '/'))
        return false;
    if (path.size > wanted.size + 1)
        *model = str_from(path, wanted.size + 1);
    return true;
}

struct dialect_route dialect_find_route(struct str method, struct str path)
{
    if (str_starts(path, STR("/v1/")))
        path = str_from(path, 3);
    struct dialect_route route = {0};
    for (size_t i = 0; i < COUNT(dialects); i++) {
        for (const struct dialect_path *row = dialects[i]->paths; row->path; row++) {
            struct str model = STR_NONE;
            if (!path_matches(row, path, &model))
                continue;
            bool head = str_is(method, "HEAD") && str_is(str_of(row->method), "GET");
            if (str_is(method, row->method) || head)
                return (struct dialect_route){
                    row->kind, dialects[i], model, str_find(path, STR(":stream")) > 0, true, NULL};
            route = (struct dialect_route){
                .kind = DIALECT_ROUTE_METHOD, .dialect = dialects[i], .method = row->method};
        }
    }
    return route;
}

static void encode_model(struct buf *out, struct str name)
{
    for (size_t i = 0; i < name.size; i++) {
        unsigned char c = (unsigned char)name.data[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                     (c && strchr("-._~/@+,=", c));
        buf_format(out, plain ? "%c" : "%%%02X", c);
    }
}

void dialect_upstream_path(const struct dialect *dialect, struct str model, bool stream,
                           struct buf *out)
{
    if (!dialect->model_in_path) {
        buf_str_append(out, str_of(dialect->upstream_path));
        return;
    }
    buf_str_append(out, STR("/models/"));
    encode_model(out, model);
    buf_format(out, ":%s", stream ? "streamGenerateContent?alt=sse" : "generateContent");
}

void dialect_write_count(const struct dialect *dialect, size_t tokens, struct buf *out)
{
    struct json_writer json = {.out = out};
    json_begin_object(&json);
    if (dialect->count_object)
        json_set_text(&json, "object", dialect->count_object);
    json_set_int(&json, dialect->count_key ? dialect->count_key : "input_tokens",
                 (long long)tokens);
    json_end_object(&json);
}

struct str dialect_route_model(const struct dialect_route *route, struct arena *arena)
{
    return route->encoded && route->model.data ? decode_model(route->model, arena) : route->model;
}

int dialect_read_request(const struct dialect_route *route, struct json body, struct arena *arena,
                         struct trace_request *out, struct err *err)
{
    return dialect_skim_request(route, body, &(struct dialect_skim){0}, arena, out, err);
}

/* The longest front that ends between two messages. */
size_t dialect_skim_known(const struct dialect_end *ends, size_t count)
{
    while (count && ends[count - 1].messages == DIALECT_SKIM_OPEN)
        count--;
    return count;
}

bool dialect_tools_plain(const struct trace_request *request)
{
    for (size_t i = 0; i < request->tool_count; i++)
        if (request->tools[i].custom || request->tools[i].space.size)
            return false;
    return true;
}

int dialect_skim_request(const struct dialect_route *route, struct json body,
                         struct dialect_skim *skim, struct arena *arena, struct trace_request *out,
                         struct err *err)
{
    *out = (struct trace_request){0};
    if (route->dialect->model_in_path) {
        out->model = dialect_route_model(route, arena);
        out->stream = route->stream;
    }
    return route->dialect->read_request(body, skim, arena, out, err);
}

void dialect_rewrite_request(const struct dialect *dialect, struct json body,
                             const struct dialect_override *override, struct buf *out)
{
    dialect->rewrite_request(body, override, out);
}

bool dialect_write_request(const struct dialect *dialect, const struct trace_request *request,
                           const struct dialect_override *override, struct buf *out)
{
    if (!dialect->write_request)
        return false;
    dialect->write_request(request, override, out);
    return true;
}

bool dialect_can_write_request(const struct dialect *dialect)
{
    return dialect->write_request != NULL;
}

void dialect_write_answer(const struct dialect *dialect, const struct trace_request *request,
                          const struct trace_answer *answer, struct buf *out)
{
    dialect->write_answer(request, answer, out);
}

void dialect_write_error(const struct dialect *dialect, int status, const char *code,
                         struct str message, struct buf *out)
{
    dialect->write_error(status, code, message, out);
}

void dialect_write_models(const struct dialect *dialect, struct str model, int64_t created_s,
                          bool one, struct buf *out)
{
    dialect->write_models(model, created_s, one, out);
}

void dialect_write_keepalive(const struct dialect *dialect, struct buf *out)
{
    buf_str_append(out, str_of(dialect->keepalive));
}

void dialect_write_keepalive_event(const struct dialect *dialect, struct buf *out)
{
    buf_str_append(out, str_of(dialect->keepalive_event));
}

static struct str text_of(struct json value, struct arena *arena)
{
    struct str text = json_str(value, arena);
    return text.data ? arena_str(arena, text) : STR_NONE;
}

/* The most telling of what there is: OpenAI's code, everybody's type, Google's status. */
static struct str code_of(struct json error, struct arena *arena)
{
    static const char *const names[] = {"code", "type", "status"};
    for (size_t i = 0; i < COUNT(names); i++) {
        struct str text = text_of(json_get(error, names[i]), arena);
        if (text.size)
            return text;
    }
    return STR_NONE;
}

void dialect_read_error(struct json body, struct arena *arena, struct str *message,
                        struct str *code)
{
    struct json error = json_get(body, "error");
    if (json_type(error) != JSON_OBJECT)
        error = body; /* {"object":"error","message":...}, {"detail":...} */
    *code = code_of(error, arena);
    *message = text_of(json_get(error, "message"), arena);
    if (!message->data)
        *message = text_of(json_get(body, "error"), arena);
    if (!message->data)
        *message = text_of(json_get(body, "detail"), arena);
}

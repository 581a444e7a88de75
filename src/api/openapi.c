/* openapi.c - GET /v1/openapi.json: the routes for people's tools, as OpenAPI 3.1.
 *
 * Paths, methods, parameters and bodies are written from the rows that dispatch and check requests
 * (routes.c, the fields of each body); only the shapes of answers are said here. A name a route
 * uses and that is not here is a bug that the first request for the document finds. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "api/inner.h"
#include "base/check.h"
#include "base/err.h"
#include "base/mem.h"
#include "http/http.h"

/* ---------------------------------------------------------------- answers */
#define TEXT "{\"type\":\"string\"}"
#define MAYBE_TEXT "{\"type\":[\"string\",\"null\"]}"
#define INTEGER "{\"type\":\"integer\"}"
#define NUMBER "{\"type\":\"number\"}"
#define MAYBE_NUMBER "{\"type\":[\"number\",\"null\"]}"
#define BOOLEAN "{\"type\":\"boolean\"}"
#define OBJECT "{\"type\":\"object\"}"
#define LIST(of) "{\"type\":\"array\",\"items\":" of "}"
#define REF(name) "{\"$ref\":\"#/components/schemas/" name "\"}"

struct member {
    const char *name, *schema;
    bool optional;
};

/* clang-format off */
static const struct member error_members[] = {
    {"type", TEXT}, {"kind", TEXT, true}, {"message", TEXT}, {"field", TEXT, true}, {0}};
static const struct member error_answer[] = {{"error", REF("ErrorDetail")}, {0}};
static const struct member status_members[] = {{"status", TEXT}, {"rollouts", INTEGER, true}, {0}};
static const struct member version_members[] = {{"name", TEXT}, {"version", TEXT}, {0}};
static const struct member row_members[] = {
    {"id", TEXT}, {"run", MAYBE_TEXT, true}, {"group", MAYBE_TEXT, true}, {"index", INTEGER}, {"task", TEXT, true},
    {"agent", TEXT, true}, {"model", TEXT, true}, {"mode", TEXT, true}, {"backend", TEXT, true}, {"stage", TEXT, true},
    {"fate", MAYBE_TEXT}, {"error", TEXT, true}, {"reason", TEXT, true}, {"key", TEXT, true}, {"reward", MAYBE_NUMBER},
    {"calls", INTEGER}, {"turns", INTEGER}, {"prompt_tokens", INTEGER}, {"completion_tokens", INTEGER},
    {"queued_ms", INTEGER}, {"started_ms", INTEGER}, {"done_ms", INTEGER}, {"policy_version", INTEGER, true},
    {"bytes", INTEGER, true}, {"callback", OBJECT, true}, {"callback_state", TEXT, true}, {"dir", TEXT, true}, {0}};
static const struct member rollout_page[] = {
    {"rollouts", LIST(REF("RolloutRow"))}, {"next", MAYBE_TEXT}, {"last", MAYBE_TEXT, true}, {0}};
static const struct member rollout_members[] = {
    {"id", TEXT}, {"fate", MAYBE_TEXT}, {"stage", TEXT}, {"reward", MAYBE_NUMBER}, {"reason", MAYBE_TEXT, true},
    {"cause", MAYBE_TEXT, true}, {0}};
static const struct member submitted_members[] = {
    {"id", TEXT, true}, {"rollouts", LIST(REF("Id")), true}, {0}};
static const struct member id_members[] = {{"id", TEXT}, {0}};
static const struct member submitted_group[] = {{"id", TEXT}, {"rollouts", LIST(TEXT)}, {0}};
static const struct member group_row[] = {
    {"id", TEXT}, {"run", MAYBE_TEXT}, {"task", MAYBE_TEXT}, {"agent", MAYBE_TEXT}, {"model", MAYBE_TEXT}, {"mode", MAYBE_TEXT},
    {"shared_preparation", BOOLEAN}, {"key", TEXT, true}, {"n", INTEGER}, {"queued_ms", INTEGER}, {0}};
static const struct member group_page[] = {{"groups", LIST(REF("GroupRow"))}, {"next", MAYBE_TEXT}, {0}};
static const struct member group_members[] = {
    {"id", TEXT}, {"state", "{\"enum\":[\"queued\",\"running\",\"over\"]}"}, {"preparation", TEXT, true}, {"counts", OBJECT},
    {"fates", OBJECT}, {"reward", "{\"type\":[\"object\",\"null\"]}"}, {"rollouts", LIST(OBJECT)}, {"n", INTEGER, true}, {0}};
static const struct member call_row[] = {
    {"id", TEXT}, {"number", INTEGER}, {"state", TEXT}, {"status", INTEGER}, {"prompt_tokens", INTEGER, true},
    {"completion_tokens", INTEGER, true}, {"intent_ms", INTEGER}, {"entry_ms", INTEGER}, {"deliveries", INTEGER}, {0}};
static const struct member calls_members[] = {{"calls", LIST(REF("CallRow"))}, {0}};
static const struct member policy_members[] = {
    {"version", INTEGER}, {"paused", BOOLEAN}, {"max_staleness", INTEGER}, {"batch", INTEGER}, {"stale", INTEGER, true}, {0}};
static const struct member gate_counts_members[] = {
    {"waiting", INTEGER}, {"held", INTEGER}, {"leased", INTEGER}, {"streaming", INTEGER}, {"taken", INTEGER}, {"answered", INTEGER},
    {"failed", INTEGER}, {"redelivered", INTEGER}, {"withdrawn", INTEGER}, {"late", INTEGER}, {"paused", BOOLEAN},
    {"policy_version", INTEGER}, {0}};
static const struct member taken_members[] = {{"calls", LIST(OBJECT)}, {"paused", BOOLEAN}, {0}};
static const struct member call_status[] = {{"call_id", TEXT}, {"status", TEXT}, {0}};
static const struct member health_members[] = {
    {"status", "{\"enum\":[\"ok\",\"draining\",\"failing\"]}"}, {"queued", INTEGER}, {"running", INTEGER}, {"finished", INTEGER},
    {"journal_failed", BOOLEAN}, {"journal_queued_bytes", INTEGER}, {0}};
static const struct member sandboxes_members[] = {{"lanes", LIST(OBJECT)}, {0}};
static const struct member files_members[] = {{"path", TEXT}, {"files", LIST(REF("File"))}, {0}};
static const struct member file_members[] = {{"name", TEXT}, {"type", TEXT}, {"size", INTEGER}, {"modified_ms", INTEGER}, {0}};
static const struct member any_members[] = {{0}};

static const struct {
    const char *name;
    const struct member *members;
} shapes[] = {
    {"ErrorDetail", error_members}, {"Error", error_answer}, {"Status", status_members}, {"Version", version_members},
    {"RolloutRow", row_members}, {"RolloutPage", rollout_page}, {"Rollout", rollout_members}, {"Submitted", submitted_members},
    {"Id", id_members}, {"SubmittedGroup", submitted_group}, {"GroupRow", group_row}, {"GroupPage", group_page},
    {"Group", group_members}, {"CallRow", call_row}, {"Calls", calls_members}, {"Call", any_members}, {"Policy", policy_members},
    {"GateCounts", gate_counts_members}, {"Taken", taken_members}, {"CallStatus", call_status}, {"Health", health_members},
    {"Sandboxes", sandboxes_members}, {"Files", files_members}, {"File", file_members}, {"OpenApi", any_members}, {"Settings", any_members},
    {"Deleted", status_members},
};
/* clang-format on */

static bool has_shape(const char *name)
{
    for (size_t i = 0; i < COUNT(shapes); i++)
        if (strcmp(shapes[i].name, name) == 0)
            return true;
    return false;
}

static void write_shape(const char *name, const struct member *members, struct json_writer *out)
{
    json_key(out, name);
    json_begin_object(out);
    json_set_text(out, "type", "object");
    json_key(out, "properties");
    json_begin_object(out);
    for (const struct member *member = members; member->name; member++)
        json_set_raw(out, member->name, str_of(member->schema));
    json_end_object(out);
    json_key(out, "required");
    json_begin_array(out);
    for (const struct member *member = members; member->name; member++)
        if (!member->optional)
            json_put_text(out, member->name);
    json_end_array(out);
    json_end_object(out);
}

/* ---------------------------------------------------------------- bodies */
/* "Group submission" -> "GroupSubmission" */
static void body_name(const struct api_body *body, char out[64])
{
    size_t used = 0;
    bool upper = true;
    for (const char *at = body->name; *at && used < 63; at++) {
        if (*at != ' ')
            out[used++] = upper ? (char)toupper((unsigned char)*at) : *at;
        upper = *at == ' ';
    }
    out[used] = '\0';
}

static void write_field(const struct api_field *field, struct json_writer *out)
{
    static const char *const types[] = {
        [API_NUMBER] = "integer", [API_TEXT] = "string", [API_BOOL] = "boolean",
        [API_OBJECT] = "object",  [API_ARRAY] = "array",
    };
    json_key(out, field->name);
    json_begin_object(out);
    if (field->type == API_TASK) {
        json_set_raw(out, "type", STR("[\"string\",\"object\"]"));
    } else if (field->type != API_VALUE) {
        json_set_text(out, "type", types[field->type]);
    }
    if (field->type == API_NUMBER) {
        json_set_int(out, "minimum", field->min);
        json_set_int(out, "maximum", field->max);
    }
    if (field->type == API_TEXT)
        json_set_int(out, "maxLength", field->max);
    if (field->help)
        json_set_text(out, "description", field->help);
    json_end_object(out);
}

static void write_body_shape(const struct api_body *body, struct json_writer *out)
{
    char name[64];
    body_name(body, name);
    json_key(out, name);
    json_begin_object(out);
    json_set_text(out, "type", "object");
    json_set_bool(out, "additionalProperties", false);
    json_key(out, "properties");
    json_begin_object(out);
    for (size_t i = 0; i < body->count; i++)
        write_field(&body->fields[i], out);
    json_end_object(out);
    json_key(out, "required");
    json_begin_array(out);
    for (size_t i = 0; i < body->count; i++)
        if (body->fields[i].needed)
            json_put_text(out, body->fields[i].name);
    json_end_array(out);
    json_end_object(out);
}

/* {"$ref": ...}; where a list of them is taken, too, either. */
static void write_reference(const char *name, bool many, struct json_writer *out)
{
    OWN(buf) struct buf text = {0};
    buf_format(&text, "{\"$ref\":\"#/components/schemas/%s\"}", name);
    if (!many) {
        json_put_raw(out, buf_str(&text));
        return;
    }
    json_begin_object(out);
    json_key(out, "oneOf");
    json_begin_array(out);
    json_put_raw(out, buf_str(&text));
    json_begin_object(out);
    json_set_text(out, "type", "array");
    json_set_raw(out, "items", buf_str(&text));
    json_end_object(out);
    json_end_array(out);
    json_end_object(out);
}

static void write_content(const char *type, const char *name, bool many, struct json_writer *out)
{
    json_key(out, "content");
    json_begin_object(out);
    json_key(out, type);
    json_begin_object(out);
    json_key(out, "schema");
    if (name)
        write_reference(name, many, out);
    else
        json_put_raw(out, strcmp(type, "application/json") == 0 ? STR(OBJECT) : STR(TEXT));
    json_end_object(out);
    json_end_object(out);
}

/* ---------------------------------------------------------------- routes */
/* "/v1/rollouts/{id}/files/{path...}" -> "/v1/rollouts/{id}/files/{path}" */
static void plain_path(const char *path, struct buf *out)
{
    for (; *path; path++) {
        if (strncmp(path, "...}", 4) == 0)
            path += 3;
        buf_byte(out, *path);
    }
}

static void write_parameter(const char *name, const char *in, bool number, long long min,
                            long long max, const char *help, struct json_writer *out)
{
    json_begin_object(out);
    json_set_text(out, "name", name);
    json_set_text(out, "in", in);
    if (strcmp(in, "path") == 0)
        json_set_bool(out, "required", true);
    if (help)
        json_set_text(out, "description", help);
    json_key(out, "schema");
    json_begin_object(out);
    json_set_text(out, "type", number ? "integer" : "string");
    if (number) {
        json_set_int(out, "minimum", min);
        json_set_int(out, "maximum", max);
    }
    json_end_object(out);
    json_end_object(out);
}

static void write_parameters(const struct api_route *route, struct json_writer *out)
{
    struct str rest = str_of(route->path);
    json_key(out, "parameters");
    json_begin_array(out);
    while (str_cut(&rest, '{'), rest.data) {
        char name[32];
        struct str placeholder = str_cut(&rest, '}');
        if (str_ends(placeholder, STR("...")))
            placeholder.size -= 3;
        snprintf(name, sizeof name, "%.*s", STR_ARGS(placeholder));
        write_parameter(name, "path", false, 0, 0, NULL, out);
    }
    for (const struct api_parameter *at = route->parameters; at && at->name; at++)
        write_parameter(at->name, "query", at->number, at->min, at->max, at->help, out);
    json_end_array(out);
}

static void write_answers(const struct api_route *route, struct json_writer *out)
{
    char status[16];
    bool is_type = route->shape && strchr(route->shape, '/');
    CHECK(!route->shape || is_type || has_shape(route->shape));
    snprintf(status, sizeof status, "%d", route->status ? route->status : 200);
    json_key(out, "responses");
    json_begin_object(out);
    json_key(out, status);
    json_begin_object(out);
    json_set_text(out, "description", route->summary);
    if (route->shape)
        write_content(is_type ? route->shape : "application/json", is_type ? NULL : route->shape,
                      false, out);
    json_end_object(out);
    json_key(out, "default");
    json_begin_object(out);
    json_set_text(out, "description", "What went wrong");
    write_content("application/json", "Error", false, out);
    json_end_object(out);
    json_end_object(out);
}

static void write_operation(const struct api_route *route, struct json_writer *out)
{
    char method[8] = "", name[64];
    for (size_t i = 0; route->method[i] && i < sizeof method - 1; i++)
        method[i] = (char)tolower((unsigned char)route->method[i]);
    json_key(out, method);
    json_begin_object(out);
    json_set_text(out, "summary", route->summary);
    write_parameters(route, out);
    if (route->body || route->body_type) {
        json_key(out, "requestBody");
        json_begin_object(out);
        if (route->body)
            body_name(route->body, name);
        write_content(route->body_type ? route->body_type : "application/json",
                      route->body ? name : NULL, route->body == &api_submit_body, out);
        json_end_object(out);
    }
    write_answers(route, out);
    if (route->open)
        json_set_raw(out, "security", STR("[]"));
    json_end_object(out);
}

static bool same_path(size_t a, size_t b)
{
    return strcmp(api_routes[a].path, api_routes[b].path) == 0;
}

static void write_paths(struct json_writer *out)
{
    json_key(out, "paths");
    json_begin_object(out);
    for (size_t i = 0; i < api_route_count; i++) {
        OWN(buf) struct buf path = {0};
        bool seen = false;
        for (size_t j = 0; j < i; j++)
            seen = seen || same_path(i, j);
        if (seen)
            continue;
        plain_path(api_routes[i].path, &path);
        json_key_str(out, buf_str(&path));
        json_begin_object(out);
        for (size_t j = i; j < api_route_count; j++)
            if (same_path(i, j))
                write_operation(&api_routes[j], out);
        json_end_object(out);
    }
    json_end_object(out);
}

static void write_components(struct json_writer *out)
{
    json_key(out, "components");
    json_begin_object(out);
    json_key(out, "securitySchemes");
    json_put_raw(out, STR("{\"token\":{\"type\":\"http\",\"scheme\":\"bearer\"}}"));
    json_key(out, "schemas");
    json_begin_object(out);
    for (size_t i = 0; i < COUNT(shapes); i++)
        write_shape(shapes[i].name, shapes[i].members, out);
    for (size_t i = 0; i < api_route_count; i++) {
        bool seen = !api_routes[i].body;
        for (size_t j = 0; j < i; j++)
            seen = seen || api_routes[j].body == api_routes[i].body;
        if (!seen)
            write_body_shape(api_routes[i].body, out);
    }
    json_end_object(out);
    json_end_object(out);
}

void api_answer_openapi(struct api *api, struct http_exchange *exchange, struct str name)
{
    (void)api;
    (void)name;
    OWN(buf) struct buf body = {0};
    struct json_writer out = {.out = &body};
    json_begin_object(&out);
    json_set_text(&out, "openapi", "3.1.0");
    json_key(&out, "info");
    json_begin_object(&out);
    json_set_text(&out, "title", "Postern");
    json_set_text(&out, "version", POSTERN_VERSION);
    json_set_text(&out, "description", "The control listener of postern serve.");
    json_end_object(&out);
    json_set_raw(&out, "security", STR("[{\"token\":[]}]"));
    write_paths(&out);
    write_components(&out);
    json_end_object(&out);
    http_respond_json(exchange, 200, buf_str(&body));
}

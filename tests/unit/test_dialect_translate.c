/* What a request of another dialect becomes as chat completions, setting by setting: what the
 * vendors document and their clients send, and nothing of it lost on the way. */
#include <stdio.h>

#include "base/err.h"
#include "base/mem.h"
#include "dialect/dialect.h"
#include "test.h"

#define GOOGLE "/v1beta/models/m:generateContent"
#define CONTENTS "'contents':[{'role':'user','parts':[{'text':'U'}]}]"

/* In a C string, quotes of JSON are single ones: no text here has one. */
static void unquote(const char *text, struct buf *out)
{
    buf_str_append(out, str_of(text));
    for (size_t i = 0; i < out->size; i++)
        if (out->data[i] == '\'')
            out->data[i] = '"';
}

static int read_request(const char *path, const char *body, struct json_doc *doc, struct buf *bytes,
                        struct arena *arena, struct trace_request *out, struct err *err)
{
    struct dialect_route route = dialect_find_route(STR("POST"), str_of(path));
    unquote(body, bytes);
    if (route.kind != DIALECT_ROUTE_CALL)
        return err_set(err, ERR_NOT_FOUND, "no route");
    if (json_read(doc, buf_str(bytes), NULL, err) < 0)
        return -1;
    return dialect_read_request(&route, json_root(doc), arena, out, err);
}

/* Reads the request, writes it as chat completions, and looks for a piece of text in that. */
struct row {
    const char *path, *body;
    const char *has, *lacks; /* NULL: nothing */
};

static void check_row(const struct row *row)
{
    OWN(json_doc) struct json_doc doc = {0};
    OWN(json_doc) struct json_doc again = {0};
    OWN(arena) struct arena arena = {0};
    OWN(buf) struct buf bytes = {0}, chat = {0}, has = {0}, lacks = {0};
    struct trace_request request;
    struct err err = {0};
    if (read_request(row->path, row->body, &doc, &bytes, &arena, &request, &err) < 0) {
        test_fail(__FILE__, __LINE__, "%s %s: %s", row->path, row->body, err.text);
        return;
    }
    EXPECT(dialect_write_request(&dialect_chat, &request, &(struct dialect_override){0}, &chat));
    if (json_read(&again, buf_str(&chat), NULL, &err) < 0)
        test_fail(__FILE__, __LINE__, "%s: no JSON: %s", row->body, buf_text(&chat));
    if (row->has)
        unquote(row->has, &has);
    if (row->lacks)
        unquote(row->lacks, &lacks);
    if (row->has && str_find(buf_str(&chat), buf_str(&has)) < 0)
        test_fail(__FILE__, __LINE__, "%s\n  is not in %s", buf_text(&has), buf_text(&chat));
    if (row->lacks && str_find(buf_str(&chat), buf_str(&lacks)) >= 0)
        test_fail(__FILE__, __LINE__, "%s\n  is in %s", buf_text(&lacks), buf_text(&chat));
}

static void check_rows(const struct row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++)
        check_row(&rows[i]);
}

/* ---------------------------------------------------------------- google */

#define TWO_CALLS(ids_a, ids_b)                                                                    \
    "{'contents':[{'role':'user','parts':[{'text':'U'}]},{'role':'model','parts':["                \
    "{'functionCall':{" ids_a "'name':'a','args':{}}},{'functionCall':{" ids_b                     \
    "'name':'b','args':{}}}]},{'role':'user','parts':["

/* Google's own clients answer a call by its name alone, and may do so in any order. */
TEST(results_without_an_id_find_their_call_by_its_name)
{
    static const struct row rows[] = {
        {GOOGLE,
         TWO_CALLS("'id':'x1',", "'id':'x2',") "{'functionResponse':{'name':'a','response':{"
                                               "'output':'RA'}}}]}]}",
         "{'role':'tool','tool_call_id':'x1','name':'a','content':'RA'}", NULL},
        {GOOGLE,
         TWO_CALLS("", "") "{'functionResponse':{'name':'b','response':{'output':'RB'}}},"
                           "{'functionResponse':{'name':'a','response':{'output':'RA'}}}]}]}",
         "{'role':'tool','tool_call_id':'call_1','name':'b','content':'RB'},"
         "{'role':'tool','tool_call_id':'call_0','name':'a','content':'RA'}",
         NULL},
        {GOOGLE,
         TWO_CALLS("'id':'x1',", "") "{'functionResponse':{'name':'b','response':{'output':'RB'}}},"
                                     "{'functionResponse':{'id':'x1','name':'a','response':{"
                                     "'output':'RA'}}}]}]}",
         "'tool_call_id':'call_0','name':'b','content':'RB'},{'role':'tool','tool_call_id':'x1'",
         NULL},
        /* Two of one name: in their order. */
        {GOOGLE,
         "{'contents':[{'role':'model','parts':[{'functionCall':{'id':'p','name':'a'}},"
         "{'functionCall':{'id':'q','name':'a'}}]},{'role':'user','parts':["
         "{'functionResponse':{'name':'a','response':{'output':'1'}}},"
         "{'functionResponse':{'name':'a','response':{'output':'2'}}}]}]}",
         "'tool_call_id':'p','name':'a','content':'1'},{'role':'tool','tool_call_id':'q'", NULL},
        /* Of a call that is not there any more. */
        {GOOGLE,
         "{'contents':[{'role':'user','parts':[{'functionResponse':{'name':'a','response':{"
         "'output':'1'}}}]}]}",
         "'tool_call_id':'call_0','name':'a','content':'1'", NULL},
    };
    check_rows(rows, COUNT(rows));
}

TEST(all_of_a_functions_response_reaches_the_model)
{
    static const struct row rows[] = {
        {GOOGLE,
         TWO_CALLS("", "") "{'functionResponse':{'name':'a','response':{'output':'R','error':"
                           "'E'}}}]}]}",
         "\\\"error\\\"", NULL},
        {GOOGLE,
         TWO_CALLS("", "") "{'functionResponse':{'name':'a','response':{'output':'R'},'parts':["
                           "{'inlineData':{'mimeType':'image/png','data':'AAAA'}}]}}]}]}",
         "'content':[{'type':'text','text':'R'},{'type':'image_url','image_url':{'url':"
         "'data:image/png;base64,AAAA'}}]",
         NULL},
        {GOOGLE, TWO_CALLS("", "") "{'functionResponse':{'name':'a'}}]}]}",
         "{'role':'tool','tool_call_id':'call_0','name':'a','content':''}", NULL},
    };
    check_rows(rows, COUNT(rows));
}

/* Schemas of this API are OpenAPI's: types in capitals, `nullable`, counts as strings. */
TEST(googles_schemas_become_json_schemas)
{
    static const struct row rows[] = {
        {GOOGLE,
         "{" CONTENTS ",'tools':[{'functionDeclarations':[{'name':'a','parameters':{'type':"
         "'OBJECT','properties':{'type':{'type':'STRING','nullable':true},'n':{'type':'ARRAY',"
         "'items':{'type':'INTEGER'},'minItems':'1'}},'required':['type'],'propertyOrdering':["
         "'type','n']}}]}]}",
         "'parameters':{'type':'object','properties':{'type':{'type':['string','null']},'n':{"
         "'type':'array','items':{'type':'integer'},'minItems':1}},'required':['type']}",
         NULL},
        {GOOGLE,
         "{" CONTENTS ",'tools':[{'functionDeclarations':[{'name':'a','parameters':{'anyOf':[{"
         "'type':'NUMBER'},{'type':'BOOLEAN'}],'enum':['OBJECT']}}]}]}",
         "'parameters':{'anyOf':[{'type':'number'},{'type':'boolean'}],'enum':['OBJECT']}", NULL},
        {GOOGLE,
         "{" CONTENTS ",'tools':[{'function_declarations':[{'name':'a','parameters_json_schema':{"
         "'type':'object','x':1}}]}]}",
         "'parameters':{'type':'object','x':1}", NULL},
        {GOOGLE,
         "{" CONTENTS ",'generationConfig':{'responseMimeType':'application/json',"
         "'responseSchema':{'type':'OBJECT','properties':{'a':{'type':'STRING'}}}}}",
         "'schema':{'type':'object','properties':{'a':{'type':'string'}}}", "json_object"},
        {GOOGLE, "{" CONTENTS ",'generationConfig':{'thinkingConfig':{'thinkingLevel':'LOW'}}}",
         "'reasoning_effort':'low'", NULL},
        {GOOGLE, "{" CONTENTS ",'generationConfig':{'thinkingConfig':{'thinkingLevel':'high'}}}",
         "'reasoning_effort':'high'", NULL},
    };
    check_rows(rows, COUNT(rows));
}

/* As the vendor's own examples for curl have it. */
TEST(one_content_and_one_part_need_no_list)
{
    static const struct row rows[] = {
        {GOOGLE, "{'system_instruction':{'parts':{'text':'S'}},'contents':{'parts':{'text':'U'}}}",
         "[{'role':'system','content':'S'},{'role':'user','content':'U'}]", NULL},
        {GOOGLE, "{'contents':[{'parts':{'text':'U'}}]}", "[{'role':'user','content':'U'}]", NULL},
    };
    check_rows(rows, COUNT(rows));
}

/* What a request of another dialect becomes as chat completions, setting by setting: what the
 * vendors document and their clients send, and nothing of it lost on the way. */
#include <stdio.h>

#include "base/err.h"
#include "base/mem.h"
#include "dialect/dialect.h"
#include "test.h"

#define GOOGLE "/v1beta/models/m:generateContent"
#define RESPONSES "/v1/responses"
#define ANTHROPIC "/v1/messages"
#define COMPLETIONS "/v1/completions"
#define INPUT "'model':'m','input':'U'"
#define MESSAGES "'model':'m','max_tokens':9,'messages':[{'role':'user','content':'U'}]"
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

/* ---------------------------------------------------------------- responses */

#define TOOL_A "{'type':'function','name':'a','parameters':{'type':'object'}}"
#define TOOL_B "{'type':'custom','name':'b'}"
#define SPACE "{'type':'namespace','name':'s','tools':[" TOOL_A "]}"
#define CHOSEN(name) "'tool_choice':{'type':'function','function':{'name':'" name "'}}"

TEST(every_choice_of_a_tool_is_understood)
{
    static const struct row rows[] = {
        {RESPONSES, "{" INPUT ",'tools':[" TOOL_A "],'tool_choice':'required'}",
         "'tool_choice':'required'", NULL},
        {RESPONSES, "{" INPUT ",'tools':[" TOOL_A "],'tool_choice':{'type':'function','name':'a'}}",
         CHOSEN("a"), NULL},
        {RESPONSES, "{" INPUT ",'tools':[" TOOL_B "],'tool_choice':{'type':'custom','name':'b'}}",
         CHOSEN("b"), NULL},
        {RESPONSES,
         "{" INPUT ",'tools':[" SPACE "],'tool_choice':{'type':'function','namespace':'s','name':"
         "'a'}}",
         CHOSEN("s__a"), NULL},
        /* What is allowed may be all there is to choose from, one, or something else. */
        {RESPONSES,
         "{" INPUT ",'tools':[" TOOL_A "," TOOL_B "],'tool_choice':{'type':'allowed_tools','mode':"
         "'required','tools':[{'type':'function','name':'a'},{'type':'custom','name':'b'}]}}",
         "'tool_choice':'required'", NULL},
        {RESPONSES,
         "{" INPUT ",'tools':[" TOOL_A "," TOOL_B "],'tool_choice':{'type':'allowed_tools','mode':"
         "'required','tools':[{'type':'function','name':'a'}]}}",
         CHOSEN("a"), NULL},
        {RESPONSES,
         "{" INPUT ",'tools':[" TOOL_A "],'tool_choice':{'type':'allowed_tools','mode':'auto',"
         "'tools':[{'type':'function','name':'a'}]}}",
         "'tool_choice':'auto'", NULL},
        /* The model server's own tools are not there, nor can they be chosen. */
        {RESPONSES,
         "{" INPUT ",'tools':[" TOOL_A ",{'type':'mcp','server_label':'l'}],'tool_choice':{'type':"
         "'mcp','server_label':'l','name':'x'}}",
         NULL, "tool_choice"},
        {RESPONSES,
         "{" INPUT ",'tools':[" TOOL_A ",{'type':'web_search'}],'tool_choice':{'type':"
         "'web_search'}}",
         NULL, "tool_choice"},
        {ANTHROPIC,
         "{" MESSAGES ",'tools':[{'name':'a','input_schema':{}}],'tool_choice':{'type':'tool',"
         "'name':'a'}}",
         CHOSEN("a"), NULL},
        {ANTHROPIC,
         "{" MESSAGES ",'tools':[{'name':'a','input_schema':{}},{'type':'web_search_20250305',"
         "'name':'web_search'}],'tool_choice':{'type':'tool','name':'web_search'}}",
         "'name':'a'", "tool_choice"},
        {GOOGLE,
         "{" CONTENTS ",'tools':[{'functionDeclarations':[{'name':'a'},{'name':'b'}]}],"
         "'toolConfig':{'functionCallingConfig':{'mode':'VALIDATED'}}}",
         "'tool_choice':'auto'", NULL},
        {GOOGLE,
         "{" CONTENTS ",'tools':[{'functionDeclarations':[{'name':'a'},{'name':'b'}]}],"
         "'toolConfig':{'functionCallingConfig':{'mode':'ANY','allowedFunctionNames':['a','b']}}}",
         "'tool_choice':'required'", NULL},
    };
    check_rows(rows, COUNT(rows));
}

/* A name that is none would have made a request that is no JSON. */
TEST(a_choice_without_a_name_is_refused)
{
    static const char *const rows[][2] = {
        {ANTHROPIC,
         "{" MESSAGES ",'tools':[{'name':'a','input_schema':{}}],'tool_choice':{'type':'tool'}}"},
        {ANTHROPIC,
         "{" MESSAGES ",'tools':[{'name':'a','input_schema':{}}],'tool_choice':{'type':'tool',"
         "'name':5}}"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        OWN(json_doc) struct json_doc doc = {0};
        OWN(arena) struct arena arena = {0};
        OWN(buf) struct buf bytes = {0};
        struct trace_request request;
        struct err err = {0};
        EXPECT_INT(read_request(rows[i][0], rows[i][1], &doc, &bytes, &arena, &request, &err), -1);
        EXPECT_INT(err.kind, ERR_INPUT);
        EXPECT(str_find(str_of(err.text), STR("tool_choice.name")) >= 0);
    }
}

TEST(a_tools_strictness_and_the_answers_length_are_handed_on)
{
    static const struct row rows[] = {
        {RESPONSES,
         "{" INPUT ",'tools':[{'type':'function','name':'a','parameters':{},'strict':true}]}",
         "'parameters':{},'strict':true}", NULL},
        {RESPONSES,
         "{" INPUT ",'tools':[{'type':'function','name':'a','parameters':{},'strict':false}]}",
         "'strict':false", NULL},
        {RESPONSES,
         "{" INPUT ",'tools':[{'type':'function','name':'a','parameters':{},'strict':null}]}", NULL,
         "strict"},
        {ANTHROPIC, "{" MESSAGES ",'tools':[{'name':'a','input_schema':{},'strict':true}]}",
         "'strict':true", NULL},
        /* The newer spelling where the model has no other, whoever names it. */
        {RESPONSES, "{'model':'gpt-5-mini','input':'U','max_output_tokens':7}",
         "'max_completion_tokens':7", "'max_tokens'"},
        {RESPONSES, "{'model':'m','input':'U','max_output_tokens':7}", "'max_tokens':7", NULL},
        {RESPONSES, "{" INPUT ",'text':{'verbosity':'low'}}", "'verbosity':'low'", NULL},
        {RESPONSES, "{" INPUT ",'reasoning':{'effort':'medium'}}", "'reasoning_effort':'medium'",
         NULL},
    };
    check_rows(rows, COUNT(rows));
}

/* Results come in more shapes than one: of shells, of searches, of programs. */
TEST(results_of_every_kind_reach_the_model)
{
    static const struct row rows[] = {
        {RESPONSES,
         "{'model':'m','input':[{'role':'user','content':'U'},{'type':'shell_call_output',"
         "'call_id':'c','output':[{'stdout':'hello','stderr':'','outcome':{'type':'exit',"
         "'exit_code':0}}]}]}",
         "hello", NULL},
        {RESPONSES,
         "{'model':'m','input':[{'type':'tool_search_output','call_id':'c','tools':[{'name':"
         "'found'}]}]}",
         "found", NULL},
        {RESPONSES,
         "{'model':'m','input':[{'type':'program_output','id':'i','call_id':'c','result':'R',"
         "'status':'completed'}]}",
         "'tool_call_id':'c'", NULL},
        {RESPONSES,
         "{'model':'m','input':[{'type':'local_shell_call_output','id':'c','output':'R'}]}",
         "{'role':'tool','tool_call_id':'c','content':'R'}", NULL},
        {RESPONSES,
         "{'model':'m','input':[{'type':'function_call_output','call_id':'c','output':[{'type':"
         "'input_image','image_url':'http://x/y'}]}]}",
         "'image_url':{'url':'http://x/y'}", NULL},
        {RESPONSES,
         "{'model':'m','input':[{'type':'function_call_output','call_id':'c','output':[]}]}",
         "{'role':'tool','tool_call_id':'c','content':''}", NULL},
    };
    check_rows(rows, COUNT(rows));
}

/* ---------------------------------------------------------------- messages */

TEST(tools_of_the_model_servers_own_need_no_name)
{
    static const struct row rows[] = {
        {ANTHROPIC,
         "{" MESSAGES ",'tools':[{'type':'mcp_toolset','mcp_server_name':'s'},{'name':'a',"
         "'input_schema':{}}]}",
         "'tools':[{'type':'function','function':{'name':'a','parameters':{}}}]", NULL},
    };
    check_rows(rows, COUNT(rows));
}

/* Blocks of an assistant are one text that was cut where something else came between; paragraphs of
 * others are apart. */
TEST(an_assistants_blocks_are_one_text)
{
    static const struct row rows[] = {
        {ANTHROPIC,
         "{'model':'m','max_tokens':9,'messages':[{'role':'assistant','content':[{'type':'text',"
         "'text':'It is '},{'type':'thinking','thinking':'hm','signature':''},{'type':'text',"
         "'text':'five.'}]},{'role':'user','content':[{'type':'text','text':'A'},{'type':'text',"
         "'text':'B'}]}]}",
         "'content':'It is five.'", "'content':'AB'"},
    };
    check_rows(rows, COUNT(rows));
}

/* To warm a cache, or to score a prompt: no answer is wanted. Elsewhere the shortest is asked for.
 */
TEST(a_limit_of_nothing_is_no_mistake)
{
    static const struct row rows[] = {
        {ANTHROPIC, "{'model':'m','max_tokens':0,'messages':[{'role':'user','content':'U'}]}",
         "'max_tokens':1,", NULL},
        {COMPLETIONS, "{'model':'m','prompt':'U','max_tokens':0,'echo':true}", "'max_tokens':1,",
         NULL},
    };
    check_rows(rows, COUNT(rows));
}

/* ---------------------------------------------------------------- completions */

TEST(settings_of_completions_are_those_of_chat)
{
    static const struct row rows[] = {
        {COMPLETIONS,
         "{'model':'m','prompt':'U','seed':7,'presence_penalty':0.5,'frequency_penalty':0.25,"
         "'logit_bias':{'5':1},'top_k':3,'min_p':0.1,'repetition_penalty':1.1}",
         "'seed':7,'top_k':3,'min_p':0.1,'presence_penalty':0.5,'frequency_penalty':0.25,"
         "'repetition_penalty':1.1,'logit_bias':{'5':1}",
         NULL},
    };
    check_rows(rows, COUNT(rows));
}

/* ---------------------------------------------------------------- vendors' servers */

/* OpenAI takes pictures from users only, and results only right behind their calls. */
TEST(pictures_in_results_come_behind_them_for_openai)
{
    static const char body[] =
        "{'model':'m','max_tokens':9,'messages':[{'role':'assistant','content':[{'type':'tool_use',"
        "'id':'a','name':'f','input':{}},{'type':'tool_use','id':'b','name':'f','input':{}}]},{"
        "'role':'user','content':[{'type':'tool_result','tool_use_id':'a','content':[{'type':'text'"
        ","
        "'text':'T'},{'type':'image','source':{'type':'url','url':'http://x/1'}}]},{'type':"
        "'tool_result','tool_use_id':'b','content':[{'type':'image','source':{'type':'url','url':"
        "'http://x/2'}}]},{'type':'text','text':'go on'}]}]}";
    static const struct {
        enum dialect_engine engine;
        const char *has;
    } rows[] = {
        {DIALECT_ENGINE_OPENAI,
         "{'role':'tool','tool_call_id':'a','content':'T'},{'role':'tool','tool_call_id':'b',"
         "'content':''},{'role':'user','content':[{'type':'image_url','image_url':{'url':"
         "'http://x/1'}},{'type':'image_url','image_url':{'url':'http://x/2'}}]},{'role':'user',"
         "'content':'go on'}]"},
        {DIALECT_ENGINE_VLLM,
         "{'role':'tool','tool_call_id':'b','content':[{'type':'image_url','image_url':{'url':"
         "'http://x/2'}}]}"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        OWN(json_doc) struct json_doc doc = {0};
        OWN(arena) struct arena arena = {0};
        OWN(buf) struct buf bytes = {0}, chat = {0}, has = {0};
        struct dialect_override override = {.engine = rows[i].engine};
        struct trace_request request;
        struct err err = {0};
        EXPECT_INT(read_request(ANTHROPIC, body, &doc, &bytes, &arena, &request, &err), 0);
        EXPECT(dialect_write_request(&dialect_chat, &request, &override, &chat));
        unquote(rows[i].has, &has);
        if (str_find(buf_str(&chat), buf_str(&has)) < 0)
            test_fail(__FILE__, __LINE__, "%s\n  is not in %s", buf_text(&has), buf_text(&chat));
    }
}

/* What a custom tool's text has to look like is often said nowhere else. */
TEST(the_grammar_of_a_custom_tool_is_told)
{
    static const struct row rows[] = {
        {RESPONSES,
         "{" INPUT ",'tools':[{'type':'custom','name':'b','description':'D','format':{'type':"
         "'grammar','syntax':'lark','definition':'start: X+'}}]}",
         "'input':{'type':'string','description':'lark grammar:\\nstart: X+'}", NULL},
        {RESPONSES, "{" INPUT ",'tools':[{'type':'custom','name':'b','format':{'type':'text'}}]}",
         "'input':{'type':'string'}", NULL},
        {"/v1/chat/completions",
         "{" MESSAGES ",'tools':[{'type':'custom','custom':{'name':'b','format':{'type':'grammar',"
         "'grammar':{'syntax':'regex','definition':'a|b'}}}}]}",
         "'input':{'type':'string','description':'regex grammar:\\na|b'}", NULL},
    };
    check_rows(rows, COUNT(rows));
}

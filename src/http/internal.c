/* internal.c - deadlines and the text of heads, for server and client alike. */
#include "internal.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "parse.h"

/* --- deadlines --- */

static void rung(struct loop_timer *timer)
{
    struct http_deadline *deadline = timer->context;
    struct loop *loop = deadline->loop;
    if (!deadline->due_ms)
        return;
    uint64_t now = loop_now_ms(loop);
    if (deadline->due_ms > now) {
        loop_timer_start(loop, timer, deadline->due_ms - now, rung, deadline);
        return;
    }
    deadline->due_ms = 0;
    deadline->on_passed(deadline);
}

void http_deadline_set(struct loop *loop, struct http_deadline *deadline, uint64_t due_ms)
{
    deadline->due_ms = due_ms;
    if (!due_ms)
        return;
    deadline->loop = loop;
    if (deadline->timer.loop && deadline->timer.due_ms <= due_ms)
        return;
    uint64_t now = loop_now_ms(loop);
    loop_timer_start(loop, &deadline->timer, due_ms > now ? due_ms - now : 0, rung, deadline);
}

void http_deadline_stop(struct http_deadline *deadline)
{
    deadline->due_ms = 0;
    loop_timer_stop(&deadline->timer);
}

/* --- heads --- */

size_t http_field_write(char *out, struct str name, struct str value)
{
    if (!http_token_is(name))
        return 0;
    memcpy(out, name.data, name.size);
    char *at = out + name.size;
    *at++ = ':';
    *at++ = ' ';
    for (size_t i = 0; i < value.size; i++) {
        char byte = value.data[i];
        *at++ = (unsigned char)byte < ' ' || byte == 0x7f ? ' ' : byte;
    }
    *at++ = '\r';
    *at++ = '\n';
    return (size_t)(at - out);
}

bool http_field_is_ours(struct str name)
{
    switch (name.size) {
    case 4:
        return str_equal_nocase(name, STR("date"));
    case 7:
        return str_equal_nocase(name, STR("upgrade")) || str_equal_nocase(name, STR("trailer"));
    case 10:
        return str_equal_nocase(name, STR("connection")) ||
               str_equal_nocase(name, STR("keep-alive"));
    case 14:
        return str_equal_nocase(name, STR("content-length"));
    case 16:
        return str_equal_nocase(name, STR("proxy-connection"));
    case 17:
        return str_equal_nocase(name, STR("transfer-encoding"));
    }
    return false;
}

const char *http_status_text(int status)
{
    /* clang-format off */
    switch (status) {
    case 100: return "Continue";
    case 200: return "OK";
    case 201: return "Created";
    case 202: return "Accepted";
    case 204: return "No Content";
    case 206: return "Partial Content";
    case 301: return "Moved Permanently";
    case 302: return "Found";
    case 303: return "See Other";
    case 304: return "Not Modified";
    case 307: return "Temporary Redirect";
    case 308: return "Permanent Redirect";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 406: return "Not Acceptable";
    case 408: return "Request Timeout";
    case 409: return "Conflict";
    case 410: return "Gone";
    case 411: return "Length Required";
    case 412: return "Precondition Failed";
    case 413: return "Content Too Large";
    case 414: return "URI Too Long";
    case 415: return "Unsupported Media Type";
    case 416: return "Range Not Satisfiable";
    case 417: return "Expectation Failed";
    case 422: return "Unprocessable Content";
    case 426: return "Upgrade Required";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 499: return "Client Closed Request";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 502: return "Bad Gateway";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    case 505: return "HTTP Version Not Supported";
    case 507: return "Insufficient Storage";
    case 529: return "Overloaded";
    }
    /* clang-format on */
    return "Status";
}

struct str http_date(void)
{
    static _Thread_local time_t made;
    static _Thread_local char text[32];
    static const char days[7][4] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
    static const char months[12][4] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                       "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    time_t now = time(NULL);
    if (now != made) {
        struct tm parts;
        gmtime_r(&now, &parts);
        snprintf(text, sizeof text, "%s, %02d %s %04d %02d:%02d:%02d GMT", days[parts.tm_wday % 7],
                 parts.tm_mday, months[parts.tm_mon % 12], parts.tm_year + 1900, parts.tm_hour,
                 parts.tm_min, parts.tm_sec);
        made = now;
    }
    return str_of(text);
}

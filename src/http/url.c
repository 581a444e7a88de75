/* url.c - addresses of servers, query strings and percent-encoding. */
#include "http/http.h"

#include <string.h>

#include "base/err.h"

static bool printable(struct str s)
{
    for (size_t i = 0; i < s.size; i++)
        if (s.data[i] <= ' ' || s.data[i] == 0x7f)
            return false;
    return true;
}

static bool host_is(struct str host, bool bracketed)
{
    const char *more = bracketed ? ":.%" : "-._";
    for (size_t i = 0; i < host.size; i++) {
        char byte = host.data[i];
        bool plain = (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z') ||
                     (byte >= 'A' && byte <= 'Z');
        if (!plain && !strchr(more, byte))
            return false;
    }
    return host.size > 0 && host.size < 256;
}

static int read_unix(struct str rest, struct http_url *url, struct err *err)
{
    long colon = rest.size ? str_find(str_from(rest, 1), STR(":/")) : -1;
    url->unix_path = colon < 0 ? rest : str_upto(rest, (size_t)colon + 1);
    url->path = colon < 0 ? STR("/") : str_from(rest, (size_t)colon + 2);
    url->host = STR("localhost");
    if (url->unix_path.size < 2 || url->unix_path.data[0] != '/')
        return err_set(err, ERR_INPUT, "a unix: address needs an absolute path");
    return 0;
}

static int read_port(struct str text, uint16_t *port, struct err *err)
{
    long long number;
    if (!str_to_long(text, &number) || number < 1 || number > 65535 || text.data[0] == '+')
        return err_set(err, ERR_INPUT, "'%.*s' is not a port", STR_ARGS(text));
    *port = (uint16_t)number;
    return 0;
}

int http_url_read(const char *text, struct http_url *url, struct err *err)
{
    *url = (struct http_url){.path = STR("/")};
    struct str rest = str_of(text);
    long fragment = str_find_byte(rest, '#');
    if (fragment >= 0)
        rest = str_upto(rest, (size_t)fragment);
    if (!printable(rest))
        return err_set(err, ERR_INPUT, "an address has blanks or control characters");
    if (str_starts(rest, STR("unix:")))
        return read_unix(str_from(rest, 5), url, err);
    url->tls = str_starts(rest, STR("https://"));
    if (!url->tls && !str_starts(rest, STR("http://")))
        return err_set(err, ERR_INPUT, "an address starts with http://, https:// or unix:");
    rest = str_from(rest, url->tls ? 8 : 7);
    size_t size = 0;
    while (size < rest.size && rest.data[size] != '/' && rest.data[size] != '?')
        size++;
    struct str authority = str_upto(rest, size);
    if (size < rest.size && rest.data[size] == '?')
        return err_set(err, ERR_INPUT, "an address needs a '/' before its '?'");
    if (size < rest.size)
        url->path = str_from(rest, size);
    if (str_find_byte(authority, '@') >= 0)
        return err_set(err, ERR_INPUT, "an address must not carry a user name or password");
    url->port = url->tls ? 443 : 80;
    bool bracketed = authority.size && authority.data[0] == '[';
    struct str port = STR_NONE;
    if (bracketed) {
        long end = str_find_byte(authority, ']');
        if (end < 0)
            return err_set(err, ERR_INPUT, "an address has '[' without ']'");
        url->host = str_make(authority.data + 1, (size_t)end - 1);
        port = str_from(authority, (size_t)end + 1);
        if (port.size && port.data[0] != ':')
            return err_set(err, ERR_INPUT, "an address has '%.*s' after ']'", STR_ARGS(port));
        port = port.size ? str_from(port, 1) : STR_NONE;
    } else {
        port = authority;
        url->host = str_cut(&port, ':');
    }
    if (!host_is(url->host, bracketed))
        return err_set(err, ERR_INPUT, "'%.*s' is not a host name", STR_ARGS(url->host));
    return port.size ? read_port(port, &url->port, err) : 0;
}

/* --- percent-encoding --- */

static int hex_digit(char byte)
{
    if (byte >= '0' && byte <= '9')
        return byte - '0';
    byte |= 0x20;
    return byte >= 'a' && byte <= 'f' ? byte - 'a' + 10 : -1;
}

static bool decode(struct str text, bool plus_is_blank, struct buf *out)
{
    for (size_t i = 0; i < text.size; i++) {
        char byte = text.data[i];
        if (byte == '+' && plus_is_blank) {
            byte = ' ';
        } else if (byte == '%') {
            if (text.size - i < 3)
                return false;
            int high = hex_digit(text.data[i + 1]), low = hex_digit(text.data[i + 2]);
            if (high < 0 || low < 0)
                return false;
            byte = (char)(high * 16 + low);
            i += 2;
        }
        buf_byte(out, byte);
    }
    return true;
}

bool http_percent_decode(struct str text, struct buf *out)
{
    return decode(text, false, out);
}

void http_percent_encode(struct str text, struct buf *out)
{
    for (size_t i = 0; i < text.size; i++) {
        unsigned char byte = (unsigned char)text.data[i];
        bool plain = (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z') ||
                     (byte >= 'A' && byte <= 'Z') || (byte && strchr("-._~", byte));
        if (plain)
            buf_byte(out, (char)byte);
        else
            buf_format(out, "%%%02X", byte);
    }
}

bool http_query_get(struct str query, const char *name, struct buf *value)
{
    struct str rest = query;
    while (rest.data) {
        struct str found = str_cut(&rest, '&');
        struct str key = str_cut(&found, '=');
        struct buf decoded = {0};
        bool same = decode(key, true, &decoded) && str_equal(buf_str(&decoded), str_of(name));
        buf_deinit(&decoded);
        if (same)
            return decode(found, true, value);
    }
    return false;
}

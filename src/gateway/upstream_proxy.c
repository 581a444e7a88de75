/* upstream_proxy.c - which proxy leads to a model server, by the environment.
 *
 * http_proxy, https_proxy and all_proxy name it, no_proxy says for whom there is none: hosts,
 * domains with or without a leading dot, host:port, or "*". In upper case they count too, except
 * HTTP_PROXY, which a CGI's client could set. This machine itself is never asked through a proxy.
 * A user name and password in the proxy's address are for the proxy alone and never shown. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "gateway/inner.h"

static const char *variable(const char *lower, const char *upper)
{
    const char *value = getenv(lower);
    if (!value || !value[0])
        value = upper ? getenv(upper) : NULL;
    return value && value[0] ? value : NULL;
}

static bool is_this_machine(struct str host)
{
    return str_equal_nocase(host, STR("localhost")) || str_starts(host, STR("127.")) ||
           str_is(host, "::1");
}

bool proxy_excluded(const char *list, struct str host, uint16_t port)
{
    struct str rest = str_of(list);
    while (rest.data) {
        struct str entry = str_trim(str_cut(&rest, ','));
        if (str_is(entry, "*"))
            return true;
        long colon = str_find_byte(entry, ':');
        long long wanted;
        if (colon > 0 && str_find_byte(str_from(entry, (size_t)colon + 1), ':') < 0 &&
            str_to_long(str_from(entry, (size_t)colon + 1), &wanted)) {
            if (wanted != port)
                continue;
            entry = str_upto(entry, (size_t)colon);
        }
        if (entry.size && entry.data[0] == '.')
            entry = str_from(entry, 1);
        if (!entry.size || entry.size > host.size)
            continue;
        size_t before = host.size - entry.size;
        if (str_equal_nocase(str_from(host, before), entry) &&
            (before == 0 || host.data[before - 1] == '.'))
            return true;
    }
    return false;
}

static char *basic(struct str user)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    OWN(buf) struct buf plain = {0}, out = {0};
    if (!http_percent_decode(user, &plain))
        return NULL;
    buf_str_append(&out, STR("Basic "));
    for (size_t i = 0; i < plain.size; i += 3) {
        size_t left = plain.size - i;
        unsigned bits = (unsigned char)plain.data[i] << 16;
        bits |= left > 1 ? (unsigned)(unsigned char)plain.data[i + 1] << 8 : 0;
        bits |= left > 2 ? (unsigned char)plain.data[i + 2] : 0;
        buf_byte(&out, digits[bits >> 18]);
        buf_byte(&out, digits[bits >> 12 & 63]);
        buf_byte(&out, left > 1 ? digits[bits >> 6 & 63] : '=');
        buf_byte(&out, left > 2 ? digits[bits & 63] : '=');
    }
    return buf_take(&out);
}

int proxy_find(const struct http_url *url, char **proxy, char **authorization, struct err *err)
{
    *proxy = *authorization = NULL;
    if (url->unix_path.size || is_this_machine(url->host))
        return 0;
    const char *text =
        url->tls ? variable("https_proxy", "HTTPS_PROXY") : variable("http_proxy", NULL);
    if (!text)
        text = variable("all_proxy", "ALL_PROXY");
    const char *except = variable("no_proxy", "NO_PROXY");
    if (!text || (except && proxy_excluded(except, url->host, url->port)))
        return 0;
    struct str rest = str_of(text);
    long scheme = str_find(rest, STR("://"));
    if (scheme >= 0 && !str_equal_nocase(str_upto(rest, (size_t)scheme), STR("http")))
        return err_set(err, ERR_UNSUPPORTED, "the proxy in the environment is not an http:// one");
    rest = scheme < 0 ? rest : str_from(rest, (size_t)scheme + 3);
    struct str authority = str_cut(&rest, '/');
    for (long at; (at = str_find_byte(authority, '@')) >= 0;) {
        free(*authorization);
        *authorization = basic(str_upto(authority, (size_t)at));
        authority = str_from(authority, (size_t)at + 1);
    }
    *proxy = mem_format("http://%.*s", STR_ARGS(authority));
    struct http_url checked;
    struct err why = {0};
    if (http_url_read(*proxy, &checked, &why) == 0)
        return 0;
    free(TAKE(*proxy));
    free(TAKE(*authorization));
    return err_set(err, ERR_INPUT, "the proxy in the environment: %s", why.text);
}

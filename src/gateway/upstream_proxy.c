/* upstream_proxy.c - which proxy leads to a model server, by the environment.
 *
 * http_proxy, https_proxy and all_proxy name it, no_proxy says for whom there is none: hosts,
 * domains with or without a leading dot or "*.", host:port, addresses, networks (10.0.0.0/8), or
 * "*". In upper case they count too, except
 * HTTP_PROXY, which a CGI's client could set. This machine itself is never asked through a proxy.
 * A user name and password in the proxy's address are for the proxy alone and never shown. */
#include <arpa/inet.h>
#include <stdio.h>
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

/* Is `host` an address of the network "10.0.0.0/8" or "fd00::/8"? */
static bool is_in_network(struct str network, struct str host)
{
    struct str rest = network;
    struct str first = str_cut(&rest, '/');
    long long bits;
    char texts[2][INET6_ADDRSTRLEN];
    unsigned char base[16], address[16];
    if (!str_to_long(rest, &bits) || first.size >= sizeof texts[0] || host.size >= sizeof texts[0])
        return false;
    snprintf(texts[0], sizeof texts[0], "%.*s", STR_ARGS(first));
    snprintf(texts[1], sizeof texts[1], "%.*s", STR_ARGS(host));
    int family = str_find_byte(first, ':') >= 0 ? AF_INET6 : AF_INET;
    if (inet_pton(family, texts[0], base) != 1 || inet_pton(family, texts[1], address) != 1 ||
        bits < 0 || bits > (family == AF_INET6 ? 128 : 32))
        return false;
    for (long long i = 0; i < bits; i++)
        if ((base[i / 8] ^ address[i / 8]) & 0x80 >> i % 8)
            return false;
    return true;
}

bool proxy_excluded(const char *list, struct str host, uint16_t port)
{
    struct str rest = str_of(list);
    while (rest.data) {
        struct str entry = str_trim(str_cut(&rest, ','));
        if (str_is(entry, "*") || is_in_network(entry, host))
            return true;
        if (entry.size && entry.data[0] == '[') { /* [fd00::1]:8080 */
            struct str after = str_from(entry, 1);
            struct str inside = str_cut(&after, ']');
            long long wanted;
            if (str_equal_nocase(inside, host) &&
                (after.size < 2 || (str_to_long(str_from(after, 1), &wanted) && wanted == port)))
                return true;
            continue;
        }
        long colon = str_find_byte(entry, ':');
        long long wanted;
        if (colon > 0 && str_find_byte(str_from(entry, (size_t)colon + 1), ':') < 0 &&
            str_to_long(str_from(entry, (size_t)colon + 1), &wanted)) {
            if (wanted != port)
                continue;
            entry = str_upto(entry, (size_t)colon);
        }
        if (str_starts(entry, STR("*.")))
            entry = str_from(entry, 1);
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
    size_t at = authority.size; /* a password may hold an '@': the last one counts */
    while (at && authority.data[at - 1] != '@')
        at--;
    if (at) {
        *authorization = basic(str_upto(authority, at - 1));
        authority = str_from(authority, at);
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

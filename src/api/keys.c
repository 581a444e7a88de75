/* keys.c - submissions that may be repeated: the same key and the same body give the same answer.
 *
 * What the index knows survives a restart; what it does not know yet is in `pending_keys`. Two
 * bodies are the same when they mean the same JSON: order of members and white space do not
 * count. */
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "api/inner.h"
#include "base/check.h"
#include "base/mem.h"
#include "store/store.h"

struct member {
    struct str key;
    struct json value;
};

static int by_key(const void *a, const void *b)
{
    const struct member *left = a, *right = b;
    size_t size = left->key.size < right->key.size ? left->key.size : right->key.size;
    int order = size ? memcmp(left->key.data, right->key.data, size) : 0;
    return order ? order : (left->key.size > right->key.size) - (left->key.size < right->key.size);
}

static void write_plain(struct json value, const char *without, struct arena *arena,
                        struct buf *out)
{
    enum json_type type = json_type(value);
    if (type == JSON_STRING) {
        json_quote(out, json_str(value, arena));
        return;
    }
    if (type != JSON_OBJECT && type != JSON_ARRAY) {
        buf_str_append(out, json_raw(value));
        return;
    }
    size_t count = 0;
    struct member *members = arena_alloc(arena, (json_size(value) + 1) * sizeof *members);
    JSON_EACH (item, value)
        members[count++] =
            (struct member){type == JSON_OBJECT ? json_str(item.key, arena) : STR_NONE, item.value};
    if (type == JSON_OBJECT)
        qsort(members, count, sizeof *members, by_key);
    buf_byte(out, type == JSON_OBJECT ? '{' : '[');
    for (size_t i = 0; i < count; i++) {
        if (without && str_is(members[i].key, without))
            continue;
        if (type == JSON_OBJECT) {
            json_quote(out, members[i].key);
            buf_byte(out, ':');
        }
        write_plain(members[i].value, NULL, arena, out);
        buf_byte(out, ',');
    }
    buf_byte(out, type == JSON_OBJECT ? '}' : ']');
}

void api_hash(struct json body, char hash[API_HASH_MAX])
{
    static const char hex[] = "0123456789abcdef";
    OWN(arena) struct arena arena = {0};
    OWN(buf) struct buf plain = {0};
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    write_plain(body, "key", &arena, &plain);
    CHECK(EVP_Digest(plain.data, plain.size, digest, &size, EVP_sha256(), NULL) && size == 32);
    for (unsigned i = 0; i < size; i++) {
        hash[2 * i] = hex[digest[i] >> 4];
        hash[2 * i + 1] = hex[digest[i] & 15];
    }
    hash[64] = '\0';
}

int api_find_key(struct api *api, const char *key, struct store_key *out, struct err *err)
{
    const struct store_key *pending = map_get(&api->pending_keys, str_of(key));
    if (pending) {
        *out = *pending;
        return 1;
    }
    return store_find_key(api->store, key, out, err);
}

void api_keep_key(struct api *api, const char *key, const char *hash, const char *id, bool group)
{
    struct store_key *pending = mem_zero(sizeof *pending);
    pending->group = group;
    memcpy(pending->id, id, strlen(id) + 1);
    memcpy(pending->hash, hash, API_HASH_MAX);
    free(map_put(&api->pending_keys, str_of(key), pending));
}

void api_drop_key(struct api *api, const char *key)
{
    free(map_remove(&api->pending_keys, str_of(key)));
}

void api_keys_free(struct api *api)
{
    size_t at = 0;
    for (void *pending; (pending = map_next(&api->pending_keys, &at, NULL));)
        free(pending);
    map_deinit(&api->pending_keys);
}

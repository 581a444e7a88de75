/* image_layout.c - what an image says about itself.
 *
 *   OCI layout    index.json -> [index of platforms ->] manifest -> config and layers, by checksum
 *   docker save   manifest.json -> config and layers, by name
 *
 * Of several platforms the one of this machine is taken. Names in these files are the archive's, so
 * they are opened inside the folder only. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "image.h"
#include "json/json.h"

#define DESCRIPTION_MAX (8u << 20)
#define NESTING_MAX 4

#if defined(__x86_64__)
#define PLATFORM "amd64"
#elif defined(__aarch64__)
#define PLATFORM "arm64"
#else
#define PLATFORM "unknown"
#endif

void image_layout_deinit(struct image_layout *layout)
{
    buf_deinit(&layout->config);
    arena_deinit(&layout->arena);
}

static int read_inside(int folder, const char *path, struct buf *out, struct err *err)
{
    OWN(fd) int file = image_open_inside(folder, path, O_RDONLY | O_NONBLOCK);
    if (file < 0)
        return err_errno(err, "'%s' of the image", path);
    for (;;) {
        char *room = buf_reserve(out, 65536);
        ssize_t got = read(file, room, 65536);
        if (got < 0)
            return err_errno(err, "'%s' of the image", path);
        if (got == 0)
            return 0;
        buf_added(out, (size_t)got);
        if (out->size > DESCRIPTION_MAX)
            return err_set(err, ERR_LIMIT, "'%s' of the image is too large", path);
    }
}

static int read_json(int folder, const char *path, struct buf *text, struct json_doc *doc,
                     struct err *err)
{
    if (read_inside(folder, path, text, err) < 0)
        return -1;
    if (json_read(doc, buf_str(text), NULL, err) == 0)
        return 0;
    err_wrap(err, "'%s' of the image", path);
    if (err)
        err->kind = ERR_INPUT;
    return -1;
}

/* "sha256:<64 hex digits>" -> "blobs/sha256/<64 hex digits>" */
static char *blob_path(struct image_layout *layout, struct json digest, char **text,
                       struct err *err)
{
    struct str value = json_str(digest, &layout->arena);
    bool good = value.size == 71 && str_starts(value, STR("sha256:"));
    for (size_t i = 7; good && i < value.size; i++)
        good = memchr("0123456789abcdef", value.data[i], 16) != NULL;
    if (!good) {
        err_set(err, ERR_INPUT, "the image names a part by something that is no sha256 checksum");
        return NULL;
    }
    if (text)
        *text = arena_text(&layout->arena, value);
    return arena_format(&layout->arena, "blobs/sha256/%.*s", STR_ARGS(str_from(value, 7)));
}

static bool is_for_us(struct json manifest)
{
    struct json platform = json_get(manifest, "platform");
    if (!json_exists(platform))
        return true;
    return json_is(json_get(platform, "architecture"), PLATFORM) &&
           json_is(json_get(platform, "os"), "linux");
}

static int read_manifest(struct image_layout *layout, int folder, struct json manifest,
                         struct err *err)
{
    JSON_EACH (item, json_get(manifest, "layers")) {
        if (layout->layer_count == IMAGE_LAYERS_MAX)
            return err_set(err, ERR_LIMIT, "the image has more than %d layers", IMAGE_LAYERS_MAX);
        char **digest = &layout->digests[layout->layer_count];
        char *path = blob_path(layout, json_get(item.value, "digest"), digest, err);
        if (!path)
            return -1;
        layout->layers[layout->layer_count++] = path;
    }
    char *config = blob_path(layout, json_get(json_get(manifest, "config"), "digest"), NULL, err);
    return config ? read_inside(folder, config, &layout->config, err) : -1;
}

static int read_oci(struct image_layout *layout, int folder, const char *path, unsigned depth,
                    struct err *err)
{
    OWN(buf) struct buf text = {0};
    OWN(json_doc) struct json_doc doc = {0};
    if (read_json(folder, path, &text, &doc, err) < 0)
        return -1;
    struct json root = json_root(&doc);
    if (json_exists(json_get(root, "layers")))
        return read_manifest(layout, folder, root, err);
    JSON_EACH (item, json_get(root, "manifests")) {
        if (!is_for_us(item.value))
            continue;
        char *next = blob_path(layout, json_get(item.value, "digest"), NULL, err);
        if (!next)
            return -1;
        if (depth == NESTING_MAX)
            return err_set(err, ERR_INPUT, "the image's index is nested too deeply");
        return read_oci(layout, folder, next, depth + 1, err);
    }
    return err_set(err, ERR_UNSUPPORTED, "the image has nothing for linux/" PLATFORM);
}

static int read_docker(struct image_layout *layout, int folder, struct err *err)
{
    OWN(buf) struct buf text = {0};
    OWN(json_doc) struct json_doc doc = {0};
    if (read_json(folder, "manifest.json", &text, &doc, err) < 0)
        return -1;
    struct json image = json_at(json_root(&doc), 0);
    struct str config = json_str(json_get(image, "Config"), &layout->arena);
    if (!config.size)
        return err_set(err, ERR_INPUT, "'manifest.json' of the image names no config");
    JSON_EACH (item, json_get(image, "Layers")) {
        struct str path = json_str(item.value, &layout->arena);
        if (!path.size || layout->layer_count == IMAGE_LAYERS_MAX)
            return err_set(err, ERR_INPUT, "'manifest.json' of the image has bad layers");
        layout->layers[layout->layer_count++] = arena_text(&layout->arena, path);
    }
    return read_inside(folder, arena_text(&layout->arena, config), &layout->config, err);
}

static bool has_file(int folder, const char *name)
{
    return faccessat(folder, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

int image_layout_read(struct image_layout *layout, int folder, struct err *err)
{
    layout->arena.bytes_max = DESCRIPTION_MAX;
    if (!has_file(folder, "index.json") && !has_file(folder, "manifest.json"))
        return err_set(err, ERR_INPUT,
                       "neither an OCI layout (index.json) nor a docker save archive "
                       "(manifest.json)");
    int result = has_file(folder, "index.json") ? read_oci(layout, folder, "index.json", 0, err)
                                                : read_docker(layout, folder, err);
    if (result == 0 && layout->layer_count == 0)
        return err_set(err, ERR_INPUT, "the image has no layers");
    return result;
}

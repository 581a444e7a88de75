/* image.c - `postern image import`: from an archive to a root that sandboxes can stand on.
 *
 *     $home/images/NAME/root         the image's files, all layers applied
 *                       config.json  as the image brought it
 *                       defaults     env=, cwd=, user= for the keeper (fields of keeper_protocol.h)
 *                       info.json    for people and `postern image list`
 *
 * Layers are applied onto each other once, here, instead of being stacked for every sandbox:
 * look-ups cost the same however many there were, and an ordinary user needs no way to store
 * whiteouts. Everything is made in a folder beside, and given its name when it is complete. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/id.h"
#include "base/mem.h"
#include "image.h"
#include "json/json.h"
#include "keeper_protocol.h"
#include "sandbox/sandbox.h"

#define BYTES_MAX (64ull << 30)
#define ENTRIES_MAX 5000000ull
#define ACCOUNTS_MAX (1u << 20)
#define ORDINARY_ID 1000

static bool is_name(const char *name)
{
    size_t size = 0;
    for (; name[size]; size++)
        if (!isalnum((unsigned char)name[size]) && !strchr("._:-", name[size]))
            return false;
    return size > 0 && size <= 128 && isalnum((unsigned char)name[0]);
}

/* --- accounts in the image ------------------------------------------------------------------- */

static void read_accounts(int root, const char *path, struct buf *out)
{
    OWN(fd) int file = image_open_inside(root, path, O_RDONLY | O_NONBLOCK);
    struct stat facts;
    if (file < 0 || fstat(file, &facts) < 0 || !S_ISREG(facts.st_mode) ||
        facts.st_size > ACCOUNTS_MAX)
        return;
    char *room = buf_reserve(out, (size_t)facts.st_size + 1);
    ssize_t got = fd_read_all(file, room, (size_t)facts.st_size);
    if (got > 0)
        buf_added(out, (size_t)got);
}

/* Fields 2 and 3 of the line of that name. passwd: uid and gid; group: gid and nothing. */
static bool find_account(struct str text, struct str name, long long *id, long long *group)
{
    while (text.data) {
        struct str line = str_cut(&text, '\n');
        if (!str_equal(str_cut(&line, ':'), name))
            continue;
        (void)str_cut(&line, ':');
        struct str first = str_cut(&line, ':'), second = str_cut(&line, ':');
        if (!str_to_long(first, id))
            return false;
        if (group && !str_to_long(second, group))
            *group = *id;
        return true;
    }
    return false;
}

static bool has_id(struct str text, long long wanted)
{
    while (text.data) {
        struct str line = str_cut(&text, '\n');
        (void)str_cut(&line, ':');
        (void)str_cut(&line, ':');
        long long id;
        if (str_to_long(str_cut(&line, ':'), &id) && id == wanted)
            return true;
    }
    return false;
}

/* "name", "name:group", "uid", "uid:gid" -> ids. False: root, or nobody we know. */
static bool resolve_user(int root, struct str user, long long *uid, long long *gid)
{
    OWN(buf) struct buf passwd = {0};
    OWN(buf) struct buf groups = {0};
    read_accounts(root, "etc/passwd", &passwd);
    read_accounts(root, "etc/group", &groups);
    struct str rest = user, who = str_cut(&rest, ':');
    *gid = 0;
    if (!str_to_long(who, uid) && !find_account(buf_str(&passwd), who, uid, gid))
        return false;
    if (rest.data && !str_to_long(rest, gid) && !find_account(buf_str(&groups), rest, gid, NULL))
        return false;
    return *uid > 0 && *uid < 65536 && *gid >= 0 && *gid < 65536;
}

/* So that the ordinary user has a name, where the image knows names at all. */
static void add_account(int root, const char *path, const char *line)
{
    OWN(buf) struct buf text = {0};
    read_accounts(root, path, &text);
    if (!text.size || has_id(buf_str(&text), ORDINARY_ID))
        return;
    OWN(fd) int file = image_open_inside(root, path, O_WRONLY | O_APPEND | O_NOFOLLOW);
    if (file >= 0 && text.data[text.size - 1] != '\n')
        (void)fd_write_all(file, "\n", 1);
    if (file >= 0)
        (void)fd_write_all(file, line, strlen(line));
}

/* --- what the keeper and people want to know ------------------------------------------------- */

static int write_beside(int folder, const char *name, struct str content, struct err *err)
{
    OWN(fd) int file = openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0 || fd_write_all(file, content.data, content.size) < 0)
        return err_errno(err, "writing '%s'", name);
    return 0;
}

static bool is_text(struct str value)
{
    return value.size && !memchr(value.data, '\0', value.size);
}

static int write_defaults(const struct image_layout *layout, int folder, int root, struct err *err)
{
    OWN(json_doc) struct json_doc doc = {0};
    if (json_read(&doc, buf_str(&layout->config), NULL, err) < 0) {
        err_wrap(err, "the image's config");
        if (err)
            err->kind = ERR_INPUT;
        return -1;
    }
    OWN(arena) struct arena arena = {.bytes_max = 8 << 20};
    OWN(buf) struct buf fields = {0};
    struct json config = json_get(json_root(&doc), "config");
    JSON_EACH (item, json_get(config, "Env")) {
        struct str value = json_str(item.value, &arena);
        if (is_text(value) && str_find_byte(value, '=') > 0)
            keeper_add(&fields, "env", arena_text(&arena, value));
    }
    struct str cwd = json_str(json_get(config, "WorkingDir"), &arena);
    if (is_text(cwd) && cwd.data[0] == '/')
        keeper_add(&fields, "cwd", arena_text(&arena, cwd));
    struct str user = json_str(json_get(config, "User"), &arena);
    long long uid, gid;
    if (is_text(user) && resolve_user(root, user, &uid, &gid))
        keeper_add(&fields, "user", arena_format(&arena, "%lld:%lld", uid, gid));
    if (fields.size > KEEPER_PACKET_MAX)
        return err_set(err, ERR_LIMIT, "the image's environment is too large");
    return write_beside(folder, "defaults", buf_str(&fields), err);
}

static int write_info(const struct image_layout *layout, const char *name,
                      const struct image_budget *budget, int folder, struct err *err)
{
    OWN(buf) struct buf text = {0};
    struct json_writer writer = {.out = &text};
    char when[32];
    clock_format(clock_wall_ms(), when, sizeof when);
    json_begin_object(&writer);
    json_set_text(&writer, "name", name);
    json_set_int(&writer, "layers", (long long)layout->layer_count);
    json_set_int(&writer, "files", (long long)budget->entries);
    json_set_int(&writer, "bytes", (long long)budget->bytes);
    json_set_int(&writer, "skipped", (long long)budget->skipped);
    json_set_text(&writer, "imported", when);
    json_end_object(&writer);
    return write_beside(folder, "info.json", buf_str(&text), err);
}

/* --- importing ------------------------------------------------------------------------------- */

/* The folder the image's description and layers lie in: the archive itself, or what is in it. */
static int open_source(const char *archive, int folder, struct err *err)
{
    OWN(fd) int source = open(archive, O_RDONLY | O_CLOEXEC);
    struct stat facts;
    if (source < 0 || fstat(source, &facts) < 0)
        return err_errno(err, "'%s'", archive);
    if (S_ISDIR(facts.st_mode))
        return fd_take(&source);
    if (!S_ISREG(facts.st_mode))
        return err_set(err, ERR_INPUT, "'%s' is neither a file nor a folder", archive);
    if (mkdirat(folder, "archive", 0700) < 0)
        return err_errno(err, "making the image's folder");
    OWN(fd) int inner = openat(folder, "archive", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (inner < 0)
        return err_errno(err, "the image's folder");
    struct image_budget budget = {.bytes_left = BYTES_MAX, .entries_left = ENTRIES_MAX};
    if (image_unpack_plain(source, inner, &budget, err) < 0)
        return -1;
    return fd_take(&inner);
}

static int unpack_layers(const struct image_layout *layout, int source, int root,
                         struct image_budget *budget, struct err *err)
{
    for (size_t i = 0; i < layout->layer_count; i++) {
        OWN(fd) int layer = image_open_inside(source, layout->layers[i], O_RDONLY | O_NONBLOCK);
        struct stat facts;
        if (layer < 0 || fstat(layer, &facts) < 0)
            return err_errno(err, "layer %zu, '%s'", i + 1, layout->layers[i]);
        if (!S_ISREG(facts.st_mode))
            return err_set(err, ERR_INPUT, "layer %zu, '%s', is no file", i + 1, layout->layers[i]);
        if (image_unpack_layer(layer, layout->digests[i], root, budget, err) < 0)
            return err_wrap(err, "layer %zu", i + 1);
    }
    return 0;
}

static int build(struct image_layout *layout, const char *archive, const char *name, int folder,
                 struct err *err)
{
    OWN(fd) int source = open_source(archive, folder, err);
    if (source < 0)
        return -1;
    if (mkdirat(folder, "root", 0755) < 0 || fchmodat(folder, "root", 0755, 0) < 0)
        return err_errno(err, "making the image's folder");
    OWN(fd) int root = openat(folder, "root", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root < 0)
        return err_errno(err, "the image's folder");
    struct image_budget budget = {.bytes_left = BYTES_MAX, .entries_left = ENTRIES_MAX};
    if (image_layout_read(layout, source, err) < 0 ||
        unpack_layers(layout, source, root, &budget, err) < 0)
        return -1;
    add_account(root, "etc/passwd", "agent:x:1000:1000:agent:/home/agent:/bin/sh\n");
    add_account(root, "etc/group", "agent:x:1000:\n");
    if (write_defaults(layout, folder, root, err) < 0 ||
        write_beside(folder, "config.json", buf_str(&layout->config), err) < 0)
        return -1;
    return write_info(layout, name, &budget, folder, err);
}

/* The new one takes the name; what had it before goes. */
static int give_name(const char *made, const char *wanted, struct err *err)
{
    if (renameat2(AT_FDCWD, made, AT_FDCWD, wanted, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != EEXIST || renameat2(AT_FDCWD, made, AT_FDCWD, wanted, RENAME_EXCHANGE) < 0)
        return err_errno(err, "'%s'", wanted);
    return file_remove_tree(made, err);
}

int sandbox_image_import(const char *home, const char *archive, const char *name, struct err *err)
{
    if (!is_name(name))
        return err_set(err, ERR_INPUT,
                       "'%s' is no name for an image (letters, digits, '.', '_', ':', '-')", name);
    OWN(mem) char *images = mem_format("%s/images", home);
    if (file_make_dirs(home, 0700, err) < 0 || file_make_dirs(images, 0700, err) < 0)
        return -1;
    (void)chmod(images, 0700); /* files inside keep their owners: nobody else gets near them */
    char random[17];
    id_random_hex(random, 8);
    OWN(mem) char *made = mem_format("%s/.import-%s", images, random);
    OWN(mem) char *wanted = mem_format("%s/%s", images, name);
    OWN(mem) char *unpacked = mem_format("%s/archive", made);
    if (mkdir(made, 0700) < 0)
        return err_errno(err, "'%s'", made);
    OWN(fd) int folder = open(made, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct image_layout layout = {0};
    int result =
        folder < 0 ? err_errno(err, "'%s'", made) : build(&layout, archive, name, folder, err);
    image_layout_deinit(&layout);
    if (result < 0)
        err_wrap(err, "importing '%s'", archive);
    if (result == 0)
        result = file_remove_tree(unpacked, err);
    if (result == 0)
        result = give_name(made, wanted, err);
    if (result < 0)
        (void)file_remove_tree(made, NULL);
    return result;
}

int sandbox_image_list(const char *home, struct json_writer *out, struct err *err)
{
    OWN(mem) char *images = mem_format("%s/images", home);
    DIR *entries = opendir(images);
    if (!entries && errno != ENOENT)
        return err_errno(err, "'%s'", images);
    json_begin_array(out);
    for (struct dirent *entry; entries && (entry = readdir(entries));) {
        if (!is_name(entry->d_name))
            continue;
        OWN(mem) char *path = mem_format("%s/%s/info.json", images, entry->d_name);
        OWN(buf) struct buf text = {0};
        OWN(json_doc) struct json_doc doc = {0};
        if (file_read(path, 65536, &text, NULL) == 0 &&
            json_read(&doc, buf_str(&text), NULL, NULL) == 0)
            json_put_raw(out, json_raw(json_root(&doc)));
    }
    json_end_array(out);
    if (entries)
        closedir(entries);
    return 0;
}

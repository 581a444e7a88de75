/* cmd_image.c - postern image import and ls: root file systems for local sandboxes. */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/mem.h"
#include "base/text.h"
#include "json/json.h"
#include "runtime/runtime.h"

struct image_flags {
    const char *name;
    bool json;
};
static const struct flag flags[] = {
    {"name", 0, FLAG_TEXT, offsetof(struct image_flags, name), NULL, "NAME",
     "what the image is called from now on"},
    {"json", 0, FLAG_BOOLEAN, offsetof(struct image_flags, json), NULL, NULL, "as JSON"},
    {0},
};

static int import_image(struct cli *cli, const struct image_flags *own)
{
    if (operands_check(cli, 2, 2) < 0)
        return cli_fail(cli);
    if (!own->name) {
        err_set(&cli->err, ERR_INPUT, "--name is needed");
        return cli_fail(cli);
    }
    if (runtime_image_import(&cli->config, cli->argv[1], own->name, &cli->err) < 0)
        return cli_fail(cli);
    printf("image:%s is ready (postern exec --root image:%s -- CMD...)\n", own->name, own->name);
    return cli_flush(cli, 0);
}

static int list_images(struct cli *cli, bool as_json)
{
    OWN(buf) struct buf text = {0};
    OWN(json_doc) struct json_doc doc = {0};
    OWN(arena) struct arena arena = {0};
    struct json_writer writer = {.out = &text};
    if (operands_check(cli, 1, 1) < 0 || runtime_image_list(&cli->config, &writer, &cli->err) < 0)
        return cli_fail(cli);
    if (as_json) {
        printf("%.*s\n", STR_ARGS(buf_str(&text)));
        return cli_flush(cli, 0);
    }
    if (json_read(&doc, buf_str(&text), NULL, &cli->err) < 0)
        return cli_fail(cli);
    if (!json_size(json_root(&doc)))
        printf("no images in %s\n", cli->config.home);
    JSON_EACH (item, json_root(&doc)) {
        char size[32] = "";
        long long bytes;
        if (json_int(json_get(item.value, "bytes"), &bytes))
            text_size(size, sizeof size, (uint64_t)bytes);
        struct str name = json_str(json_get(item.value, "name"), &arena);
        printf("%-30.*s %s\n", STR_ARGS(name), size);
    }
    return cli_flush(cli, 0);
}

static int run(struct cli *cli)
{
    struct image_flags own = {0};
    if (flags_take(cli, flags, &own, false) < 0 || operands_check(cli, 1, 2) < 0)
        return cli_fail(cli);
    if (strcmp(cli->argv[0], "import") == 0)
        return import_image(cli, &own);
    if (strcmp(cli->argv[0], "ls") == 0)
        return list_images(cli, own.json);
    err_set(&cli->err, ERR_INPUT, "'%s' is neither import nor ls", cli->argv[0]);
    return cli_fail(cli);
}

const struct command command_image = {
    .name = "image",
    .arguments = "import ARCHIVE --name NAME | ls",
    .summary = "import an OCI layout or `docker save` archive, list what is there",
    .help = "An image serves as --root image:NAME, in postern exec and in tasks.",
    .run = run,
    .flags = flags,
};

/* test_sandbox_image.c - importing images: what a docker save archive and an OCI layout become,
 * that a sandbox runs on it, and that hostile archives stay inside or are refused. Archives are
 * made here with tar and libarchive. */
#include "sandbox_stage.h"

#include <archive.h>
#include <archive_entry.h>

static const struct target target_local = {
    .name = "local", .backend = "local", .prepare = prepare_local};

static struct stage the_stage, *stage = &the_stage;
static char home[128];

static void begin(void)
{
    stage_begin(stage, &target_local);
    snprintf(home, sizeof home, "%s/home", stage->dir);
    stage->spec = (struct sandbox_spec){.backend = "local"};
    if (getuid() != 0)
        stage->spec.isolation = SANDBOX_ISOLATION_NO_LIMITS;
}

/* Runs a script in the test's folder with $inside set. */
static bool script(const char *text)
{
    char inside[600];
    if (!compile_inside(inside, sizeof inside))
        return false;
    setenv("inside", inside, 1);
    setenv("dir", stage->dir, 1);
    OWN(mem) char *whole = mem_format("set -e; cd \"$dir\"; %s", text);
    return HOST("sh", "-c", whole) == 0;
}

/* Two layers: the second hides a file, empties a folder, replaces a link, and brings its own. */
static const char layers[] =
    "mkdir -p l1/bin l1/etc l1/a l1/b l1/app l2/a l2/b; cp $inside l1/bin/inside; "
    "printf 'root:x:0:0::/:/bin/sh\\nworker:x:1234:55::/:/bin/sh\\n' > l1/etc/passwd; "
    "printf 'root:x:0:\\nstaff:x:55:\\n' > l1/etc/group; "
    "echo 1 > l1/a/gone; echo 1 > l1/a/stays; echo 1 > l1/b/old; ln -s /nowhere l1/a/link; "
    ": > l2/a/.wh.gone; echo 2 > l2/b/new; : > l2/b/.wh..wh..opq; echo 2 > l2/a/link; "
    "ln l2/b/new l2/b/hard; "
    "tar -C l1 -cf l1.tar .; tar -C l2 -cf l2.tar b a; "
    "printf '{\"config\":{\"Env\":[\"GREETING=hello there\",\"PATH=/bin\"],\"WorkingDir\":\"/app\","
    "\"User\":\"worker:staff\"}}' > config.json; ";

static const char docker_save[] =
    "mkdir -p save/x save/y; cp config.json save/abc.json; mv l1.tar save/x/layer.tar; "
    "gzip -c l2.tar > save/y/layer.tar; "
    "printf '[{\"Config\":\"abc.json\",\"RepoTags\":[\"t:1\"],"
    "\"Layers\":[\"x/layer.tar\",\"y/layer.tar\"]}]' > save/manifest.json; "
    "tar -C save -cf image.tar .; ";

static const char oci[] =
    "mkdir -p oci/blobs/sha256; put() { s=$(sha256sum < $1 | cut -d' ' -f1); "
    "cp $1 oci/blobs/sha256/$s; echo sha256:$s; }; "
    "gzip l2.tar; c=$(put config.json); a=$(put l1.tar); b=$(put l2.tar.gz); "
    "printf '{\"schemaVersion\":2,\"config\":{\"digest\":\"%s\"},\"layers\":[{\"digest\":\"%s\"},"
    "{\"digest\":\"%s\"}]}' $c $a $b > manifest; m=$(put manifest); "
    "printf '{\"manifests\":[{\"digest\":\"sha256:%064d\",\"platform\":{\"os\":\"plan9\","
    "\"architecture\":\"mips\"}},{\"digest\":\"%s\"}]}' 0 $m > oci/index.json; "
    "echo '{\"imageLayoutVersion\":\"1.0.0\"}' > oci/oci-layout; tar -C oci -cf oci.tar .; ";

static bool made(const char *path, const char *content)
{
    OWN(mem) char *whole = mem_format("%s/images/t/root/%s", home, path);
    OWN(buf) struct buf text = {0};
    if (!content) {
        struct stat facts;
        return lstat(whole, &facts) < 0;
    }
    return file_read(whole, 1 << 20, &text, NULL) == 0 && str_is(buf_str(&text), content);
}

static void expect_imported(void)
{
    EXPECT(made("a/gone", NULL));
    EXPECT(made("a/stays", "1\n"));
    EXPECT(made("b/old", NULL));
    EXPECT(made("b/new", "2\n"));
    EXPECT(made("b/hard", "2\n"));
    EXPECT(made("a/link", "2\n"));
    EXPECT(made("b/.wh..wh..opq", NULL));
    EXPECT(made("etc/passwd", "root:x:0:0::/:/bin/sh\nworker:x:1234:55::/:/bin/sh\n"
                              "agent:x:1000:1000:agent:/home/agent:/bin/sh\n"));
}

static int import(const char *archive, struct err *err)
{
    OWN(mem) char *path = mem_format("%s/%s", stage->dir, archive);
    *err = (struct err){0};
    return sandbox_image_import(home, path, "t", err);
}

static void expect_runs(void)
{
    struct err err = {0};
    if (prepare_local(stage) || stage_skip_reason(stage))
        SKIP("keeper and porter are not built");
    stage_open_manager(stage, 0, 0);
    struct sandbox_spec spec = stage->spec;
    spec.root = "image:t";
    if (stage_open(stage, &spec, &stage->box, &err) < 0)
        EXPECT_TEXT(err.text, "");
    EXPECT_INT(RUN(ARGV("/bin/inside", "exit", "7")).exit.code, 7);
    EXPECT_TEXT(RUN(ARGV("inside", "env", "GREETING")).out, "hello there\n");
    EXPECT_TEXT(RUN(ARGV("inside", "cwd")).out, "/app\n");
    if (getuid() == 0)
        EXPECT_TEXT(RUN(ARGV("inside", "ids")).out, "1234:55\n");
    struct str content;
    EXPECT_INT(stage_get(stage, stage->box, "/b/new", &content, &err), 0);
    EXPECT_STR(content, STR("2\n"));
    EXPECT_INT(stage_put(stage, stage->box, "/tmp/x", STR("mine"), 0644, &err), 0);
    EXPECT_INT(stage_close(stage, stage->box, &err), 0);
    EXPECT(made("tmp/x", NULL));
}

TEST(a_docker_save_archive_becomes_a_root)
{
    begin();
    struct err err = {0};
    OWN(mem) char *text = mem_format("%s%s", layers, docker_save);
    EXPECT(script(text));
    if (import("image.tar", &err) < 0)
        EXPECT_TEXT(err.text, "");
    expect_imported();
    expect_runs();
    stage_end(stage);
}

TEST(an_oci_layout_becomes_a_root_as_folder_and_as_archive)
{
    begin();
    struct err err = {0};
    OWN(mem) char *text = mem_format("%s%s", layers, oci);
    EXPECT(script(text));
    if (import("oci", &err) < 0)
        EXPECT_TEXT(err.text, "");
    expect_imported();
    if (import("oci.tar", &err) < 0) /* and replaces the one before */
        EXPECT_TEXT(err.text, "");
    expect_imported();
    expect_runs();
    OWN(buf) struct buf list = {0};
    struct json_writer writer = {.out = &list};
    EXPECT_INT(sandbox_image_list(home, &writer, &err), 0);
    EXPECT(str_starts(buf_str(&list), STR("[{\"name\":\"t\",\"layers\":2,")));
    stage_end(stage);
}

TEST(a_layer_that_is_not_what_its_checksum_says_is_refused)
{
    begin();
    struct err err = {0};
    OWN(mem)
    char *text = mem_format("%s%s for f in oci/blobs/sha256/*; do case $(head -c 2 $f) in "
                            "'{\"'*) ;; *) printf x >> $f;; esac; done",
                            layers, oci);
    EXPECT(script(text));
    EXPECT_INT(import("oci", &err), -1);
    EXPECT_INT(err.kind, ERR_INPUT);
    EXPECT(strstr(err.text, "checksum"));
    OWN(mem) char *left = mem_format("test -z \"$(ls -A %s/images)\"", home);
    EXPECT(script(left));
    stage_end(stage);
}

/* --- hostile layers --------------------------------------------------------------------------- */

static void add(struct archive *out, const char *name, int type, const char *link, const char *data)
{
    struct archive_entry *entry = archive_entry_new();
    archive_entry_set_pathname(entry, name);
    archive_entry_set_perm(entry, 06777);
    if (type == 0)
        archive_entry_set_hardlink(entry, link);
    else
        archive_entry_set_filetype(entry, (unsigned)type);
    if (type == AE_IFLNK)
        archive_entry_set_symlink(entry, link);
    if (type == AE_IFCHR)
        archive_entry_set_rdev(entry, 0x0103);
    archive_entry_set_size(entry, data ? (la_int64_t)strlen(data) : 0);
    if (archive_write_header(out, entry) != ARCHIVE_OK)
        abort();
    if (data)
        (void)archive_write_data(out, data, strlen(data));
    archive_entry_free(entry);
}

/* A docker save folder with one layer, written by `fill`. */
static int import_layer(void (*fill)(struct archive *out), struct err *err)
{
    if (!script("rm -rf h; mkdir h; printf '{}' > h/c.json; "
                "printf '[{\"Config\":\"c.json\",\"Layers\":[\"l.tar\"]}]' > h/manifest.json"))
        abort();
    OWN(mem) char *path = mem_format("%s/h/l.tar", stage->dir);
    struct archive *out = archive_write_new();
    archive_write_set_format_pax_restricted(out);
    if (archive_write_open_filename(out, path) != ARCHIVE_OK)
        abort();
    fill(out);
    archive_write_close(out);
    archive_write_free(out);
    return import("h", err);
}

static char canary[160];

static void fill_climb(struct archive *out)
{
    add(out, "a/../../../canary", AE_IFREG, NULL, "out");
}

static void fill_absolute(struct archive *out)
{
    add(out, canary, AE_IFREG, NULL, "inside");
}

static void fill_through_link(struct archive *out)
{
    add(out, "tmp", AE_IFDIR, NULL, NULL);
    add(out, "up", AE_IFLNK, "../../../../../../../../tmp", NULL);
    add(out, "up/x", AE_IFREG, NULL, "out");
}

static void fill_through_link_outside(struct archive *out)
{
    add(out, "link", AE_IFLNK, stage->dir, NULL);
    add(out, "link/canary", AE_IFREG, NULL, "out");
}

static void fill_over_link(struct archive *out)
{
    add(out, "f", AE_IFLNK, canary, NULL);
    add(out, "f", AE_IFREG, NULL, "out");
}

static void fill_hard_link(struct archive *out)
{
    add(out, "f", 0, "../../../canary", NULL);
}

static void fill_hard_link_absolute(struct archive *out)
{
    add(out, "f", 0, canary, NULL);
}

static void fill_hard_link_through(struct archive *out)
{
    add(out, "d", AE_IFLNK, stage->dir, NULL);
    add(out, "f", 0, "d/canary", NULL);
}

static void fill_whiteout(struct archive *out)
{
    add(out, "d", AE_IFLNK, stage->dir, NULL);
    add(out, "d/.wh.canary", AE_IFREG, NULL, "");
    add(out, ".wh...", AE_IFREG, NULL, "");
}

static void fill_devices(struct archive *out)
{
    add(out, "null", AE_IFCHR, NULL, NULL);
    add(out, "bin", AE_IFDIR, NULL, NULL);
    add(out, "bin/su", AE_IFREG, NULL, "x");
}

TEST(hostile_archives_are_refused_or_stay_inside)
{
    begin();
    struct err err = {0};
    snprintf(canary, sizeof canary, "%s/canary", stage->dir);
    host_write(canary, 0644, "host");
    static void (*const refused[])(struct archive *) = {fill_climb, fill_through_link_outside,
                                                        fill_hard_link, fill_hard_link_absolute,
                                                        fill_hard_link_through};
    for (size_t i = 0; i < COUNT(refused); i++) {
        EXPECT_INT(import_layer(refused[i], &err), -1);
        EXPECT_INT(err.kind, ERR_INPUT);
    }
    static void (*const confined[])(struct archive *) = {
        fill_absolute, fill_through_link, fill_over_link, fill_whiteout, fill_devices};
    for (size_t i = 0; i < COUNT(confined); i++)
        if (import_layer(confined[i], &err) < 0)
            EXPECT_TEXT(err.text, "");
    EXPECT(made("null", NULL)); /* the last one */
    struct stat facts;
    OWN(mem) char *su = mem_format("%s/images/t/root/bin/su", home);
    EXPECT_INT(lstat(su, &facts), 0);
    EXPECT_INT(facts.st_mode & 07000, 0);
    OWN(buf) struct buf text = {0};
    EXPECT_INT(file_read(canary, 100, &text, &err), 0);
    EXPECT_STR(buf_str(&text), STR("host"));
    EXPECT(lstat("/tmp/x", &facts) < 0 || facts.st_size != 3);
    stage_end(stage);
}

TEST(what_is_no_image_gets_one_sentence)
{
    begin();
    struct err err = {0};
    EXPECT(script("mkdir empty; echo nonsense > file; mkdir bad; echo '[' > bad/manifest.json"));
    EXPECT_INT(import("empty", &err), -1);
    EXPECT_INT(err.kind, ERR_INPUT);
    EXPECT_INT(import("file", &err), -1);
    EXPECT_INT(err.kind, ERR_INPUT);
    EXPECT_INT(import("bad", &err), -1);
    EXPECT_INT(err.kind, ERR_INPUT);
    EXPECT_INT(import("missing", &err), -1);
    EXPECT_INT(err.kind, ERR_NOT_FOUND);
    EXPECT_INT(sandbox_image_import(home, stage->dir, "../x", &err), -1);
    EXPECT_INT(err.kind, ERR_INPUT);
    stage_end(stage);
}

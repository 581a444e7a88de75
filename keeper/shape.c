/* shape.c - what a sandbox is to look like, read from a request and compared for the pools. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "keeper.h"

#define MEMORY_DEFAULT (4ull << 30)
#define MEMORY_LEAST (4ull << 20)
#define DISK_DEFAULT (2ull << 30)
#define PIDS_DEFAULT 4096u
#define BYTES_MAX (1ull << 46)

static const char *const isolation_names[ISOLATIONS] = {"full", "no-limits", "no-seccomp"};

const char *isolation_name(enum isolation isolation)
{
    return isolation_names[isolation];
}

void shape_free(struct shape *shape)
{
    if (!shape)
        return;
    for (size_t i = 0; i < shape->layer_count; i++)
        free(shape->layers[i]);
    for (size_t i = 0; i < shape->pristine_count; i++)
        free(shape->pristine[i]);
    free(shape->root);
    free(shape->hostname);
    free(shape);
}

struct shape *shape_copy(const struct shape *shape)
{
    struct shape *copy = mem_alloc(sizeof *copy);
    *copy = *shape;
    copy->root = mem_dup(shape->root);
    copy->hostname = mem_dup(shape->hostname);
    for (size_t i = 0; i < shape->layer_count; i++)
        copy->layers[i] = mem_dup(shape->layers[i]);
    for (size_t i = 0; i < shape->pristine_count; i++)
        copy->pristine[i] = mem_dup(shape->pristine[i]);
    return copy;
}

static int read_isolation(struct str packet, enum isolation *isolation, struct err *err)
{
    const char *name = keeper_field(packet, "isolation");
    *isolation = ISOLATION_FULL;
    if (!name)
        return 0;
    for (unsigned i = 0; i < ISOLATIONS; i++)
        if (strcmp(name, isolation_names[i]) == 0) {
            *isolation = (enum isolation)i;
            return 0;
        }
    return err_set(err, ERR_INPUT, "'%s' is none of full, no-limits, no-seccomp", name);
}

static int check_hostname(const char *name, struct err *err)
{
    size_t size = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-");
    if (size == 0 || size > 64 || name[size])
        return err_set(err, ERR_INPUT, "'%.80s' is not a host name", name);
    return 0;
}

/* Single names below "/", nothing that leads anywhere else. */
static int add_pristine(struct shape *shape, const char *name, struct err *err)
{
    size_t size = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");
    if (size == 0 || size > 15 || name[size])
        return err_set(err, ERR_INPUT, "'%.80s' is not the name of a directory below /", name);
    if (strcmp(name, "dev") == 0 || strcmp(name, "proc") == 0 || strcmp(name, "sys") == 0)
        return err_set(err, ERR_INPUT, "'/%s' is made anew for each sandbox", name);
    if (shape->pristine_count == KEEPER_PRISTINE_MAX)
        return err_set(err, ERR_LIMIT, "more than %d pristine directories", KEEPER_PRISTINE_MAX);
    for (size_t i = 0; i < shape->pristine_count; i++)
        if (strcmp(shape->pristine[i], name) == 0)
            return 0;
    shape->pristine[shape->pristine_count++] = mem_dup(name);
    return 0;
}

static int read_lists(struct shape *shape, struct str packet, struct err *err)
{
    size_t at = 0;
    struct str key;
    for (const char *value; keeper_field_next(packet, &at, &key, &value);) {
        if (str_is(key, "pristine") && add_pristine(shape, value, err) < 0)
            return -1;
        if (!str_is(key, "layer"))
            continue;
        if (shape->layer_count == KEEPER_LAYERS_MAX)
            return err_set(err, ERR_LIMIT, "a sandbox stands on at most %d layers",
                           KEEPER_LAYERS_MAX);
        shape->layers[shape->layer_count++] = mem_dup(value);
    }
    return 0;
}

struct shape *shape_read(struct str packet, struct err *err)
{
    struct shape *shape = mem_zero(sizeof *shape);
    const char *root = keeper_field(packet, "root"), *host = keeper_field(packet, "hostname");
    shape->root = mem_dup(root ? root : "host");
    shape->hostname = mem_dup(host ? host : "sandbox");
    shape->memory_bytes_max = keeper_field_number(packet, "memory", MEMORY_DEFAULT, BYTES_MAX);
    shape->disk_bytes_max = keeper_field_number(packet, "disk", DISK_DEFAULT, BYTES_MAX);
    shape->pids_max = (uint32_t)keeper_field_number(packet, "pids", PIDS_DEFAULT, 4194304);
    shape->cpu_millis = (uint32_t)keeper_field_number(packet, "cpu", 0, 1000000);
    shape->root_user = keeper_field_number(packet, "root_user", 0, 1) == 1;
    shape->upper_on_disk = keeper_field_number(packet, "on_disk", 0, 1) == 1;
    if (shape->memory_bytes_max == 0)
        shape->memory_bytes_max = MEMORY_DEFAULT;
    if (shape->memory_bytes_max < MEMORY_LEAST)
        shape->memory_bytes_max = MEMORY_LEAST; /* the porter needs to live, too */
    if (shape->disk_bytes_max == 0)
        shape->disk_bytes_max = DISK_DEFAULT;
    if (shape->pids_max == 0)
        shape->pids_max = PIDS_DEFAULT;
    shape->pristine_layers =
        (uint32_t)keeper_field_number(packet, "pristine_layers", 0, KEEPER_LAYERS_MAX);
    if (read_lists(shape, packet, err) < 0 || read_isolation(packet, &shape->isolation, err) < 0 ||
        check_hostname(shape->hostname, err) < 0) {
        shape_free(shape);
        return NULL;
    }
    return shape;
}

bool shape_equal(const struct shape *a, const struct shape *b)
{
    if (a->layer_count != b->layer_count || a->pristine_count != b->pristine_count ||
        a->pristine_layers != b->pristine_layers || a->memory_bytes_max != b->memory_bytes_max ||
        a->disk_bytes_max != b->disk_bytes_max || a->pids_max != b->pids_max ||
        a->cpu_millis != b->cpu_millis || a->isolation != b->isolation ||
        a->root_user != b->root_user || a->upper_on_disk != b->upper_on_disk ||
        strcmp(a->root, b->root) != 0 || strcmp(a->hostname, b->hostname) != 0)
        return false;
    for (size_t i = 0; i < a->layer_count; i++)
        if (strcmp(a->layers[i], b->layers[i]) != 0)
            return false;
    for (size_t i = 0; i < a->pristine_count; i++)
        if (strcmp(a->pristine[i], b->pristine[i]) != 0)
            return false;
    return true;
}

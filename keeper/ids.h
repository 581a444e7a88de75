/* ids.h - which user ids sandboxes get, and how the keeper comes to own a user namespace.
 *
 *   IDS_RANGES  the keeper is root: each sandbox has 65,536 host ids of its own. Files of the host
 * and of images show with their owners by shifting (idmapped mounts). IDS_SHARED  an ordinary user
 * with a subordinate range: all sandboxes share it; inside, root is the user and 1.. are the
 * subordinate ids. (Also root of a container with few ids: then the sandbox's root is id 1 there.)
 *   IDS_SINGLE  an ordinary user without one: the only id is the user's own; inside it is 1000, or
 * 0 when root was asked for. */
#ifndef KEEPER_IDS_H
#define KEEPER_IDS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct err;

enum ids_mode { IDS_RANGES, IDS_SHARED, IDS_SINGLE };

#define IDS_RANGE_SIZE 65536u
#define IDS_USER 1000u /* the ordinary user inside */

struct ids {
    enum ids_mode mode;
    uint32_t base;   /* first host id of slot 0; 0: owners need no shifting */
    uint32_t count;  /* IDS_SHARED: how many */
    uint32_t slots;  /* IDS_RANGES: how many ranges there are */
    uint64_t *taken; /* bitmap of slots */
    uint32_t taken_count;
    uid_t outer_uid; /* who the keeper is outside */
};

/* Enters a user namespace of the keeper's own when it is not root. Before anything is mounted. */
int ids_enter(struct ids *ids, struct err *err);
void ids_deinit(struct ids *ids);
/* A slot number, or -1 with ERR_CAPACITY. Other modes: always 0. */
int ids_take(struct ids *ids, struct err *err);
void ids_give(struct ids *ids, int slot);
/* Writes the maps of a new sandbox. */
int ids_write_maps(const struct ids *ids, int slot, bool root_user, pid_t pid, struct err *err);
/* The map as people read it: "0 1879048192 65536". */
void ids_describe(const struct ids *ids, int slot, bool root_user, char *text, size_t size);
/* Where the pid's namespaces are refused, says why in the words of the machine's own settings. */
int ids_explain_refusal(int number, struct err *err);

#endif

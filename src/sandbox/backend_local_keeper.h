/* backend_local_keeper.h - private to backend_local: finding the keeper of a home, or starting one.
 */
#ifndef SANDBOX_BACKEND_LOCAL_KEEPER_H
#define SANDBOX_BACKEND_LOCAL_KEEPER_H

#include <stddef.h>

struct err;
struct sandbox_options;

#define LOCAL_PATH_MAX 512

struct local_places {
    char home[LOCAL_PATH_MAX]; /* absolute */
    char
        state[LOCAL_PATH_MAX]; /* socket, locks, state files; short, so that a socket's name fits */
    char keeper[LOCAL_PATH_MAX]; /* programs */
    char porter[LOCAL_PATH_MAX];
};

/* Makes what is missing; directories are 0700 and ours. */
int local_find_places(const struct sandbox_options *options, struct local_places *places,
                      struct err *err);
/* A connected socket to the keeper everybody of this home shares; starts it when none listens. */
int local_connect_shared(const struct local_places *places, struct err *err);
/* A connected socket to a new keeper that ends with the connection. */
int local_connect_private(const struct local_places *places, struct err *err);

#endif

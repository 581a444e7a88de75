/* bundle.h - private to the agent room: what the files that build and keep bundles share. */
#ifndef AGENT_BUNDLE_H
#define AGENT_BUNDLE_H

#include "agent/internal.h"

struct build {
    const struct agent_spec *spec;
    struct arena arena;
    char *work; /* everything below it goes away in the end */
    char *made; /* what the tool made */
    char *out;  /* the agent's folder in the layer */
    uint64_t deadline_ms;
    int signals; /* a signalfd: an interrupt ends the build; -1: none */
};

/* Runs a program in build->made, its words in the build's log. Ends it at the deadline and when we
 * are interrupted. */
int bundle_run(struct build *build, const char *const *argv, struct err *err);
/* The same with the spec's packages added. */
int bundle_run_with_packages(struct build *build, const char *const *first, struct err *err);
int bundle_make_pypi(struct build *build, struct err *err);

/* bundle_store.c: <home>/bundles */
/* The lock of all builds and removals, waited for until the deadline; what an earlier build that
 * was cut off left is removed. Returns the descriptor. */
int bundle_store_lock(const char *home, uint64_t deadline_ms, struct err *err);
/* Holds a bundle against removal as long as this process lives. */
int bundle_store_hold(const char *dir, struct err *err);

#endif

/* probe.h - what the probes share: three verdicts, and the table they are listed in.
 *
 * A probe tries one thing a sandbox must not allow and says how it went. It never decides by itself
 * whether it is inside a sandbox: the same program runs on the bare machine, where it must report
 * ESCAPED, and inside, where it must report REFUSED. Thus each test is seen to be able to fail. */
#ifndef PROBE_H
#define PROBE_H

#include <stddef.h>

enum verdict {
    PROBE_REFUSED = 0,  /* the attempt failed: what we want inside */
    PROBE_ESCAPED = 10, /* the attempt worked: what we must see outside */
    PROBE_UNCLEAR = 20, /* the probe could not even try */
};

/* One line on stdout, the verdict as the result. */
int refused(const char *format, ...) __attribute__((format(printf, 1, 2)));
int escaped(const char *format, ...) __attribute__((format(printf, 1, 2)));
int unclear(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The usual shape: `result` < 0 is a refusal, anything else an escape. Uses errno. */
int judge(const char *what, long result);

struct probe {
    const char *name;
    const char *help;
    int (*run)(int argc, char **argv); /* argv[0] is the probe's name */
};

extern const struct probe probes_kernel[], probes_proc[], probes_load[];

#endif

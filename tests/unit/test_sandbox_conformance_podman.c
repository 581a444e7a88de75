/* test_sandbox_conformance_podman.c - the suite on the backend podman, with an image made of this
 * machine's files. */
#include "sandbox_conformance.h"

static const struct target target = {.name = "podman",
                                     .backend = "podman",
                                     .root = "image:localhost/postern-test",
                                     .prepare = prepare_podman,
                                     .left = left_podman,
                                     .forge = forge_podman};

/* test_sandbox_conformance_ssh.c - the suite on the backend ssh, with a real sshd on the loopback.
 */
#include "sandbox_conformance.h"

static const struct target target = {.name = "ssh",
                                     .backend = "ssh:target",
                                     .prepare = prepare_ssh,
                                     .left = left_ssh,
                                     .forge = forge_ssh};

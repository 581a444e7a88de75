/* main.c - postern-keeper: creates local sandboxes and outlives the server that asked for them.
 *
 * Started by the server (backend_local.c), not by people. docs/keeper.md has the protocol. */
#include <fcntl.h>
#include <getopt.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "keeper.h"

static int usage(const char *problem, const char *what)
{
    fprintf(stderr, "postern-keeper: %s%s\n", problem, what);
    return 2;
}

static bool to_descriptor(const char *text, int *fd)
{
    long long number;
    if (!str_to_long(str_of(text), &number) || number < 3 || number > 1 << 20 ||
        fcntl((int)number, F_GETFD) < 0)
        return false;
    *fd = (int)number;
    return fd_cloexec(*fd, true) == 0;
}

int main(int argc, char **argv)
{
    enum { HOME = 1, STATE, PORTER, LISTEN, PRIVATE, IDLE, DOCTOR, VERSION };
    static const struct option options[] = {
        {"home", required_argument, NULL, HOME},
        {"state", required_argument, NULL, STATE},
        {"porter", required_argument, NULL, PORTER},
        {"listen-fd", required_argument, NULL, LISTEN},
        {"private-fd", required_argument, NULL, PRIVATE},
        {"idle-ms", required_argument, NULL, IDLE},
        {"doctor", no_argument, NULL, DOCTOR},
        {"version", no_argument, NULL, VERSION},
        {NULL, 0, NULL, 0},
    };
    static struct keeper keeper;
    keeper.options = (struct keeper_options){.listen_fd = -1, .private_fd = -1, .idle_ms = 600000};
    bool doctor = false;
    opterr = 0;
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        long long number;
        switch (option) {
        case HOME:
            keeper.options.home = optarg;
            break;
        case STATE:
            keeper.options.state_dir = optarg;
            break;
        case PORTER:
            keeper.options.porter = optarg;
            break;
        case LISTEN:
            if (!to_descriptor(optarg, &keeper.options.listen_fd))
                return usage("not a descriptor: ", optarg);
            break;
        case PRIVATE:
            if (!to_descriptor(optarg, &keeper.options.private_fd))
                return usage("not a descriptor: ", optarg);
            break;
        case IDLE:
            if (!str_to_long(str_of(optarg), &number) || number < 0 || number > 86400000)
                return usage("not a time in milliseconds: ", optarg);
            keeper.options.idle_ms = (uint32_t)number;
            break;
        case DOCTOR:
            doctor = true;
            break;
        case VERSION:
            puts("postern-keeper " POSTERN_VERSION);
            return 0;
        default:
            return usage("unknown option ", argv[optind - 1]);
        }
    }
    if (!keeper.options.home || !keeper.options.state_dir || !keeper.options.porter)
        return usage("--home, --state and --porter are needed", "");
    if (doctor)
        return doctor_run(&keeper.options);
    if ((keeper.options.listen_fd < 0) == (keeper.options.private_fd < 0))
        return usage("one of --listen-fd and --private-fd is needed", "");
    (void)mallopt(M_MMAP_THRESHOLD, 1 << 16); /* large pieces go back at once; see shrink() */
    log_setup(LOG_INFO, false);
    (void)prctl(PR_SET_NAME, "postern-keeper");
    struct err err = {0};
    if (keeper_prepare(&keeper, &err) < 0) {
        LOG_ERROR("keeper", NULL, "%s", err.text);
        return 1;
    }
    keeper_run(&keeper);
    return 0;
}

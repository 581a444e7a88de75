/* test_keeper.c - the keeper's parts that stand alone: packets, shapes, and the system call filter,
 * which is loaded for real and asked. What a whole keeper does is in test_sandbox_local.c. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/file.h"
#include "base/mem.h"
#include "filter.h"
#include "keeper.h"
#include "test.h"

#define PACKET(literal) str_make(literal, sizeof(literal)) /* with its last NUL */

TEST(a_packet_is_sound_or_refused_as_a_whole)
{
    EXPECT(keeper_packet_is_sound(PACKET("op=create\0id=sb-1")));
    EXPECT(keeper_packet_is_sound(PACKET("op=\0x=1=2")));
    EXPECT(!keeper_packet_is_sound(PACKET("op=create\0\0id=sb-1"))); /* an empty field */
    EXPECT(!keeper_packet_is_sound(STR_NONE));
    EXPECT(!keeper_packet_is_sound(str_make("op=create", 9))); /* no end */
    EXPECT(!keeper_packet_is_sound(PACKET("create")));
    EXPECT(!keeper_packet_is_sound(PACKET("=create")));
    OWN(buf) struct buf many = {0};
    for (int i = 0; i <= KEEPER_FIELDS_MAX; i++)
        keeper_add(&many, "layer", "x");
    EXPECT(!keeper_packet_is_sound(buf_str(&many)));
    OWN(buf) struct buf large = {0};
    buf_format(&large, "label=");
    while (large.size < KEEPER_PACKET_MAX)
        buf_byte(&large, 'x');
    buf_byte(&large, '\0');
    EXPECT(!keeper_packet_is_sound(buf_str(&large)));
}

TEST(fields_are_found_and_numbers_bounded)
{
    struct str packet = PACKET("a=1\0b=\0n=12x\0big=99999999999999999999\0neg=-1\0a=2");
    EXPECT(keeper_packet_is_sound(packet));
    EXPECT_TEXT(keeper_field(packet, "a"), "1");
    EXPECT_TEXT(keeper_field(packet, "b"), "");
    EXPECT(!keeper_field(packet, "c"));
    EXPECT_INT(keeper_field_number(packet, "a", 7, 10), 1);
    EXPECT_INT(keeper_field_number(packet, "n", 7, 10), 7);
    EXPECT_INT(keeper_field_number(packet, "big", 7, UINT64_MAX), 7);
    EXPECT_INT(keeper_field_number(packet, "neg", 7, UINT64_MAX), 7);
    EXPECT_INT(keeper_field_number(packet, "a", 7, 0), 7);
}

static struct shape *shape_of(struct buf *packet, struct err *err)
{
    *err = (struct err){0};
    return shape_read(buf_str(packet), err);
}

TEST(a_shape_has_defaults_and_limits)
{
    OWN(buf) struct buf packet = {0};
    struct err err;
    keeper_add(&packet, "op", "create");
    struct shape *plain = shape_of(&packet, &err);
    EXPECT(plain);
    EXPECT_TEXT(plain->root, "host");
    EXPECT_TEXT(plain->hostname, "sandbox");
    EXPECT_INT(plain->isolation, ISOLATION_FULL);
    EXPECT(plain->memory_bytes_max && plain->pids_max && plain->disk_bytes_max);
    struct shape *same = shape_copy(plain);
    EXPECT(shape_equal(plain, same));
    same->pids_max++;
    EXPECT(!shape_equal(plain, same));
    shape_free(same);
    shape_free(plain);
    keeper_add(&packet, "isolation", "none");
    EXPECT(!shape_of(&packet, &err));
    EXPECT_INT(err.kind, ERR_INPUT);
    buf_clear(&packet);
    keeper_add(&packet, "hostname", "a b");
    EXPECT(!shape_of(&packet, &err));
    EXPECT_INT(err.kind, ERR_INPUT);
    buf_clear(&packet);
    for (int i = 0; i <= KEEPER_LAYERS_MAX; i++)
        keeper_add(&packet, "layer", "ly-x");
    EXPECT(!shape_of(&packet, &err));
    EXPECT_INT(err.kind, ERR_LIMIT);
}

/* --- what others left --------------------------------------------------------------------------
 */

TEST(a_keeper_that_just_started_is_not_swept_away_by_another_one)
{
    char parent[] = "/tmp/test-keeper-XXXXXX";
    EXPECT(mkdtemp(parent));
    OWN(mem) char *own = mem_format("%s/00000000000000aa", parent);
    OWN(mem) char *other = mem_format("%s/00000000000000bb", parent);
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "%s/keeper.sock", other);
    struct err err = {0};
    EXPECT_INT(file_make_dirs(own, 0700, &err), 0);
    EXPECT_INT(file_make_dirs(other, 0700, &err), 0);
    /* As backend_local leaves it before the keeper has looked around: a socket, no state file. */
    OWN(fd) int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    EXPECT_INT(bind(listener, (struct sockaddr *)&at, sizeof at), 0);
    EXPECT_INT(listen(listener, 1), 0);
    for (int i = 0; i < 5; i++) { /* also when nobody takes its connections */
        keeper_sweep(own);
        EXPECT(file_exists(at.sun_path));
    }
    fd_close(&listener);
    keeper_sweep(own);
    EXPECT(!file_exists(other));
    EXPECT(file_exists(own));
    EXPECT_INT(file_remove_tree(parent, &err), 0);
}

/* --- the filter --------------------------------------------------------------------------------
 */

static int load_filter(void)
{
    OWN(buf) struct buf code = {0};
    if (filter_compile(&code, NULL) < 0)
        return -1;
    struct sock_fprog program = {.len = (unsigned short)(code.size / sizeof(struct sock_filter)),
                                 .filter = (struct sock_filter *)(void *)code.data};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -1;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

/* What a call under the filter says: 0 or errno. */
#define ASKED(...) (syscall(__VA_ARGS__) < 0 ? errno : 0)

TEST(the_filter_refuses_what_is_dangerous)
{
    EXPECT_INT(load_filter(), 0);
    EXPECT_INT(ASKED(SYS_mount, "x", "/", "tmpfs", 0, 0), EPERM);
    EXPECT_INT(ASKED(SYS_fsopen, "tmpfs", 0), EPERM);
    EXPECT_INT(ASKED(SYS_open_tree, -1, "/", 0), EPERM);
    EXPECT_INT(ASKED(SYS_mount_setattr, -1, "/", 0, NULL, 0), EPERM);
    EXPECT_INT(ASKED(SYS_move_mount, -1, "", -1, "", 0), EPERM);
    EXPECT_INT(ASKED(SYS_umount2, "/", 2), EPERM);
    EXPECT_INT(ASKED(SYS_pivot_root, "/", "/"), EPERM);
    EXPECT_INT(ASKED(SYS_setns, -1, 0), EPERM);
    EXPECT_INT(ASKED(SYS_unshare, CLONE_NEWUSER), EPERM);
    EXPECT_INT(ASKED(SYS_unshare, CLONE_NEWNET | CLONE_FS), EPERM);
    EXPECT_INT(ASKED(SYS_unshare, 0x80), EPERM); /* CLONE_NEWTIME */
    EXPECT_INT(ASKED(SYS_unshare, 1ul << 40), EPERM);
    EXPECT_INT(ASKED(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0), EPERM);
    EXPECT_INT(ASKED(SYS_clone, 1ul << 40 | CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0), EPERM);
    EXPECT_INT(ASKED(SYS_clone3, NULL, 0), ENOSYS);
    EXPECT_INT(ASKED(SYS_io_uring_setup, 1, NULL), EPERM);
    EXPECT_INT(ASKED(SYS_io_uring_enter, 0, 0, 0, 0, NULL, 0), EPERM);
    EXPECT_INT(ASKED(SYS_keyctl, 0, 0, 0, 0, 0), EPERM);
    EXPECT_INT(ASKED(SYS_add_key, "user", "x", "y", 1, -1), EPERM);
    EXPECT_INT(ASKED(SYS_request_key, "user", "x", "y", 0), EPERM);
    EXPECT_INT(ASKED(SYS_bpf, 0, NULL, 0), EPERM);
    EXPECT_INT(ASKED(SYS_perf_event_open, NULL, 0, 0, 0, 0), EPERM);
    EXPECT_INT(ASKED(SYS_userfaultfd, 0), EPERM);
    EXPECT_INT(ASKED(SYS_open_by_handle_at, -1, NULL, 0), EPERM);
    EXPECT_INT(ASKED(SYS_kexec_load, 0, 0, NULL, 0), EPERM);
    EXPECT_INT(ASKED(SYS_finit_module, -1, "", 0), EPERM);
    EXPECT_INT(ASKED(SYS_sethostname, "x", 1), EPERM);
    EXPECT_INT(ASKED(SYS_personality, 0x0100000), EPERM);
    EXPECT_INT(ASKED(999), ENOSYS);
    EXPECT_INT(ASKED(5000), ENOSYS);
}

TEST(the_filter_looks_at_every_bit_the_kernel_does)
{
    EXPECT_INT(load_filter(), 0);
    static const unsigned long commands[] = {0x5412, 0x541c, 0x541d, 0x5423};
    for (size_t i = 0; i < COUNT(commands); i++) {
        EXPECT_INT(ASKED(SYS_ioctl, -1, commands[i], ""), EPERM);
        EXPECT_INT(ASKED(SYS_ioctl, -1, commands[i] | 1ul << 32, ""), EPERM);
        EXPECT_INT(ASKED(SYS_ioctl, -1, commands[i] | 0xffffffff00000000ul, ""), EPERM);
    }
    EXPECT_INT(ASKED(SYS_ioctl, -1, TIOCGWINSZ, NULL), EBADF);
#ifdef __x86_64__
    EXPECT_INT(ASKED(0x40000000 | SYS_getpid), ENOSYS); /* x32 */
    EXPECT_INT(ASKED(0x40000000 | SYS_ioctl, -1, 0x5412, ""), ENOSYS);
#endif
}

TEST(the_filter_knows_families_of_sockets)
{
    EXPECT_INT(load_filter(), 0);
    static const struct {
        int family, type, protocol, expected;
    } cases[] = {
        {AF_UNIX, SOCK_STREAM, 0, 0},
        {AF_INET, SOCK_STREAM, 0, 0},
        {AF_INET, SOCK_DGRAM, 17, 0},
        {AF_INET6, SOCK_STREAM, 6, 0},
        {AF_NETLINK, SOCK_RAW, 0, 0},
        {AF_NETLINK, SOCK_RAW, 12, EPERM},
        {AF_PACKET, SOCK_RAW, 0, EAFNOSUPPORT},
        {AF_VSOCK, SOCK_STREAM, 0, EAFNOSUPPORT},
        {38 /* AF_ALG */, SOCK_SEQPACKET, 0, EAFNOSUPPORT},
        {AF_INET, SOCK_STREAM, 132 /* sctp */, EPROTONOSUPPORT},
        {AF_INET, SOCK_STREAM, 262 /* mptcp */, EPROTONOSUPPORT},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        EXPECT_INT(ASKED(SYS_socket, cases[i].family, cases[i].type, cases[i].protocol),
                   cases[i].expected);
    int pair[2];
    EXPECT_INT(ASKED(SYS_socketpair, AF_UNIX, SOCK_STREAM, 0, pair), 0);
    EXPECT_INT(ASKED(SYS_socketpair, 30 /* AF_TIPC */, SOCK_STREAM, 0, pair), EAFNOSUPPORT);
}

TEST(the_filter_lets_programs_work)
{
    EXPECT_INT(load_filter(), 0);
    EXPECT_INT(personality(0xffffffff), 0);
    EXPECT_INT(ASKED(SYS_personality, ADDR_NO_RANDOMIZE), 0);
    EXPECT_INT(ASKED(SYS_unshare, CLONE_FS), 0);
    pid_t pid = fork();
    if (pid == 0) {
        execl("/bin/sh", "sh", "-c", "ls / | sort | head -n 1 > /dev/null; exec true", NULL);
        _exit(127);
    }
    int status = -1;
    EXPECT_INT(waitpid(pid, &status, 0), pid);
    EXPECT_INT(status, 0);
}

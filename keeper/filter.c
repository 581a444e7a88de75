/* filter.c - from a list of names to a seccomp program.
 *
 * libseccomp knows the numbers of this architecture; the program is laid out here, because the
 * checks on arguments ("any flag of these", "all but these commands, compared in the bits the
 * kernel looks at") do not fit its rules. The shape:
 *
 *     wrong architecture -> kill;  x32 -> ENOSYS
 *     binary search over ranges of numbers with the same verdict
 *     verdicts: allow, EPERM, ENOSYS, or a short block that looks at arguments
 *
 * The kernel caches the verdict of calls whose arguments are not looked at (since 5.11), so most
 * calls never run the program. */
#include "filter.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/mem.h"

#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#else
#error "the seccomp filter knows x86_64 and aarch64"
#endif

#define NUMBERS_MAX 1024

/* clang-format off */
static const char *const allowed[] = {
    /* files */
    "access", "chdir", "chmod", "chown", "chroot", "close", "close_range", "copy_file_range", "creat",
    "dup", "dup2", "dup3", "faccessat", "faccessat2", "fadvise64", "fallocate", "fchdir", "fchmod",
    "fchmodat", "fchmodat2", "fchown", "fchownat", "fcntl", "fdatasync", "fgetxattr", "flistxattr",
    "flock", "fremovexattr", "fsetxattr", "fstat", "fstatfs", "fsync", "ftruncate", "futimesat",
    "getcwd", "getdents", "getdents64", "getxattr", "inotify_add_watch", "inotify_init",
    "inotify_init1", "inotify_rm_watch", "lchown", "lgetxattr", "link", "linkat", "listxattr",
    "llistxattr", "lremovexattr", "lseek", "lsetxattr", "lstat", "mkdir", "mkdirat", "mknod",
    "mknodat", "newfstatat", "open", "openat", "openat2", "pipe", "pipe2", "pread64", "preadv",
    "preadv2", "pwrite64", "pwritev", "pwritev2", "read", "readahead", "readlink", "readlinkat",
    "readv", "removexattr", "rename", "renameat", "renameat2", "rmdir", "sendfile", "setxattr",
    "splice", "stat", "statfs", "statx", "symlink", "symlinkat", "sync", "sync_file_range", "syncfs",
    "tee", "truncate", "umask", "unlink", "unlinkat", "utime", "utimensat", "utimes", "vmsplice",
    "write", "writev",
    /* memory */
    "brk", "get_mempolicy", "madvise", "map_shadow_stack", "mbind", "membarrier", "memfd_create",
    "mincore", "mlock", "mlock2", "mlockall", "mmap", "mprotect", "mremap", "mseal", "msync",
    "munlock", "munlockall", "munmap", "pkey_alloc", "pkey_free", "pkey_mprotect",
    "process_madvise", "process_mrelease", "remap_file_pages", "set_mempolicy",
    /* processes and threads */
    "alarm", "arch_prctl", "capget", "capset", "execve", "execveat", "exit", "exit_group", "fork",
    "futex", "futex_requeue", "futex_wait", "futex_waitv", "futex_wake", "get_robust_list",
    "get_thread_area", "getcpu", "getegid", "geteuid", "getgid", "getgroups", "getpgid", "getpgrp",
    "getpid", "getppid", "getpriority", "getresgid", "getresuid", "getrlimit", "getrusage",
    "getsid", "gettid", "getuid", "ioprio_get", "ioprio_set", "kill", "landlock_add_rule",
    "landlock_create_ruleset", "landlock_restrict_self", "nanosleep", "pause", "pidfd_open",
    "pidfd_send_signal", "prctl", "prlimit64", "process_vm_readv", "process_vm_writev", "ptrace",
    "restart_syscall", "rseq", "rt_sigaction", "rt_sigpending", "rt_sigprocmask", "rt_sigqueueinfo",
    "rt_sigreturn", "rt_sigsuspend", "rt_sigtimedwait", "rt_tgsigqueueinfo", "sched_get_priority_max",
    "sched_get_priority_min", "sched_getaffinity", "sched_getattr", "sched_getparam",
    "sched_getscheduler", "sched_rr_get_interval", "sched_setaffinity", "sched_setattr",
    "sched_setparam", "sched_setscheduler", "sched_yield", "seccomp", "set_robust_list",
    "set_thread_area", "set_tid_address", "setfsgid", "setfsuid", "setgid", "setgroups", "setpgid",
    "setpriority", "setregid", "setresgid", "setresuid", "setreuid", "setrlimit", "setsid", "setuid",
    "sigaltstack", "tgkill", "time", "times", "tkill", "vfork", "wait4", "waitid",
    /* time and waiting */
    "adjtimex", "clock_getres", "clock_gettime", "clock_nanosleep", "epoll_create", "epoll_create1",
    "epoll_ctl", "epoll_ctl_old", "epoll_pwait", "epoll_pwait2", "epoll_wait", "epoll_wait_old",
    "eventfd", "eventfd2", "getitimer", "gettimeofday", "io_cancel", "io_destroy", "io_getevents",
    "io_pgetevents", "io_setup", "io_submit", "poll", "ppoll", "pselect6", "select", "setitimer",
    "signalfd", "signalfd4", "timer_create", "timer_delete", "timer_getoverrun", "timer_gettime",
    "timer_settime", "timerfd_create", "timerfd_gettime", "timerfd_settime",
    /* sockets and messages */
    "accept", "accept4", "bind", "connect", "getpeername", "getsockname", "getsockopt", "listen",
    "mq_getsetattr", "mq_notify", "mq_open", "mq_timedreceive", "mq_timedsend", "mq_unlink",
    "msgctl", "msgget", "msgrcv", "msgsnd", "recvfrom", "recvmmsg", "recvmsg", "semctl", "semget",
    "semop", "semtimedop", "sendmmsg", "sendmsg", "sendto", "setsockopt", "shmat", "shmctl",
    "shmdt", "shmget", "shutdown",
    /* the machine */
    "getrandom", "sysinfo", "uname",
};

static const char *const dangerous[] = {
    "acct", "add_key", "bpf", "clock_adjtime", "clock_settime", "create_module", "delete_module",
    "fanotify_init", "fanotify_mark", "finit_module", "fsconfig", "fsmount", "fsopen", "fspick",
    "get_kernel_syms", "init_module", "io_uring_enter", "io_uring_register", "io_uring_setup",
    "ioperm", "iopl", "kcmp", "kexec_file_load", "kexec_load", "keyctl", "lookup_dcookie",
    "migrate_pages", "modify_ldt", "mount", "mount_setattr", "move_mount", "move_pages",
    "name_to_handle_at", "open_by_handle_at", "open_tree", "perf_event_open", "pidfd_getfd",
    "pivot_root", "query_module", "quotactl", "quotactl_fd", "reboot", "request_key",
    "setdomainname", "sethostname", "setns", "settimeofday", "stime", "swapoff", "swapon",
    "sysfs", "syslog", "umount", "umount2", "uselib", "userfaultfd", "ustat", "vhangup", "vm86",
    "vm86old",
};
/* clang-format on */

enum verdict { NO_SUCH_CALL, ALLOW, DENY, CHECK_FIRST };
enum check {
    CHECK_CLONE,
    CHECK_UNSHARE,
    CHECK_IOCTL,
    CHECK_SOCKET,
    CHECK_SOCKETPAIR,
    CHECK_PERSONALITY,
    CHECKS
};
static const char *const checked[CHECKS] = {"clone",  "unshare",    "ioctl",
                                            "socket", "socketpair", "personality"};

#define NEW_NAMESPACES                                                                             \
    (CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID |  \
     CLONE_NEWNET)
#define NEW_TIME 0x80

struct program {
    struct sock_filter *code;
    size_t count, room;
};

static void emit(struct program *program, struct sock_filter instruction)
{
    if (program->count == program->room) {
        program->room = program->room ? program->room * 2 : 512;
        program->code = mem_grow(program->code, program->room * sizeof *program->code);
    }
    program->code[program->count++] = instruction;
}

static void answer(struct program *program, uint32_t verdict)
{
    emit(program, (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, verdict));
}

static void load(struct program *program, size_t offset)
{
    emit(program, (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset));
}

static void load_low(struct program *program, unsigned argument)
{
    load(program, offsetof(struct seccomp_data, args) + 8 * argument);
}

/* if (A op value) answer verdict; else go on. */
static void answer_if(struct program *program, uint16_t op, uint32_t value, uint32_t verdict)
{
    emit(program, (struct sock_filter)BPF_JUMP(BPF_JMP | op | BPF_K, value, 0, 1));
    answer(program, verdict);
}

#define REFUSE(number) (SECCOMP_RET_ERRNO | (number))

static void emit_socket(struct program *program)
{
    load_low(program, 0);
    answer_if(program, BPF_JEQ, AF_UNIX, SECCOMP_RET_ALLOW);
    /* netlink: routes only */
    emit(program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_NETLINK, 0, 4));
    load_low(program, 2);
    answer_if(program, BPF_JEQ, 0, SECCOMP_RET_ALLOW);
    answer(program, REFUSE(EPERM));
    emit(program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_INET, 2, 0));
    emit(program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_INET6, 1, 0));
    answer(program, REFUSE(EAFNOSUPPORT));
    /* the internet protocols everybody needs; others would load kernel modules */
    static const uint32_t protocols[] = {0, 1 /* icmp */, 6 /* tcp */, 17 /* udp */,
                                         58 /* icmp6 */};
    load_low(program, 2);
    for (size_t i = 0; i < COUNT(protocols); i++)
        answer_if(program, BPF_JEQ, protocols[i], SECCOMP_RET_ALLOW);
    answer(program, REFUSE(EPROTONOSUPPORT));
}

static void emit_check(struct program *program, enum check check)
{
    /* The kernel cuts an ioctl's command to 32 bits, so the low half is the whole truth. */
    static const uint32_t commands[] = {0x5412 /* TIOCSTI */, 0x541c /* TIOCLINUX */,
                                        0x541d /* TIOCCONS */, 0x5423 /* TIOCSETD */};
    static const uint32_t personalities[] = {0,       0x8,     0x20000,   0x20008,
                                             0x40000, 0x40008, 0xffffffff};
    switch (check) {
    case CHECK_CLONE: /* the kernel looks at the low half only */
        load_low(program, 0);
        answer_if(program, BPF_JSET, NEW_NAMESPACES, REFUSE(EPERM));
        answer(program, SECCOMP_RET_ALLOW);
        return;
    case CHECK_UNSHARE:
        load(program, offsetof(struct seccomp_data, args) + 4);
        answer_if(program, BPF_JSET, 0xffffffff, REFUSE(EPERM));
        load_low(program, 0);
        answer_if(program, BPF_JSET, NEW_NAMESPACES | NEW_TIME, REFUSE(EPERM));
        answer(program, SECCOMP_RET_ALLOW);
        return;
    case CHECK_IOCTL:
        load_low(program, 1);
        for (size_t i = 0; i < COUNT(commands); i++)
            answer_if(program, BPF_JEQ, commands[i], REFUSE(EPERM));
        answer(program, SECCOMP_RET_ALLOW);
        return;
    case CHECK_SOCKET:
        emit_socket(program);
        return;
    case CHECK_SOCKETPAIR:
        load_low(program, 0);
        answer_if(program, BPF_JEQ, AF_UNIX, SECCOMP_RET_ALLOW);
        answer(program, REFUSE(EAFNOSUPPORT));
        return;
    case CHECK_PERSONALITY:
        load_low(program, 0);
        for (size_t i = 0; i < COUNT(personalities); i++)
            answer_if(program, BPF_JEQ, personalities[i], SECCOMP_RET_ALLOW);
        answer(program, REFUSE(EPERM));
        return;
    case CHECKS:
        break;
    }
}

struct range {
    uint32_t first;   /* up to the next range's first */
    uint16_t verdict; /* enum verdict, or CHECK_FIRST + enum check */
};

/* Finds the range the number (in A) lies in, and answers by it. */
static void emit_search(struct program *program, const struct range *ranges, size_t count)
{
    if (count == 1) {
        switch (ranges->verdict) {
        case NO_SUCH_CALL:
            answer(program, REFUSE(ENOSYS));
            return;
        case ALLOW:
            answer(program, SECCOMP_RET_ALLOW);
            return;
        case DENY:
            answer(program, REFUSE(EPERM));
            return;
        default:
            emit_check(program, (enum check)(ranges->verdict - CHECK_FIRST));
            return;
        }
    }
    size_t half = count / 2;
    emit(program,
         (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, ranges[half].first, 0, 1));
    size_t jump = program->count;
    emit(program, (struct sock_filter)BPF_STMT(BPF_JMP | BPF_JA, 0));
    emit_search(program, ranges, half);
    program->code[jump].k = (uint32_t)(program->count - jump - 1);
    emit_search(program, ranges + half, count - half);
}

static void mark(uint16_t *verdicts, const char *name, unsigned verdict)
{
    int number = seccomp_syscall_resolve_name(name);
    if (number >= 0 && number < NUMBERS_MAX)
        verdicts[number] = (uint16_t)verdict;
}

int filter_compile(struct buf *out, struct err *err)
{
    uint16_t verdicts[NUMBERS_MAX] = {0};
    for (size_t i = 0; i < COUNT(allowed); i++)
        mark(verdicts, allowed[i], ALLOW);
    for (size_t i = 0; i < COUNT(dangerous); i++)
        mark(verdicts, dangerous[i], DENY);
    for (unsigned i = 0; i < CHECKS; i++)
        mark(verdicts, checked[i], CHECK_FIRST + i);

    struct range ranges[NUMBERS_MAX + 1] = {{0, verdicts[0]}};
    size_t count = 1;
    for (uint32_t i = 1; i < NUMBERS_MAX; i++)
        if (verdicts[i] != ranges[count - 1].verdict)
            ranges[count++] = (struct range){i, verdicts[i]};
    if (ranges[count - 1].verdict != NO_SUCH_CALL)
        ranges[count++] = (struct range){NUMBERS_MAX, NO_SUCH_CALL};

    struct program program = {0};
    load(&program, offsetof(struct seccomp_data, arch));
    emit(&program, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0));
    answer(&program, SECCOMP_RET_KILL_PROCESS);
    load(&program, offsetof(struct seccomp_data, nr));
    emit_search(&program, ranges, count); /* x32 numbers are above all ranges: ENOSYS */
    if (program.count > BPF_MAXINSNS) {
        free(program.code);
        return err_set(err, ERR_LIMIT, "the seccomp program has %zu instructions", program.count);
    }
    buf_append(out, program.code, program.count * sizeof *program.code);
    free(program.code);
    return 0;
}

int filter_open(struct err *err)
{
    OWN(buf) struct buf code = {0};
    if (filter_compile(&code, err) < 0)
        return -1;
    OWN(fd) int memory = memfd_create("filter", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (memory < 0 || fd_write_all(memory, code.data, code.size) < 0 ||
        fcntl(memory, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) < 0)
        return err_errno(err, "keeping the seccomp program");
    return fd_take(&memory);
}

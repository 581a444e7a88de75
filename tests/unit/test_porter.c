#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "porter.h"
#include "test.h"

/* ---------------------------------------------------------------- users */
struct etc {
    char path[64];
    int root;
};

static void etc_open(struct etc *etc, const char *passwd, const char *group)
{
    strcpy(etc->path, "/tmp/postern-porter-XXXXXX");
    if (!mkdtemp(etc->path))
        abort();
    OWN(mem) char *dir = mem_format("%s/etc", etc->path);
    OWN(mem) char *users = mem_format("%s/etc/passwd", etc->path);
    OWN(mem) char *groups = mem_format("%s/etc/group", etc->path);
    mkdir(dir, 0755);
    if (file_write(users, str_of(passwd), 0644, false, NULL) < 0 ||
        file_write(groups, str_of(group), 0644, false, NULL) < 0)
        abort();
    etc->root = open(etc->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static void etc_close(struct etc *etc)
{
    close(etc->root);
    file_remove_tree(etc->path, NULL);
}

TEST(numbers_are_decimal_digits_and_nothing_else)
{
    uint32_t number;
    EXPECT(user_number(STR("0"), &number) && number == 0);
    EXPECT(user_number(STR("1000"), &number) && number == 1000);
    EXPECT(user_number(STR("4294967294"), &number) && number == 4294967294u);
    EXPECT(!user_number(STR("4294967295"), &number)); /* "no change" to the kernel */
    EXPECT(!user_number(STR("4294967296"), &number));
    EXPECT(!user_number(STR("99999999999"), &number));
    EXPECT(!user_number(STR(""), &number));
    EXPECT(!user_number(STR("+1"), &number));
    EXPECT(!user_number(STR("-1"), &number));
    EXPECT(!user_number(STR("0x0"), &number));
    EXPECT(!user_number(STR(" 1"), &number));
    EXPECT(!user_number(STR("1 "), &number));
}

TEST(users_are_found_by_name_number_and_pair)
{
    struct etc etc;
    struct user user;
    struct err err = {0};
    etc_open(&etc,
             "root:x:0:0:root:/root:/bin/sh\nbroken:x:+5:1::/:\nhex:x:0x0:0::/:\n"
             "user1:x:1001:1002:,,,:/home/user1:/bin/sh\n1abc:x:7:8::/h:/s\nshort:x:1:2\n",
             "root:x:0:\naudio:x:29:user1,other\nvideo:x:44:other,user1\nown:x:1002:user1\n"
             "no:x:5:user11\nbad:x:+3:user1\n");
    EXPECT(user_find(etc.root, STR(""), 42, 43, &user, &err) == 0);
    EXPECT(user.uid == 42 && user.gid == 43 && user.group_count == 0);
    EXPECT(user_find(etc.root, STR("user1"), 42, 43, &user, &err) == 0);
    EXPECT(user.uid == 1001 && user.gid == 1002);
    EXPECT_TEXT(user.home, "/home/user1");
    EXPECT_INT(user.group_count, 2);
    EXPECT(user.groups[0] == 29 && user.groups[1] == 44);
    EXPECT(user_find(etc.root, STR("1001"), 42, 43, &user, &err) == 0);
    EXPECT(user.uid == 1001 && user.gid == 1002);
    EXPECT(user_find(etc.root, STR("1001:5"), 42, 43, &user, &err) == 0);
    EXPECT(user.uid == 1001 && user.gid == 5 && user.group_count == 0);
    EXPECT(user_find(etc.root, STR("77"), 42, 43, &user, &err) == 0);
    EXPECT(user.uid == 77 && user.gid == 77);
    EXPECT(user_find(etc.root, STR("1abc"), 42, 43, &user, &err) == 0);
    EXPECT(user.uid == 7 && user.gid == 8);
    static const char *const refused[] = {
        "broken", "hex",  "short", "+1",         "-1",     "0x0",    ":",     "1:",
        ":1",     "1:+2", "1:0x0", "4294967295", "nobody", "root:0", "1:2:3", "user1 "};
    for (size_t i = 0; i < COUNT(refused); i++)
        EXPECT(user_find(etc.root, str_of(refused[i]), 42, 43, &user, &err) < 0);
    etc_close(&etc);
}

TEST(an_image_without_users_still_has_root_and_numbers)
{
    struct user user;
    struct err err = {0};
    char path[] = "/tmp/postern-porter-XXXXXX";
    EXPECT(mkdtemp(path));
    OWN(fd) int root = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    EXPECT(user_find(root, STR("root"), 42, 43, &user, &err) == 0);
    EXPECT(user.uid == 0 && user.gid == 0);
    EXPECT(user_find(root, STR("someone"), 42, 43, &user, &err) < 0);
    EXPECT_INT(err.kind, ERR_NOT_FOUND);
    rmdir(path);
}

TEST(root_is_recognised_without_looking_anything_up)
{
    EXPECT(user_is_root(STR(""), 0));
    EXPECT(!user_is_root(STR(""), 1000));
    EXPECT(user_is_root(STR("root"), 1000));
    EXPECT(user_is_root(STR("0"), 1000));
    EXPECT(user_is_root(STR("0:5"), 1000));
    EXPECT(!user_is_root(STR("00"), 1000));
    EXPECT(!user_is_root(STR("0x0"), 1000));
    EXPECT(!user_is_root(STR("1000"), 0));
}

/* ---------------------------------------------------------------- options */
static int read_options(struct porter_options *options, struct err *err, char **argv)
{
    int count = 0;
    options_deinit(options);
    char *environment[] = {(char *)"FROM=image", (char *)"PATH=/image", NULL};
    while (argv[count])
        count++;
    return options_read(options, count, argv, environment, err);
}

#define OPTIONS(...) read_options(&options, &err, (char *[]){(char *)"porter", __VA_ARGS__, NULL})
#define A(text) ((char *)text)

TEST(options_are_read_or_refused_with_a_sentence)
{
    struct porter_options options = {0};
    struct err err = {0};
    EXPECT(OPTIONS(A("--fd"), A("0"), A("--default-user"), A("1000:100"), A("--root-caps"), A("3f"),
                   A("--rlimit"), A("nofile=10:20"), A("--rlimit"), A("core=0:unlimited"),
                   A("--default-env"), A("A=b=c"), A("--default-cwd"), A("/work")) == 0);
    EXPECT(options.uid == 1000 && options.gid == 100 && options.root_caps == 0x3f);
    EXPECT_INT(options.rlimit_count, 2);
    EXPECT(options.rlimits[1].limit.rlim_max == RLIM_INFINITY);
    EXPECT_TEXT(options.env[0], "A=b=c");
    EXPECT(!options.env[1]);
    EXPECT(OPTIONS(A("--stdio"), A("--inherit-env"), A("--default-env"), A("X=1")) == 0);
    EXPECT_INT(options.env_count, 3);
    EXPECT(OPTIONS(A("--version")) == 1);
    EXPECT(OPTIONS(A("--stdio"), A("--wat"), A("1")) < 0);
    EXPECT_TEXT(err.text, "unknown option '--wat'");
    EXPECT(OPTIONS(A("--default-cwd"), A("/")) < 0);
    EXPECT_TEXT(err.text, "--fd N or --stdio is needed");
    static const char *const wrong[][2] = {
        {"--fd", "99999"},
        {"--fd", "x"},
        {"--default-user", "1000"},
        {"--default-user", "root:root"},
        {"--root-caps", "xyz"},
        {"--rlimit", "nofile=1"},
        {"--rlimit", "nofile=2:1"},
        {"--rlimit", "wat=1:1"},
        {"--default-env", "novalue"},
        {"--default-cwd", "relative"},
        {"--inlet-port", "0"},
        {"--seccomp-fd", "99999"},
    };
    for (size_t i = 0; i < COUNT(wrong); i++)
        EXPECT(OPTIONS(A("--stdio"), A(wrong[i][0]), A(wrong[i][1])) < 0);
    EXPECT(OPTIONS(A("--stdio"), A("--default-cwd")) < 0);
    options_deinit(&options);
}

/* ---------------------------------------------------------------- kill */
TEST(descendants_are_found_and_the_spared_are_not)
{
    int ready[2];
    EXPECT(pipe(ready) == 0);
    pid_t child = fork();
    if (child == 0) {
        pid_t grandchild = fork();
        if (grandchild == 0)
            setsid();
        pid_t own = getpid();
        if (write(ready[1], &own, sizeof own) != sizeof own)
            _exit(1);
        for (;;)
            pause();
    }
    pid_t pids[2];
    EXPECT(read(ready[0], &pids[0], sizeof pids[0]) == sizeof pids[0]);
    EXPECT(read(ready[0], &pids[1], sizeof pids[1]) == sizeof pids[1]);
    OWN(fd) int proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
    struct pids found = {0};
    EXPECT(kill_find(proc, getpid(), NULL, 0, &found));
    EXPECT_INT(found.count, 2);
    EXPECT(kill_find(proc, getpid(), &child, 1, &found));
    EXPECT_INT(found.count, 0);
    EXPECT(!kill_find(-1, getpid(), NULL, 0, &found));
    EXPECT_INT(kill_round(proc, getpid(), NULL, 0), 2);
    EXPECT(waitpid(child, NULL, 0) == child);
    free(found.pid);
}

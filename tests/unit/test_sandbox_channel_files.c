/* The channel and the porter together: files, trees, the carried inlet, odd peers. */
#include "test_sandbox_channel.h"

#include "own_loopback.h"

/* ---------------------------------------------------------------- files */
static uint64_t hash_file(int fd)
{
    uint64_t hash = 1469598103934665603ull, word;
    char bytes[65536];
    ssize_t size;
    lseek(fd, 0, SEEK_SET);
    while ((size = read(fd, bytes, sizeof bytes)) > 0)
        for (ssize_t i = 0; i + 8 <= size; i += 8) {
            memcpy(&word, bytes + i, 8);
            hash = (hash ^ word) * 1099511628211ull;
            hash ^= hash >> 29;
        }
    return hash;
}

TEST_WITHIN(a_file_of_200_megabytes_makes_the_round_trip, 120)
{
    struct place place;
    struct ended put = {0}, get = {0}, stat = {0};
    start(&place);
    OWN(mem) char *path = mem_format("%s/a/b/ big\nfile", place.dir);
    OWN(mem) char *name = mem_format("%s/from", place.dir);
    OWN(mem) char *back = mem_format("%s/back", place.dir);
    OWN(fd) int fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    OWN(fd) int out = open(back, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    uint64_t word = 88172645463325252ull, words[8192];
    for (int i = 0; i < 3200; i++) {
        for (int j = 0; j < 8192; j++) {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            words[j] = word;
        }
        EXPECT(fd_write_all(fd, words, sizeof words) == 0);
    }
    uint64_t hash = hash_file(fd);
    lseek(fd, 0, SEEK_SET);
    channel_put_fd(place.channel, path, fd, 0640, NULL, on_done, &put);
    UNTIL(&place, put.times);
    EXPECT_TEXT(put.err.text, "");
    channel_stat(place.channel, path, on_stat, &stat);
    UNTIL(&place, stat.times);
    EXPECT_INT(stat.stat.kind, SANDBOX_FILE_REGULAR);
    EXPECT_INT(stat.stat.size, 3200ll * 65536);
    EXPECT_INT(stat.stat.mode, 0640);
    channel_get_fd(place.channel, path, out, 3200ull * 65536, on_done, &get);
    UNTIL(&place, get.times);
    EXPECT_TEXT(get.err.text, "");
    EXPECT(hash_file(out) == hash);
    EXPECT_INT(stop(&place), 0);
}

TEST(file_work_says_what_went_wrong)
{
    struct place place;
    struct ended a = {0}, b = {0}, c = {0}, d = {0}, e = {0}, f = {0}, g = {0};
    start(&place);
    OWN(mem) char *path = mem_format("%s/file", place.dir);
    channel_put(place.channel, path, STR("0123456789"), 0600, NULL, on_done, &a);
    UNTIL(&place, a.times);
    EXPECT_INT(a.err.kind, ERR_NONE);
    channel_get(place.channel, path, 9, on_content, &b);
    UNTIL(&place, b.times);
    EXPECT_INT(b.err.kind, ERR_LIMIT);
    /* A file that is larger than it was said to be: what was asked for and no more. */
    struct ended over = {0}, exact = {0};
    OWN(mem) char *to = mem_format("%s/to", place.dir);
    OWN(fd) int fd = open(to, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    channel_get_fd(place.channel, path, fd, 9, on_done, &over);
    UNTIL(&place, over.times);
    EXPECT_INT(over.err.kind, ERR_LIMIT);
    EXPECT(lseek(fd, 0, SEEK_END) <= 9);
    channel_get_fd(place.channel, path, fd, 10, on_done, &exact);
    UNTIL(&place, exact.times);
    EXPECT_INT(exact.err.kind, ERR_NONE);
    channel_get(place.channel, path, 10, on_content, &c);
    UNTIL(&place, c.times);
    EXPECT_STR(buf_str(&c.content), STR("0123456789"));
    channel_get(place.channel, "/no/such", 10, on_content, &d);
    UNTIL(&place, d.times);
    EXPECT_INT(d.err.kind, ERR_NOT_FOUND);
    channel_get(place.channel, "/dev/zero", 10, on_content, &e);
    UNTIL(&place, e.times);
    EXPECT_INT(e.err.kind, ERR_INPUT);
    OWN(mem) char *below = mem_format("%s/file/below", place.dir);
    channel_put(place.channel, below, STR("x"), 0600, NULL, on_done, &f);
    UNTIL(&place, f.times);
    EXPECT_INT(f.err.kind, ERR_NOT_FOUND);
    channel_stat(place.channel, "/no/such", on_stat, &g);
    UNTIL(&place, g.times);
    EXPECT_INT(g.stat.kind, SANDBOX_FILE_NONE);
    struct ended h = {0}, i = {0};
    channel_remove(place.channel, place.dir, on_done, &h);
    UNTIL(&place, h.times);
    EXPECT_INT(h.err.kind, ERR_NONE);
    EXPECT(!file_exists(place.dir));
    channel_remove(place.channel, "/", on_done, &i);
    UNTIL(&place, i.times);
    EXPECT_INT(i.err.kind, ERR_INPUT);
    buf_deinit(&c.content);
    EXPECT_INT(stop(&place), 0);
}

TEST(file_work_is_done_with_the_rights_of_its_user)
{
    struct place place;
    struct ended a = {0}, b = {0}, c = {0};
    if (geteuid() != 0)
        SKIP("not root: cannot become another user");
    start(&place);
    OWN(mem) char *denied = mem_format("%s/x", place.dir);
    channel_put(place.channel, denied, STR("x"), 0600, "1234:77", on_done, &a);
    UNTIL(&place, a.times);
    EXPECT_INT(a.err.kind, ERR_DENIED);
    chmod(place.dir, 0777);
    channel_put(place.channel, denied, STR("x"), 0600, "1234:77", on_done, &b);
    UNTIL(&place, b.times);
    EXPECT_INT(b.err.kind, ERR_NONE);
    channel_stat(place.channel, denied, on_stat, &c);
    UNTIL(&place, c.times);
    EXPECT_INT(c.stat.uid, 1234);
    EXPECT_INT(c.stat.gid, 77);
    EXPECT_INT(stop(&place), 0);
}

/* Returns the number of entries, or -1 at the first difference. */
static int same_tree(int a, int b)
{
    DIR *dir = fdopendir(a);
    struct dirent *found;
    int count = 0;
    while (dir && count >= 0 && (found = readdir(dir))) {
        const char *name = found->d_name;
        struct stat left, right;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
            continue;
        if (fstatat(a, name, &left, AT_SYMLINK_NOFOLLOW) < 0 ||
            fstatat(b, name, &right, AT_SYMLINK_NOFOLLOW) < 0 || left.st_mode != right.st_mode ||
            (!S_ISLNK(left.st_mode) && left.st_mtim.tv_sec != right.st_mtim.tv_sec)) {
            count = -1;
            break;
        }
        count++;
        if (S_ISDIR(left.st_mode)) {
            int inside = same_tree(openat(a, name, O_RDONLY | O_DIRECTORY),
                                   openat(b, name, O_RDONLY | O_DIRECTORY));
            count = inside < 0 ? -1 : count + inside;
        } else if (S_ISLNK(left.st_mode)) {
            char x[256] = "", y[256] = "";
            if (readlinkat(a, name, x, 255) < 0 || readlinkat(b, name, y, 255) < 0 ||
                strcmp(x, y) != 0)
                count = -1;
        } else {
            OWN(fd) int x = openat(a, name, O_RDONLY);
            OWN(fd) int y = openat(b, name, O_RDONLY);
            if (left.st_size != right.st_size || hash_file(x) != hash_file(y))
                count = -1;
        }
    }
    if (dir)
        closedir(dir);
    close(b);
    return count;
}

TEST_WITHIN(a_tree_of_ten_thousand_files_with_odd_names_makes_the_round_trip, 120)
{
    static const char *const odd[] = {" ",     "a b",    "-rf", "new\nline", "\xff\xfe\x80", "...",
                                      "tab\t", "quo'te", "*",   "\\",        "$(x)",         "..x"};
    struct place place;
    struct ended put = {0}, get = {0};
    start(&place);
    OWN(mem) char *source = mem_format("%s/source", place.dir);
    OWN(mem) char *inside = mem_format("%s/in/side", place.dir);
    OWN(mem) char *back = mem_format("%s/back", place.dir);
    mkdir(source, 0755);
    int top = open(source, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int made = 0;
    for (int i = 0; i < 100; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s%d", odd[i % 12], i);
        EXPECT(mkdirat(top, name, 0755) == 0);
        OWN(fd) int dir = openat(top, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        for (int j = 0; j < 100; j++) {
            snprintf(name, sizeof name, "%d%s", j, odd[j % 12]);
            OWN(fd) int file = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL, 0600);
            for (int k = 0; k < i % 7; k++)
                EXPECT(write(file, name, sizeof name) == sizeof name);
            EXPECT(fchmod(file, j % 3 ? 0644 : 0755) == 0);
        }
        EXPECT(symlinkat("/etc/passwd", dir, "absolute") == 0);
        EXPECT(symlinkat("../../../..", dir, "up") == 0);
        made += 103;
        EXPECT(fchmod(dir, i % 2 ? 0755 : 0700) == 0);
    }
    mkfifoat(top, "fifo", 0600); /* not carried */
    uint64_t from = clock_mono_ms();
    channel_put_tree(place.channel, source, inside, NULL, on_done, &put);
    UNTIL(&place, put.times);
    EXPECT_TEXT(put.err.text, "");
    channel_get_tree(place.channel, inside, back, NULL, on_done, &get);
    UNTIL(&place, get.times);
    EXPECT_TEXT(get.err.text, "");
    printf("    10,000 files in and out: %llu ms\n", (unsigned long long)(clock_mono_ms() - from));
    unlinkat(top, "fifo", 0);
    EXPECT_INT(same_tree(top, open(back, O_RDONLY | O_DIRECTORY | O_CLOEXEC)), made);
    EXPECT_INT(stop(&place), 0);
}

TEST(a_tree_out_keeps_to_its_budget_drops_setuid_and_never_writes_through_links)
{
    struct place place;
    struct ended a = {0}, b = {0}, c = {0};
    start(&place);
    OWN(mem) char *source = mem_format("%s/source", place.dir);
    OWN(mem) char *back = mem_format("%s/back", place.dir);
    OWN(mem) char *victim = mem_format("%s/victim", place.dir);
    OWN(mem) char *link = mem_format("%s/back/dir", place.dir);
    OWN(mem) char *suid = mem_format("%s/source/suid", place.dir);
    OWN(mem) char *deep = mem_format("%s/source/dir", place.dir);
    OWN(mem) char *file = mem_format("%s/source/dir/file", place.dir);
    OWN(mem) char *out = mem_format("%s/back/suid", place.dir);
    mkdir(source, 0755);
    mkdir(deep, 0755);
    EXPECT(file_write(suid, STR("0123456789"), 0644, false, NULL) == 0);
    EXPECT(file_write(file, STR("0123456789"), 0644, false, NULL) == 0);
    EXPECT(chmod(suid, 04755) == 0);
    channel_get_tree(place.channel, source, back, &(struct sandbox_budget){.bytes_max = 19},
                     on_done, &a);
    UNTIL(&place, a.times);
    EXPECT_INT(a.err.kind, ERR_LIMIT);
    file_remove_tree(back, NULL);
    channel_get_tree(place.channel, source, back, &(struct sandbox_budget){.entries_max = 2},
                     on_done, &b);
    UNTIL(&place, b.times);
    EXPECT_INT(b.err.kind, ERR_LIMIT);
    file_remove_tree(back, NULL);
    mkdir(back, 0755);
    mkdir(victim, 0755);
    EXPECT(symlink(victim, link) == 0); /* where the tree has a directory */
    channel_get_tree(place.channel, source, back, NULL, on_done, &c);
    UNTIL(&place, c.times);
    EXPECT(c.err.kind != ERR_NONE);
    OWN(mem) char *written = mem_format("%s/file", victim);
    EXPECT(!file_exists(written));
    unlink(link);
    struct ended d = {0};
    channel_get_tree(place.channel, source, back, NULL, on_done, &d);
    UNTIL(&place, d.times);
    EXPECT_INT(d.err.kind, ERR_NONE);
    struct stat stat_of;
    EXPECT(stat(out, &stat_of) == 0);
    EXPECT_INT(stat_of.st_mode & 07777, 0755);
    EXPECT_INT(stop(&place), 0);
}

/* ---------------------------------------------------------------- inlet */
static int dial(uint16_t port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) < 0)
        abort();
    return fd;
}

TEST(a_carried_inlet_passes_bytes_both_ways_and_each_end_alone)
{
    struct place place;
    struct channel_options options = {.inlet = true, .inlet_port = own_port()};
    start_with(&place, &options, NULL);
    UNTIL(&place, place.ready);
    EXPECT(place.can_inlet);
    OWN(fd) int agent = dial(options.inlet_port);
    EXPECT(write(agent, "question", 8) == 8);
    shutdown(agent, SHUT_WR);
    UNTIL(&place, place.inlet_fd >= 0);
    char text[64];
    ssize_t size;
    while ((size = read(place.inlet_fd, text, sizeof text)) < 0)
        loop_once(place.loop, 100);
    EXPECT_STR(str_make(text, (size_t)size), STR("question"));
    while ((size = read(place.inlet_fd, text, sizeof text)) < 0)
        loop_once(place.loop, 100);
    EXPECT_INT(size, 0); /* the agent's end arrived by itself */
    /* Three megabytes back, more than any window, while the agent reads slowly. */
    enum { TOTAL = 3 << 20 };
    OWN(mem) char *answer = mem_zero(TOTAL);
    size_t sent = 0, got = 0;
    fcntl(agent, F_SETFL, O_NONBLOCK);
    while (got < TOTAL) {
        if (sent < TOTAL) {
            size = write(place.inlet_fd, answer + sent, TOTAL - sent);
            sent += size > 0 ? (size_t)size : 0;
        }
        loop_once(place.loop, 1);
        char piece[50000];
        size = read(agent, piece, sizeof piece);
        got += size > 0 ? (size_t)size : 0;
    }
    fd_close(&place.inlet_fd);
    while ((size = read(agent, text, sizeof text)) < 0)
        loop_once(place.loop, 1);
    EXPECT_INT(size, 0);
    EXPECT_INT(stop(&place), 0);
}

struct many {
    int fds[64];
    int count;
};

static void on_inlet_many(void *context, int fd)
{
    struct many *many = context;
    many->fds[many->count++] = fd;
}

TEST(fifty_inlet_connections_echo_at_once_and_a_dead_one_harms_nobody)
{
    enum { LINES = 50, TOTAL = 400000 };
    struct place place;
    struct many many = {0};
    struct channel_options options = {.inlet = true, .inlet_port = own_port()};
    start_with(&place, &options, NULL);
    UNTIL(&place, place.ready);
    place.many = on_inlet_many;
    place.many_context = &many;
    int agents[LINES];
    size_t sent[LINES] = {0}, got[LINES] = {0}, waiting[LINES] = {0};
    OWN(mem) char *bytes = mem_zero(TOTAL);
    for (int i = 0; i < LINES; i++) {
        agents[i] = dial(options.inlet_port);
        fcntl(agents[i], F_SETFL, O_NONBLOCK);
    }
    UNTIL(&place, many.count == LINES);
    close(agents[0]);   /* the agent goes away in the middle */
    close(many.fds[1]); /* the gateway does */
    size_t done = 0;
    while (done < LINES - 2) {
        loop_once(place.loop, 1);
        done = 0;
        for (int i = 2; i < LINES; i++) {
            char piece[8192];
            ssize_t size = write(agents[i], bytes + sent[i], TOTAL - sent[i]);
            sent[i] += size > 0 ? (size_t)size : 0;
            if (waiting[i] < 65536) {
                size = read(many.fds[i], piece, sizeof piece);
                waiting[i] += size > 0 ? (size_t)size : 0;
            }
            size = write(many.fds[i], bytes, waiting[i]);
            waiting[i] -= size > 0 ? (size_t)size : 0;
            size = read(agents[i], piece, sizeof piece);
            got[i] += size > 0 ? (size_t)size : 0;
            done += got[i] == TOTAL;
        }
    }
    char last;
    ssize_t size;
    while ((size = read(agents[1], &last, 1)) < 0 && errno == EAGAIN)
        loop_once(place.loop, 10);
    EXPECT(size <= 0);
    for (int i = 1; i < LINES; i++) {
        close(agents[i]);
        if (i > 1)
            close(many.fds[i]);
    }
    close(many.fds[0]);
    EXPECT_INT(stop(&place), 0);
}

TEST(text_before_the_hello_is_skipped_when_a_banner_is_expected)
{
    struct err err = {0};
    struct place place = {.inlet_fd = -1};
    int pair[2];
    static const struct channel_handlers quiet = {.on_ready = on_ready, .on_lost = on_lost};
    OWN(mem) char *path = porter_path();
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    place.porter = fork();
    if (place.porter == 0) {
        dup2(pair[1], 0);
        dup2(pair[1], 1);
        OWN(mem) char *command = mem_format("echo 'Welcome to host'; exec %s --stdio", path);
        execl("/bin/sh", "sh", "-c", command, NULL);
        _exit(99);
    }
    close(pair[1]);
    place.loop = loop_new(&err);
    place.channel = channel_new(place.loop, pair[0], pair[0],
                                &(struct channel_options){.banner = true}, &quiet, &place, &err);
    struct watched watched = {0};
    run_to_end(&place, &watched, &(struct sandbox_command){.shell = "echo hi"});
    EXPECT_STR(buf_str(&watched.out), STR("hi\n"));
    forget(&watched);
    EXPECT_INT(stop(&place), 0);
}

TEST(a_peer_that_does_not_speak_frames_is_lost_with_a_reason)
{
    struct err err = {0};
    struct place place = {.inlet_fd = -1};
    int pair[2];
    static const struct channel_handlers quiet = {.on_lost = on_lost};
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    place.loop = loop_new(&err);
    place.channel = channel_new(place.loop, pair[0], pair[0], &(struct channel_options){0}, &quiet,
                                &place, &err);
    struct watched watched = {0};
    run(&place, &watched, &(struct sandbox_command){.shell = "echo hi"});
    EXPECT(write(pair[1], "HTTP/1.1 400 Bad Request\r\n\r\n", 28) == 28);
    UNTIL(&place, place.lost);
    EXPECT_INT(place.lost_err.kind, ERR_PROTOCOL);
    EXPECT_INT(watched.exits, 1);
    EXPECT_INT(watched.exit.end, SANDBOX_LOST);
    sandbox_job_close(watched.job);
    channel_close(place.channel);
    loop_once(place.loop, 0);
    loop_free(place.loop);
    close(pair[1]);
}

TEST(a_silent_peer_is_lost_after_its_deadline)
{
    struct err err = {0};
    struct place place = {.inlet_fd = -1};
    int pair[2];
    static const struct channel_handlers quiet = {.on_lost = on_lost};
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    place.loop = loop_new(&err);
    place.channel =
        channel_new(place.loop, pair[0], pair[0], &(struct channel_options){.hello_ms_max = 20},
                    &quiet, &place, &err);
    UNTIL(&place, place.lost);
    EXPECT_INT(place.lost_err.kind, ERR_TIMEOUT);
    channel_close(place.channel);
    loop_once(place.loop, 0);
    loop_free(place.loop);
    close(pair[1]);
}

/* chaos_agent.c - an agent for test_chaos.py: asks, hangs up at random, asks again, until it has
 * its answers. Prints one line for each answer it took.
 *
 *     chaos_agent SEED TURNS PAUSE_MS
 *
 * A request is unique by seed and turn; its answer is taken when it is whole (a body of the length
 * that was said, or a stream with its last event). Anything else is a reason to ask again, in half
 * of the cases with the mark that SDKs put on a retry. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PORT 13131
#define ANSWER_MAX 65536
#define GIVE_UP_S 600

static unsigned long long state;

static unsigned roll(unsigned sides)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (unsigned)(state >> 33) % sides;
}

static void pause_ms(unsigned ms)
{
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000l};
    nanosleep(&time, NULL);
}

static int dial(void)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

/* All "content" texts of a stream, or the one of a body, put together. */
static void content_of(const char *text, char *out, size_t size)
{
    size_t used = 0;
    for (const char *at = text; (at = strstr(at, "\"content\":\""));) {
        at += 11;
        while (*at && *at != '"' && used + 1 < size)
            out[used++] = *at++;
    }
    out[used] = '\0';
}

/* Chunks put together; false: the last one is not there. */
static bool unchunk(char *text)
{
    char *to = text;
    for (const char *at = text;;) {
        char *end;
        unsigned long size = strtoul(at, &end, 16);
        if (end == at || end[0] != '\r' || end[1] != '\n')
            return false;
        if (size == 0) {
            *to = '\0';
            return true;
        }
        if (strlen(end + 2) < size + 2)
            return false;
        memmove(to, end + 2, size);
        to += size;
        at = end + 2 + size + 2;
    }
}

/* True: the answer is whole, and in `out`. */
static bool read_answer(int fd, bool stream, int leave_after, char *out, size_t out_size)
{
    static char answer[ANSWER_MAX];
    size_t used = 0;
    for (;;) {
        if (leave_after == 0)
            return false;
        leave_after -= leave_after > 0;
        ssize_t got = read(fd, answer + used, sizeof answer - 1 - used);
        if (got <= 0)
            return false;
        used += (size_t)got;
        answer[used] = '\0';
        char *body = strstr(answer, "\r\n\r\n");
        if (!body)
            continue;
        if (strncmp(answer, "HTTP/1.1 200", 12) != 0)
            return false;
        body += 4;
        char *said = strcasestr(answer, "\r\ncontent-length:");
        if (said && said < body) {
            if (strlen(body) < strtoul(said + 17, NULL, 10))
                continue;
        } else {
            static char copy[ANSWER_MAX];
            memcpy(copy, body, strlen(body) + 1);
            if (!unchunk(copy))
                continue;
            if (stream && !strstr(copy, "[DONE]"))
                return false; /* ended without its end */
            content_of(copy, out, out_size);
            return out[0] != '\0';
        }
        content_of(body, out, out_size);
        return out[0] != '\0';
    }
}

static bool ask(const char *seed, int turn, int tries, char *out, size_t out_size)
{
    char body[512], head[512];
    bool stream = turn % 2, marked = tries && roll(2);
    int body_size = snprintf(body, sizeof body,
                             "{\"model\":\"m\",\"stream\":%s,\"messages\":[{\"role\":\"user\","
                             "\"content\":\"agent %s turn %d\"}]}",
                             stream ? "true" : "false", seed, turn);
    int head_size =
        snprintf(head, sizeof head,
                 "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\n"
                 "content-type: application/json\r\ncontent-length: %d\r\n%s%d\r\n\r\n",
                 PORT, body_size, marked ? "x-stainless-retry-count: " : "x-try: ", tries);
    int fd = dial();
    if (fd < 0)
        return false;
    bool taken = false;
    unsigned luck = roll(20);
    if (write(fd, head, (size_t)head_size) == head_size &&
        (luck != 0 || roll(2)) && /* sometimes half a request */
        write(fd, body, (size_t)body_size) == body_size && luck != 0) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        int patience = luck == 1 ? (int)roll(200) : 60000;
        if (poll(&wait, 1, patience) > 0)
            taken = read_answer(fd, stream, luck == 2 ? (int)roll(3) : -1, out, out_size);
    }
    if (!taken && roll(2)) { /* some leave politely, some do not */
        struct linger now = {.l_onoff = 1};
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    }
    close(fd);
    return taken;
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    int turns = atoi(argv[2]);
    unsigned pause = (unsigned)atoi(argv[3]);
    state = strtoull(argv[1], NULL, 10) * 2654435761u + 88172645463325252ull;
    setvbuf(stdout, NULL, _IOLBF, 0);
    time_t until = time(NULL) + GIVE_UP_S;
    for (int turn = 1; turn <= turns; turn++) {
        char answer[128];
        int tries = 0;
        while (!ask(argv[1], turn, tries, answer, sizeof answer)) {
            if (time(NULL) > until)
                return 4;
            tries++;
            pause_ms(20 + roll(200));
        }
        printf("{\"type\":\"assistant\",\"turn\":%d,\"text\":\"%s\"}\n", turn, answer);
        pause_ms(roll(2 * pause + 1));
    }
    printf("{\"type\":\"done\"}\n");
    return 0;
}

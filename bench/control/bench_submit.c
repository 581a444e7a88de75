/* bench_submit.c - a trainer that submits rollouts, as fast as it can or so that a number of them
 * is always live.
 *
 *     bench_submit PORT TOKEN BODY count N CONNECTIONS
 *     bench_submit PORT TOKEN BODY hold LIVE SECONDS
 *     bench_submit PORT TOKEN BODY get PATH N
 *
 * BODY is a file. Each connection is a thread with one request under way. `hold` tops up what is
 * missing to LIVE fifty times a second, by what GET /metrics says, and counts how many came to
 * their end meanwhile. `get` asks for one path N times. The answer is one line of JSON:
 * microseconds, sorted. */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define ANSWER_MAX (4u << 20)
#define FILL_BATCH 500
#define FILL_SECONDS(live) (5 + (live) / 200)

struct connection {
    int fd;
    char *answer;
    size_t body_at, size;
};

struct submitter {
    pthread_t thread;
    size_t count;
    uint32_t *us;
};

static const char *token;
static char *body;
static size_t body_size;
static uint16_t port;

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

static struct connection open_connection(void)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct connection connection = {.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    int yes = 1;
    struct timeval patience = {.tv_sec = 120};
    if (connection.fd < 0 ||
        connect(connection.fd, (struct sockaddr *)&address, sizeof address) < 0)
        die("connecting");
    (void)setsockopt(connection.fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    (void)setsockopt(connection.fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    connection.answer = malloc(ANSWER_MAX);
    return connection;
}

/* The status; the body is at answer + body_at. Only answers with a Content-Length are understood:
 * both servers give one. */
static int ask(struct connection *connection, const char *method, const char *path,
               const char *data, size_t size)
{
    static const char length_name[] = "content-length:";
    char head[1024];
    int head_size = snprintf(head, sizeof head,
                             "%s %s HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\n"
                             "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
                             method, path, token, size);
    struct part {
        const void *data;
        size_t size;
    } parts[] = {{head, (size_t)head_size}, {data, size}};
    for (size_t i = 0; i < 2; i++)
        for (size_t sent = 0; sent < parts[i].size;) {
            ssize_t n = send(connection->fd, (const char *)parts[i].data + sent,
                             parts[i].size - sent, MSG_NOSIGNAL | (i == 0 && size ? MSG_MORE : 0));
            if (n <= 0)
                die("sending");
            sent += (size_t)n;
        }
    size_t have = 0, need = SIZE_MAX;
    while (have < need) {
        ssize_t n = recv(connection->fd, connection->answer + have, ANSWER_MAX - 1 - have, 0);
        if (n <= 0)
            die("receiving");
        have += (size_t)n;
        connection->answer[have] = '\0';
        char *end = need == SIZE_MAX ? strstr(connection->answer, "\r\n\r\n") : NULL;
        if (!end)
            continue;
        char *length = strcasestr(connection->answer, length_name);
        if (!length || length > end) {
            fprintf(stderr, "bench_submit: an answer without a length\n");
            exit(1);
        }
        connection->body_at = (size_t)(end - connection->answer) + 4;
        need = connection->body_at + strtoul(length + sizeof length_name - 1, NULL, 10);
        if (need >= ANSWER_MAX) {
            fprintf(stderr, "bench_submit: an answer of %zu bytes\n", need);
            exit(1);
        }
    }
    connection->size = have;
    return atoi(connection->answer + sizeof "HTTP/1.1" - 1);
}

static uint32_t submit_one(struct connection *connection)
{
    double began = now();
    int status = ask(connection, "POST", "/v1/rollouts", body, body_size);
    if (status != 200 && status != 201 && status != 202) {
        fprintf(stderr, "bench_submit: %s\n", connection->answer);
        exit(1);
    }
    return (uint32_t)((now() - began) * 1e6);
}

static void *submit_many(void *argument)
{
    struct submitter *submitter = argument;
    struct connection connection = open_connection();
    for (size_t i = 0; i < submitter->count; i++)
        submitter->us[i] = submit_one(&connection);
    close(connection.fd);
    free(connection.answer);
    return NULL;
}

/* The sum over all lines of one metric, whatever their labels. */
static double metric(struct connection *connection, const char *name)
{
    double sum = 0;
    size_t size = strlen(name);
    for (char *line = connection->answer + connection->body_at; line && *line;
         line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        if (strncmp(line, name, size) != 0 || (line[size] != ' ' && line[size] != '{'))
            continue;
        char *value = memchr(line, ' ', strcspn(line, "\n"));
        sum += value ? atof(value) : 0;
    }
    return sum;
}

static int by_size(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static void print(uint32_t *us, size_t count, double seconds, const char *more)
{
    qsort(us, count, sizeof *us, by_size);
    size_t last = count ? count - 1 : 0;
    printf("{\"count\":%zu,\"seconds\":%.3f,\"p50_us\":%u,\"p99_us\":%u,\"max_us\":%u%s}\n", count,
           seconds, count ? us[last / 2] : 0, count ? us[last * 99 / 100] : 0, count ? us[last] : 0,
           more);
}

/* Seconds. */
static double submit_all(size_t count, size_t connections, uint32_t *us)
{
    struct submitter *submitters = calloc(connections, sizeof *submitters);
    double began = now();
    size_t given = 0;
    for (size_t i = 0; i < connections; i++) {
        submitters[i] =
            (struct submitter){.count = (count - given) / (connections - i), .us = us + given};
        given += submitters[i].count;
        if (pthread_create(&submitters[i].thread, NULL, submit_many, &submitters[i]) != 0)
            die("starting a thread");
    }
    for (size_t i = 0; i < connections; i++)
        (void)pthread_join(submitters[i].thread, NULL);
    free(submitters);
    return now() - began;
}

static void count_mode(size_t count, size_t connections)
{
    uint32_t *us = calloc(count + 1, sizeof *us);
    print(us, count, submit_all(count, connections, us), "");
}

/* How many are live now; `over` is how many came to their end since the server started. */
static double look(struct connection *connection, double *over)
{
    if (ask(connection, "GET", "/metrics", "", 0) != 200)
        die("reading the metrics");
    *over = metric(connection, "postern_rollouts_total");
    return metric(connection, "postern_rollouts");
}

static void hold_mode(double live, double seconds)
{
    struct connection connection = open_connection();
    size_t room = 1u << 22, count = 0;
    uint32_t *us = calloc(room, sizeof *us);
    double first, last, here;
    /* Filling up is not measured. A server that ends them as fast as they come never has so many.
     */
    double began = now();
    while ((here = look(&connection, &first)) < live && now() - began < FILL_SECONDS(live))
        (void)submit_all((size_t)(live - here < FILL_BATCH ? live - here : FILL_BATCH), 8, us);
    began = now();
    double least = here;
    for (;;) {
        here = look(&connection, &last);
        least = here < least ? here : least;
        if (now() - began >= seconds)
            break;
        for (double missing = live - here; missing > 0 && count < room && now() - began < seconds;
             missing--)
            us[count++] = submit_one(&connection);
        usleep(20000);
    }
    char more[160];
    snprintf(more, sizeof more, ",\"completed\":%.0f,\"live_min\":%.0f", last - first, least);
    print(us, count, now() - began, more);
}

static void get_mode(const char *path, size_t count)
{
    struct connection connection = open_connection();
    uint32_t *us = calloc(count, sizeof *us);
    double all = now();
    for (size_t i = 0; i < count; i++) {
        double began = now();
        if (ask(&connection, "GET", path, "", 0) != 200) {
            fprintf(stderr, "bench_submit: %s\n", connection.answer);
            exit(1);
        }
        us[i] = (uint32_t)((now() - began) * 1e6);
    }
    char more[64];
    snprintf(more, sizeof more, ",\"bytes\":%zu", connection.size - connection.body_at);
    print(us, count, now() - all, more);
}

int main(int count, char **args)
{
    if (count != 7) {
        fprintf(stderr,
                "usage: bench_submit PORT TOKEN BODY count N CONNECTIONS | hold LIVE SECONDS "
                "| get PATH N\n");
        return 2;
    }
    port = (uint16_t)atoi(args[1]);
    token = args[2];
    FILE *file = fopen(args[3], "rbe");
    if (!file)
        die(args[3]);
    body = malloc(1u << 20);
    body_size = fread(body, 1, 1u << 20, file);
    (void)fclose(file);
    if (strcmp(args[4], "count") == 0)
        count_mode(strtoul(args[5], NULL, 10), strtoul(args[6], NULL, 10));
    else if (strcmp(args[4], "hold") == 0)
        hold_mode(atof(args[5]), atof(args[6]));
    else
        get_mode(args[5], strtoul(args[6], NULL, 10));
    return 0;
}

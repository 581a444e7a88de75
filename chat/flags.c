/* flags.c - flags and environment of our own agents. The key comes from the environment only, never
 * from argv, and is taken out of the environment that commands see. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/text.h"
#include "chat.h"

#define TEXT_BYTES_MAX (8u * 1024 * 1024)

int chat_fail(const char *program, const char *format, const char *detail)
{
    fprintf(stderr, "%s: ", program);
    fprintf(stderr, format, detail);
    fprintf(stderr, "\n");
    return -1;
}

static int take_value(const char *program, const struct chat_flag *flag, const char *value)
{
    long long number;
    if (flag->given)
        *flag->given = true;
    switch (flag->kind) {
    case CHAT_FLAG_TEXT:
        *(const char **)flag->target = value;
        return 0;
    case CHAT_FLAG_NUMBER:
        if (!str_to_long(str_of(value), &number) || number < flag->min || number > flag->max) {
            fprintf(stderr, "%s: %s must be between %lld and %lld, not '%s'\n", program, flag->name,
                    flag->min, flag->max, value);
            return -1;
        }
        *(long long *)flag->target = number;
        return 0;
    case CHAT_FLAG_REAL:
        if (str_to_double(str_of(value), flag->target))
            return 0;
        fprintf(stderr, "%s: %s must be a number, not '%s'\n", program, flag->name, value);
        return -1;
    case CHAT_FLAG_ON:
    case CHAT_FLAG_OFF:
        *(bool *)flag->target = flag->kind == CHAT_FLAG_ON;
        return 0;
    }
    return 0;
}

static int unknown_flag(const char *program, const char *given, const struct chat_flag *flags,
                        size_t count)
{
    const char *names[32];
    for (size_t i = 0; i < count && i < COUNT(names); i++)
        names[i] = flags[i].name;
    const char *nearest = text_nearest(given, names, count < COUNT(names) ? count : COUNT(names));
    fprintf(stderr, "%s: there is no option %s%s%s%s\n", program, given,
            nearest ? "; did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
    return -1;
}

static int read_flag(const char *program, const struct chat_flag *flags, size_t count, char **argv,
                     int *at)
{
    struct str rest = str_of(argv[*at]);
    struct str name = str_cut(&rest, '=');
    for (size_t i = 0; i < count; i++) {
        if (!str_is(name, flags[i].name))
            continue;
        bool plain = flags[i].kind == CHAT_FLAG_ON || flags[i].kind == CHAT_FLAG_OFF;
        if (plain && rest.data)
            return chat_fail(program, "%s takes no value", flags[i].name);
        const char *value = rest.data;
        if (!plain && !value) {
            value = argv[*at + 1];
            if (!value)
                return chat_fail(program, "%s needs a value", flags[i].name);
            ++*at;
        }
        return take_value(program, &flags[i], value);
    }
    return unknown_flag(program, argv[*at], flags, count);
}

int chat_flags_read(const char *program, const struct chat_flag *flags, size_t count, int argc,
                    char **argv, const char **word)
{
    bool only_words = false;
    for (int i = 1; i < argc; i++) {
        const char *argument = argv[i];
        if (!only_words && strcmp(argument, "--") == 0) {
            only_words = true;
        } else if (!only_words && argument[0] == '-' && argument[1]) {
            if (read_flag(program, flags, count, argv, &i) < 0)
                return -1;
        } else if (*word) {
            return chat_fail(program, "one instruction is enough; what is '%s'? (quote it)",
                             argument);
        } else {
            *word = argument;
        }
    }
    return 0;
}

int chat_read_text(const char *program, const char *path, struct str *out)
{
    struct buf text = {0};
    OWN(fd)
    int file = strcmp(path, "-") == 0 ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0)
                                      : open(path, O_RDONLY | O_CLOEXEC);
    for (;;) {
        char *room = buf_reserve(&text, 65536);
        ssize_t got = file < 0 ? -1 : read(file, room, 65536);
        if (got < 0 && file >= 0 && errno == EINTR)
            continue;
        if (got < 0) {
            fprintf(stderr, "%s: '%s': %s\n", program, path, strerror(errno));
            buf_deinit(&text);
            return -1;
        }
        if (got == 0)
            break;
        buf_added(&text, (size_t)got);
        if (text.size > TEXT_BYTES_MAX) {
            buf_deinit(&text);
            return chat_fail(program, "'%s' is larger than 8 MB", path);
        }
    }
    size_t size = text.size;
    *out = str_make(buf_take(&text), size);
    return 0;
}

int chat_read_instruction(const char *program, const char *word, const char *file, struct str *out)
{
    if (word && file)
        return chat_fail(program, "%s",
                         "give the instruction once: as an argument or with --instruction");
    if (!word && !file)
        return chat_fail(
            program, "%s",
            "what should be done? Give an instruction, --instruction FILE or - (see --help)");
    if (!file && strcmp(word, "-") == 0)
        file = "-";
    if (file && chat_read_text(program, file, out) < 0)
        return -1;
    if (!file)
        *out = str_of(word);
    if (str_trim(*out).size == 0)
        return chat_fail(program, "%s", "the instruction is empty");
    return 0;
}

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value && value[0] ? value : NULL;
}

int chat_model_setup(const char *program, struct chat_model *model, const char *base_url)
{
    struct err err = {0};
    if (!model->name)
        model->name = variable("OPENAI_MODEL");
    if (!model->name)
        return chat_fail(program, "%s", "no model: use --model NAME or OPENAI_MODEL");
    if (!base_url)
        base_url = variable("OPENAI_BASE_URL");
    if (!base_url)
        return chat_fail(program, "%s", "no server: use --base-url URL or OPENAI_BASE_URL");
    if (chat_url_parse(base_url, &model->url, &err) < 0)
        return chat_fail(program, "%s", err.text);
    if (variable("OPENAI_API_KEY")) {
        model->key = mem_dup(variable("OPENAI_API_KEY"));
        if (strpbrk(model->key, "\r\n"))
            return chat_fail(program, "%s", "OPENAI_API_KEY holds a line break");
    }
    (void)unsetenv("OPENAI_API_KEY");
    return 0;
}

enum { FLAGS_MAX = 40 };

int chat_common_read(const char *program, const char *usage, struct chat_common *common,
                     const struct chat_flag *own, size_t own_count, int argc, char **argv,
                     int *code)
{
    struct chat_model *model = common->model;
    const char *base_url = NULL, *instruction_file = NULL, *instruction = NULL, *system = NULL,
               *cwd = NULL;
    long long tokens = 0;
    bool help = false, version = false;
    const struct chat_flag shared[] = {
        {"--instruction", CHAT_FLAG_TEXT, &instruction_file},
        {"--system", CHAT_FLAG_TEXT, &system},
        {"--base-url", CHAT_FLAG_TEXT, &base_url},
        {"--model", CHAT_FLAG_TEXT, &model->name},
        {"--temperature", CHAT_FLAG_REAL, &model->temperature, 0, 0, &model->has_temperature},
        {"--max-tokens", CHAT_FLAG_NUMBER, &tokens, 1, 100000000},
        {"--no-stream", CHAT_FLAG_OFF, &model->stream},
        {"--cwd", CHAT_FLAG_TEXT, &cwd},
        {"--max-turns", CHAT_FLAG_NUMBER, &common->turns, 1, 1000000},
        {"--max-seconds", CHAT_FLAG_NUMBER, &common->seconds, 1, 31536000},
        {"--max-output-bytes", CHAT_FLAG_NUMBER, &common->output, 256, 67108864},
        {"--idle-seconds", CHAT_FLAG_NUMBER, &common->idle, 1, 4000000},
        {"--retries", CHAT_FLAG_NUMBER, &common->retries, 0, 1000},
        {"--json", CHAT_FLAG_ON, &common->json},
        {"--help", CHAT_FLAG_ON, &help},
        {"-h", CHAT_FLAG_ON, &help},
        {"--version", CHAT_FLAG_ON, &version},
    };
    struct chat_flag flags[FLAGS_MAX];
    CHECK(COUNT(shared) + own_count <= FLAGS_MAX);
    memcpy(flags, shared, sizeof shared);
    memcpy(flags + COUNT(shared), own, own_count * sizeof *own);
    model->stream = true;
    *code = CHAT_USAGE;
    if (chat_flags_read(program, flags, COUNT(shared) + own_count, argc, argv, &instruction) < 0)
        return -1;
    if (help || version) {
        *code = CHAT_FINISHED;
        if (help)
            printf("%s", usage);
        else
            printf("%s %s\n", program, POSTERN_VERSION);
        return -1;
    }
    if (chat_read_instruction(program, instruction, instruction_file, &common->instruction) < 0 ||
        chat_model_setup(program, model, base_url) < 0 ||
        (system && chat_read_text(program, system, &common->system) < 0))
        return -1;
    if (cwd && chdir(cwd) < 0) {
        fprintf(stderr, "%s: --cwd %s: %s\n", program, cwd, strerror(errno));
        return -1;
    }
    model->idle_ms_max = (uint32_t)common->idle * 1000;
    model->retries_max = (uint32_t)common->retries;
    model->tokens_max = tokens;
    model->deadline_ms = clock_mono_ms() + (uint64_t)common->seconds * 1000;
    return 0;
}

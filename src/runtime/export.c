/* export.c - samples and traces of rollouts that are over, for `postern export` and `postern show`.
 * The journal is opened for looking only, so that a running server is not disturbed. */
#include "runtime/runtime.h"

#include "base/fd.h"
#include "base/mem.h"
#include "config/config.h"
#include "rollout/rollout.h"
#include "runtime/internal.h"
#include "store/store.h"
#include "trace/sample.h"

static int write_all(int fd, struct str text, struct err *err)
{
    return fd_write_all(fd, text.data, text.size) < 0 ? err_errno(err, "writing samples") : 0;
}

static int add_lines(struct sample_binary *binary, struct str lines, struct err *err)
{
    while (lines.size) {
        struct str line = str_cut(&lines, '\n');
        if (line.size && sample_binary_add(binary, line, err) < 0)
            return -1;
    }
    return 0;
}

int runtime_export(const struct config *config, const char *const *dirs, size_t count,
                   enum runtime_export format, uint32_t realign_max, int fd, struct err *err)
{
    OWN(store) struct store *store = store_open_read(config->home, err);
    OWN(sample_binary) struct sample_binary binary = {0};
    if (!store)
        return -1;
    for (size_t i = 0; i < count; i++) {
        OWN(buf) struct buf text = {0};
        int result = format == RUNTIME_EXPORT_TRACE
                         ? rollout_export_trace(dirs[i], store, &text, err)
                         : rollout_export_samples(dirs[i], store, realign_max, &text, err);
        if (result < 0)
            return -1;
        result = format == RUNTIME_EXPORT_BINARY ? add_lines(&binary, buf_str(&text), err)
                                                 : write_all(fd, buf_str(&text), err);
        if (result < 0)
            return -1;
    }
    if (format != RUNTIME_EXPORT_BINARY)
        return 0;
    OWN(buf) struct buf head = {0};
    sample_binary_head(&binary, &head);
    if (write_all(fd, buf_str(&head), err) < 0)
        return -1;
    return write_all(fd, buf_str(&binary.records), err);
}

/* wire.h - the door of the wire room: what the host and the porter say to each other.
 *
 * A connection is two byte streams of frames. Every command, file transfer and inlet connection is
 * a stream with a number; the data of each stream has a window of its own, so that one whose reader
 * pauses blocks only itself. docs/wire.md shows every byte.
 *
 *     frame    = length:u32 stream:u32 type:u8 flags:u8 zero:u16 payload[length] (little-endian)
 *     message  = the payload of one frame, or of several that follow each other with WIRE_MORE
 *
 * Everything here is pure but the last section: no descriptor, no clock, and no allocation besides
 * the struct buf that is passed in. Decoders borrow from their input: a struct str in a decoded
 * message lives as long as the payload it came from. What a peer sends has a maximum before it is
 * looked at, and every decoder refuses short input, trailing bytes, unknown flags and NUL inside
 * strings.
 *
 * The last section (wire_tree_reader, wire_tree_writer) is the one place that touches files: both
 * ends of a connection turn directories into records and back in the same careful way. */
#ifndef WIRE_H
#define WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/str.h"

struct err;

#define WIRE_VERSION 1
#define WIRE_HEADER_SIZE 12
#define WIRE_PAYLOAD_MAX 65536u          /* of one frame */
#define WIRE_MESSAGE_MAX (2560u * 1024u) /* of one message over several frames */
#define WIRE_WINDOW 262144u              /* data in flight per stream and direction */
#define WIRE_WINDOW_MAX (1u << 30)
#define WIRE_PATH_MAX 4095u
#define WIRE_USER_MAX 255u
#define WIRE_ARGS_MAX 32768u
#define WIRE_ENV_MAX 8192u
#define WIRE_STRING_MAX 131071u /* one argument or variable; the kernel's own limit */
#define WIRE_TEXT_MAX 400u      /* sentences for people */
#define WIRE_STREAMS_MAX 1024u  /* open at once, each way */
#define WIRE_KEPT_MAX 16u       /* commands that outlive their connection */

/* The host opens streams with odd numbers, the porter (inlet connections) with even ones. Stream 0
 * is the connection itself. A number is not used again while its stream lives. */
enum wire_type {
    WIRE_HELLO = 0x01,  /* both, stream 0, first: struct wire_hello */
    WIRE_PING = 0x02,   /* host, stream 0: 8 bytes */
    WIRE_PONG = 0x03,   /* porter, stream 0: the same 8 bytes */
    WIRE_LOOKUP = 0x04, /* porter, stream 0: a host name somebody looked up */
    WIRE_KEPT = 0x05,   /* porter, stream 0, after its HELLO: a list of struct wire_kept */

    WIRE_EXEC = 0x10, /* host, opens: struct wire_exec. Ends with WIRE_EXIT */
    WIRE_PUT = 0x11, /* host, opens: struct wire_file; then DATA, END. Ends with WIRE_DONE, like all
                        below */
    WIRE_GET = 0x12, /* host, opens: struct wire_file; porter sends DATA */
    WIRE_PUT_TREE = 0x13, /* host, opens: struct wire_file; DATA is a stream of entries */
    WIRE_GET_TREE = 0x14, /* host, opens: struct wire_file; porter's DATA is a stream of entries */
    WIRE_STAT =
        0x15, /* host, opens: struct wire_file. Ends with WIRE_STATUS, or WIRE_DONE on failure */
    WIRE_REMOVE = 0x16,   /* host, opens: struct wire_file */
    WIRE_KILL_ALL = 0x17, /* host, opens: empty */
    WIRE_INLET = 0x18,    /* porter, opens (even): empty. A connection to the inlet */

    WIRE_DATA = 0x20,   /* both; flags: enum wire_channel */
    WIRE_CREDIT = 0x21, /* both: u32, more bytes the receiver of DATA takes */
    WIRE_END = 0x22,    /* both: empty; no more DATA this way */
    WIRE_RESET =
        0x23, /* both: empty; the stream is over at once (inlet), or please stop (file work) */
    WIRE_SIGNAL = 0x24, /* host: u8, to the command's process group */
    WIRE_KILL = 0x25,   /* host: empty; TERM, grace, KILL, the whole tree */
    WIRE_RESIZE = 0x26, /* host: u16 rows, u16 columns */
    WIRE_ATTACH = 0x27, /* host: u64; a kept command's output again, from that byte on */

    WIRE_EXIT = 0x30,   /* porter, closes: struct wire_exit */
    WIRE_DONE = 0x31,   /* porter, closes: struct wire_done */
    WIRE_STATUS = 0x32, /* porter, closes: struct wire_stat */
};
enum { WIRE_MORE = 0x80 }; /* flag: the message goes on in the next frame of this stream and type */
enum wire_channel { WIRE_CHANNEL_NONE = 0, WIRE_CHANNEL_OUT = 1, WIRE_CHANNEL_ERR = 2 };

/* ---------------------------------------------------------------- frames */
struct wire_frame {
    uint32_t stream;
    uint8_t type;
    uint8_t flags;      /* without WIRE_MORE */
    struct str payload; /* whole message */
};

/* Takes bytes in any pieces, gives whole messages. A zeroed struct is ready. */
struct wire_decoder {
    struct buf in;
    struct buf message; /* of several frames, while it is being put together */
    uint32_t stream;
    uint8_t type;
    bool partial; /* `message` waits for its next frame */
    bool whole;   /* `message` was handed out */
    bool broken;
    bool wipe;         /* set by the owner: bytes that were handed out are zeroed afterwards */
    size_t handed_out; /* bytes of `in` the last frame occupied */
};
void wire_decoder_deinit(struct wire_decoder *decoder);
/* Where to read into, at least `size` bytes; then wire_decoder_added(). */
char *wire_decoder_reserve(struct wire_decoder *decoder, size_t size);
void wire_decoder_added(struct wire_decoder *decoder, size_t size);
void wire_decoder_feed(struct wire_decoder *decoder, struct str bytes);
/* 1: a frame, its payload good until the next call on this decoder. 0: more bytes are needed. -1:
 * the peer spoke nonsense (ERR_PROTOCOL); so is everything after. */
int wire_decoder_next(struct wire_decoder *decoder, struct wire_frame *frame, struct err *err);

/* Appends a message as one frame, or as several with WIRE_MORE. */
void wire_frame_add(struct buf *out, uint32_t stream, uint8_t type, uint8_t flags,
                    struct str payload);
/* For a payload written in place: reserve header and `size` bytes, fill, then wire_frame_close()
 * with what it became (0 drops the frame). */
char *wire_frame_open(struct buf *out, size_t size);
void wire_frame_close(struct buf *out, uint32_t stream, uint8_t type, uint8_t flags, size_t size);
const char *wire_type_name(uint8_t type); /* "exec", ...; NULL when there is no such type */

/* Finds the start of a HELLO frame in bytes that may begin with other text (a login banner): its
 * offset, or -1; then all but the last WIRE_HEADER_SIZE + 8 bytes can be dropped. */
long wire_hello_find(struct str bytes);

/* ---------------------------------------------------------------- credit */
/* One direction of one stream, at either end. */
struct wire_credit {
    uint32_t window;    /* receiver: how much may be in flight */
    uint32_t available; /* sender: may send this much. Receiver: the peer may send this much */
    uint32_t consumed;  /* receiver: not yet granted again */
};
void wire_credit_init(struct wire_credit *credit, uint32_t window);
/* Sender: `size` bytes go out; it must not exceed `available`. */
void wire_credit_sent(struct wire_credit *credit, uint32_t size);
/* Sender: a CREDIT frame came. False: the peer grants more than there can be. */
bool wire_credit_granted(struct wire_credit *credit, uint32_t size);
/* Receiver: DATA came. False: the peer sent more than it was allowed to. */
bool wire_credit_received(struct wire_credit *credit, uint32_t size);
/* Receiver: that much has been used up. Returns what to grant now; 0: later, together with more. */
uint32_t wire_credit_consumed(struct wire_credit *credit, uint32_t size);

/* ---------------------------------------------------------------- messages */
/* A list of strings inside a message. */
struct wire_list {
    uint32_t count;
    struct str bytes;
};
/* Walks: copy the list, call until false. */
bool wire_list_next(struct wire_list *list, struct str *item);

enum wire_feature {
    WIRE_FEATURE_INLET = 1 << 0, /* carry connections to 127.0.0.1:inlet_port as streams */
    WIRE_FEATURE_RESOLVER =
        1 << 1, /* answer names on 127.0.0.1:53 with "no such name", report them */
    /* Commands may outlive this connection (WIRE_EXEC_KEEP); a KEPT follows the porter's HELLO. The
     * host's window is WIRE_WINDOW then. */
    WIRE_FEATURE_RESUME = 1 << 2,
};
struct wire_hello {
    uint16_t version;
    uint16_t inlet_port; /* host; the porter answers the port it listens on, or 0 */
    uint32_t features;   /* wanted; the porter answers what it could do */
    uint32_t window;     /* for each stream's DATA to the sender of this HELLO */
    uint32_t pid;        /* porter: its pid as it sees it; host: 0 */
};

enum wire_exec_flag {
    WIRE_EXEC_SHELL = 1 << 0, /* args is one string for /bin/sh -c */
    WIRE_EXEC_STDIN = 1 << 1,
    WIRE_EXEC_PTY = 1 << 2,
    WIRE_EXEC_DETACHED = 1 << 3,
    WIRE_EXEC_ENV_ONLY = 1 << 4,
    WIRE_EXEC_KEEP = 1 << 5, /* goes on when the connection ends, and waits for the next host */
    WIRE_EXEC_FLAGS = (1 << 6) - 1,
};
struct wire_exec {
    uint32_t flags;
    uint16_t rows, columns;
    uint32_t timeout_ms, grace_ms;
    uint64_t output_bytes_max;
    struct str cwd, user;  /* empty: default */
    struct wire_list args; /* at least one */
    struct wire_list env;
};

enum wire_end {
    WIRE_END_EXITED,
    WIRE_END_SIGNALED,
    WIRE_END_NOT_FOUND,
    WIRE_END_NOT_STARTED,
    WIRE_END_TIMED_OUT,
    WIRE_END_KILLED,
    WIRE_ENDS
};
struct wire_exit {
    uint8_t end;
    uint8_t signal_number;
    int32_t code; /* exit code, or errno for NOT_FOUND and NOT_STARTED */
    uint64_t wall_us, user_us, system_us, rss_bytes_peak, output_bytes_dropped;
    struct str text; /* at most WIRE_TEXT_MAX */
};

enum wire_file_flag {
    WIRE_FILE_OWNER =
        1 << 0, /* work as the porter itself, not as `user`: reading results, cleaning up */
    WIRE_FILE_FLAGS = (1 << 1) - 1,
};
struct wire_file {
    uint32_t flags;
    uint32_t mode; /* put: permission bits; 0 otherwise */
    struct str user;
    struct str path;
};
struct wire_done {
    int32_t error;  /* 0 or errno */
    uint64_t count; /* bytes or entries moved */
    struct str text;
};
enum wire_kind {
    WIRE_KIND_NONE,
    WIRE_KIND_REGULAR,
    WIRE_KIND_DIRECTORY,
    WIRE_KIND_LINK,
    WIRE_KIND_OTHER,
    WIRE_KINDS
};
struct wire_stat {
    uint8_t kind;
    uint32_t mode, uid, gid;
    uint64_t size;
    int64_t mtime_s;
};

/* A command that outlived the connection it was started on. Its stream is used again as it was. */
enum wire_kept_flag {
    WIRE_KEPT_OVER = 1 << 0,        /* it has ended; EXIT follows its output */
    WIRE_KEPT_INPUT_ENDED = 1 << 1, /* END has come */
    WIRE_KEPT_FLAGS = (1 << 2) - 1,
};
struct wire_kept {
    uint32_t stream;
    uint32_t number; /* how many were started before it in this sandbox; rises through the list */
    uint8_t flags;
    uint64_t from, to;   /* bytes of its output: what is still there, what there was so far */
    uint64_t input;      /* bytes of DATA that came for it */
    uint32_t input_room; /* that many more may come now */
};

/* Encoders append one whole frame (or several). Lists come as NULL-terminated arrays. Decoders
 * return 0, or -1 with ERR_PROTOCOL. */
void wire_hello_add(struct buf *out, const struct wire_hello *hello);
int wire_hello_read(struct str payload, struct wire_hello *hello, struct err *err);
/* `exec->args` and `exec->env` are ignored in favour of the arrays. Fails with ERR_INPUT or
 * ERR_LIMIT, naming what is wrong; then nothing was appended. */
int wire_exec_add(struct buf *out, uint32_t stream, const struct wire_exec *exec,
                  const char *const *args, const char *const *env, struct err *err);
int wire_exec_read(struct str payload, struct wire_exec *exec, struct err *err);
void wire_exit_add(struct buf *out, uint32_t stream, const struct wire_exit *exit);
int wire_exit_read(struct str payload, struct wire_exit *exit, struct err *err);
int wire_file_add(struct buf *out, uint32_t stream, uint8_t type, const struct wire_file *file,
                  struct err *err);
int wire_file_read(struct str payload, struct wire_file *file, struct err *err);
void wire_done_add(struct buf *out, uint32_t stream, const struct wire_done *done);
int wire_done_read(struct str payload, struct wire_done *done, struct err *err);
void wire_stat_add(struct buf *out, uint32_t stream, const struct wire_stat *stat);
int wire_stat_read(struct str payload, struct wire_stat *stat, struct err *err);
void wire_credit_add(struct buf *out, uint32_t stream, uint32_t size);
int wire_credit_read(struct str payload, uint32_t *size, struct err *err);
void wire_signal_add(struct buf *out, uint32_t stream, uint8_t number);
int wire_signal_read(struct str payload, uint8_t *number, struct err *err);
void wire_resize_add(struct buf *out, uint32_t stream, uint16_t rows, uint16_t columns);
int wire_resize_read(struct str payload, uint16_t *rows, uint16_t *columns, struct err *err);
void wire_attach_add(struct buf *out, uint32_t stream, uint64_t position);
int wire_attach_read(struct str payload, uint64_t *position, struct err *err);
/* At most WIRE_KEPT_MAX of them. */
void wire_kept_add(struct buf *out, const struct wire_kept *kept, size_t count);
int wire_kept_read(struct str payload, struct wire_kept kept[WIRE_KEPT_MAX], size_t *count,
                   struct err *err);
/* A host name as DNS allows it: 1 to 253 bytes of letters, digits, '-', '_', '.'. */
int wire_lookup_read(struct str payload, struct str *name, struct err *err);

/* ---------------------------------------------------------------- trees */
/* A tree is a byte stream of records, in the order a walk meets them: a directory, what is in it,
 * then the same directory again (LEAVE) with its final mode and time. Paths are relative to the top
 * and have no "", "." or ".." parts; the top itself is the empty path. */
enum wire_entry_kind {
    WIRE_ENTRY_ENTER = 1, /* directory */
    WIRE_ENTRY_LEAVE = 2, /* directory, finished */
    WIRE_ENTRY_FILE = 3,  /* `size` bytes follow */
    WIRE_ENTRY_LINK = 4,  /* symbolic */
    WIRE_ENTRY_SKIP = 5,  /* something that is not carried: device, socket, fifo */
    WIRE_ENTRY_END = 6,   /* the tree is complete */
};
struct wire_entry {
    uint8_t kind;
    uint32_t mode; /* permission bits, 07777 */
    int64_t mtime_s;
    uint32_t mtime_ns;
    uint64_t size;
    struct str path, link;
};
#define WIRE_ENTRY_HEADER_SIZE 29
void wire_entry_add(struct buf *out, const struct wire_entry *entry);
bool wire_path_is_inside(struct str path); /* as above; the empty path is not */

struct wire_entry_decoder { /* zeroed: ready */
    char head[WIRE_ENTRY_HEADER_SIZE + 2 * WIRE_PATH_MAX];
    size_t head_size;
    uint64_t data_left;
    bool ended;
};
enum wire_entry_event { WIRE_EVENT_MORE, WIRE_EVENT_ENTRY, WIRE_EVENT_DATA };
/* Takes from the front of *input. ENTRY: *entry is set (and borrows from the decoder). DATA: *data
 * is the next piece of the last file. MORE: *input is used up. -1: not a tree (ERR_PROTOCOL). */
int wire_entry_next(struct wire_entry_decoder *decoder, struct str *input, struct wire_entry *entry,
                    struct str *data, struct err *err);

/* --- with files --- */
/* Walks a directory into records. Follows no link. `dir` is an open directory; it is not taken. */
struct wire_tree_reader;
struct wire_tree_reader *wire_tree_reader_new(int dir, struct err *err);
void wire_tree_reader_free(struct wire_tree_reader *reader);
/* Appends about `size` bytes (at least one unless at the end) to `out`. 1: there is more, 0: that
 * was all, -1: failed. A file that shrinks meanwhile is filled with zeros, one that grows is cut.
 */
int wire_tree_read(struct wire_tree_reader *reader, struct buf *out, size_t size, struct err *err);
uint64_t wire_tree_reader_entries(const struct wire_tree_reader *reader);

/* Writes records into a directory. Never writes through a link, never leaves `dir`, makes no
 * device. */
struct wire_tree_limits {
    uint64_t bytes_max, entries_max; /* 0: none */
    uint32_t mode_mask;              /* 0: 0777, so setuid, setgid and sticky are dropped */
};
struct wire_tree_writer;
struct wire_tree_writer *wire_tree_writer_new(int dir, const struct wire_tree_limits *limits,
                                              struct err *err);
void wire_tree_writer_free(struct wire_tree_writer *writer);
int wire_tree_write(struct wire_tree_writer *writer, struct str bytes, struct err *err);
int wire_tree_writer_end(struct wire_tree_writer *writer,
                         struct err *err); /* fails unless the tree is complete */
uint64_t wire_tree_writer_entries(const struct wire_tree_writer *writer);

#endif

/* acp.h - private to the agent room: a conversation with an agent over the Agent Client Protocol.
 */
#ifndef AGENT_ACP_H
#define AGENT_ACP_H

#include "agent/internal.h"
#include "base/list.h"
#include "json/json.h"

struct sandbox;

struct agent_acp {
    const struct agent_acp_way *way; /* the spec's */
    const char *cwd, *instruction;
    const char *const *turns;       /* what the user says next, NULL-terminated; NULL: nothing */
    const char *mcp_url, *mcp_name; /* NULL: none */
    const char *meta;               /* JSON for session/new; NULL: none */
    struct sandbox *sandbox;        /* files and terminals are there */
    const char *user;
    struct agent_reader *reader;
    void (*on_send)(void *context, struct str line);
    /* It has answered all of `turns`; agent_acp_say() goes on. NULL: that is the end. */
    void (*on_turn)(void *context, struct str reply);
    void (*on_over)(void *context); /* once */
    void *context;

    char session[256], message[128]; /* ids */
    struct buf said;                 /* pieces of the message that is being said */
    struct buf reply;                /* its last message of this turn */
    size_t turn_at;
    unsigned turn;     /* prompts so far */
    unsigned answered; /* of them */
    int awaited;       /* the request whose answer comes next; 0: none */
    bool thinking, prompted, asking, cancelling, over;
    enum agent_fate fate; /* when over */
    struct list serving;  /* acp_serve.c */
    unsigned file_count, terminal_count, terminal_number;
};
void agent_acp_begin(struct agent_acp *acp);
void agent_acp_line(struct agent_acp *acp, struct str line);
/* The user's next words; NULL: there are none. Only after on_turn. */
void agent_acp_say(struct agent_acp *acp, const char *text);
void agent_acp_cancel(struct agent_acp *acp);
void agent_acp_deinit(struct agent_acp *acp);

/* --- shared by acp.c and acp_serve.c */
void acp_begin(struct json_writer *writer, struct buf *out);
void acp_send(struct agent_acp *acp, struct json_writer *writer);
void acp_answer(struct agent_acp *acp, struct str id, struct str result);
void acp_refuse(struct agent_acp *acp, struct str id, int code, const char *text);
/* A request of the agent's: a file, a terminal, or nothing we have. */
void acp_serve(struct agent_acp *acp, struct str id, struct json method, struct json params);
void acp_serve_deinit(struct agent_acp *acp);

#endif

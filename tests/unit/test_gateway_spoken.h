/* test_gateway_spoken.h - one question, as each dialect asks it. */
#ifndef TEST_GATEWAY_SPOKEN_H
#define TEST_GATEWAY_SPOKEN_H

/* With a tool, so that answers may call it. */
static const struct spoken {
    const char *dialect, *path, *stream_path, *body, *stream_body;
    const char *finish;  /* in the end of a streamed answer with tool calls */
    const char *no_text; /* an error in this dialect has it */
} spoken[] = {
    {"chat", "/v1/chat/completions", "/v1/chat/completions",
     "{\"model\":\"any\",\"messages\":[{\"role\":\"system\",\"content\":\"be brief\"},"
     "{\"role\":\"user\",\"content\":\"hello\"}],\"tools\":[{\"type\":\"function\",\"function\":"
     "{\"name\":\"look\",\"parameters\":{\"type\":\"object\"}}}]}",
     "{\"model\":\"any\",\"stream\":true,\"messages\":[{\"role\":\"system\",\"content\":"
     "\"be brief\"},{\"role\":\"user\",\"content\":\"hello\"}],\"tools\":[{\"type\":\"function\","
     "\"function\":{\"name\":\"look\",\"parameters\":{\"type\":\"object\"}}}]}",
     "\"finish_reason\":\"tool_calls\"", "\"error\""},
    {"messages", "/v1/messages", "/v1/messages",
     "{\"model\":\"any\",\"max_tokens\":99,\"system\":\"be brief\",\"messages\":[{\"role\":"
     "\"user\",\"content\":\"hello\"}],\"tools\":[{\"name\":\"look\",\"input_schema\":"
     "{\"type\":\"object\"}}]}",
     "{\"model\":\"any\",\"max_tokens\":99,\"stream\":true,\"system\":\"be brief\",\"messages\":"
     "[{\"role\":\"user\",\"content\":\"hello\"}],\"tools\":[{\"name\":\"look\","
     "\"input_schema\":{\"type\":\"object\"}}]}",
     "\"stop_reason\":\"tool_use\"", "\"type\":\"error\""},
    {"responses", "/v1/responses", "/v1/responses",
     "{\"model\":\"any\",\"instructions\":\"be brief\",\"input\":\"hello\",\"tools\":[{\"type\":"
     "\"function\",\"name\":\"look\",\"parameters\":{\"type\":\"object\"}}]}",
     "{\"model\":\"any\",\"stream\":true,\"instructions\":\"be brief\",\"input\":\"hello\","
     "\"tools\":[{\"type\":\"function\",\"name\":\"look\",\"parameters\":{\"type\":\"object\"}}]}",
     "event: response.completed", "\"error\""},
    {"google", "/v1beta/models/any:generateContent", "/v1beta/models/any:streamGenerateContent",
     "{\"systemInstruction\":{\"parts\":[{\"text\":\"be brief\"}]},\"contents\":[{\"role\":"
     "\"user\",\"parts\":[{\"text\":\"hello\"}]}],\"tools\":[{\"functionDeclarations\":[{\"name\":"
     "\"look\",\"parameters\":{\"type\":\"object\"}}]}]}",
     "{\"systemInstruction\":{\"parts\":[{\"text\":\"be brief\"}]},\"contents\":[{\"role\":"
     "\"user\",\"parts\":[{\"text\":\"hello\"}]}],\"tools\":[{\"functionDeclarations\":[{\"name\":"
     "\"look\",\"parameters\":{\"type\":\"object\"}}]}]}",
     "\"finishReason\":\"STOP\"", "\"error\""},
    {"completions", "/v1/completions", "/v1/completions",
     "{\"model\":\"any\",\"prompt\":\"hello\"}",
     "{\"model\":\"any\",\"stream\":true,\"prompt\":\"hello\"}", "\"finish_reason\":\"",
     "\"error\""},
};

#endif

// The vendors' own clients for Node, one case per run: `node sdk_client.mjs CASE BASE_URL`. The same cases and the same
// JSON as sdk_client.py.
import {writeFileSync} from "node:fs";

import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const schema = {type: "object", properties: {city: {type: "string"}}, required: ["city"]};
const messages = [{role: "user", content: "What is the weather?"}];
const chatTools = [{type: "function", function: {name: "weather", description: "tells it", parameters: schema}}];
const responsesTools = [{type: "function", name: "weather", description: "tells it", parameters: schema, strict: false}];
const anthropicTools = [{name: "weather", description: "tells it", input_schema: schema}];

const openai = (base) => new OpenAI({baseURL: base + "/v1", apiKey: "none", maxRetries: 0, timeout: 60000});
const anthropic = (base) => new Anthropic({baseURL: base, apiKey: "none", maxRetries: 0, timeout: 60000});
const chatCalls = (calls) => (calls ?? []).map((c) => [c.function.name, JSON.parse(c.function.arguments)]);
const responseCalls = (final) =>
  final.output.filter((item) => item.type === "function_call").map((item) => [item.name, JSON.parse(item.arguments)]);

// A piece of an answer is there. Who waits for the first one is told by a file.
function arrived(times) {
  times.push(Date.now() / 1000);
  if (process.env.SDK_FIRST) writeFileSync(process.env.SDK_FIRST, "");
}

function blocks(message) {
  return {
    text: message.content.filter((b) => b.type === "text").map((b) => b.text).join(""),
    calls: message.content.filter((b) => b.type === "tool_use").map((b) => [b.name, b.input]),
    finish: message.stop_reason,
  };
}

async function failure(call) {
  try {
    await call();
  } catch (error) {
    return {type: error.constructor.name, status: error.status, message: String(error.message)};
  }
  return {};
}

const cases = {
  async chat(base) {
    const done = await openai(base).chat.completions.create({model: "m", messages, tools: chatTools});
    const choice = done.choices[0];
    return {text: choice.message.content, finish: choice.finish_reason, calls: chatCalls(choice.message.tool_calls)};
  },
  async chat_stream(base) {
    const stream = await openai(base).chat.completions.create(
      {model: "m", messages, tools: chatTools, stream: true, stream_options: {include_usage: true}});
    let text = "", finish = null, usage = null;
    const times = [], calls = [];
    for await (const chunk of stream) {
      usage = chunk.usage?.total_tokens ?? usage;
      for (const choice of chunk.choices) {
        finish = choice.finish_reason ?? finish;
        if (choice.delta.content) {
          arrived(times);
          text += choice.delta.content;
        }
        for (const call of choice.delta.tool_calls ?? []) {
          calls[call.index] ??= ["", ""];
          calls[call.index][0] += call.function.name ?? "";
          calls[call.index][1] += call.function.arguments ?? "";
        }
      }
    }
    return {text, finish, usage, times, calls: calls.map(([name, json]) => [name, JSON.parse(json)])};
  },
  async chat_helper(base) {
    const final = await openai(base).chat.completions.stream({model: "m", messages, tools: chatTools}).finalChatCompletion();
    return {text: final.choices[0].message.content, calls: chatCalls(final.choices[0].message.tool_calls)};
  },
  chat_error: (base) => failure(() => openai(base).chat.completions.create({model: "m", messages})),
  async chat_broken(base) {
    let text = "";
    try {
      const stream = await openai(base).chat.completions.create({model: "m", messages, stream: true});
      for await (const chunk of stream) text += chunk.choices[0]?.delta.content ?? "";
    } catch (error) {
      return {text, broken: error.constructor.name};
    }
    return {text, broken: null};
  },
  async responses(base) {
    const done = await openai(base).responses.create({model: "m", input: "What is the weather?", tools: responsesTools});
    return {text: done.output_text, status: done.status, calls: responseCalls(done)};
  },
  async responses_stream(base) {
    const stream = openai(base).responses.stream({model: "m", input: "What is the weather?", tools: responsesTools});
    const times = [];
    for await (const event of stream) if (event.type === "response.output_text.delta") arrived(times);
    const final = await stream.finalResponse();
    return {text: final.output_text, status: final.status, times, calls: responseCalls(final)};
  },
  messages: async (base) =>
    blocks(await anthropic(base).messages.create({model: "m", max_tokens: 100, system: "Be brief.", messages, tools: anthropicTools})),
  async messages_stream(base) {
    const stream = anthropic(base).messages.stream({model: "m", max_tokens: 100, messages, tools: anthropicTools});
    const times = [];
    stream.on("text", () => arrived(times));
    return {...blocks(await stream.finalMessage()), times};
  },
  messages_error: (base) => failure(() => anthropic(base).messages.create({model: "m", max_tokens: 9, messages})),
};

console.log(JSON.stringify(await cases[process.argv[2]](process.argv[3])));

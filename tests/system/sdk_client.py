"""The vendors' own clients, one case per run: `sdk_client.py CASE BASE_URL`. Runs in the environment that
test_sdk.py makes, prints one JSON object, and knows nothing of Postern."""

import json
import os
import pathlib
import sys
import time

CASES = {}
TOOL_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def case(function):
    CASES[function.__name__] = function
    return function


def arrived(times):
    """A piece of an answer is there. Who waits for the first one is told by a file."""
    times.append(time.time())
    if "SDK_FIRST" in os.environ:
        pathlib.Path(os.environ["SDK_FIRST"]).touch()


def openai_client(base, **options):
    import openai
    return openai.OpenAI(base_url=base + "/v1", api_key="none", max_retries=options.pop("max_retries", 0), timeout=60)


def anthropic_client(base, **options):
    import anthropic
    return anthropic.Anthropic(base_url=base, api_key="none", max_retries=options.pop("max_retries", 0), timeout=60)


def google_client(base):
    from google import genai
    return genai.Client(api_key="none", http_options={"base_url": base})


MESSAGES = [{"role": "user", "content": "What is the weather?"}]
CHAT_TOOLS = [{"type": "function", "function": {"name": "weather", "description": "tells it", "parameters": TOOL_SCHEMA}}]
ANTHROPIC_TOOLS = [{"name": "weather", "description": "tells it", "input_schema": TOOL_SCHEMA}]
RESPONSES_TOOLS = [{"type": "function", "name": "weather", "description": "tells it", "parameters": TOOL_SCHEMA}]


# ---------------------------------------------------------------- chat completions
@case
def chat(base):
    done = openai_client(base).chat.completions.create(model="m", messages=MESSAGES, tools=CHAT_TOOLS)
    choice = done.choices[0]
    return {"text": choice.message.content, "finish": choice.finish_reason, "usage": done.usage.total_tokens,
            "calls": [[c.function.name, json.loads(c.function.arguments)] for c in choice.message.tool_calls or []]}


@case
def chat_stream(base):
    times, text, calls, finish, usage = [], "", {}, None, None
    stream = openai_client(base).chat.completions.create(
        model="m", messages=MESSAGES, tools=CHAT_TOOLS, stream=True, stream_options={"include_usage": True})
    for chunk in stream:
        usage = chunk.usage.total_tokens if chunk.usage else usage
        for choice in chunk.choices:
            finish = choice.finish_reason or finish
            if choice.delta.content:
                arrived(times)
                text += choice.delta.content
            for call in choice.delta.tool_calls or []:
                known = calls.setdefault(call.index, ["", ""])
                known[0] += call.function.name or ""
                known[1] += call.function.arguments or ""
    return {"text": text, "finish": finish, "times": times, "usage": usage,
            "calls": [[name, json.loads(arguments)] for name, arguments in calls.values()]}


@case
def chat_helper(base):
    """The client's own accumulator, which is strict about the order of events."""
    with openai_client(base).chat.completions.stream(model="m", messages=MESSAGES, tools=CHAT_TOOLS) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    message = final.choices[0].message
    return {"text": message.content, "kinds": sorted(set(kinds)),
            "calls": [[c.function.name, json.loads(c.function.arguments)] for c in message.tool_calls or []]}


@case
def chat_error(base):
    import openai
    try:
        openai_client(base).chat.completions.create(model="m", messages=MESSAGES)
    except openai.APIStatusError as error:
        return {"type": type(error).__name__, "status": error.status_code, "message": str(error)}
    return {}


@case
def chat_retry(base):
    done = openai_client(base, max_retries=3).chat.completions.create(model="m", messages=MESSAGES)
    return {"text": done.choices[0].message.content}


@case
def chat_broken(base):
    text = ""
    try:
        for chunk in openai_client(base).chat.completions.create(model="m", messages=MESSAGES, stream=True):
            text += chunk.choices[0].delta.content or "" if chunk.choices else ""
    except Exception as error:
        return {"text": text, "broken": type(error).__name__}
    return {"text": text, "broken": None}


@case
def responses_broken(base):
    text = ""
    try:
        with openai_client(base).responses.stream(model="m", input="What is the weather?") as stream:
            for event in stream:
                text += event.delta if event.type == "response.output_text.delta" else ""
            stream.get_final_response()
    except Exception as error:
        return {"text": text, "broken": type(error).__name__}
    return {"text": text, "broken": None}


@case
def messages_broken(base):
    text = ""
    try:
        with anthropic_client(base).messages.stream(model="m", max_tokens=100, messages=MESSAGES) as stream:
            for event in stream:
                text += event.text if event.type == "text" else ""
            stream.get_final_message()
    except Exception as error:
        return {"text": text, "broken": type(error).__name__}
    return {"text": text, "broken": None}


@case
def responses_error(base):
    import openai
    try:
        openai_client(base).responses.create(model="m", input="What is the weather?")
    except openai.APIStatusError as error:
        return {"type": type(error).__name__, "status": error.status_code, "message": str(error)}
    return {}


@case
def chat_abort(base):
    stream = openai_client(base).chat.completions.create(model="m", messages=MESSAGES, stream=True)
    for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            break
    stream.close()
    return {"aborted": True}


@case
def completions(base):
    done = openai_client(base).completions.create(model="m", prompt="Once upon", max_tokens=5)
    text = "".join(c.choices[0].text for c in openai_client(base).completions.create(model="m", prompt="Once upon", stream=True)
                   if c.choices)
    return {"text": done.choices[0].text, "streamed": text}


@case
def models(base):
    """Three vendors' clients ask for the list, and for one of it."""
    client, other, third = openai_client(base), anthropic_client(base), google_client(base)
    return {"models": [m.id for m in client.models.list()], "one": client.models.retrieve("learner").id,
            "anthropic": [m.id for m in other.models.list()], "anthropic_one": other.models.retrieve("learner").type,
            "google": [m.name for m in third.models.list()], "google_one": third.models.get(model="learner").name}


@case
def custom(base):
    """Tools that take free text, in both protocols that have them."""
    client = openai_client(base)
    tool = {"name": "apply_patch", "description": "patches"}
    chat = client.chat.completions.create(model="m", messages=MESSAGES, tools=[{"type": "custom", "custom": tool}])
    call = chat.choices[0].message.tool_calls[0]
    done = client.responses.create(model="m", input="Patch it.", tools=[{"type": "custom", **tool}])
    item = next(item for item in done.output if item.type == "custom_tool_call")
    return {"chat": [call.type, call.custom.name, call.custom.input], "responses": [item.type, item.name, item.input]}


# ---------------------------------------------------------------- responses
def response_calls(final):
    return [[item.name, json.loads(item.arguments)] for item in final.output if item.type == "function_call"]


@case
def responses(base):
    done = openai_client(base).responses.create(model="m", input="What is the weather?", tools=RESPONSES_TOOLS)
    return {"text": done.output_text, "status": done.status, "calls": response_calls(done), "usage": done.usage.total_tokens}


@case
def responses_stream(base):
    times = []
    with openai_client(base).responses.stream(model="m", input="What is the weather?", tools=RESPONSES_TOOLS) as stream:
        kinds = []
        for event in stream:
            kinds.append(event.type)
            if event.type == "response.output_text.delta":
                arrived(times)
        final = stream.get_final_response()
    return {"text": final.output_text, "status": final.status, "calls": response_calls(final), "times": times,
            "first": kinds[0], "last": kinds[-1]}


# ---------------------------------------------------------------- messages
def blocks(message):
    text = "".join(block.text for block in message.content if block.type == "text")
    calls = [[block.name, block.input] for block in message.content if block.type == "tool_use"]
    return {"text": text, "calls": calls, "finish": message.stop_reason, "usage": message.usage.output_tokens}


@case
def messages(base):
    return blocks(anthropic_client(base).messages.create(
        model="m", max_tokens=100, system="Be brief.", messages=MESSAGES, tools=ANTHROPIC_TOOLS))


@case
def messages_stream(base):
    times = []
    with anthropic_client(base).messages.stream(model="m", max_tokens=100, messages=MESSAGES, tools=ANTHROPIC_TOOLS) as stream:
        for event in stream:
            if event.type == "text":
                arrived(times)
        final = stream.get_final_message()
    return {**blocks(final), "times": times}


@case
def messages_error(base):
    import anthropic
    try:
        anthropic_client(base).messages.create(model="m", max_tokens=9, messages=MESSAGES)
    except anthropic.APIStatusError as error:
        return {"type": type(error).__name__, "status": error.status_code, "message": str(error)}
    return {}


@case
def messages_count(base):
    count = anthropic_client(base).messages.count_tokens(model="m", messages=MESSAGES)
    return {"tokens": count.input_tokens}


# ---------------------------------------------------------------- generateContent
@case
def google_tools(base):
    """The client calls the function itself and sends what it returned; then an answer to a schema of its own form."""
    from google.genai import types

    def weather(city: str, days: int = 1) -> str:
        """tells it"""
        return f"rain in {city} for {days}"

    client = google_client(base)
    done = client.models.generate_content(model="m", contents="What is the weather?",
                                          config=types.GenerateContentConfig(tools=[weather]))
    schema = types.Schema(type=types.Type.OBJECT, properties={"city": types.Schema(type=types.Type.STRING, nullable=True)})
    client.models.generate_content(model="m", contents="Where?", config=types.GenerateContentConfig(
        response_mime_type="application/json", response_schema=schema))
    return {"text": done.text}


@case
def google(base):
    client = google_client(base)
    done = client.models.generate_content(model="m", contents="What is the weather?")
    times, text = [], ""
    for chunk in client.models.generate_content_stream(model="m", contents="What is the weather?"):
        if chunk.text:
            arrived(times)
            text += chunk.text
    return {"text": done.text, "streamed": text, "times": times, "finish": str(done.candidates[0].finish_reason)}


if __name__ == "__main__":
    print(json.dumps(CASES[sys.argv[1]](sys.argv[2])))

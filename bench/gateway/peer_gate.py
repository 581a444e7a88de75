"""peer_gate.py - the gate as a Python server has it: aiohttp, an asyncio queue, nothing on disk.

The same shape as ours: POST /v1/chat/completions is held, POST /v1/gate/take hands held calls out (long-poll),
POST /v1/gate/calls/ID/answer ends one. The request is parsed, because a gate that does not know the messages is none.
Prints its port.
"""
import asyncio
import collections
import functools
import itertools
import json
import socket

import uvloop
from aiohttp import web

numbers = itertools.count(1)
calls = {}
held = collections.deque()
arrived = asyncio.Event()
answer_json = functools.partial(web.json_response, dumps=functools.partial(json.dumps, separators=(",", ":")))


async def complete(request):
    body = await request.json()
    call_id = f"call-{next(numbers)}"
    future = asyncio.get_running_loop().create_future()
    calls[call_id] = (future, body)
    held.append(call_id)
    arrived.set()
    try:
        return answer_json(await future)
    finally:
        calls.pop(call_id, None)


async def take(request):
    options = await request.json()
    while not held:
        arrived.clear()
        try:
            await asyncio.wait_for(arrived.wait(), options["wait_ms"] / 1000)
        except asyncio.TimeoutError:
            break
    given = []
    while held and len(given) < options["max"]:
        call_id = held.popleft()
        if call_id in calls:
            body = calls[call_id][1]
            given.append({"call_id": call_id, "model": body["model"], "messages": body["messages"],
                          "tools": body.get("tools"), "sampling": {"temperature": body.get("temperature")}})
    return answer_json({"calls": given})


async def answer(request):
    call = calls.get(request.match_info["call_id"])
    if not call or call[0].done():
        raise web.HTTPNotFound()
    call[0].set_result(await request.json())
    return answer_json({})


def main():
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(4096)
    app = web.Application(client_max_size=64 << 20)
    app.add_routes([web.post("/v1/chat/completions", complete), web.post("/v1/gate/take", take),
                    web.post("/v1/gate/calls/{call_id}/answer", answer)])
    print(listener.getsockname()[1], flush=True)
    uvloop.install()
    web.run_app(app, sock=listener, print=None, access_log=None, handle_signals=False, handler_cancellation=True)


main()

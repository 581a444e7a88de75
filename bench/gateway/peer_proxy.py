"""peer_proxy.py - the streaming proxy as a Python server has it: FastAPI, uvicorn with uvloop, httpx.

    peer_proxy.py UPSTREAM      for example http://127.0.0.1:8000/v1

What our proxy mode does, in its simplest form: the request is parsed and the model imposed, the answer is passed on as
it comes, and the text and log-probability of each event are kept in a list. Nothing is written to disk. Prints its port.
"""
import json
import socket
import sys

import fastapi
import httpx
import uvicorn
from fastapi.responses import Response, StreamingResponse

app = fastapi.FastAPI()
client = httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=None, max_keepalive_connections=1024))
UPSTREAM = sys.argv[1]


def capture(line, tokens):
    if not line.startswith("data: {"):
        return
    for choice in json.loads(line[6:]).get("choices", ()):
        for token in (choice.get("logprobs") or {}).get("content") or ():
            tokens.append((token["token"], token["logprob"]))


@app.post("/v1/chat/completions")
async def complete(request: fastapi.Request):
    body = json.loads(await request.body())
    body["model"], body["logprobs"] = "bench", True
    outgoing = client.build_request("POST", UPSTREAM + "/chat/completions", content=json.dumps(body).encode(),
                                    headers={"content-type": "application/json"})
    if not body.get("stream"):
        answer = await client.send(outgoing)
        json.loads(answer.content)
        return Response(answer.content, media_type="application/json")
    answer = await client.send(outgoing, stream=True)

    async def relay():
        tokens = []
        async for line in answer.aiter_lines():
            capture(line, tokens)
            yield line + "\n"
        await answer.aclose()

    return StreamingResponse(relay(), media_type="text/event-stream")


def main():
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(4096)
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(app, loop="uvloop", http="httptools", access_log=False, log_level="warning")
    uvicorn.Server(config).run(sockets=[listener])


main()

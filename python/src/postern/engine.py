"""Engine: an OpenAI-compatible model server as the policy of a GateWorker, or of code of one's own.

It asks for whole answers with token ids and log-probabilities, in the words of the engine, and gives them back under one name
whatever the engine calls them: `prompt_token_ids`, `token_ids`, `completion_logprobs`. An engine that gives no ids still answers; the
samples say then that there are none.

    engine = postern.Engine("http://host:8000/v1", model="my-model", kind="vllm", options={"temperature": 1.0})
    with postern.GateWorker(client, engine, concurrency=64): ...
    answer = await engine(call)"""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, Optional

from . import requests as ask
from .aio import AsyncClient
from .errors import AuthError, CallFailed, PosternError
from .requests import Json

# What is added to a request, by kind of engine.
ASKS: Dict[str, Json] = {
    "vllm": {"logprobs": True, "return_token_ids": True, "return_tokens_as_token_ids": True},
    "sglang": {"logprobs": True, "return_meta_info": True, "return_prompt_token_ids": True},
    "openai": {"logprobs": True},
    "plain": {},
}


class Engine:
    """One belongs to one event loop. `model` replaces what the agent asked for; `options` are added to each request."""

    def __init__(self, url: str, key: Optional[str] = None, kind: str = "vllm", model: Optional[str] = None,
                 options: Optional[Mapping[str, Any]] = None, timeout: float = 600.0) -> None:
        if kind not in ASKS:
            raise ValueError(f"the engine kind {kind!r} is none of {', '.join(ASKS)}")
        self.url, self.kind, self.model, self.options = url, kind, model, dict(options or {})
        self._client = AsyncClient(url, key, timeout=timeout)

    def __repr__(self) -> str:
        return f"<postern.Engine {self.kind} {self._client.address}>"

    async def __aenter__(self) -> "Engine":
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    async def close(self) -> None:
        await self._client.close()

    def request(self, call: Mapping[str, Any]) -> Json:
        """The body for a call as the gate gave it."""
        sampling = {name: value for name, value in call.get("sampling", {}).items() if value not in (None, [])}
        body = {"model": self.model or call.get("model"), "messages": call["messages"], **sampling, **ASKS[self.kind],
                **self.options}
        if call.get("tools"):
            body["tools"] = call["tools"]
        return body

    async def __call__(self, call: Mapping[str, Any]) -> Json:
        path = "/chat/completions" if self._client.address.prefix else "/v1/chat/completions"
        try:
            completion = await self._client._ask(ask.Request("POST", path, json.dumps(self.request(call)).encode()))
        except PosternError as error:
            status = error.status if error.status and error.status >= 400 and not isinstance(error, AuthError) else 503
            raise CallFailed(f"the engine failed: {error.reason}", status, "engine_error") from error
        return convert(completion)


def convert(completion: Any) -> Json:
    """A chat completion with its tokens under our names. Raises CallFailed when it is none."""
    try:
        choice = completion["choices"][0]
        message = choice["message"]
    except (TypeError, KeyError, IndexError) as error:
        raise CallFailed("the engine's answer is no chat completion", 502, "engine_error") from error
    answer: Json = {"message": message, "finish_reason": choice.get("finish_reason"), "usage": completion.get("usage")}
    meta = choice.get("meta_info") or completion.get("meta_info") or {}
    pairs = meta.get("output_token_logprobs")  # SGLang: [log-probability, id, text] each
    content = (choice.get("logprobs") or {}).get("content")
    found = {
        "prompt_token_ids": _first(choice.get("prompt_token_ids"), completion.get("prompt_token_ids"),
                                   _column(meta.get("input_token_logprobs"), 1)),
        "token_ids": _first(choice.get("token_ids"), choice.get("output_ids"), completion.get("output_ids"), _column(pairs, 1),
                            _ids_in_place_of_tokens(content)),
        "completion_logprobs": _first([each["logprob"] for each in content] if content else None, _column(pairs, 0)),
    }
    answer.update((name, values) for name, values in found.items() if values is not None)
    return {name: value for name, value in answer.items() if value is not None}


def _first(*candidates: Optional[List[Any]]) -> Optional[List[Any]]:
    return next((each for each in candidates if each), None)


def _column(rows: Any, number: int) -> Optional[List[Any]]:
    if not rows or not all(isinstance(row, (list, tuple)) and len(row) > number for row in rows):
        return None
    return [row[number] for row in rows]


def _ids_in_place_of_tokens(content: Any) -> Optional[List[int]]:
    """vLLM with return_tokens_as_token_ids: "token_id:123"."""
    if not content or not all(str(each.get("token", "")).startswith("token_id:") for each in content):
        return None
    return [int(each["token"][len("token_id:"):]) for each in content]

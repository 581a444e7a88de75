"""Tokens in, tokens out (gateway.engine vllm-generate): real agents against a stand-in for vLLM's render, generate and derender routes. No real
engine is here; the stand-in is as strict about what it is sent as vLLM's own protocol is."""

import json

import pytest

from postern import task
from test_agents import agents_postern, installed  # noqa: F401
from test_samples import Engine, Handler, check_row, run_against

RENDER, GENERATE, DERENDER = "/v1/chat/completions/render", "/inference/v1/generate", "/v1/chat/completions/derender"
FLAGS = ("--gateway.engine", "vllm-generate", "--gateway.retries-max", "2")


class TokenHandler(Handler):
    def do_POST(self):
        engine, body = self.server, json.loads(self.rfile.read(int(self.headers["content-length"])))
        engine.asked.append((self.path, body))
        assert not self.headers["cookie"] and not body.get("stream")
        status, out = 404, {"detail": "Not Found"}
        if self.path in engine.routes:
            status, out = 200, {RENDER: engine.rendered, GENERATE: engine.generated, DERENDER: engine.derendered}[self.path](body)
        data = json.dumps(out).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class TokenEngine(Engine):
    """The same template, tokenizer and sampler, behind the three routes. No route knows what another one was asked."""

    def __init__(self, routes=(RENDER, GENERATE, DERENDER), **options):
        super().__init__(routes, **options)
        self.RequestHandlerClass = TokenHandler

    def rendered(self, request):
        ids = self.render(request["messages"], request.get("add_generation_prompt", True))
        sampling = {"temperature": request.get("temperature", 1.0), "logprobs": None, "max_tokens": 4096, "skip_special_tokens": True}
        return {"request_id": "chatcmpl-0", "token_ids": ids, "features": None, "sampling_params": sampling, "model": request["model"],
                "stream": False, "stream_options": None, "cache_salt": None, "priority": 0, "kv_transfer_params": None}

    def generated(self, request):
        assert request["sampling_params"]["logprobs"] == 1 and request["sampling_params"]["max_tokens"] == 4096
        prompt, head = request["token_ids"], [self.START, *self.tokenised("assistant"), self.LINE]
        turn = sum(prompt[at:at + len(head)] == head for at in range(len(prompt))) - 1
        made, = self.answer({"messages": [{"role": "assistant"}] * turn, "model": "m"}, prompt)["choices"]
        logprobs = {"content": [{"token": f"token_id:{id}", "logprob": -0.5, "top_logprobs": []} for id in made["token_ids"]]}
        return {"request_id": f"generate-tokens-{request['request_id']}", "prompt_logprobs": None, "kv_transfer_params": None,
                "choices": [{"index": 0, "finish_reason": "stop", "token_ids": made["token_ids"], "logprobs": logprobs}]}

    def derendered(self, request):
        """As vLLM: the finish reason of the sampling is handed on, tool calls or not."""
        assert request["chat_request"]["messages"] and request["prompt_tokens"] >= len(request["prompt_token_ids"]) > 0
        response = request["generate_response"]
        choice, = response["choices"]
        assert choice["token_ids"][-1] == self.END
        text, _, call = "".join(chr(id - 100) for id in choice["token_ids"][:-1]).partition("<call>")
        message = {"role": "assistant", "content": text, "reasoning": None, "tool_calls": []}
        if call:
            name, arguments = json.loads(call)
            assert name in [tool["function"]["name"] for tool in request["chat_request"]["tools"]]
            message["tool_calls"] = [{"id": f"call-{len(text)}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}]
        usage = {"prompt_tokens": request["prompt_tokens"], "completion_tokens": len(choice["token_ids"]),
                 "total_tokens": request["prompt_tokens"] + len(choice["token_ids"])}
        return {"id": response["request_id"], "object": "chat.completion", "created": 1, "model": request["model"], "usage": usage,
                "choices": [{"index": 0, "message": message, "logprobs": choice["logprobs"], "finish_reason": choice["finish_reason"]}]}

    def prompts(self):
        return [body["token_ids"] for path, body in self.asked if path == GENERATE]


def check_exact(result, rows, engine):
    """One clean row, and the engine sampled from exactly what the row says."""
    row, = rows
    check_row(row)
    assert row["continuity"]["status"] == "clean" and row["context_differs"] == [] and len(row["turns"]) == 3
    assert result["gateway"]["exact_prefix"] == {"calls": 3, "used": 2, "trouble": None}
    assert engine.prompts() == [row["token_ids"][:turn["completion"][0]] for turn in row["turns"]]


def test_an_agent_is_sampled_in_tokens(postern, tmp_path):
    plain, exact = TokenEngine(), TokenEngine()
    result, rows = run_against(postern, tmp_path, plain, *FLAGS)
    assert [row["continuity"]["status"] for row in rows] == ["clean", "forked", "forked"]
    assert [row["token_ids"][:row["turns"][-1]["completion"][0]] for row in rows] == plain.prompts()
    assert [path for path, _ in plain.asked] == [RENDER, GENERATE, DERENDER] * 3
    for row in rows:
        check_row(row)

    result, rows = run_against(postern, tmp_path, exact, "--exact-prefix", *FLAGS)
    check_exact(result, rows, exact)
    assert [path for path, _ in exact.asked].count(RENDER) == 5


def test_an_agent_of_another_dialect_that_streams_is_sampled_in_tokens(agents_postern, installed, tmp_path):  # noqa: F811
    installed("claude-code")
    engine = TokenEngine(shell=("Bash", "command"))
    result, rows = run_against(agents_postern, tmp_path, engine, "--exact-prefix", *FLAGS, agent="claude-code")
    check_exact(result, rows, engine)


@pytest.mark.parametrize("missing", [GENERATE, DERENDER])
def test_an_engine_without_a_route_is_the_engines_fault_and_no_tokens_are_lost_in_silence(postern, tmp_path, missing):
    engine = TokenEngine([path for path in (RENDER, GENERATE, DERENDER) if path != missing])
    job = task(tmp_path / "task.json", verify=["true"])
    done = postern("run", "--agent", "mini", "--task", job, "--model", f"http://127.0.0.1:{engine.server_address[1]}/v1#m", "--mode", "proxy",
                   "--json", *FLAGS, *postern.flags)
    result = json.loads(done.lines()[-1])
    assert result["fate"] == "upstream_failed" and result["reward"] is None and result["turns"] == 0
    assert missing.removeprefix("/v1") in result["error"] and "--enable-scale-out" in result["error"], result
    assert engine.asked[-1][0] == missing

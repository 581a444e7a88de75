"""Postern's rollouts in the shapes of other trainers (python/src/postern/adapters): real rollouts, with stand-ins for the trainers. TRL
needs torch and is not installed here; the stand-in asks for what its GRPOTrainer (1.16) takes from a rollout function. Likewise
verifiers (0.1), whose environments get an OpenAI-like client."""

import asyncio
import json
import os
import re
import sys

import pytest

import postern as lib
from test_python_client import SOURCE, TASK, pc, serving, solve

NO_SANDBOX = {**TASK, "environment": {"image": "dir:/nonexistent/root"}}


def adapter(name):
    return __import__(f"postern_client.adapters.{name}", fromlist=["x"])


@pytest.fixture(scope="module")
def client(sandbox_works):
    with serving(sandbox_works) as client:
        yield client


def test_the_grpo_example(sandbox_works):
    done = lib.command([sys.executable, lib.REPOSITORY / "python/examples/grpo_collect.py"], seconds=180,
                       env={**os.environ, "PYTHONPATH": str(SOURCE.parent), "POSTERN": lib.PROGRAM,
                            "SERVE_FLAGS": " ".join([*sandbox_works, "--sandbox.pool", "4"])})
    assert done.code == 0, done
    batches = re.findall(r"step (\d)  8 rows of at most \d+ tokens, (\d+) trained, .* versions \[(\d)\], 8 clean", done.text)
    assert [batch[0] for batch in batches] == ["1", "2"] and all(batch[0] == batch[2] and int(batch[1]) > 300 for batch in batches), done


# ---------------------------------------------------------------- TRL
class Trainer:
    """What GRPOTrainer does with a rollout function and reward functions, without the tensors."""

    def __init__(self, rollout_func, reward_funcs, step):
        self.rollout_func, self.reward_funcs = rollout_func, reward_funcs
        self.state = type("State", (), {"global_step": step})()

    def generate(self, prompts):
        output = self.rollout_func(prompts, self)
        required = {"prompt_ids", "completion_ids", "logprobs"}
        assert not required - output.keys()
        extra = {name: values for name, values in output.items() if name not in required}
        mask = extra.pop("env_mask")
        for at in range(len(prompts)):
            assert len(output["completion_ids"][at]) == len(output["logprobs"][at]) == len(mask[at])
        assert all(isinstance(values, list) and len(values) == len(prompts) for values in extra.values())
        completions = ["" for _ in prompts]
        rewards = [function(prompts=prompts, completions=completions, completion_ids=output["completion_ids"], **extra)
                   for function in self.reward_funcs]
        return output, mask, rewards


def solve_in_tokens(call):
    """Two turns whose tokens follow each other: the second prompt is the first with its answer and one more."""
    more = {1: {"prompt_token_ids": [1, 2, 3], "token_ids": [7, 8], "completion_logprobs": [-1.5, -0.5]},
            2: {"prompt_token_ids": [1, 2, 3, 7, 8, 4], "token_ids": [9], "completion_logprobs": [-0.25]}}[call["turn"]]
    return {**solve(call), **more}


def test_trl_gets_sequences_masks_and_rewards(client):
    trl = adapter("trl")
    prompts = [[{"role": "user", "content": "yes"}], [{"role": "user", "content": "yes"}], [{"role": "user", "content": "no"}]]
    tasks = {"yes": TASK, "no": {**TASK, "verify": ["false"]}}
    trainer = Trainer(trl.rollout_func(client, "mini", tasks, run="trl"), [trl.reward], 17)
    with pc.GateWorker(client, solve_in_tokens):
        output, mask, rewards = trainer.generate(prompts)
    assert output["prompt_ids"] == [[1, 2, 3]] * 3 and output["completion_ids"] == [[7, 8, 4, 9]] * 3
    assert mask == [[1, 1, 0, 1]] * 3 and output["logprobs"] == [[-1.5, -0.5, 0, -0.25]] * 3
    assert rewards == [[1, 1, 0]] and output["postern_rows"] == [1, 1, 1] and output["postern_versions"][0] == [17, 17, -1, 17]
    assert [client.rollout(id)["fate"] for id in output["postern_rollout"]] == ["ok"] * 3 and client.policy()["version"] == 17


def test_trl_makes_as_many_as_it_is_told(client):
    trl = adapter("trl")
    function = trl.rollout_func(client, "mini", lambda prompt: TASK, generations=3, version_of=lambda _: 18)
    with pc.GateWorker(client, solve_in_tokens):
        output = function(["a", "b"], None)
    assert len(output["prompt_ids"]) == 6 and client.policy()["version"] == 18


def test_trl_never_gets_a_reward_that_infrastructure_made(client):
    """A rollout without one is done again, and then it is an error."""
    trl = adapter("trl")
    tasks = [{**TASK, "verify": ["mkdir -p /logs/verifier; echo nan > /logs/verifier/reward.txt"]}, TASK, TASK]
    with pc.GateWorker(client, solve_in_tokens):
        output = trl.rollout_func(client, "mini", lambda _: tasks.pop(0), tries=2)(["a", "b"], None)
        assert output["postern_reward"] == [1, 1] and not tasks
        with pytest.raises(pc.PosternError, match="infra_failed: .*/nonexistent/root"):
            trl.rollout_func(client, "mini", lambda _: NO_SANDBOX, tries=2)(["a"], None)
    with pytest.raises(KeyError, match="no task"):
        trl.rollout_func(client, "mini", {})(["a"], None)


# ---------------------------------------------------------------- verifiers
class OpenAiLike:
    """The part of AsyncOpenAI that environments use. It answers like vLLM."""

    def __init__(self):
        self.asked, self.chat, self.completions = [], self, self

    async def create(self, **request):
        self.asked.append(request)
        await asyncio.sleep(0)
        turn = sum(message["role"] == "tool" for message in request["messages"]) + 1
        made = solve_in_tokens({"turn": turn})
        message = {"role": "assistant", "content": made["content"], "tool_calls": made.get("tool_calls")}
        content = [{"token": "x", "logprob": each} for each in made["completion_logprobs"]]
        body = {"prompt_token_ids": made["prompt_token_ids"],
                "choices": [{"message": message, "finish_reason": "stop", "token_ids": made["token_ids"],
                             "logprobs": {"content": content}}]}
        return type("Completion", (), {"model_dump": lambda _: body})()


def test_a_verifiers_environment(client):
    env = adapter("verifiers").PosternEnv(client, "mini", [TASK, {**TASK, "verify": ["true", "false"]}])
    assert [row["example_id"] for row in env.get_dataset()] == [0, 1] and len(env.get_dataset(1)) == 1
    model = OpenAiLike()
    outputs = asyncio.run(env.evaluate(model, "m-1", {"temperature": 0.7}, rollouts_per_example=2))
    assert outputs["reward"] == [1, 1, 0.5, 0.5] and outputs["example_id"] == [0, 0, 1, 1] and not any(outputs["is_truncated"])
    assert outputs["metadata"]["avg_reward"] == 0.75 and outputs["metadata"]["rollouts_per_example"] == 2
    assert len(model.asked) == 8 and {request["model"] for request in model.asked} == {"m-1"} and model.asked[0]["temperature"] == 0.7
    state = outputs["state"][0]
    first, second = state["trajectory"]
    assert first["tokens"]["completion_ids"] == [7, 8] and second["tokens"]["prompt_ids"] == [1, 2, 3, 7, 8, 4]
    assert second["tokens"]["completion_logprobs"] == [-0.25] and state["stop_condition"] == "ok" and state["error"] is None
    assert [message["role"] for message in state["completion"]] == ["assistant", "tool", "assistant"] and state["advantage"] == 0
    json.dumps(outputs["completion"])


def test_a_verifiers_rollout_that_infrastructure_broke_has_an_error_and_no_reward(client):
    env = adapter("verifiers").PosternEnv(client, "mini", [NO_SANDBOX, TASK])
    broken, fine = asyncio.run(env.run_group(env.get_dataset(), OpenAiLike(), "m-1"))
    assert broken["reward"] is None and "nonexistent" in str(broken["error"]) and broken["trajectory"] == []
    assert fine["reward"] == 1 and fine["error"] is None and broken["advantage"] is None

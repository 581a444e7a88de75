"""Postern's rollouts as a Verifiers-style environment (the interface of verifiers 0.1: `rollout`, `run_group`, `generate`,
`evaluate`, states with a trajectory). The trainer hands over an OpenAI-like client and a model; agents in sandboxes ask Postern,
and each of their calls is answered by that client. The reward is the task's own verifier's.

    env = PosternEnv(postern_client, "opencode", tasks)                       # by itself
    class Env(PosternRollouts, vf.Environment): ...                           # inside the package: rollout() comes from here,
    env = Env(dataset=dataset, rubric=vf.Rubric(funcs=[reward])); env.setup_postern(postern_client, "opencode", tasks)  # and rewards
    states = await env.run_group([row] * 8, openai_client, "my-model", sampling_args={"temperature": 1.0})

A rollout that infrastructure broke has `error` set and reward None, never 0. verifiers 0.2 and later read traces instead: the samples
route gives them (docs/samples.md)."""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence, Union

from ..aio import AsyncClient
from ..client import Client
from ..engine import convert
from ..errors import PosternError
from ..requests import Json
from ..worker import GateWorker

Task = Union[str, Mapping[str, Any]]
State = Dict[str, Any]
Row = Mapping[str, Any]


class PosternRollouts:
    """The part that plays: `rollout(input, client, model, sampling_args)` gives a finished state. `input` has `example_id` and `prompt`;
    the task is `input["info"]["task"]`, or the one of that number in `tasks`."""

    postern: Union[Client, AsyncClient]
    agent: str
    tasks: Sequence[Task]
    order: Dict[str, Any]
    concurrency: int = 8  # calls of one rollout at once
    timeout: Optional[float] = None

    def setup_postern(self, postern: Union[Client, AsyncClient], agent: str, tasks: Sequence[Task], concurrency: int = 8,
                      timeout: Optional[float] = None, **order: Any) -> None:
        self.postern, self.agent, self.tasks, self.order = postern, agent, list(tasks), order
        self.concurrency, self.timeout = concurrency, timeout

    async def rollout(self, input: Row, client: Any, model: str, sampling_args: Optional[Mapping[str, Any]] = None) -> State:
        began = time.time()
        group = f"vf-{random.getrandbits(64):016x}"  # of this rollout alone: its calls are ours before its id is known

        async def answer(call: Json) -> Any:
            asked = {"model": model, "messages": call["messages"], **(sampling_args or {})}
            if call.get("tools"):
                asked["tools"] = call["tools"]
            completion = client.chat.completions.create(**asked)
            if inspect.isawaitable(completion):
                completion = await completion
            return convert(completion if isinstance(completion, Mapping) else completion.model_dump())

        async with AsyncClient(str(self.postern.address), self.postern.token) as own:
            async with GateWorker(own, answer, self.concurrency, group=group):
                id = await own.submit(self.agent, self._task(input), mode="gate", group=group, **self.order)
                result = await own.wait(id, self.timeout)
            records = [await own.call(each["id"]) for each in await own.calls(id) if each["state"] == "answered"]
        return make_state(input, result, records, model, sampling_args, began)

    def _task(self, input: Row) -> Task:
        info = input.get("info")
        task = info.get("task") if isinstance(info, Mapping) else None
        return task if task is not None else self.tasks[int(input["example_id"])]


class PosternEnv(PosternRollouts):
    """A whole environment without the package. A row has `example_id`, `prompt`, `task`, `info`, `answer`."""

    def __init__(self, postern: Union[Client, AsyncClient], agent: str, tasks: Sequence[Task], env_id: str = "postern",
                 **options: Any) -> None:
        self.env_id = env_id
        self.setup_postern(postern, agent, tasks, **options)

    def get_dataset(self, n: int = -1, seed: Optional[int] = None) -> List[Dict[str, Any]]:
        rows = [{"example_id": number, "prompt": [{"role": "user", "content": _instruction(task)}], "task": self.env_id, "answer": "",
                 "info": {}} for number, task in enumerate(self.tasks)]
        if seed is not None:
            random.Random(seed).shuffle(rows)
        return rows if n < 0 else rows[:n]

    def get_eval_dataset(self, n: int = -1, seed: Optional[int] = None) -> List[Dict[str, Any]]:
        return self.get_dataset(n, seed)

    async def run_rollout(self, input: Row, client: Any, model: str, sampling_args: Optional[Mapping[str, Any]] = None,
                          *_: Any, **__: Any) -> State:
        return await self.rollout(input, client, model, sampling_args)

    async def run_group(self, group_inputs: Sequence[Row], client: Any, model: str,
                        sampling_args: Optional[Mapping[str, Any]] = None, *_: Any, **__: Any) -> List[State]:
        """The states, each with its advantage over the mean of the group."""
        states = list(await asyncio.gather(*(self.rollout(each, client, model, sampling_args) for each in group_inputs)))
        known = [state["reward"] for state in states if state["reward"] is not None]
        for state in states:
            state["advantage"] = None if state["reward"] is None else state["reward"] - sum(known) / len(known)
            for step in state["trajectory"]:
                step["advantage"] = state["advantage"]
        return states

    async def generate(self, inputs: Sequence[Row], client: Any, model: str, sampling_args: Optional[Mapping[str, Any]] = None,
                       max_concurrent: int = -1, **_: Any) -> Dict[str, Any]:
        """All rows, those of one example as a group; columns in the order of `inputs`."""
        began = time.time()
        groups: Dict[Any, List[int]] = {}
        for at, row in enumerate(inputs):
            groups.setdefault(row["example_id"], []).append(at)
        room = asyncio.Semaphore(max_concurrent if max_concurrent > 0 else len(inputs) or 1)
        states: List[Optional[State]] = [None] * len(inputs)

        async def play(places: List[int]) -> None:
            async with room:
                made = await self.run_group([inputs[at] for at in places], client, model, sampling_args)
            for at, state in zip(places, made):
                states[at] = state

        await asyncio.gather(*(play(places) for places in groups.values()))
        return self._outputs([state for state in states if state is not None], model, dict(sampling_args or {}), began)

    async def evaluate(self, client: Any, model: str, sampling_args: Optional[Mapping[str, Any]] = None, num_examples: int = -1,
                       rollouts_per_example: int = 1, **more: Any) -> Dict[str, Any]:
        rows = [row for row in self.get_eval_dataset(num_examples) for _ in range(rollouts_per_example)]
        return await self.generate(rows, client, model, sampling_args, **more)

    def _outputs(self, states: List[State], model: str, sampling: Dict[str, Any], began: float) -> Dict[str, Any]:
        rewards = [state["reward"] for state in states]
        known = [reward for reward in rewards if reward is not None]
        names = sorted({name for state in states for name in state["metrics"]})
        metrics = {name: [state["metrics"].get(name) for state in states] for name in names}
        examples = len({state["example_id"] for state in states})
        return {**{name: [state[name] for state in states] for name in ("prompt", "completion", "answer", "task", "info", "example_id")},
                "state": states, "reward": rewards, "metrics": metrics,
                "stop_conditions": [state["stop_condition"] for state in states],
                "is_truncated": [state["is_truncated"] for state in states],
                "metadata": {"env_id": self.env_id, "model": model, "sampling_args": sampling, "num_examples": examples,
                             "rollouts_per_example": len(states) // max(examples, 1), "time_ms": (time.time() - began) * 1000,
                             "avg_reward": sum(known) / len(known) if known else None, "failed": len(rewards) - len(known)}}


def reward(state: Mapping[str, Any]) -> Optional[float]:
    """For a rubric of the package, which scores again: what the task's own verifier said."""
    said: Optional[float] = state["postern"]["reward"]
    return said


def _instruction(task: Task) -> str:
    return task if isinstance(task, str) else str(task.get("instruction", ""))


def make_state(input: Row, result: Json, records: Sequence[Json], model: str, sampling_args: Optional[Mapping[str, Any]],
               began: float) -> State:
    """A finished rollout as a state. `records`: its answered calls, whole."""
    steps = [_step(record, str(result["id"])) for record in records if not record.get("side")]
    first = len(steps[0]["prompt"]) if steps else 0
    # What came after the first prompt, as the last request has it, and the last answer.
    completion = [*steps[-1]["prompt"][first:], *steps[-1]["completion"]] if steps else []
    failed = result["reward"] is None
    milliseconds = (time.time() - began) * 1000
    return {"input": dict(input), "prompt": steps[0]["prompt"] if steps else input.get("prompt", []), "completion": completion,
            "answer": input.get("answer", ""), "task": input.get("task", ""), "info": dict(input.get("info") or {}),
            "example_id": input.get("example_id"), "model": model, "sampling_args": dict(sampling_args or {}),
            "trajectory": steps, "trajectory_id": result["id"], "reward": result["reward"], "advantage": None,
            "metrics": {str(name): float(value) for name, value in (result.get("rewards") or {}).items()},
            "is_completed": True, "is_truncated": any(step["is_truncated"] for step in steps), "stop_condition": result["fate"],
            "error": PosternError(f"{result['fate']}: {result.get('cause') or 'there is no verifier'}") if failed else None,
            "timing": {"start_time": began, "generation_ms": milliseconds, "scoring_ms": 0.0, "total_ms": milliseconds},
            "postern": result}


def _step(record: Json, rollout: str) -> Dict[str, Any]:
    request, answer = record["request"], record["answer"]
    ids, logprobs, prompt = answer.get("token_ids"), answer.get("logprobs"), answer.get("prompt_token_ids")
    truncated = answer.get("finish_reason") == "length"
    tokens = None
    if ids is not None and prompt is not None and logprobs is not None and len(ids) == len(logprobs):
        tokens = {"prompt_ids": prompt, "prompt_mask": [0] * len(prompt), "completion_ids": ids, "completion_mask": [1] * len(ids),
                  "completion_logprobs": logprobs, "overlong_prompt": False, "is_truncated": truncated}
    return {"prompt": request["messages"], "completion": [answer["message"]], "response": answer, "tokens": tokens, "reward": None,
            "advantage": None, "is_truncated": truncated, "trajectory_id": rollout,
            "extras": {"call_id": record["call_id"], "policy_version": record.get("policy_version")}}

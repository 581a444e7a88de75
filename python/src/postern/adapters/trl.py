"""A rollout function for TRL's GRPOTrainer: prompts in, token sequences out, each from a real agent in a real sandbox.

    worker = postern.GateWorker(client, postern.Engine(trainer_vllm_url, model=name), concurrency=64).start()
    trainer = GRPOTrainer(..., reward_funcs=trl.reward, rollout_func=trl.rollout_func(client, "opencode", task_of))

The contract (TRL 1.16, GRPOTrainer's `rollout_func`): a function of the prompts of this process and the trainer, which returns
lists of equal length under `prompt_ids`, `completion_ids`, `logprobs`; `env_mask` is 1 for tokens of the model and 0 for others; all
other members go to the reward functions. A rollout is one sequence there: what stands before its first sampled token is the prompt.
Of a rollout with several rows (docs/samples.md) the one with the most trained tokens is taken; `postern_rows` says how many there were."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from ..client import Client
from ..errors import PosternError
from ..requests import Json
from ..samples import Sample

Task = Union[str, Mapping[str, Any]]
TaskOf = Union[Mapping[str, Task], Callable[[Any], Task]]


def rollout_func(client: Client, agent: str, task_of: TaskOf, generations: int = 1, tries: int = 3, timeout: float = 3600.0,
                 version_of: Optional[Callable[[Any], int]] = None, **order: Any) -> Callable[[List[Any], Any], Dict[str, Any]]:
    """`task_of` gives the task of a prompt: a function, or a mapping from its text (of messages: of the last one). `generations`:
    rollouts per prompt; 1 where the trainer repeats prompts itself. A rollout that has no reward or no tokens (infrastructure failed)
    is done again, `tries` times in all, and then an error: it must not become a reward of 0. `version_of(trainer)` is announced as the
    version of the weights (default: trainer.state.global_step). `order`: further fields of the submissions."""

    def function(prompts: List[Any], trainer: Any) -> Dict[str, Any]:
        version = version_of(trainer) if version_of else getattr(getattr(trainer, "state", None), "global_step", None)
        if version is not None:
            client.set_policy(version=int(version))
        wanted = [prompt for prompt in prompts for _ in range(generations)]
        done: List[Optional[Tuple[Json, Sequence[Sample]]]] = [None] * len(wanted)
        missing, causes = list(range(len(wanted))), ""
        for _ in range(tries):
            orders = [{"agent": agent, "task": _task(task_of, wanted[at]), "mode": "gate", "index": at, **order} for at in missing]
            results = client.wait_all(client.submit_many(orders), timeout)
            for at, result in zip(missing, results):
                rows = [row for row in client.samples(result["id"]) if row.kind == "tokens" and row.trained_count]
                if result["reward"] is not None and rows:
                    done[at] = (result, rows)
                else:
                    causes = f"{result['fate']}: {result.get('cause') or 'no tokens came with its answers'}"
            missing = [at for at in missing if done[at] is None]
            if not missing:
                break
        if missing:
            raise PosternError(f"{len(missing)} of {len(wanted)} rollouts gave nothing to learn from in {tries} tries; "
                               f"the last: {causes}")
        return _columns([each for each in done if each is not None])

    return function


def reward(*_: Any, postern_reward: Sequence[float], **__: Any) -> List[float]:
    """For `reward_funcs`: what the tasks' own verifiers said."""
    return [float(each) for each in postern_reward]


def _task(task_of: TaskOf, prompt: Any) -> Task:
    if not isinstance(task_of, Mapping):
        return task_of(prompt)
    text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
    if text not in task_of:
        raise KeyError(f"no task for the prompt {text[:80]!r}")
    return task_of[text]


def _columns(done: Sequence[Tuple[Json, Sequence[Sample]]]) -> Dict[str, Any]:
    columns: Dict[str, Any] = {name: [] for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask", "postern_reward",
                                                     "postern_rollout", "postern_rows", "postern_versions")}
    for result, rows in done:
        row = max(rows, key=lambda each: int(each.trained_count))
        mask = [int(each) for each in row.mask]
        first = mask.index(1)
        columns["prompt_ids"].append([int(each) for each in row.token_ids[:first]])
        columns["completion_ids"].append([int(each) for each in row.token_ids[first:]])
        columns["logprobs"].append([float(each) for each in row.logprobs[first:]])
        columns["env_mask"].append(mask[first:])
        columns["postern_versions"].append(row.versions()[first:])
        columns["postern_reward"].append(float(result["reward"]))
        columns["postern_rollout"].append(result["id"])
        columns["postern_rows"].append(len(rows))
    return columns

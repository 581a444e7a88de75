"""A complete learner in one file, with numpy and nothing else: a softmax policy over a vocabulary of a dozen words learns to
use the tools of a real task family, in real sandboxes, judged by the task's own verifier.

    PYTHONPATH=python/src POSTERN=build/postern python3 python/examples/tiny_learner.py

A task says "Bring it from red to green." The agent (mini) may run `./take PLACE` and `./put PLACE`; each says "parcel" or
"nothing". Half of the reward is for a parcel that left its place, half for one that arrived. Untrained, the policy gets about 0.1.

What makes it a proof: the learner keeps nothing of what it sampled. All it trains on (token ids, log-probabilities, the mask of
what was sampled, the version of the weights at each token) is what Postern gives back in its samples. From those ids alone it
computes each sampled token's log-probability under the weights of the version the token is stamped with; if an id, a boundary
between prompt and completion, a log-probability or a version were wrong, the importance ratio would not be 1.

    step:   pause ─► submit groups ─► resume(version) ─► agents act, the policy answers at the gate ─► samples ─► check ─► update
"""

import argparse
import os
import re
import sys
import time

import numpy as np

import postern

PLACES = ["red", "green", "blue"]
WORDS = ["<user>", "<tool>", "<act>", "<end>", "take", "put", "stop", "parcel", "nothing", *PLACES]
ID = {word: number for number, word in enumerate(WORDS)}
USER, TOOL, ACT, END = range(4)
SIZE = len(WORDS)
TURNS_MAX = 4
TOLERANCE = 1e-5  # of the importance ratio: log-probabilities travel as 4-byte floats

SCRIPT = '#!/bin/sh\nmkdir -p hand "$1" && mv {} 2>/dev/null && echo parcel || echo nothing\n'


def make_task(start, goal):
    tools = {"take": SCRIPT.format('"$1/parcel" hand/'), "put": SCRIPT.format('hand/parcel "$1/"')}
    files = [{"path": name, "content": text, "mode": "755"} for name, text in tools.items()]
    return {"name": f"{start}-to-{goal}", "instruction": f"Bring it from {start} to {goal}.",
            "files": [{"path": f"{start}/parcel", "content": "a parcel\n"}, *files],
            "verify": [f"test ! -e {start}/parcel", f"test -e {goal}/parcel"], "turns_max": TURNS_MAX}


TASKS = [(start, goal) for start in PLACES for goal in PLACES if start != goal]


# ---------------------------------------------------------------- the language
def words(text):
    return [ID[word] for word in re.findall(r"[a-z]+", text) if word in ID]


def render(messages):
    """The chat template. What was sampled comes back as the very tokens it was: the agent repeats arguments byte for byte."""
    ids = []
    for message in messages:
        if message["role"] == "user":
            ids += [USER, *words(message["content"]), ACT]
        elif message["role"] == "tool":
            ids += [TOOL, *words(message["content"]), ACT]
        elif message["role"] == "assistant":
            said = message.get("content") or ""
            for call in message.get("tool_calls") or []:
                said += call["function"]["arguments"]
            ids += [*words(said), END]
    return ids


def to_message(ids):
    said = [WORDS[id] for id in ids if id != END]
    if said[0] == "stop":
        return {"content": "stop", "finish_reason": "stop"}
    command = f'{{"command": "./{said[0]} {said[1]}"}}'
    call = {"id": f"call_{said[0]}_{said[1]}", "type": "function", "function": {"name": "bash", "arguments": command}}
    return {"content": "", "tool_calls": [call], "finish_reason": "tool_calls"}


# ---------------------------------------------------------------- the policy
ALLOWED = np.full((SIZE, SIZE), -np.inf)  # the grammar: which word may follow which
for last in range(SIZE):
    verb = WORDS[last] in ("take", "put")
    after = ["take", "put", "stop"] if last == ACT else PLACES if verb else ["<end>"]
    ALLOWED[last, [ID[word] for word in after]] = 0


def features(prefix):
    """Three numbers of rows of the weights: the last word together with where from, where to, and what the last tool said."""
    last = prefix[-1]
    seen = next((prefix[at + 1] for at in range(len(prefix) - 1, -1, -1) if prefix[at] == TOOL), USER)
    return [last * SIZE + prefix[1], (SIZE + last) * SIZE + prefix[2], (2 * SIZE + last) * SIZE + seen]


def new_weights():
    return np.zeros((3 * SIZE * SIZE, SIZE))


def log_softmax(weights, rows, last):
    logits = weights[rows].sum(axis=-2) + ALLOWED[last]
    logits = logits - logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


class Actor:
    """What answers the gate. It knows the weights of every version and which rollout is which; it remembers no sample."""

    def __init__(self, seed):
        self.seed, self.versions, self.numbers = seed, {}, {}

    def __call__(self, call):
        version = call["policy_version"]
        prompt = render(call["messages"])
        # Each call has dice of its own, so that a run is the same whatever the order of its agents.
        dice = np.random.default_rng([self.seed, version, self.numbers[call["rollout_id"]], call["turn"]])
        ids, logprobs = [], []
        while not ids or ids[-1] != END:
            prefix = prompt + ids
            found = log_softmax(self.versions[version], features(prefix), prefix[-1])
            ids.append(int(dice.choice(SIZE, p=np.exp(found))))
            logprobs.append(float(found[ids[-1]]))
        return {**to_message(ids), "prompt_token_ids": prompt, "token_ids": ids, "completion_logprobs": logprobs}


# ---------------------------------------------------------------- the learner
class Batch:
    """Sampled tokens, one per entry: rows of the weights, last word, the word, its log-probability when it was sampled,
    the version it was sampled by, the advantage."""

    def __init__(self):
        self.rows, self.last, self.word, self.logprob, self.version, self.advantage = [], [], [], [], [], []

    def add(self, sample, advantage):
        ids, versions = sample.token_ids.tolist(), sample.versions()
        for at in np.flatnonzero(sample.mask):
            self.rows.append(features(ids[:at]))
            self.last.append(ids[at - 1])
            self.word.append(ids[at])
            self.logprob.append(float(sample.logprobs[at]))
            self.version.append(versions[at])
            self.advantage.append(advantage)

    def close(self):
        for name, value in vars(self).items():
            setattr(self, name, np.array(value))
        return self

    def logprobs_under(self, weights):
        return log_softmax(weights, self.rows, self.last)

    def ratios(self, versions):
        """The importance ratio of every sampled token under the weights of the version it is stamped with; infinite where
        there is no such version."""
        found = np.full(len(self.word), np.inf)
        for version in set(self.version) & set(versions):
            of = np.flatnonzero(self.version == version)
            table = log_softmax(versions[version], self.rows[of], self.last[of])
            found[of] = table[np.arange(len(of)), self.word[of]]
        return np.exp(found - self.logprob)


class Learner:
    """PPO's clipped objective with group-relative advantages and a little entropy, Adam."""

    def __init__(self, rate=0.1, epochs=6, clip=0.3, entropy=0.02):
        self.rate, self.epochs, self.clip, self.entropy = rate, epochs, clip, entropy
        self.weights = new_weights()
        self.mean, self.square, self.count = np.zeros_like(self.weights), np.zeros_like(self.weights), 0

    def update(self, batch, rollouts):
        each = np.arange(len(batch.word))
        for _ in range(self.epochs):
            table = batch.logprobs_under(self.weights)
            chance = np.exp(table)
            ratio = np.exp(table[each, batch.word] - batch.logprob)
            far = ((batch.advantage > 0) & (ratio > 1 + self.clip)) | ((batch.advantage < 0) & (ratio < 1 - self.clip))
            push = np.where(far, 0, batch.advantage * ratio)
            slope = -chance * push[:, None]
            slope[each, batch.word] += push
            finite = np.where(chance > 0, table, 0)
            slope -= self.entropy * chance * (finite - (chance * finite).sum(axis=1, keepdims=True))
            gradient = np.zeros_like(self.weights)
            for column in range(3):
                np.add.at(gradient, batch.rows[:, column], slope)
            self._climb(gradient / rollouts)

    def _climb(self, gradient):
        self.count += 1
        self.mean = 0.9 * self.mean + 0.1 * gradient
        self.square = 0.99 * self.square + 0.01 * gradient ** 2
        mean, square = self.mean / (1 - 0.9 ** self.count), self.square / (1 - 0.99 ** self.count)
        self.weights = self.weights + self.rate * mean / (np.sqrt(square) + 1e-6)


# ---------------------------------------------------------------- the loop
def submit(client, actor, step, width):
    """All groups of a step; the gate is closed until it is known which rollout is which."""
    groups = []
    for start, goal in TASKS:
        ids = client.submit_group(width, "mini", make_task(start, goal), group=f"step-{step}-{start}-{goal}", mode="gate")
        for id in ids:
            actor.numbers[id] = len(actor.numbers)
        groups.append(ids)
    return groups


def collect(client, groups):
    """Rewards and a batch. Rollouts that failed for reasons of infrastructure have no reward, and are nobody's lesson."""
    batch, rewards = Batch(), []
    for ids in groups:
        results = [result for result in client.wait_all(ids, timeout=300) if result["reward"] is not None]
        rewards += [result["reward"] for result in results]
        for result, advantage in zip(results, postern.advantages([result["reward"] for result in results])):
            for sample in client.samples(result["id"]):
                batch.add(sample, advantage)
    return rewards, batch.close()


def train(client, seed=1, width=10, steps_max=40, aim=0.95, say=print):
    """Rewards per step, and the largest distance of an importance ratio from 1."""
    actor, learner, history, worst = Actor(seed), Learner(), [], 0.0
    with postern.GateWorker(client, actor, concurrency=16) as worker:
        for step in range(1, steps_max + 1):
            began = time.monotonic()
            client.pause()
            groups = submit(client, actor, step, width)
            actor.versions[step] = learner.weights.copy()
            client.resume(version=step)
            rewards, batch = collect(client, groups)
            if set(batch.version) != {step}:
                raise SystemExit(f"step {step}: tokens are stamped with versions {sorted(set(batch.version))}")
            off = float(np.abs(batch.ratios(actor.versions) - 1).max())
            worst = max(worst, off)
            if not off <= TOLERANCE:
                raise SystemExit(f"step {step}: an importance ratio of an on-policy token is {off} away from 1")
            history.append(float(np.mean(rewards)))
            say(f"step {step:2}  mean reward {history[-1]:.3f}  {len(rewards)} rollouts  {len(batch.word)} tokens  "
                f"|ratio - 1| <= {off:.1e}  {time.monotonic() - began:.1f} s")
            if np.mean(history[-2:]) > aim:
                break
            learner.update(batch, len(rewards))
    if worker.failed:
        raise SystemExit(f"the policy failed: {worker.errors[-1]!r}")
    return history, worst


def main():
    parser = argparse.ArgumentParser(description="a softmax policy learns to use tools through Postern")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--width", type=int, default=10, help="rollouts in a group")
    parser.add_argument("--steps", type=int, default=40, help="at most so many updates")
    options = parser.parse_args()
    began = time.monotonic()
    with postern.local(flags=os.environ.get("SERVE_FLAGS", "--sandbox.pool 16").split()) as client:
        history, worst = train(client, options.seed, options.width, options.steps)
    print(f"mean reward {history[0]:.3f} -> {history[-1]:.3f} in {len(history)} steps and {time.monotonic() - began:.0f} s; "
          f"importance ratios of on-policy tokens within {worst:.1e} of 1")
    sys.exit(0 if history[0] < 0.3 and history[-1] > 0.9 else 1)


if __name__ == "__main__":
    main()

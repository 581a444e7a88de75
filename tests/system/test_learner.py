"""The tiny learner (python/examples/tiny_learner.py): a policy that acts through the gate, in real sandboxes, and trains on
what comes back. Its importance ratios are 1 only if ids, boundaries, log-probabilities and versions are right; the last test here
damages each of them and sees that the ratios tell."""

import importlib.util
import os
import re
import subprocess
import sys

import pytest

import postern as lib
from test_python_client import pc, serving

EXAMPLE = lib.REPOSITORY / "python" / "examples" / "tiny_learner.py"


@pytest.fixture(scope="module")
def learner():
    """The example as a module. What it calls `postern` is the client, not the library of these tests."""
    try:
        import numpy  # noqa: F401
    except ImportError:
        lib.must("there is no numpy: tools/setup test installs it")
    own = sys.modules["postern"]
    sys.modules["postern"] = pc
    try:
        spec = importlib.util.spec_from_file_location("tiny_learner", EXAMPLE)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.modules["postern"] = own
    return module


@pytest.fixture(scope="module")
def client(sandbox_works):
    with serving([*sandbox_works, "--sandbox.pool", "8"]) as client:
        yield client


def test_the_tiny_learner_learns(learner, sandbox_works):
    """As its first lines say to start it. It ends with an error when a ratio is off, or when it does not learn."""
    flags = " ".join([*sandbox_works, "--sandbox.pool", "16"])
    env = {**os.environ, "PYTHONPATH": str(lib.REPOSITORY / "python" / "src"), "POSTERN": str(lib.PROGRAM), "SERVE_FLAGS": flags}
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, env=env, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    last = re.search(r"mean reward ([\d.]+) -> ([\d.]+) in \d+ steps .* within ([\d.e-]+) of 1", done.stdout)
    assert last and float(last[1]) < 0.3 and float(last[2]) > 0.9 and float(last[3]) < 1e-5, done.stdout


def updated_in_flight(learner, client):
    """One rollout whose weights change twice: before its second and before its third answer. The result and the actor."""
    import numpy
    actor = learner.Actor(7)
    dice = numpy.random.default_rng(3)
    for version in (101, 102, 103):
        actor.versions[version] = dice.normal(size=learner.new_weights().shape)
    # All of them go on taking: no early end.
    for weights in actor.versions.values():
        weights[:, learner.ID["stop"]] = -20

    def policy(call):
        answer = actor(call)
        if call["turn"] < 3:
            client.set_policy(version=call["policy_version"] + 1)  # after this answer was made, before the next is asked for
        return answer

    client.pause()
    id = client.submit("mini", learner.make_task("red", "blue"), mode="gate")
    actor.numbers[id] = 0
    client.resume(version=101)
    with pc.GateWorker(client, policy):
        result = client.wait(id, 120)
    assert result["fate"] == "limit" and result["reward"] is not None and result["turns"] == learner.TURNS_MAX, result
    return result, actor


def test_every_token_has_the_version_that_made_it(learner, client):
    result, actor = updated_in_flight(learner, client)
    sample, = client.samples(result["id"])
    assert sample.continuity["status"] == "clean" and sample.reward == result["reward"] and len(sample.turns) == learner.TURNS_MAX
    batch = learner.Batch()
    batch.add(sample, 0)
    batch.close()
    assert abs(batch.ratios(actor.versions) - 1).max() < learner.TOLERANCE
    # verb, place, end: three tokens an answer
    assert list(batch.version) == [101] * 3 + [102] * 3 + [103] * 6
    assert sum(sample.mask) == 12 and len(sample.mask) == len(sample.token_ids) == len(sample.logprobs)
    first, last = sample.turns[0], sample.turns[-1]
    assert [span[2] for span in sample.policy_versions] == [101, 102, 103, 103]
    assert first["prompt"][0] == 0 and last["completion"][1] == len(sample)


def test_the_ratios_tell_what_is_wrong(learner, client):
    result, actor = updated_in_flight(learner, client)
    right, = client.samples(result["id"])
    sampled = [at for at, mask in enumerate(right.mask) if mask]

    def off(change):
        row = Row(right)
        change(row)
        batch = learner.Batch()
        batch.add(row, 0)
        batch.close()
        return float(abs(batch.ratios(actor.versions) - 1).max())

    def other_place(row):
        at = sampled[1]
        row.token_ids[at] = next(learner.ID[place] for place in learner.PLACES if learner.ID[place] != row.token_ids[at])

    def earlier_version(row):
        for at in sampled[3:6]:
            row.each[at] -= 1

    def later_mask(row):
        row.mask = [0, *row.mask[:-1]]

    def swapped(row):
        first, second = sampled[0], sampled[1]
        row.logprobs[first], row.logprobs[second] = float(row.logprobs[second]), float(row.logprobs[first])

    assert off(lambda row: None) < learner.TOLERANCE
    for change in (other_place, earlier_version, later_mask, swapped):
        assert not off(change) < 1e-3, change.__name__


class Row:
    """A copy of a sample that can be changed."""

    def __init__(self, sample):
        self.token_ids, self.logprobs, self.mask = sample.token_ids.copy(), sample.logprobs.copy(), list(sample.mask)
        self.each = sample.versions()

    def versions(self):
        return self.each

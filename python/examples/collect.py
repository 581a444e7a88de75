"""Collects a group of rollouts of one task, as a GRPO-style trainer does before each step: starts a server, submits the
group in mode gate, is the model of every agent through a GateWorker, and prints rewards and advantages.

    PYTHONPATH=python/src POSTERN=build/postern python3 python/examples/collect.py [TASK]

The policy is scripted: every second rollout is solved, the others give up. A real one would ask its own engine."""

import json
import os
import pathlib
import statistics
import sys
import threading

import postern

TASK = pathlib.Path(__file__).resolve().parents[2] / "tasks" / "parse-a-log"
PROGRAM = r'''
import collections, json, re
form = re.compile(r"\S+Z (\S+) [A-Z]+ (\S+) (\d{3}) (\d+)ms")
found = [m.groups() for m in map(form.fullmatch, open("/app/access.log").read().split("\n")) if m]
times = collections.defaultdict(list)
for _, target, _, ms in found:
    times[re.sub(r"/\d+(?=/|$)", "/:id", target.split("?")[0])].append(int(ms))
mean = {path: sum(ms) / len(ms) for path, ms in times.items() if len(ms) >= 5}
json.dump({"requests": len(found), "by_status": collections.Counter(f[2] for f in found),
           "slowest_path": max(mean, key=mean.get),
           "errors_by_client": collections.Counter(f[0] for f in found if f[2] >= "500")}, open("/app/report.json", "w"))
'''


class Policy:
    """Two turns: a command, then a last word. It answers in chunks, as an engine that streams would."""

    def __init__(self):
        self.lock, self.solves = threading.Lock(), {}

    def __call__(self, call):
        with self.lock:
            solves = self.solves.setdefault(call["rollout_id"], len(self.solves) % 2 == 0)
        if solves and call["turn"] == 1:
            arguments = json.dumps({"command": f"python3 - <<'PY'{PROGRAM}PY"})
            yield {"delta": {"tool_calls": [{"index": 0, "id": "c1", "type": "function",
                                             "function": {"name": "bash", "arguments": arguments}}]}}
            yield {"finish_reason": "tool_calls"}
        else:
            yield from ("I am ", "done." if solves else "lost.")


def main():
    task = sys.argv[1] if len(sys.argv) > 1 else str(TASK)
    flags = os.environ.get("SERVE_FLAGS", "").split()
    with postern.local(flags=flags) as client:
        with postern.GateWorker(client, Policy(), concurrency=4, group="step-1"):
            ids = client.submit_group(4, "mini", task, group="step-1", mode="gate")
            results = client.wait_all(ids, timeout=120)
    rewards = [result["reward"] for result in results]
    if None in rewards:
        sys.exit(f"not every rollout has a reward: {[(r['fate'], r.get('cause')) for r in results]}")
    mean, spread = statistics.mean(rewards), statistics.pstdev(rewards) or 1.0
    for result in results:
        print(f"{result['id']}  {result['fate']}  reward {result['reward']}  "
              f"advantage {(result['reward'] - mean) / spread:+.2f}  turns {result['turns']}")
    print(f"mean reward {mean:.2f}")


if __name__ == "__main__":
    main()

"""What a GRPO-style trainer does between two updates, with a scripted engine in place of vLLM: announces the version of its
weights, submits a group of rollouts for each task, lets the engine answer the agents, and makes a padded batch of the samples, each
row with its group-relative advantage.

    PYTHONPATH=python/src POSTERN=build/postern python3 python/examples/grpo_collect.py

With a real engine, give its URL to postern.Engine and drop ScriptedEngine; everything else stays as it is."""

import http.server
import json
import os
import threading

import postern

TASKS = [{"name": "say-hello", "instruction": "Write hello into greeting.", "verify": ["grep -qx hello greeting"]},
         {"name": "count", "instruction": "Write the numbers from 1 to 3 into numbers, one per line.",
          "verify": ["test $(wc -l < numbers) -eq 3", "grep -qx 3 numbers"]}]
SOLUTIONS = {"greeting": "echo hello > greeting", "numbers": "seq 3 > numbers"}
WIDTH = 4  # rollouts in a group
STEPS = 2


# ---------------------------------------------------------------- the engine
class ScriptedEngine(http.server.ThreadingHTTPServer):
    """Speaks chat completions as vLLM does, token ids and log-probabilities included. A token is a character. Of the conversations
    it is asked to begin, every second one gets the right command, the others a wrong one."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url, self.begun, self.lock = f"http://127.0.0.1:{self.server_port}/v1", 0, threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def reply(self, messages):
        if messages[-1]["role"] == "tool":
            return {"content": "Done."}
        with self.lock:
            self.begun += 1
            right = self.begun % 2 == 1
        asked = messages[-1]["content"]
        command = next(command for name, command in SOLUTIONS.items() if name in asked) if right else "echo 3 > numbers"
        return {"content": "", "tool_calls": [{"id": "call_1", "type": "function",
                                               "function": {"name": "bash", "arguments": json.dumps({"command": command})}}]}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        message = self.server.reply(asked["messages"])
        ids = [ord(letter) for letter in text_of({"role": "assistant", **message})]
        prompt = [ord(letter) for each in asked["messages"] for letter in text_of(each)]
        choice = {"index": 0, "message": {"role": "assistant", **message}, "token_ids": ids,
                  "finish_reason": "tool_calls" if message.get("tool_calls") else "stop",
                  "logprobs": {"content": [{"token": chr(id), "logprob": -0.01 * (id % 100)} for id in ids]}}
        data = json.dumps({"id": "c", "object": "chat.completion", "prompt_token_ids": prompt, "choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def text_of(message):
    """The chat template: what was said, between marks."""
    calls = "".join(call["function"]["arguments"] for call in message.get("tool_calls") or [])
    return f"<{message['role'][0]}>{message.get('content') or ''}{calls}\n"


# ---------------------------------------------------------------- the trainer's side
def collect(client, step):
    """Rows with advantages, over all groups of a step."""
    client.set_policy(version=step)
    groups = [client.create_group(WIDTH, "mini", task, mode="gate", run=f"step-{step}") for task in TASKS]
    pairs = []
    for task, group in zip(TASKS, groups):
        results = client.wait_group(group["id"], timeout=300)
        pairs += postern.samples.with_advantages(client.group_samples(group["id"]))
        print(f"step {step}  {task['name']:<10} rewards {[result['reward'] for result in results]}")
    return pairs


def to_batch(pairs):
    """Padded arrays: what goes into the loss."""
    import numpy
    shape = (len(pairs), max(len(row) for row, _ in pairs))
    batch = {"ids": numpy.zeros(shape, "int64"), "mask": numpy.zeros(shape, "float32"), "logprobs": numpy.zeros(shape, "float32"),
             "advantages": numpy.array([advantage for _, advantage in pairs], "float32")}
    for at, (row, _) in enumerate(pairs):
        batch["ids"][at, :len(row)] = row.token_ids
        batch["mask"][at, :len(row)] = row.mask
        batch["logprobs"][at, :len(row)] = row.logprobs
    return batch


def main():
    engine = ScriptedEngine()
    with postern.local(flags=os.environ.get("SERVE_FLAGS", "--sandbox.pool 4").split()) as client:
        with postern.GateWorker(client, postern.Engine(engine.url, kind="vllm", model="policy"), concurrency=16):
            for step in range(1, STEPS + 1):
                pairs = collect(client, step)
                versions = sorted({span[2] for row, _ in pairs for span in row.policy_versions})
                batch = to_batch(pairs)
                print(f"step {step}  {len(pairs)} rows of at most {batch['ids'].shape[1]} tokens, {int(batch['mask'].sum())} trained, "
                      f"advantages {batch['advantages'].min():+.2f} to {batch['advantages'].max():+.2f}, versions {versions}, "
                      f"{sum(row.continuity['status'] == 'clean' for row, _ in pairs)} clean")


if __name__ == "__main__":
    main()

"""Asks the repaired functions, in a process of the agent's user, and compares here. The reward is the share that is
right; nothing when the project's own tests were changed."""
import hashlib
import json
import os
import subprocess

APP = "/app"
TESTS_SHA256 = "5fbae59bb6d6c289df564eec0bb3122096fe0648eeb5a08e457d9a29932f36fd"
CASES = [
    ("discounted", [1000, 25], 750), ("discounted", [999, 10], 899), ("discounted", [5, 50], 3),
    ("discounted", [1, 50], 1), ("discounted", [0, 30], 0), ("discounted", [1234, 0], 1234),
    ("discounted", [1234, 100], 0), ("discounted", [100, 101], "ValueError"), ("discounted", [100, -1], "ValueError"),
    ("cart_total", [[[200, 9]]], 1800), ("cart_total", [[[200, 10]]], 1900), ("cart_total", [[[333, 10], [50, 1]]], 3210),
    ("cart_total", [[[200, 10], [100, 1]], 10], 1800), ("cart_total", [[]], 0),
    ("split_evenly", [100, 3], [34, 33, 33]), ("split_evenly", [101, 3], [34, 34, 33]),
    ("split_evenly", [2, 4], [1, 1, 0, 0]), ("split_evenly", [0, 2], [0, 0]), ("split_evenly", [5, 0], "ValueError"),
]
ASK = """
import json, sys
sys.path.insert(0, '/app')
import shop.pricing as pricing
for line in sys.stdin:
    name, arguments = json.loads(line)
    try:
        value = getattr(pricing, name)(*arguments)
    except Exception as error:
        value = type(error).__name__
    print(json.dumps(value), flush=True)
"""


def as_agent(argv, **options):
    """Runs a command as whoever owns the working directory, with a clean environment."""
    owner = os.stat(APP).st_uid if os.path.isdir(APP) else 0
    if os.getuid() == 0 and owner != 0:
        options.update(user=owner, group=os.stat(APP).st_gid, extra_groups=[])
    return subprocess.run(argv, cwd="/", env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}, text=True, timeout=60,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, **options)


def judge():
    try:
        with open(f"{APP}/tests/test_pricing.py", "rb") as file:
            if hashlib.sha256(file.read()).hexdigest() != TESTS_SHA256:
                return 0.0, "the tests were changed"
    except OSError:
        return 0.0, "the tests are gone"
    asked = "".join(json.dumps([name, arguments]) + "\n" for name, arguments, _ in CASES)
    try:
        lines = as_agent(["python3", "-I", "-c", ASK], input=asked).stdout.splitlines()
    except subprocess.TimeoutExpired:
        return 0.0, "the code does not end"
    right = 0
    for (name, arguments, expected), line in zip(CASES, lines):
        try:
            good = json.loads(line) == expected
        except ValueError:
            good = False
        right += good
        if not good:
            print(f"{name}{tuple(arguments)}: {line[:100]}, not {expected}")
    # What was right before anybody touched it earns nothing.
    before = 12
    return max(0.0, (right - before) / (len(CASES) - before)), f"{right} of {len(CASES)} right"


reward, text = judge()
print(text)
with open("/logs/verifier/reward.txt", "w") as file:
    file.write(f"{reward:.4f}\n")

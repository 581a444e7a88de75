"""Works the report out from a log of its own and compares: a quarter of the reward for each member that is right."""
import collections
import json
import os
import re

LINE = re.compile(r"\S+Z (\S+) ([A-Z]+) (\S+) (\d{3}) (\d+)ms")
SIZE_MAX = 1 << 20


def expected():
    by_status, durations, errors = collections.Counter(), collections.defaultdict(list), collections.Counter()
    with open("/tests/access.log") as log:
        for line in log:
            match = LINE.fullmatch(line.rstrip("\n"))
            if not match:
                continue
            client, _, target, status, ms = match.groups()
            by_status[status] += 1
            path = re.sub(r"(?<=/)\d+(?=/|$)", ":id", target.split("?")[0])
            durations[path].append(int(ms))
            if int(status) >= 500:
                errors[client] += 1
    often = {path: sum(all_ms) / len(all_ms) for path, all_ms in durations.items() if len(all_ms) >= 5}
    return {"requests": sum(by_status.values()), "by_status": dict(by_status),
            "slowest_path": max(often, key=often.get), "errors_by_client": dict(errors)}


def given():
    """The agent's report, read without following links and without trusting its size."""
    try:
        fd = os.open("/app/report.json", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(fd, "rb") as file:
            report = json.loads(file.read(SIZE_MAX))
        return report if isinstance(report, dict) else {}
    except (OSError, ValueError, RecursionError) as error:
        print(f"no report: {error}")
        return {}


want, have = expected(), given()
right = 0
for key, value in want.items():
    good = type(have.get(key)) is type(value) and have.get(key) == value
    right += good
    print(f"{key}: {'right' if good else 'wrong'}")
with open("/logs/verifier/reward.txt", "w") as file:
    file.write(f"{right / len(want):.4f}\n")

#!/bin/bash
set -eu
cd /app
python3 - <<'PY'
import collections
import json
import re

line_form = re.compile(r"\S+Z (\S+) ([A-Z]+) (\S+) (\d{3}) (\d+)ms")
by_status, durations, errors = collections.Counter(), collections.defaultdict(list), collections.Counter()
for line in open("access.log"):
    match = line_form.fullmatch(line.rstrip("\n"))
    if not match:
        continue
    client, _, target, status, ms = match.groups()
    by_status[status] += 1
    path = "/".join(":id" if part.isdigit() else part for part in target.split("?")[0].split("/"))
    durations[path].append(int(ms))
    if int(status) >= 500:
        errors[client] += 1
often = {path: sum(ms) / len(ms) for path, ms in durations.items() if len(ms) >= 5}
json.dump({"requests": sum(by_status.values()), "by_status": by_status, "slowest_path": max(often, key=often.get),
           "errors_by_client": errors}, open("report.json", "w"))
PY

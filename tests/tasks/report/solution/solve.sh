#!/bin/bash
set -e
mkdir -p /app/notes
echo "$NOTE" > /app/notes/how.txt
touch /app/secret-of-the-agent
python3 - <<'PY'
import json
import os

rows = [line.strip().split(",") for line in open(os.environ["FIGURES"])]
json.dump({"sum": sum(int(row[1]) for row in rows), "names": sorted(row[0] for row in rows)}, open("/app/report.json", "w"))
PY

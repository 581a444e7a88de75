#!/bin/bash
set -eu
cat > /app/merge.py <<'PY'
import re
import sys


def main():
    intervals = []
    for number, line in enumerate(sys.stdin, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        match = re.fullmatch(r"([+-]?\d+)\s+([+-]?\d+)", text)
        if not match:
            print(f"merge.py: line {number}: not an interval", file=sys.stderr)
            return 2
        intervals.append(tuple(sorted(map(int, match.groups()))))
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1] + 1:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    for start, end in merged:
        print(start, end)
    return 0


sys.exit(main())
PY
python3 /app/merge.py < /app/example/input | diff - /app/example/output

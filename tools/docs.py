#!/usr/bin/env python3
"""docs.py - are the documents true where a program can tell? Every relative link and every path written in
back-ticks that looks like one of ours must exist."""
import re
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
OURS = re.compile(r"`((?:src|porter|keeper|mini|agents|backends|tasks|tests|docs|fuzz|bench|tools|python|web)/[\w./-]+)`")


def main():
    findings = []
    names = subprocess.run(["git", "ls-files", "*.md"], cwd=TOP, capture_output=True, text=True, check=True).stdout.split()
    for name in names:
        path = TOP / name
        if not path.exists():
            continue
        text = re.sub(r"```.*?```", "", path.read_text(), flags=re.S)
        prose = re.sub(r"`[^`\n]*`", "", text)
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", prose):
            if "://" in target or target.startswith("mailto:"):
                continue
            if not (path.parent / target).exists():
                findings.append(f"{name}: dead link {target}")
        for target in OURS.findall(text):
            if "NAME" in target:  # a placeholder
                continue
            if not (TOP / target.rstrip("/.")).exists():
                findings.append(f"{name}: names {target}, which does not exist")
    print("\n".join(findings), end="\n" if findings else "")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())

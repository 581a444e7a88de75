#!/usr/bin/env python3
"""tidy.py - is the house tidy? Run as a test; prints one line per finding and exits 1 when there is one.

Checks: src/ROOMS is an order without cycles; every room has its door; includes point left only; programs beside
src/ include only the rooms they may; no file is too long; no line is too wide; no forbidden words.
"""
import re
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
PROGRAMS = {
    "porter": {"base", "wire", "porter"},
    "keeper": {"base", "wire", "keeper", "sandbox"},
    "mini": {"base", "json", "chat", "mini"},
    "terminus": {"base", "json", "chat", "terminus"},
    "chat": {"base", "json", "chat"},
}
# What the keeper may see of the sandbox room: the protocol they share, nothing else.
KEEPER_SANDBOX = {"sandbox/keeper_protocol.h"}
LINES_MAX = 1000  # around 800 one asks, at 1000 one answers
COLUMNS_MAX = 100
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
# Hosts of package registries have no place in the tree.
REGISTRY = re.compile(r"(registry\.npm" r"js|py" r"pi\.org|deb\.deb" r"ian\.org|crates\." r"io)")

findings = []


def finding(where, text):
    findings.append(f"{where}: {text}")


def read_rooms():
    rooms = {}
    for number, line in enumerate((TOP / "src/ROOMS").read_text().splitlines(), 1):
        line = line.split("#")[0].strip()
        if not line:
            continue
        name, _, rest = line.partition(":")
        deps = rest.split()
        for dep in deps:
            if dep not in rooms:
                finding(f"src/ROOMS:{number}", f"{name} names {dep}, which is not a room to its left")
        rooms[name] = set(deps)
    return rooms


def tracked():
    out = subprocess.run(["git", "ls-files"], cwd=TOP, capture_output=True, text=True, check=True).stdout
    return [path for path in out.splitlines() if (TOP / path).is_file()]


def check_includes(path, text, rooms):
    parts = path.split("/")
    if parts[0] == "src" and len(parts) > 2:
        home, allowed = parts[1], rooms.get(parts[1])
        if allowed is None:
            finding(path, f"'{parts[1]}' is not in src/ROOMS")
            return
        allowed = allowed | {home}
    elif parts[0] in PROGRAMS:
        home, allowed = parts[0], PROGRAMS[parts[0]]
    else:
        return
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
        if not match:
            continue
        target = match.group(1)
        room = target.split("/")[0] if "/" in target else home
        if room not in allowed:
            finding(f"{path}:{number}", f"{home} may not include {target} (src/ROOMS)")
        elif home == "keeper" and room == "sandbox" and target not in KEEPER_SANDBOX:
            finding(f"{path}:{number}", f"the keeper may share only {', '.join(sorted(KEEPER_SANDBOX))}")
        elif room != home and room != "base" and room in rooms and "/" in target:
            doors = {f"{room}/{room}.h"} | SECOND_DOORS.get(room, set())
            if target not in doors and not (home == "keeper" and target in KEEPER_SANDBOX):
                finding(f"{path}:{number}", f"{target} is private to {room}; its door is {room}/{room}.h")


# A room has one door; these are the few that need a second, each with its reason.
SECOND_DOORS = {
    "config": {"config/toml.h"},  # the reader serves specs of agents, tasks and backends too
    "trace": {"trace/sample.h",  # calls -> message graph -> training rows: behaviour, where the door is plain data
              "trace/rules.h"},  # what specs say about calls: made by agent, used by gateway, which do not know each other
    "gateway": {"gateway/gate.h"},  # the trainer's side of held calls, on another loop than the agents' side
}


def main():
    rooms = read_rooms()
    files = tracked()
    for room in rooms:
        if room != "base" and not (TOP / f"src/{room}/{room}.h").exists():
            finding(f"src/{room}", f"has no door {room}.h")
    for path in files:
        full = TOP / path
        if full.suffix not in {".c", ".h", ".py", ".md", ".toml", ".txt", ".sh", ".json", ".js", ".ts"}:
            continue
        try:
            text = full.read_text()
        except UnicodeDecodeError:
            continue
        if path != "tools/tidy.py" and REGISTRY.search(text):
            finding(path, "names a package registry's host")
        if full.suffix not in {".c", ".h", ".py"}:
            continue
        lines = text.splitlines()
        if full.suffix in {".c", ".h"}:
            check_includes(path, text, rooms)
            if path.startswith("src/") and full.suffix == ".h" and "#ifndef" not in text:
                finding(path, "has no include guard")
        if len(lines) > LINES_MAX:
            finding(path, f"{len(lines)} lines: is there a second idea inside?")
        table = False
        for number, line in enumerate(lines, 1):
            # Tables aligned by hand may be wide.
            table = "clang-format off" in line or (table and "clang-format on" not in line)
            if not table and len(line) > COLUMNS_MAX and full.suffix in {".c", ".h"}:
                finding(f"{path}:{number}", f"{len(line)} columns wide")
            if UNFINISHED.search(line) and path != "tools/tidy.py":
                finding(f"{path}:{number}", "says that something is unfinished")
    for line in findings:
        print(line)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())

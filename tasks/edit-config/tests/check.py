"""Compares the file with what it was. A quarter of the reward for each of the four changes; nothing when anything else
changed."""
import os
import re

WANTED = [("server", "port", "8443"), ("server", "tls", "on"), ("pool", "workers", "8"), ("log", "level", "warning")]


def read(path):
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        return file.read(1 << 20).decode("utf-8", "replace").splitlines()


def parse(lines):
    """Values by section and key, and the lines that must stay as they are."""
    values, rest, section = {}, [], None
    changing = {(s, k) for s, k, _ in WANTED} | {("server", "legacy_auth")}
    for line in lines:
        head = re.fullmatch(r"\[(\w+)\]\s*", line)
        pair = re.fullmatch(r"(\w+)\s*[=:]\s*([^;#]*?)\s*([;#].*)?", line)
        if head:
            section = head.group(1)
        if pair:
            values.setdefault((section, pair.group(1)), []).append(pair.group(2))
            if (section, pair.group(1)) in changing:
                continue
        rest.append(line.rstrip())
    return values, rest


def judge():
    try:
        values, rest = parse(read("/app/service.ini"))
    except OSError as error:
        print(f"no file: {error}")
        return 0
    before, rest_before = parse(read("/tests/original.ini"))
    # A blank line more or less next to a new key is nobody's business.
    if [line for line in rest if line] != [line for line in rest_before if line]:
        print("something else was changed")
        return 0
    good = {f"{s}.{k}": values.get((s, k)) == [v] for s, k, v in WANTED}
    parts = [good["server.port"] and good["server.tls"], good["pool.workers"],
             ("server", "legacy_auth") not in values, good["log.level"] and values.get(("mail", "level")) == ["error"]]
    print(good, "legacy_auth gone:", parts[2])
    return sum(parts) / len(parts)


with open("/logs/verifier/reward.txt", "w") as file:
    file.write(f"{judge():.4f}\n")

"""Runs the program on cases it has not seen, as the agent's user. The reward is the share of cases that are right."""
import os
import subprocess

APP = "/app"
# input, exit code, standard output, standard error (None: anything)
CASES = [
    ("5 8\n1 2\n3 3\n9 7\n20 30\n", 0, "1 3\n5 9\n20 30\n", None),
    ("", 0, "", None),
    ("\n  \n# nothing here\n", 0, "", None),
    ("7 7\n", 0, "7 7\n", None),
    ("  10\t20  \n15 17\n", 0, "10 20\n", None),
    ("-5 -3\n-2 0\n2 4\n", 0, "-5 0\n2 4\n", None),
    ("1 100\n2 3\n50 101\n103 103\n", 0, "1 101\n103 103\n", None),
    ("3 1\n2 5", 0, "1 5\n", None),
    ("1 2\n\nx y\n", 2, "", "merge.py: line 3: not an interval\n"),
    ("# c\n1 2 3\n", 2, "", "merge.py: line 2: not an interval\n"),
    ("1\n", 2, "", "merge.py: line 1: not an interval\n"),
    ("1.5 2\n", 2, "", "merge.py: line 1: not an interval\n"),
    ("100000000000000000000 100000000000000000002\n100000000000000000003 100000000000000000003\n", 0,
     "100000000000000000000 100000000000000000003\n", None),
    ("".join(f"{i * 3} {i * 3 + 1}\n" for i in range(20000)), 0,
     "".join(f"{i * 3} {i * 3 + 1}\n" for i in range(20000)), None),
]


def as_agent(argv, **options):
    """Runs a command as whoever owns the working directory, with a clean environment."""
    owner = os.stat(APP).st_uid if os.path.isdir(APP) else 0
    if os.getuid() == 0 and owner != 0:
        options.update(user=owner, group=os.stat(APP).st_gid, extra_groups=[])
    return subprocess.run(argv, cwd="/", env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}, text=True, timeout=5,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, errors="replace", **options)


right = 0
for given, code, out, error in CASES:
    try:
        done = as_agent(["python3", f"{APP}/merge.py"], input=given)
        good = done.returncode == code and done.stdout == out and (error is None or done.stderr == error)
    except subprocess.TimeoutExpired:
        done, good = None, False
    right += good
    if not good:
        print(f"{given[:60]!r}: {'no end' if done is None else (done.returncode, done.stdout[:60], done.stderr[:60])}")
print(f"{right} of {len(CASES)} right")
with open("/logs/verifier/reward.txt", "w") as file:
    file.write(f"{right / len(CASES):.4f}\n")

"""Looks at the repository with git as the agent's user. A quarter of the reward each: the merge, the program, the lost
commit, a clean end. Nothing when history was rewritten."""
import os
import subprocess

REPOSITORY = "/app/project"
BEGINNING = ["Add the total", "Round the total", "Add shipping costs"]
TABLE = "country,percent\nde,19\nfr,20\nnl,21"


def as_agent(argv):
    """Runs a command as whoever owns the repository, with a clean environment; its output, or None when it failed."""
    options = {}
    owner = os.stat(REPOSITORY).st_uid
    if os.getuid() == 0 and owner != 0:
        options.update(user=owner, group=os.stat(REPOSITORY).st_gid, extra_groups=[])
    env = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    try:
        done = subprocess.run(argv, cwd=REPOSITORY, env=env, text=True, timeout=20, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, errors="replace", **options)
    except (subprocess.TimeoutExpired, OSError):
        return None
    return done.stdout.rstrip("\n") if done.returncode == 0 else None


def git(*args):
    return as_agent(["git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "safe.directory=*",
                     *args])


def judge():
    if not os.path.isdir(f"{REPOSITORY}/.git"):
        print("the repository is gone")
        return 0
    subjects = (git("log", "--format=%s", "main") or "").splitlines()
    dates = git("log", "--format=%s %cI", "main") or ""
    shipping = "Add shipping costs 2026-03-04T10:00:00" in dates
    rounding = "Round the total 2026-03-02T10:00:00" in (git("log", "--format=%s %cI", "rounding") or "")
    if not shipping or not rounding:
        print("history was rewritten")
        return 0
    merged = git("merge-base", "--is-ancestor", "rounding", "main") is not None and all(s in subjects for s in BEGINNING)
    source = git("show", "main:total.py") or ""
    program = ("round(" in source and "SHIPPING" in source and "<<<<" not in source
               and as_agent(["python3", "-I", "-c", source]) == "total: 27.35")
    lost = "Add the tax table" in subjects and git("show", "main:taxes.csv") == TABLE
    clean = (git("symbolic-ref", "HEAD") == "refs/heads/main" and git("status", "--porcelain") == ""
             and not os.path.lexists(f"{REPOSITORY}/.git/MERGE_HEAD")
             and not os.path.lexists(f"{REPOSITORY}/.git/CHERRY_PICK_HEAD"))
    # A clean tree is no work of its own: it counts once something was repaired.
    parts = {"merged": merged, "program": merged and program, "lost commit": lost, "clean": clean and (merged or lost)}
    for name, good in parts.items():
        print(f"{name}: {'yes' if good else 'no'}")
    return sum(parts.values()) / len(parts)


with open("/logs/verifier/reward.txt", "w") as file:
    file.write(f"{judge():.4f}\n")

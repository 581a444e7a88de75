#!/usr/bin/env python3
"""test.py - everything `make test` runs after the build, stage by stage, with one closing line.

    tools/test.py                 all stages
    tools/test.py unit system     only these

Stages: tidy, unit (release build), system (the binary, real parts), asan, tsan (unit tests under sanitizers), fuzz
(each fuzzer over its corpus and a few seconds more). Each stage counts its tests; the last line of the output is
"N passed, N failed, N skipped" over all of them. With MUST_WORK=1 a skip is a failure.
"""
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
CORES = str(os.cpu_count() or 2)
FUZZ_SECONDS = os.environ.get("FUZZ_SECONDS", "5")
# Rooms whose objects meet several threads: these run under the thread sanitizer.
THREADED = ("test_loop", "test_http", "test_store", "test_gateway", "test_rollout")

totals = {"passed": 0, "failed": 0, "skipped": 0}
failures = []


def count(name, passed, failed, skipped=0):
    totals["passed"] += passed
    totals["failed"] += failed
    totals["skipped"] += skipped
    if failed:
        failures.append(f"{name}: {failed} failed")


def run(args, **options):
    return subprocess.run(args, cwd=TOP, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)


def heading(text):
    print(f"--- {text}", flush=True)


def build(preset):
    directory = TOP / "build" if preset == "release" else TOP / "build" / preset
    if not (directory / "build.ninja").exists():
        done = run(["cmake", "--preset", preset])
        if done.returncode:
            print(done.stdout[-4000:])
            count(f"{preset}: configure", 0, 1)
            return None
    done = run(["cmake", "--build", "--preset", preset, "--", "-j", CORES])
    if done.returncode:
        print(done.stdout[-6000:])
        count(f"{preset}: build", 0, 1)
        return None
    return directory


def run_one(test, env):
    """One test program: its counts, its output, its seconds. One that ends badly has failed, whatever it counted."""
    started = time.monotonic()
    try:
        done = run([str(test)], env=env, timeout=1500)
        output, code = done.stdout, done.returncode
    except subprocess.TimeoutExpired as late:
        output, code = (late.stdout or b"").decode(errors="replace") + "\nno end within 1500 s\n", 1
    match = re.search(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", output, re.M)
    passed, failed, skipped = (int(part) for part in match.groups()) if match else (0, 1, 0)
    return passed, failed or int(code != 0), skipped, output, time.monotonic() - started


def run_unit(name, directory, only=None, slower=1, extra=None):
    """As many programs at once as there are cores: most of their time they wait."""
    heading(f"{name}: unit tests")
    env = dict(os.environ, TEST_SLOWER=str(slower), **(extra or {}))
    tests = [test for test in sorted((directory / "unit").glob("test_*")) if not only or test.name.startswith(only)]
    with ThreadPoolExecutor(int(CORES)) as pool:
        for test, done in zip(tests, pool.map(lambda test: run_one(test, env), tests)):
            passed, failed, skipped, output, seconds = done
            count(f"{name} {test.name}", passed, failed, skipped)
            print(f"{test.name}: {passed} passed, {failed} failed, {skipped} skipped ({seconds:.1f} s)", flush=True)
            if failed:
                print("\n".join(output.splitlines()[-80:]), flush=True)
            elif skipped:
                print("\n".join(line for line in output.splitlines() if "skip" in line), flush=True)


def stage_tidy():
    heading("tidy")
    done = run([sys.executable, "tools/tidy.py"])
    print(done.stdout, end="")
    count("tidy", int(done.returncode == 0), int(done.returncode != 0))
    done = run([sys.executable, "tools/docs.py"])
    print(done.stdout, end="")
    count("docs", int(done.returncode == 0), int(done.returncode != 0))


def stage_unit():
    directory = build("release")
    if directory:
        run_unit("release", directory)


def stage_asan():
    directory = build("asan")
    if directory:
        run_unit("asan", directory, slower=4,
                 extra={"ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0", "UBSAN_OPTIONS": "print_stacktrace=1"})


def stage_tsan():
    directory = build("tsan")
    if directory:
        run_unit("tsan", directory, only=THREADED, slower=6, extra={"TSAN_OPTIONS": "halt_on_error=1"})


def fuzz_one(fuzzer, directory):
    corpus = TOP / "fuzz/corpus" / fuzzer.name
    found = directory / "found" / fuzzer.name
    found.mkdir(parents=True, exist_ok=True)
    args = [str(fuzzer), str(found)] + ([str(corpus)] if corpus.is_dir() else [])
    return run(args + [f"-max_total_time={FUZZ_SECONDS}", "-timeout=20", "-rss_limit_mb=2048", "-print_final_stats=1",
                       f"-artifact_prefix={found}/"])


def stage_fuzz():
    heading(f"fuzz: each corpus and {FUZZ_SECONDS} s more")
    directory = build("fuzz")
    if not directory:
        return
    fuzzers = [path for path in sorted((directory / "fuzz").glob("fuzz_*")) if os.access(path, os.X_OK) and not path.suffix]
    with ThreadPoolExecutor(int(CORES)) as pool:
        for fuzzer, done in zip(fuzzers, pool.map(lambda fuzzer: fuzz_one(fuzzer, directory), fuzzers)):
            ok = done.returncode == 0
            runs = re.search(r"number_of_executed_units:\s*(\d+)", done.stdout)
            print(f"{fuzzer.name}: {'clean' if ok else 'FOUND SOMETHING'}, {runs.group(1) if runs else '?'} inputs", flush=True)
            if not ok:
                print("\n".join(done.stdout.splitlines()[-40:]))
            count(fuzzer.name, int(ok), int(not ok))


def stage_system():
    heading("system tests")
    if not build("release"):
        return
    env = dict(os.environ, POSTERN=str(TOP / "build/postern"))
    process = subprocess.Popen(
        ["/usr/bin/python3", "-m", "pytest", "-q", "-rs", "--tb=short", "--durations=15", "-p", "no:cacheprovider", "tests/system"],
        cwd=TOP, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    last = ""
    for line in process.stdout:
        # The closing line is ours; pytest's own is kept apart so that there is only one.
        if re.search(r"\d+ (passed|failed|error|skipped).* in ", line):
            last = line
        else:
            print(line, end="", flush=True)
    process.wait()
    numbers = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|errors?|skipped)", last)}
    failed = numbers.get("failed", 0) + numbers.get("error", 0) + numbers.get("errors", 0)
    if process.returncode and not failed:
        failed = 1
    count("system", numbers.get("passed", 0), failed, numbers.get("skipped", 0))
    print(f"system tests: {numbers.get('passed', 0)} passed, {failed} failed, {numbers.get('skipped', 0)} skipped (pytest)")


STAGES = {"tidy": stage_tidy, "unit": stage_unit, "system": stage_system, "asan": stage_asan, "tsan": stage_tsan,
          "fuzz": stage_fuzz}


def main():
    wanted = sys.argv[1:] or list(STAGES)
    for name in wanted:
        if name not in STAGES:
            print(f"test.py: unknown stage '{name}'; the stages are: {', '.join(STAGES)}", file=sys.stderr)
            return 2
    for name in wanted:
        started = time.monotonic()
        STAGES[name]()
        print(f"[{name}: {time.monotonic() - started:.0f} s]", flush=True)
    if os.environ.get("MUST_WORK") == "1" and totals["skipped"]:
        failures.append(f"{totals['skipped']} skipped, and MUST_WORK=1 allows none")
        totals["failed"] += totals["skipped"]
        totals["skipped"] = 0
    for line in failures:
        print(f"FAILED {line}")
    closing = f"{totals['passed']} passed, {totals['failed']} failed"
    if totals["skipped"]:
        closing += f", {totals['skipped']} skipped"
    print(closing)
    return 1 if failures or totals["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())

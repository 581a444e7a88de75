"""Bundles of every kind: built, mounted, run, kept apart by checksum and version, removed. Nothing here needs the network."""

import hashlib
import json
import os
import pathlib
import signal
import tarfile
import threading
import zipfile

import pytest

import postern as lib
from postern import script, task

# An agent that asks its model once and writes down what it says.
AGENT = r'''
import json, os, sys, urllib.request
body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "what?"}]}).encode()
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, {"content-type": "application/json"})
words = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
open("answer", "w").write(words + "\n" + sys.prefix + "\n")
print(json.dumps({"type": "done", "text": words}))
'''
# The same as a shell script; it cannot ask, so it only answers.
SHELL_AGENT = '#!/bin/sh\necho yes > answer\necho \'{"type": "done", "text": "yes"}\'\n'
SPEC = '''
name = "made"
version = "%s"
[bundle]
%s
[run]
argv = %s
%s
[run.env]
OPENAI_BASE_URL = "{base_url}"
PYTHONPATH = "{bundle}/lib"
INSTRUCTION = "{instruction_file}"
[output]
format = "jsonl"
[output.events]
done = ["done"]
'''


def spec(folder, bundle, argv, version="1.0", more=""):
    path = folder / "made.toml"
    path.write_text(SPEC % (version, bundle, json.dumps(argv), more))
    return str(path)


def sha256(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


def run(postern, spec_, tmp, *more, verify="grep -q yes answer"):
    done, results = postern.run("--agent", spec_, "--task", task(tmp / "t.json", verify=[verify]), "--model",
                                script(tmp / "m.toml", "yes"), *postern.flags, *more, seconds=120)
    assert results and results[0]["fate"] == "ok" and results[0]["reward"] == 1, (done, results)
    return results[0]


def installed(postern):
    return sorted(path.name for path in (postern.home / "bundles").iterdir() if path.name != ".lock")


def wheel(folder):
    """A package as an index would have it, made here."""
    path = folder / "wheelagent-1.0-py3-none-any.whl"
    files = {"wheelagent.py": AGENT, "wheelagent-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: wheelagent\nVersion: 1.0\n",
             "wheelagent-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr("wheelagent-1.0.dist-info/RECORD", "".join(f"{name},,\n" for name in files))
    return path


def test_a_python_package_with_a_python_of_its_own_runs_where_there_is_none(postern, tmp):
    packages = f'kind = "pypi"\npackages = ["{wheel(tmp)}"]\nruntime = true'
    spec_ = spec(tmp, packages, ["{bundle}/runtime/python3", "-m", "wheelagent"])
    done = postern("agents", "install", spec_, seconds=300)
    assert done.code == 0, done
    root = lib.small_root(tmp / "root", "grep")
    run(postern, spec_, tmp, "--root", f"dir:{root}", verify="grep -q /opt/postern/agents/made/runtime answer")


def test_a_python_package_runs_with_the_python_of_the_root_and_its_checksum_is_checked(postern, tmp):
    path = wheel(tmp)
    source = f"wheelagent @ file://{path}"

    def attempt(checksum):
        packages = f'kind = "pypi"\npackages = ["{source}"]\n[bundle.integrity]\nwheelagent = "sha256:{checksum}"'
        spec_ = spec(tmp, packages, ["/usr/bin/python3", "-m", "wheelagent"])
        return spec_, postern("agents", "install", spec_, seconds=300)

    _, done = attempt("0" * 64)
    assert done.code != 0 and "sha256" in done.error, done
    assert installed(postern) == []
    spec_, done = attempt(sha256(path))
    assert done.code == 0, done
    run(postern, spec_, tmp)


@pytest.mark.parametrize("kind", ["tarball", "binary", "script"])
def test_what_is_fetched_or_made_is_checked_and_runs(postern, tmp, kind):
    (tmp / "agent.sh").write_text(SHELL_AGENT)
    argv = ["{bundle}/bin/made"]
    if kind == "tarball":
        (tmp / "agent.sh").chmod(0o755)
        with tarfile.open(tmp / "made.tar.gz", "w:gz") as archive:
            archive.add(tmp / "agent.sh", "made-1.0/bin/agent.sh")
            archive.add(tmp / "agent.sh", "made-1.0/doc/unwanted")
        source, more = "made.tar.gz", '[bundle.place]\n"bin/made" = "made-1.0/bin/agent.sh"'
    elif kind == "binary":
        source, more = "agent.sh", ""
    else:
        (tmp / "build.sh").write_text(f"mkdir bin\ncp {tmp}/agent.sh bin/made\nchmod 755 bin/made\n")
        source, more = "build.sh", ""
    for checksum in ("0" * 64, sha256(tmp / source)):
        spec_ = spec(tmp, f'kind = "{kind}"\nsource = "{source}"\nsha256 = "{checksum}"\n{more}', argv)
        done = postern("agents", "install", "--json", spec_)
        assert (done.code == 0) == (checksum != "0" * 64), done
    assert "unwanted" not in "".join(str(path) for path in (postern.home / "bundles").rglob("*"))
    run(postern, spec_, tmp)
    assert [line for line in postern("agents", "ls").text.splitlines() if line.startswith("made")] == [], "it is a file of one's own"


def test_another_script_is_another_bundle(postern, tmp):
    for text in ("echo 1 > one\n", "echo 2 > two\n"):
        (tmp / "build.sh").write_text(text)
        assert postern("agents", "install", spec(tmp, 'kind = "script"\nsource = "build.sh"', ["x"])).code == 0
    assert len(installed(postern)) == 2


# ---------------------------------------------------------------- removing
def versions(postern, tmp, *names):
    (tmp / "build.sh").write_text("echo x > file\n")
    for name in names:
        spec_ = spec(tmp, 'kind = "script"\nsource = "build.sh"', ["/bin/true"], version=name)
        assert postern("agents", "install", spec_).code == 0
    return spec_


def test_old_versions_are_removed_by_name_and_by_nobody_wanting_them(postern, tmp):
    versions(postern, tmp, "1.0", "2.0", "3.0", "4.0")
    assert postern("agents", "rm", "made@1.0").code == 0
    assert [name[:8] for name in installed(postern)] == ["made-2.0", "made-3.0", "made-4.0"]
    again = postern("agents", "rm", "made@1.0")
    assert again.code == lib.EXIT_NOT_FOUND and "made@1.0 is not installed" in again.error
    (postern.home / "bundles" / ".build-left").mkdir()
    done = postern("agents", "gc", "--json")
    assert sorted(entry["version"] for entry in json.loads(done.text)) == ["2.0", "3.0"], "the spec says 4.0 now"
    assert [name[:8] for name in installed(postern)] == ["made-4.0"]
    (tmp / "made.toml").unlink()
    assert postern("agents", "gc").code == 0 and installed(postern) == []
    assert postern("agents", "rm").code == lib.EXIT_INPUT


def test_a_bundle_in_use_stays(postern, tmp):
    (tmp / "build.sh").write_text("cp $0 file\n")
    spec_ = spec(tmp, 'kind = "script"\nsource = "build.sh"', ["/bin/sleep", "1000"])
    assert postern("agents", "install", spec_).code == 0
    process = postern.start("run", "--json", "--agent", spec_, "--task", task(tmp / "t.json"), "--model", script(tmp / "m.toml", "x"),
                            *postern.flags)
    try:
        lib.until(lambda: '"running"' in "".join(p.read_text() for p in (postern.home / "rollouts").glob("*/events.jsonl"))
                  or list((postern.home / "rollouts").glob("*/agent.log")), seconds=60, what="a running rollout")
        refused = postern("agents", "rm", "made")
        assert refused.code != 0 and "in use" in refused.error, refused
        assert "in use and stays" in postern("agents", "gc").text or len(installed(postern)) == 1
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
    assert postern("agents", "rm", "made").code == 0 and installed(postern) == []


# ---------------------------------------------------------------- interrupted, and at once
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_install_leaves_nothing(postern, tmp, number):
    mark = f"40{os.getpid()}{int(number)}"
    (tmp / "build.sh").write_text(f"echo half > half\nsleep {mark}\n")
    spec_ = spec(tmp, 'kind = "script"\nsource = "build.sh"', ["/bin/true"])
    process = postern.start("agents", "install", spec_)
    lib.until(lambda: list((postern.home / "bundles").glob(".build-*/made/half")), what="a build")
    process.send_signal(number)
    assert process.wait(60) != 0
    if number == signal.SIGKILL:
        (tmp / "build.sh").write_text("echo whole > whole\n")
        assert postern("agents", "install", spec_).code == 0, "the next one cleans up"
        assert [path.name[:8] for path in (postern.home / "bundles").iterdir() if path.name != ".lock"] == ["made-1.0"]
    else:
        assert installed(postern) == []
        lib.until(lambda: not lib.processes(mark), what="the end of the build's processes")


def test_installs_at_once_build_once(postern, tmp):
    (tmp / "build.sh").write_text(f"echo x >> {tmp}/count\nsleep 0.3\necho x > file\n")
    spec_ = spec(tmp, 'kind = "script"\nsource = "build.sh"', ["/bin/true"])
    results = []
    threads = [threading.Thread(target=lambda: results.append(postern("agents", "install", spec_).code)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [0] * 4 and (tmp / "count").read_text() == "x\n" and len(installed(postern)) == 1


# ---------------------------------------------------------------- installed inside
INSIDE = '''
name = "inside"
[install]
check = ["/tmp/inside", "--version"]
commands = [%s]
tries = 3
[run]
argv = ["/tmp/inside", "{instruction_file}"]
'''
PROGRAM = "printf '#!/bin/sh\\\\necho yes > answer\\\\n' > /tmp/inside; chmod 755 /tmp/inside"


def inside(postern, tmp, *commands):
    (tmp / "inside.toml").write_text(INSIDE % ", ".join(json.dumps(command) for command in commands))
    _, results = postern.run("--agent", str(tmp / "inside.toml"), "--task", task(tmp / "t.json", verify=["grep -q yes answer"]), "--model",
                             script(tmp / "m.toml", "x"), *postern.flags, seconds=120)
    return results[0]


def test_an_install_inside_is_tried_again_until_its_check_succeeds(postern, tmp):
    make = PROGRAM.replace("\\\\n", "\\n")
    # The first try fails with its code; the second fails unseen, in the middle of a pipe; the third is good.
    count = "echo x >> /tmp/count; n=$(grep -c x /tmp/count); test $n -gt 1 || exit 7; "
    result = inside(postern, tmp, count + "if [ $n = 2 ]; then cat /nowhere | cat > /tmp/inside; else " + make + "; fi")
    assert result["fate"] == "ok" and result["reward"] == 1, result
    result = inside(postern, tmp, "cat /nowhere | cat > /tmp/inside")
    assert result["fate"] == "infra_failed" and result["reward"] is None, result
    assert "still '/tmp/inside' fails" in result["cause"] or "/nowhere" in result["cause"], result["cause"]

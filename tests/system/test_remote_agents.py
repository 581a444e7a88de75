"""Agents in sandboxes that are not made by the keeper: containers by podman, and another machine by ssh (this one, over its
loopback). A bundle is brought there once and mounted; our own agents are one file. Resets come through as resets."""

import json
import os
import pathlib
import shutil
import socket
import subprocess
import tarfile
import tempfile

import pytest

import postern as lib
from postern import must, task
from test_agents import AGENTS, CACHE, installed, run, script, calls, tail_of  # noqa: F401
from test_terminus import keys, says, sure


def quiet(*argv):
    return subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)


@pytest.fixture(scope="module")
def podman():
    """A store of its own with a small image; nothing else of podman's is touched."""
    if not shutil.which("podman"):
        must("podman is not installed")
    top = pathlib.Path(tempfile.mkdtemp(prefix="pt-pod-", dir="/var/tmp"))
    root = lib.small_root(top / "root", "cat", "ls", "grep", "mkdir", "bash")
    (root / "tmp").chmod(0o1777)
    (root / "etc" / "passwd").write_text("root:x:0:0::/:/bin/sh\nagent:x:1000:1000::/home/agent:/bin/sh\n")
    (root / "etc" / "group").write_text("root:x:0:\nagent:x:1000:\n")
    with tarfile.open(top / "image.tar", "w") as archive:
        archive.add(root, ".")
    hybrid = pathlib.Path("/sys/fs/cgroup/unified").exists() and shutil.which("runc")
    env = {"BACKEND_PODMAN_STORE": str(top / "store"), "BACKEND_PODMAN_RUNROOT": str(top / "run"), "BACKEND_PODMAN_DRIVER": "vfs",
           "BACKEND_PODMAN_CGROUP_MANAGER": "cgroupfs", "BACKEND_PODMAN_RUNTIME": "runc" if hybrid else "crun"}
    program = ["podman", "--root", env["BACKEND_PODMAN_STORE"], "--runroot", env["BACKEND_PODMAN_RUNROOT"], "--storage-driver", "vfs",
               "--cgroup-manager", "cgroupfs", "--runtime", env["BACKEND_PODMAN_RUNTIME"]]
    done = quiet(*program, "import", str(top / "image.tar"), "localhost/tools")
    if done.returncode:
        must(f"podman cannot import an image here: {done.stdout.decode(errors='replace')[-300:]}")
    yield env, ["--backend", "podman", "--root", "image:localhost/tools"]
    quiet(*program, "system", "reset", "--force")
    shutil.rmtree(top, ignore_errors=True)


@pytest.fixture(scope="module")
def ssh():
    """A real sshd on the loopback; what it is told to make is below one folder."""
    if not os.access("/usr/sbin/sshd", os.X_OK) or not shutil.which("bwrap"):
        must("sshd or bwrap is not installed")
    top = pathlib.Path(tempfile.mkdtemp(prefix="pt-ssh-", dir="/tmp"))
    for name in ("key", "host_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(top / name)], check=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    if os.getuid() == 0:
        os.makedirs("/run/sshd", exist_ok=True)
    (top / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {top}/host_key\nAuthorizedKeysFile {top}/key.pub\nStrictModes no\n"
        "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\nUsePAM no\nPidFile none\nLogLevel ERROR\n")
    (top / "known_hosts").write_text(f"[127.0.0.1]:{port} {(top / 'host_key.pub').read_text()}")
    (top / "ssh_config").write_text(
        f"Host target\nHostName 127.0.0.1\nPort {port}\nIdentityFile {top}/key\nIdentitiesOnly yes\nStrictHostKeyChecking yes\n"
        f"UserKnownHostsFile {top}/known_hosts\nGlobalKnownHostsFile /dev/null\nLogLevel ERROR\n")
    server = subprocess.Popen(["/usr/sbin/sshd", "-D", "-f", str(top / "sshd_config"), "-E", str(top / "log")])

    def answers():
        with socket.socket() as peer:
            return peer.connect_ex(("127.0.0.1", port)) == 0 or server.poll() is not None

    lib.until(answers, what="sshd")
    if server.poll() is not None:
        must("sshd does not start here")
    yield {"BACKEND_SSH_CONFIG": str(top / "ssh_config"), "BACKEND_SSH_DIR": str(top / "remote")}, ["--backend", "ssh:target"]
    server.terminate()
    server.wait(20)
    quiet("chmod", "-R", "u+rwX", str(top))
    shutil.rmtree(top, ignore_errors=True)


@pytest.fixture(params=["podman", "ssh"])
def place(request):
    return request.param, *request.getfixturevalue(request.param)


@pytest.fixture
def remote_postern(home, installed):  # noqa: F811
    (CACHE / "bundles").mkdir(parents=True, exist_ok=True)
    (home / "bundles").symlink_to(CACHE / "bundles")
    return lib.Postern(home)


def workdir(name):
    return {"podman": "/home/agent/work", "ssh": "/home/agent/work"}[name]


def test_our_own_agents_run_there(place, remote_postern, tmp):
    name, env, flags = place
    for agent, model in (("mini", lib.script(tmp / "mini.toml", lib.bash("echo yes > answer"), "Done.")),
                         ("terminus", lib.script(tmp / "terminus.toml", says(keys("echo yes > answer\n")), *sure()))):
        task_ = task(tmp / f"{agent}.json", workdir=workdir(name), verify=["grep -qx yes answer"])
        done, results = remote_postern.run("--agent", agent, "--task", task_, "--model", model, *flags, env=env, seconds=180)
        assert results and results[0]["fate"] == "ok" and results[0]["reward"] == 1, (done, results)


def test_an_agent_out_of_a_package_runs_there_and_its_bundle_is_brought_once(place, remote_postern, installed, tmp):  # noqa: F811
    name, env, flags = place
    agent = installed("codex")
    # The stream breaks once on its way through the frames: that is a reset for the agent, and it asks again.
    broken = '[[rule]]\nwhen = { tools = true, turn = 1 }\ntimes = 1\nsay = "A sentence that is cut in the middle of its words."\nreset_after = 2\n'
    turns = [calls(agent.shell("echo yes > answer")), calls(agent.shell("cat answer > copy")), "All is done."]
    model = script(tmp / "m.toml", *turns, before=broken)
    task_ = task(tmp / "t.json", workdir=workdir(name), verify=["grep -qx yes copy", "! echo x > /opt/postern/agents/codex/bin/codex"])
    for _ in range(2):
        result = run(remote_postern, agent, task_, model, *flags, env=env)
        assert result["fate"] == "ok" and result["reward"] == 1, (result, tail_of(remote_postern, result))
        assert result["turns"] == 3 and result["final_text"] == "All is done."
    layers = pathlib.Path(env.get("BACKEND_SSH_DIR", "/nowhere")) / "layers"
    if name == "ssh":
        assert [path.name for path in layers.iterdir()] == [path.name for path in (CACHE / "bundles").glob("codex-*")
                                                            if json.loads((path / "manifest.json").read_text())["version"] == "0.166.0"]

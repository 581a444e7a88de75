"""The escape classes of reference C.3, one by one. Each attempt is made twice: where the protection is missing, to
see that the probe can succeed, and inside a sandbox, where it must be refused.

     1 terminal injection      8 abstract sockets, IPC   15 capabilities         22 what /proc tells
     2 runtime binary          9 signals, ptrace         16 setuid               23 reward tampering (test_run.py)
     3 descriptors, cwd       10 process 1               17 orphans (also exec)  24 tokens
     4 links in images        11 seccomp by-passes       18 crashes (test_crash) 25 namespace quotas
     5 links raced            12 keyrings                19 exhaustion (limits)
     6 hostile archives       13 user namespaces         20 egress
     7 (no Docker client)     14 namespace handles       21 (no rule on command strings)

7 does not apply: Postern speaks to no Docker daemon. 21 does not apply: no decision is made on a command's words.
"""

import hashlib
import io
import json
import os
import pathlib
import shutil
import signal
import socket
import stat
import struct
import subprocess
import tarfile
import time

import pytest

import postern as lib
from postern import ESCAPED, REFUSED, bare, must, until

ROOT = os.geteuid() == 0
NO_SECCOMP = ["--isolation", "no-seccomp"]


def as_root():
    if not ROOT:
        must("the counter-proof needs root")


def in_a_pid_namespace(*args):
    """The probe in plain namespaces, where process 1 is an ordinary shell: what a sandbox would be without care."""
    return lib.command(["unshare", "-rpf", "--mount-proc", "sh", "-c", '"$@"; exit $?', "sh", lib.PROBE, *args])


def says(done, verdict):
    assert done.code == verdict, done
    return True


# ---------------------------------------------------------------- what is the same inside and outside
# class, probe; the counter-proof on the bare machine must succeed
ON_BARE_MACHINE = [
    (2, "exe-write"),
    (9, "peek 1 stack"),
    (11, "calls"),
    (11, "int80"),
    (11, "io-uring"),
    (12, "add-key"),
    (12, "keyctl"),
    (13, "unshare"),
    (13, "clone-user"),
    (13, "clone3-user"),
    (13, "user-mount"),
    (13, "socket 16 3 12"),  # netlink, netfilter
    (13, "socket 17 3 768"),  # packets
    (13, "socket 38 5 0"),  # kernel crypto
    (13, "socket 40 1 0"),  # the hypervisor
    (14, "setns"),
    (15, "caps"),
    (20, "interfaces"),
    (22, "read /root"),
    (22, "read /etc/shadow"),
    (22, "read /proc/kcore"),
    (22, "write /proc/sys/kernel/core_pattern"),
    (22, "write /proc/sysrq-trigger"),
    (22, "write /sys/kernel/mm/transparent_hugepage/enabled"),
]


@pytest.mark.parametrize("number, attempt", ON_BARE_MACHINE, ids=[a.replace("/", "_") for _, a in ON_BARE_MACHINE])
def test_refused_inside_and_possible_outside(postern, number, attempt):
    says(postern.probe(*attempt.split()), REFUSED)
    as_root()
    outside = bare(*attempt.split())
    if "not supported by protocol" in outside.text or "No such file" in outside.text:
        return  # this kernel does not have the thing at all: nothing to protect, nothing to prove
    says(outside, ESCAPED)


def test_11_no_system_call_is_missing_from_the_counter_proof(postern):
    """Most calls of the list are really reached outside, and the same binary reaches none inside."""
    as_root()
    outside = [line for line in bare("calls").lines() if line.startswith("reached ")]
    assert len(outside) > 25, outside
    inside = postern.probe("calls")
    assert "reached" not in inside.text.replace("were reached", ""), inside


def test_11_the_filter_is_what_refuses(postern):
    """The same sandbox without the filter lets the ring be made: it is the filter that refuses it."""
    says(postern.probe("io-uring", flags=NO_SECCOMP), ESCAPED)
    says(postern.probe("io-uring"), REFUSED)


def test_11_x32_is_refused(postern):
    """Kernels without x32 refuse it themselves; there is no counter-proof on those."""
    says(postern.probe("x32"), REFUSED)


# ---------------------------------------------------------------- 1: terminals
def on_a_terminal(argv, env=None):
    """Runs argv on a new pty and returns its exit code, its output, and what was typed into the terminal."""
    terminal = lib.Terminal(argv, env=env)
    code = terminal.wait(60)
    output = terminal.output.decode("utf-8", "replace")
    terminal.close()
    return code, output


@pytest.mark.parametrize("attempt", ["tiocsti", "tiocsti high", "tioclinux", "tioclinux high"])
def test_1_the_sandboxs_own_terminal_cannot_be_typed_into(postern, attempt):
    inside = [lib.PROGRAM, "exec", *postern.flags, "--pty", "--", "/bin/sh", "-c", lib.PROBE_FROM_TEXT, "sh",
              lib.probe_as_text(), *attempt.split()]
    code, output = on_a_terminal(inside, env=postern.environment())
    assert code == REFUSED and "REFUSED" in output and "Not a tty" not in output, output
    open_ = inside[:2] + NO_SECCOMP + inside[2:]
    code, output = on_a_terminal(open_, env=postern.environment())
    if attempt.startswith("tiocsti") and "Input/output error" in output:
        must("this kernel refuses TIOCSTI by itself")
    assert code == ESCAPED, output


def test_1_the_callers_terminal_cannot_be_typed_into(postern):
    """postern exec on somebody's terminal, without a terminal inside: nothing can be typed into theirs."""
    inside = [lib.PROGRAM, "exec", *postern.flags, "--", "/bin/sh", "-c",
              lib.PROBE_FROM_TEXT.replace("exec ", "") + "; /tmp/probe tty", "sh", lib.probe_as_text(), "tiocsti"]
    # Whatever is typed into the terminal is read by the shell that follows on it.
    reader = ["sh", "-c", '"$@"; echo "code $?"; stty -icanon min 0 time 3; echo "typed:$(dd bs=10 count=1 2>/dev/null):"',
              "sh"]
    _, output = on_a_terminal(reader + inside, env=postern.environment())
    assert "REFUSED /dev/tty" in output and "ESCAPED" not in output and "typed::" in output, output
    as_root()
    _, output = on_a_terminal(reader + [lib.PROBE, "tiocsti"])
    assert "ESCAPED" in output and "typed:x:" in output, output


# ---------------------------------------------------------------- 2: our own programs
def test_2_our_programs_are_unchanged_after_attempts_to_overwrite_them(postern):
    programs = [p for p in lib.PROGRAM_DIR.glob("postern*") if p.is_file()]
    before = {p: hashlib.sha256(p.read_bytes()).hexdigest() for p in programs}
    assert len(before) >= 3, before
    # Children start all the while, so that a fresh copy of the porter is always about to become something else.
    script = ("cat > /tmp/probe && chmod +x /tmp/probe; (i=0; while [ $i -lt 300 ]; do /bin/true; i=$((i+1)); done) & "
              "/tmp/probe exe-write 200; code=$?; wait; exit $code")
    done = postern.exec("/bin/sh", "-c", script, stdin=lib.PROBE.read_bytes())
    says(done, REFUSED)
    assert before == {p: hashlib.sha256(p.read_bytes()).hexdigest() for p in programs}


# ---------------------------------------------------------------- 3: descriptors and the working directory
def test_3_only_0_1_2_are_open(postern):
    # A descriptor that we leak into postern on purpose must not arrive either.
    read, write = os.pipe()
    os.set_inheritable(read, True)
    done = postern.probe("fds", close_fds=False)
    os.close(read)
    os.close(write)
    says(done, REFUSED)
    read, write = os.pipe()
    outside = bare("fds", pass_fds=[read])
    os.close(read)
    os.close(write)
    says(outside, ESCAPED)


def test_3_a_working_directory_through_a_descriptor_leads_nowhere(postern):
    for number in [*range(3, 40), 255, 1023]:
        done = postern.sh("pwd -P; ls /", flags=["--cwd", f"/proc/self/fd/{number}"])
        if done.code == 0:
            pytest.fail(f"a working directory that is a descriptor was taken: {done}")


# ---------------------------------------------------------------- 4: images with links in odd places
def image(folder):
    """A small root: the probe and nothing else, but enough to run."""
    (folder / "bin").mkdir(parents=True)
    shutil.copy(lib.PROBE, folder / "bin" / "probe")
    os.chmod(folder, 0o755)
    return folder


def tree_of(folder):
    return sorted((str(p.relative_to(folder)), p.lstat().st_mode, p.lstat().st_size) for p in folder.rglob("*"))


@pytest.mark.parametrize("name", ["dev", "proc", "tmp", "etc", "sys", "run", "root", "home", "app", "dev/shm", "dev/pts"])
@pytest.mark.parametrize("kind", ["absolute", "climbing"])
def test_4_links_in_an_image_do_not_lead_out(postern, tmp, name, kind):
    root = image(tmp / "root")
    canary = tmp / "canary"
    canary.mkdir()
    (canary / "canary").write_text("untouched")
    os.chmod(canary, 0o777)
    os.chmod(tmp, 0o755)
    (root / name).parent.mkdir(exist_ok=True)
    target = str(canary) if kind == "absolute" else "../" * 20 + str(canary)[1:]
    os.symlink(target, root / name)
    before = tree_of(canary), tree_of(root)
    done = postern.exec("/bin/probe", "read", f"/{name}/canary", flags=["--root", f"dir:{root}"])
    # Either it is refused as a whole, or it runs with everything inside.
    if done.code != REFUSED:
        assert done.code == lib.EXIT_OWN, done
        lib.one_sentence(done)
    assert (tree_of(canary), tree_of(root)) == before
    assert str(canary) not in pathlib.Path("/proc/self/mountinfo").read_text()
    # The detector detects: the same link followed by a careless host does change the canary.
    os.makedirs(f"{root}/{name}/made-by-a-careless-runtime")
    assert tree_of(canary) != before[0]


@pytest.mark.parametrize("user", ["+1", "-1", "0x0", "00", " 0", "0 ", "4294967295", "4294967296", "99999999999999999999",
                                  "1:", ":1", "1:2:3", "no-such-user", "../root", ""])
def test_4_odd_user_names_are_refused(postern, user):
    done = postern.exec("id", "-u", flags=["--user", user])
    assert done.code != 0 and done.out == b"", done
    assert "root" not in done.text


def test_4_user_names_that_are_fine_are_taken(postern):
    assert postern.exec("id", "-u").out.strip() not in (b"0", b""), "the ordinary user is not root"


# ---------------------------------------------------------------- 5: links on the way out
def test_5_what_is_collected_does_not_write_through_links(postern, tmp):
    """The agent leaves links, pipes and setuid files among its artifacts; the host's files stay as they are. (The race of a
    link against put and get is in tests/unit/test_sandbox_race.c, which can do both at once.)"""
    canary = tmp / "canary"
    canary.mkdir()
    (canary / "canary").write_text("untouched")
    before = tree_of(canary)
    evil = (f"mkdir -p /app/out/real; cd /app/out; ln -s {canary} folder; ln -s {canary}/canary file; ln -s /etc/shadow shadow; "
            "mkfifo pipe; cp /bin/true su; chmod 6755 su; echo fine > real/fine")
    task_ = lib.task(tmp / "t.json", artifacts=["/app/out", "/app/out/folder", "/app/out/shadow", "/etc/shadow", "../../etc"])
    model = lib.script(tmp / "m.toml", lib.bash(evil), "Done.")
    done, results = postern.run("--agent", "mini", "--task", task_, "--model", model)
    assert len(results) == 1, done
    assert tree_of(canary) == before
    kept = postern.rollouts()[0] / "artifacts"
    found = {p.name for p in kept.rglob("*")}
    assert "fine" in found, (found, done)
    for path in kept.rglob("*"):
        mode = path.lstat().st_mode
        assert stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode), path
        assert not mode & (stat.S_ISUID | stat.S_ISGID), path
    # What the links point to is looked up inside: nothing of the host's own files comes along.
    passwords = pathlib.Path("/etc/shadow").read_bytes().splitlines()[0] if ROOT else b"untouched"
    collected = b"".join(p.read_bytes() for p in kept.rglob("*") if p.is_file() and not p.is_symlink())
    assert passwords not in collected and b"untouched" not in collected, found


# ---------------------------------------------------------------- 6: hostile archives
def hostile_archives(canary):
    """name -> list of entries that try to leave the folder they are unpacked in."""

    def entry(name, type_=tarfile.REGTYPE, link="", data=b"evil", mode=0o644, device=None):
        info = tarfile.TarInfo(name)
        info.type, info.linkname, info.mode = type_, link, mode
        info.size = len(data) if type_ == tarfile.REGTYPE else 0
        if device:
            info.devmajor, info.devminor = device
        return info, data

    up = "../" * 20 + str(canary)[1:]
    return {
        "climbing": [entry(f"{up}/evil")],
        "absolute": [entry(f"{canary}/evil")],
        "through-a-link": [entry("out", tarfile.SYMTYPE, str(canary)), entry("out/evil")],
        "through-a-climbing-link": [entry("out", tarfile.SYMTYPE, up), entry("out/evil")],
        "over-a-link": [entry("out", tarfile.SYMTYPE, f"{canary}/canary"), entry("out")],
        "hard-link": [entry("out", tarfile.LNKTYPE, f"{canary}/canary"), entry("out")],
        "climbing-hard-link": [entry("out", tarfile.LNKTYPE, f"{up}/canary"), entry("out")],
        "hard-link-through-a-link": [entry("d", tarfile.SYMTYPE, str(canary)), entry("out", tarfile.LNKTYPE, "d/canary"),
                                     entry("out")],
    }


NAMES = list(hostile_archives(pathlib.Path("/x")))


def image_archive(path, entries):
    """A `docker save` archive with one layer that holds `entries`."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for info, data in entries:
            tar.addfile(info, io.BytesIO(data))
    data = layer.getvalue()
    digest = hashlib.sha256(data).hexdigest()
    config = json.dumps({"architecture": "amd64", "os": "linux", "config": {}, "rootfs": {
        "type": "layers", "diff_ids": [f"sha256:{digest}"]}}).encode()
    config_name = hashlib.sha256(config).hexdigest() + ".json"
    manifest = json.dumps([{"Config": config_name, "RepoTags": ["evil:latest"], "Layers": [f"{digest}/layer.tar"]}]).encode()
    with tarfile.open(path, "w") as tar:
        for name, content in ((config_name, config), (f"{digest}/layer.tar", data), ("manifest.json", manifest)):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


@pytest.mark.parametrize("kind", NAMES)
def test_6_a_hostile_image_stays_in_its_folder(bare_postern, tmp, kind):
    canary = tmp / "canary"
    canary.mkdir()
    (canary / "canary").write_text("untouched")
    before = tree_of(canary), (canary / "canary").read_text()
    archive = tmp / "evil.tar"
    entries = hostile_archives(canary)[kind]
    image_archive(archive, entries)
    done = bare_postern("image", "import", str(archive), "--name", "evil")
    assert done.code < 124, done
    assert (tree_of(canary), (canary / "canary").read_text()) == before, done
    # The detector detects: a careless extractor touches the canary.
    careless = tmp / "careless"
    careless.mkdir()
    for info, data in entries:
        target = os.path.join(careless, info.name)
        if info.type == tarfile.SYMTYPE:
            os.symlink(info.linkname, target)
        elif info.type == tarfile.LNKTYPE:
            os.link(info.linkname if info.linkname.startswith("/") else os.path.join(careless, info.linkname), target)
        else:
            pathlib.Path(target).write_bytes(data)
    assert (tree_of(canary), (canary / "canary").read_text()) != before


def test_6_devices_and_setuid_bits_do_not_come_out_of_an_image(bare_postern, tmp):
    as_root()
    device = tarfile.TarInfo("dev0")
    device.type, device.devmajor, device.devminor, device.mode = tarfile.BLKTYPE, 8, 0, 0o666
    setuid = tarfile.TarInfo("su")
    setuid.mode, setuid.size = 0o6755, 4
    image_archive(tmp / "a.tar", [(device, b""), (setuid, b"evil")])
    bare_postern("image", "import", str(tmp / "a.tar"), "--name", "evil")
    for path in bare_postern.home.rglob("*"):
        mode = path.lstat().st_mode
        assert not stat.S_ISBLK(mode) and not stat.S_ISCHR(mode), path


# ---------------------------------------------------------------- 8: sockets and shared memory
def test_8_abstract_sockets_of_the_host_are_out_of_reach(postern):
    name = f"postern-canary-{os.getpid()}"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("\0" + name)
    listener.listen(5)
    says(postern.probe("abstract", name), REFUSED)
    says(bare("abstract", name), ESCAPED)
    listener.close()


def test_8_shared_memory_of_the_host_is_out_of_reach(postern):
    key = str(0x70000000 + os.getpid())
    holder = subprocess.Popen([lib.PROBE, "shm-make", key], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"ready\n"
        says(postern.probe("shm", key), REFUSED)
        says(bare("shm", key), ESCAPED)
    finally:
        holder.communicate(timeout=60)


@pytest.mark.parametrize("hold, find", [("abstract-listen", "abstract"), ("shm-make", "shm")])
def test_8_two_sandboxes_do_not_share(postern, hold, find):
    name = str(0x71000000 + os.getpid())
    script = f"head -c {lib.PROBE.stat().st_size} > /tmp/probe && chmod +x /tmp/probe && exec /tmp/probe {hold} {name}"
    holder = postern.start("exec", *postern.flags, "--", "/bin/sh", "-c", script)
    try:
        holder.stdin.write(lib.PROBE.read_bytes())
        holder.stdin.flush()
        assert holder.stdout.readline() == b"ready\n"
        says(postern.probe(find, name), REFUSED)
    finally:
        holder.communicate(timeout=60)


# ---------------------------------------------------------------- 9: other processes
@pytest.fixture
def victim():
    """An ordinary process of the user that runs the tests."""
    process = subprocess.Popen(["sleep", "600"], env={"CANARY": "secret"})
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("attempt", ["kill {}", "ptrace {}", "vm-read {}", "peek {} environ", "peek {} mem", "link {} root",
                                     "peek {} ns/pid", "setns /proc/{}/ns/ipc"])
def test_9_a_process_of_the_host_is_out_of_reach(postern, victim, attempt):
    words = attempt.format(victim.pid).split()
    inside = postern.probe(*words)
    if attempt.startswith(("kill", "ptrace", "vm-read", "peek", "link")) and inside.code == ESCAPED and victim.pid < 50:
        must("the pid exists inside by chance")
    says(inside, REFUSED)
    as_root()
    says(bare(*words), ESCAPED)


def test_9_kill_minus_one_hits_nobody_outside(postern):
    as_root()
    uid = "61234"
    become = ["setpriv", "--reuid", uid, "--regid", uid, "--clear-groups"]
    victim = subprocess.Popen([*become, "sleep", "600"])
    try:
        done = postern.probe("kill-all")
        assert done.code in (REFUSED, ESCAPED), done  # it may signal itself and find nobody, or somebody inside
        assert victim.poll() is None
        shared = lib.short_dir("pt-shared-")
        shutil.copy(lib.PROBE, shared / "probe")
        os.chmod(shared, 0o755)
        says(lib.command([*become, shared / "probe", "kill-all"]), ESCAPED)
        assert victim.wait(timeout=60) == -signal.SIGTERM
        shutil.rmtree(shared)
    finally:
        victim.kill()
        victim.wait()


def test_9_processes_of_the_host_and_of_neighbours_are_invisible(postern, victim):
    mark = f"65432.{os.getpid()}"
    neighbour = postern.start("exec", *postern.flags, "--", "sleep", mark)
    try:
        until(lambda: lib.marked(mark, "sleep"), what="the neighbour")
        done = postern.sh("cat /proc/[0-9]*/cmdline | tr '\\0' ' '; ls -d /proc/[0-9]* | wc -l")
        assert mark not in done.text and "postern" not in done.text.replace("postern-porter", ""), done
        assert int(done.lines()[-1].split()[-1]) < 12, done
    finally:
        neighbour.terminate()
        neighbour.communicate(timeout=60)


# ---------------------------------------------------------------- 10: process 1
@pytest.mark.parametrize("attempt", ["ptrace 1", "vm-read 1", "peek 1 mem", "peek 1 environ", "peek 1 maps", "peek 1 auxv", "link 1 cwd",
                                     "link 1 root", "link 1 exe", "link 1 fd/0", "peek 1 fd", "kill 1 9"])
def test_10_process_1_is_out_of_reach(postern, attempt):
    inside = postern.probe(*attempt.split())
    if attempt == "kill 1 9" and inside.code == ESCAPED:
        # Allowed to be said, not to happen: the sandbox still answered with the probe's own exit code.
        return
    says(inside, REFUSED)
    if attempt.startswith("kill"):
        return
    says(in_a_pid_namespace(*attempt.split()), ESCAPED)


# ---------------------------------------------------------------- 13, 14: namespaces
def test_13_the_usual_tools_fail_too(postern):
    for words in (["unshare", "-Urn", "true"], ["unshare", "-U", "true"], ["mount", "-t", "tmpfs", "none", "/tmp"]):
        done = postern.exec(*words)
        assert done.code not in (0, 127), done
    assert lib.command(["unshare", "-Urn", "true"]).code == 0, "the counter-proof"


def test_14_the_pid_namespace_around_is_not_handed_out(postern):
    says(postern.probe("ns-parent"), REFUSED)
    as_root()
    nested = subprocess.Popen(["unshare", "-rpf", "--kill-child", "sleep", "600"])
    try:
        child = until(lambda: lib.children(nested.pid), what="the nested process")[0]
        says(bare("ns-parent", f"/proc/{child}/ns/pid"), ESCAPED)
    finally:
        nested.kill()
        nested.wait()


# ---------------------------------------------------------------- 15, 16: privileges
def test_15_status_shows_no_privilege(postern):
    done = postern.exec("cat", "/proc/self/status")
    fields = dict(line.split(":", 1) for line in done.lines() if ":" in line)
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(fields[name], 16) == 0, fields[name]
    assert fields["NoNewPrivs"].strip() == "1"
    assert fields["Seccomp"].strip() == "2"


def test_15_a_terminal_does_not_change_that(postern):
    inside = [lib.PROGRAM, "exec", *postern.flags, "--pty", "--", "/bin/sh", "-c", lib.PROBE_FROM_TEXT, "sh",
              lib.probe_as_text(), "caps"]
    code, output = on_a_terminal(inside, env=postern.environment())
    assert code == REFUSED, output


def test_16_a_setuid_program_gains_nothing(postern, tmp):
    as_root()
    root = image(tmp / "root")
    program = root / "bin" / "probe"
    os.chown(program, 0, 0)
    os.chmod(program, 0o6755)
    for folder in (tmp, *tmp.parents):
        if folder != pathlib.Path("/") and folder.stat().st_uid == os.geteuid() and str(folder).startswith("/tmp/"):
            os.chmod(folder, 0o755)
    says(postern.exec("/bin/probe", "setuid", flags=["--root", f"dir:{root}"]), REFUSED)
    says(lib.command(["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", program, "setuid"]), ESCAPED)


def test_16_file_capabilities_gain_nothing(postern, tmp):
    as_root()
    root = image(tmp / "root")
    program = root / "bin" / "probe"
    # What `setcap cap_net_bind_service+ep` would write.
    os.setxattr(program, "security.capability", struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0))
    for folder in (tmp, *tmp.parents):
        if folder != pathlib.Path("/") and folder.stat().st_uid == os.geteuid() and str(folder).startswith("/tmp/"):
            os.chmod(folder, 0o755)
    says(postern.exec("/bin/probe", "file-caps", flags=["--root", f"dir:{root}"]), REFUSED)
    outside = lib.command(["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", program, "file-caps"])
    if outside.code == 126 or "Operation not permitted" in outside.error:
        must("this machine's bounding set does not allow the counter-proof")
    says(outside, ESCAPED)


def test_16_the_hosts_own_setuid_programs_gain_nothing(postern):
    done = postern.sh("for p in /usr/bin/su /usr/bin/passwd /usr/bin/mount /usr/bin/sudo /usr/bin/newgrp; do "
                      "test -u $p && echo $p; done; find / -xdev -perm -4000 2>/dev/null | head; true")
    # Seeing the bit is fine; what counts is the mount.
    options = postern.sh("cat /proc/self/mountinfo").lines()
    for line in options:
        fields = line.split()
        assert "nosuid" in fields[5].split(","), line
    assert done.code == 0


# ---------------------------------------------------------------- root inside
ROOT_MAY_NOT = ["io-uring", "add-key", "keyctl", "unshare", "clone-user", "clone3-user", "user-mount", "mount", "setns",
                "exe-write", "ptrace 1", "peek 1 mem", "peek 1 environ", "link 1 root", "link 1 exe", "int80", "interfaces",
                "socket 17 3 768", "write /proc/sys/kernel/core_pattern", "write /proc/sysrq-trigger", "read /proc/kcore",
                "ns-parent", "abstract postern-canary"]


@pytest.mark.parametrize("attempt", ROOT_MAY_NOT, ids=[a.replace("/", "_") for a in ROOT_MAY_NOT])
def test_15_root_inside_may_not_either(postern, attempt):
    says(postern.probe(*attempt.split(), flags=postern.root_flags()), REFUSED)


def test_15_root_inside_is_root_only_inside(postern):
    done = postern.sh("set -e; id -u; touch /etc/made-by-root; mkdir /opt/x; chown 1000:1000 /opt/x; chmod 700 /opt/x; "
                      "stat -c %u /opt/x; cat /proc/self/status", flags=postern.root_flags())
    assert done.code == 0 and done.lines()[:2] == ["0", "1000"], done
    assert not os.path.exists("/etc/made-by-root")
    fields = dict(line.split(":", 1) for line in done.lines() if ":" in line)
    assert fields["NoNewPrivs"].strip() == "1" and fields["Seccomp"].strip() == "2"
    mask = int(fields["CapEff"], 16)
    for name, bit in {"sys_admin": 21, "net_admin": 12, "net_raw": 13, "sys_ptrace": 19, "sys_module": 16, "sys_rawio": 17,
                      "mknod": 27, "sys_boot": 22, "dac_read_search": 2, "bpf": 39, "sys_time": 25}.items():
        assert not mask >> bit & 1, f"root inside has {name}"


def test_15_root_inside_is_nobody_outside(postern):
    """The process of a root inside has an ordinary id on the host."""
    as_root()
    mark = f"32109.{os.getpid()}"
    process = postern.start("exec", *postern.flags, *postern.root_flags(), "--", "sleep", mark)
    try:
        pid = until(lambda: lib.marked(mark, "sleep"), what="the command to run")[0]
        assert lib.status_of(pid, "Uid") != 0
    finally:
        process.terminate()
        process.communicate(timeout=60)


# ---------------------------------------------------------------- 20: the way out
def test_20_no_address_answers(postern):
    listener = socket.socket()
    listener.bind(("0.0.0.0", 0))
    listener.listen(5)
    port = str(listener.getsockname()[1])
    addresses = ["127.0.0.1", "10.0.0.1", "169.254.169.254", "192.168.0.1", "8.8.8.8", "1.1.1.1"]
    try:
        hostname = socket.gethostbyname(socket.gethostname())
        addresses.append(hostname)
    except OSError:
        pass
    for address in addresses:
        started = time.monotonic()
        says(postern.probe("connect", address, port), REFUSED)
        assert time.monotonic() - started < 30  # it fails, it does not hang
    says(bare("connect", "127.0.0.1", port), ESCAPED)
    listener.close()


def test_20_names_are_not_found_at_once(postern):
    done = postern.sh("python3 - <<'END'\n"
                      "import socket, time\n"
                      "for name in ('example.com', 'registry.test', 'a' * 60 + '.example.org', 'localhost.example'):\n"
                      "    start = time.monotonic()\n"
                      "    try:\n"
                      "        socket.getaddrinfo(name, 443)\n"
                      "        print('FOUND', name)\n"
                      "    except socket.gaierror as error:\n"
                      "        print('no', error.errno, 'slow' if time.monotonic() - start > 3 else 'fast')\n"
                      "END")
    assert done.code == 0 and "FOUND" not in done.text and "slow" not in done.text, done
    assert done.text.count("no ") == 4, done
    # EAI_NONAME: "no such name", which nobody retries; not EAI_AGAIN.
    assert all(line.split()[1] == "-2" for line in done.lines()), done


def test_20_localhost_is_still_a_name(postern):
    done = postern.sh("python3 -c \"import socket; print(socket.gethostbyname('localhost'))\"")
    assert done.out.strip() == b"127.0.0.1", done


# ---------------------------------------------------------------- 22, 24: what can be known
def test_22_the_hosts_files_are_invisible(postern, tmp):
    as_root()
    canary = f"canary-{os.getpid()}"
    places = [pathlib.Path(p) for p in ("/root", "/home", "/tmp", "/var/tmp", "/srv", "/opt", "/mnt", "/var/lib", "/dev/shm")]
    made = []
    try:
        for place in places:
            if place.is_dir() and os.access(place, os.W_OK):
                (place / canary).write_text("seen")
                made.append(place / canary)
        done = postern.sh(f"find / -xdev -name '{canary}' 2>/dev/null; ls -a /root /home /tmp /srv /mnt /dev/shm 2>&1; true")
        assert canary not in done.text, done
        assert lib.command(["find", *map(str, places), "-maxdepth", "1", "-name", canary]).text.count(canary) == len(made)
    finally:
        for path in made:
            path.unlink()


def test_22_identity_of_the_host_is_invisible(postern):
    host = os.uname().nodename
    done = postern.sh("hostname; cat /proc/sys/kernel/hostname; cat /etc/hostname 2>/dev/null; cat /etc/hosts; true")
    assert host not in done.text.split(), done
    done = postern.sh("cat /proc/self/cgroup; cat /proc/1/cmdline 2>/dev/null | tr '\\0' ' '")
    assert str(postern.home) not in done.text, done


def test_22_kernel_addresses_are_hidden(postern):
    addresses = "awk '$1 !~ /^0+$/ {n++} END {print n + 0}' /proc/kallsyms 2>/dev/null || echo 0"
    assert postern.sh(addresses).out.strip() == b"0"
    as_root()
    assert int(lib.command(["sh", "-c", addresses]).out) > 0 or not os.path.exists("/proc/kallsyms")


def test_22_mountinfo_tells_nothing_of_the_host(postern, tmp):
    root = image(tmp / "a-long-telling-name")
    done = postern.exec("cat", "/proc/self/mountinfo")
    # Where the host's own root is an overlay (a container), its options belong to the mount itself.
    own = {line.split(" - ", 1)[1] for line in open("/proc/self/mountinfo") if " / / " in line and " overlay " in line}
    done.out = b"\n".join(line for line in done.out.splitlines()
                          if line.decode().partition(" - ")[2].split(" ")[-1].split(",")[-1:] and
                          not any(line.decode().endswith(options.strip().split(" ", 2)[2]) for options in own))
    for word in (str(postern.home), str(lib.REPOSITORY), "/root", "/home", "/work", str(lib.PROGRAM_DIR)):
        assert word not in done.text, done
    done = postern.exec("/bin/probe", "show", "/proc/self/mountinfo", flags=["--root", f"dir:{root}"])
    assert "a-long-telling-name" not in done.text, done


def test_24_nothing_of_the_environment_arrives(postern):
    secrets = {"OPENAI_API_KEY": "sk-canary-one", "POSTERN_TOKEN": "canary-two", "AWS_SECRET_ACCESS_KEY": "canary-three",
               "LD_PRELOAD_CANARY": "canary-four"}
    done = postern.sh("env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'", env=secrets)
    assert done.code == 0 and "canary" not in done.text, done
    for name in ("POSTERN_HOME", "SSH_", "DBUS_", "XDG_RUNTIME"):
        assert name not in done.text, done
    assert "canary" in lib.command(["env"], env={**os.environ, **secrets}).text


def test_24_no_control_socket_is_in_reach(postern):
    done = postern.sh("find / -xdev -type s 2>/dev/null; tail -n +2 /proc/net/unix | awk 'NF > 7'; true")
    assert done.text.strip() == "", done  # sockets without a name are the porter's own and cannot be reached


# ---------------------------------------------------------------- 25: quotas
@pytest.mark.parametrize("name", ["max_user_namespaces", "max_net_namespaces", "max_mnt_namespaces", "max_pid_namespaces"])
def test_25_an_exhausted_quota_is_a_clean_error(home, name):
    """In a throw-away user namespace with the quota at zero: one sentence, a documented code, nothing left."""
    census = lib.Census(home)
    script = f'echo 0 > /proc/sys/user/{name} || exit 99; exec "$@"'
    argv = ["unshare", "-r", "sh", "-c", script, "sh", lib.PROGRAM, "exec", "--isolation", "no-limits", "--", "true"]
    done = lib.command(argv, env=lib.Postern(home).environment())
    if done.code == 99:
        must("quotas cannot be set in a user namespace here")
    assert done.code == lib.EXIT_OWN, done
    lib.one_sentence(done)
    census.settled("no process has this in its command line")


def test_25_without_the_quota_the_same_works(home):
    argv = ["unshare", "-r", lib.PROGRAM, "exec", "--isolation", "no-limits", "--", "true"]
    done = lib.command(argv, env=lib.Postern(home).environment())
    assert done.code == 0, done

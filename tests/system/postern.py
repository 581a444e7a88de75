"""What the system tests share: starting the program, the probe, and a census of what a sandbox can leave.

The program is the one named by POSTERN, else <repository>/build/postern. Every test gets a home of its
own below /tmp with a short name (unix sockets have short paths). Nothing here waits a fixed time: `until`
waits for a condition, with a deadline that only a broken program reaches.
"""

import base64
import fcntl
import gzip
import json
import functools
import atexit
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import termios
import time

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("POSTERN", str(REPOSITORY / "build" / "postern"))
PROGRAM_DIR = pathlib.Path(PROGRAM).resolve().parent

REFUSED, ESCAPED, UNCLEAR = 0, 10, 20

# One place for exit codes: docs/cli.md lists them, src/base/err.c holds them.
EXIT_INPUT, EXIT_NOT_FOUND, EXIT_DENIED, EXIT_UNSUPPORTED = 2, 3, 5, 6
EXIT_CAPACITY, EXIT_DISK_FULL, EXIT_SYSTEM = 9, 12, 13
EXIT_OWN = 125  # exec: Postern itself failed, not the command
EXIT_TIMEOUT, EXIT_CANCELLED, EXIT_OOM, EXIT_NO_PROGRAM = 124, 130, 137, 127


def must(reason):
    """Skips with a reason; with MUST_WORK=1, as in CI, a skip is a failure."""
    if os.environ.get("MUST_WORK") == "1":
        pytest.fail(f"cannot be tried here: {reason}")
    pytest.skip(reason)


PATIENCE = 60  # seconds at least: a machine may be busy, and waiting costs nothing when all is well


def until(condition, seconds=PATIENCE, what="a condition"):
    """Waits until condition() is true and returns its value."""
    seconds = max(seconds, PATIENCE)
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds} s for {what}")
        time.sleep(0.02)


class Done:
    """A finished command: code as a shell says it, out and err as bytes."""

    def __init__(self, argv, code, out, err):
        self.argv, self.code, self.out, self.err = argv, code, out, err

    @property
    def text(self):
        return self.out.decode("utf-8", "replace")

    @property
    def error(self):
        return self.err.decode("utf-8", "replace")

    def lines(self):
        return self.text.splitlines()

    def __repr__(self):
        def cut(data):
            return data[-1500:].decode("utf-8", "replace")

        argv = [a if len(a) < 200 else a[:60] + "..." for a in map(str, self.argv)]
        return f"\n$ {' '.join(argv)}\n-> {self.code}\nstdout: {cut(self.out)}\nstderr: {cut(self.err)}"


def command(argv, stdin=None, seconds=60, **options):
    """Runs a command of any kind to its end. A hang is a failure of the test, and the command is killed."""
    given = {"input": stdin} if stdin is not None else {"stdin": subprocess.DEVNULL}
    process = subprocess.run([str(a) for a in argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             timeout=max(seconds, PATIENCE), **given, **options)
    code = process.returncode
    return Done(argv, code if code >= 0 else 128 - code, process.stdout, process.stderr)


def short_dir(prefix):
    return pathlib.Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))


class Postern:
    """The program with a home of its own."""

    def __init__(self, home, flags=()):
        self.home = pathlib.Path(home)
        self.flags = list(flags)  # for every sandbox: --isolation ... where the machine has no cgroups

    def environment(self, extra=None):
        env = {k: v for k, v in os.environ.items() if not k.startswith("POSTERN_")}
        env["POSTERN_HOME"] = str(self.home)
        env.update(extra or {})
        return env

    def __call__(self, *args, stdin=None, seconds=60, env=None, **options):
        return command([PROGRAM, *args], stdin=stdin, seconds=seconds, env=self.environment(env), **options)

    def start(self, *args, env=None, **options):
        """Starts the program and returns the Popen; the caller ends it."""
        given = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        given.update(options)
        return subprocess.Popen([PROGRAM, *[str(a) for a in args]], env=self.environment(env), **given)

    def exec(self, *argv, flags=(), **options):
        return self("exec", *self.flags, *flags, "--", *argv, **options)

    def sh(self, script, flags=(), **options):
        return self.exec("/bin/sh", "-c", script, flags=flags, **options)

    def probe(self, *args, flags=(), **options):
        """Pipes the probe into a fresh sandbox and runs it there."""
        script = "cat > /tmp/probe && chmod +x /tmp/probe && exec /tmp/probe \"$@\" < /dev/null"
        return self.exec("/bin/sh", "-c", script, "probe", *args, flags=flags,
                         stdin=PROBE.read_bytes(), **options)

    def root_flags(self):
        """Flags for root inside. Where the host's root cannot shift owners (an overlay, as in a container), that is
        refused by name, and a small root of its own in memory serves instead."""
        if not hasattr(self, "_root_flags"):
            done = self.exec("true", flags=["--as-root"])
            self._root_flags = ["--as-root"]
            if done.code != 0:
                assert "shift owners" in done.error, done
                self._root_flags += ["--root", f"dir:{host_root()}"]
        return self._root_flags

    def run(self, *args, seconds=120, **options):
        """`postern run --json`: the finished command and its result objects."""
        done = self("run", "--json", *args, seconds=seconds, **options)
        return done, json_lines(done.out)

    def rollouts(self):
        folder = self.home / "rollouts"
        return sorted(folder.iterdir()) if folder.is_dir() else []


@functools.lru_cache(maxsize=None)
def host_root():
    """A root file system in memory with a shell and a few programs, made from the host's own files."""
    root = pathlib.Path(tempfile.mkdtemp(prefix="postern-root-", dir="/tmp"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    root.chmod(0o755)
    for name in ("bin", "usr/bin", "lib64", "etc", "opt", "tmp", "proc", "dev", "run"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "etc/passwd").write_text("root:x:0:0:root:/:/bin/sh\nagent:x:1000:1000::/:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\nagent:x:1000:\n")
    for program in ("sh", "cat", "chmod", "chown", "env", "id", "kill", "mkdir", "sleep", "stat", "touch", "true"):
        real = os.path.realpath(shutil.which(program, path="/usr/bin:/bin"))
        shutil.copy2(real, root / "bin" / program)
        libraries = subprocess.run(["ldd", real], capture_output=True, text=True, check=False).stdout
        for library in re.findall(r"(/\S+) \(0x", libraries):
            to = root / library.lstrip("/")
            to.parent.mkdir(parents=True, exist_ok=True)
            if not to.exists():
                shutil.copy2(os.path.realpath(library), to)
    return root


def json_lines(data):
    return [json.loads(line) for line in data.decode().split("\n") if line.strip()]


# ---------------------------------------------------------------- the probe
PROBE = pathlib.Path("/nonexistent")  # built by conftest.py


def build_probe(folder):
    global PROBE
    sources = sorted((REPOSITORY / "tests" / "escape").glob("*.c"))
    target = folder / "probe"
    for compiler in ("musl-gcc", "gcc"):
        if not shutil.which(compiler):
            continue
        done = command([compiler, "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-static", "-s",
                        "-o", target, *sources], seconds=300)
        if done.code == 0:
            PROBE = target
            return target
    raise RuntimeError(f"the probe does not build: {done}")


def bare(*args, prefix=(), **options):
    """The probe on the bare machine, perhaps behind a prefix such as `setpriv ...`."""
    return command([*prefix, PROBE, *args], **options)


def probe_as_text():
    """The probe as words that fit on a command line, for when stdin is taken."""
    return base64.b64encode(gzip.compress(PROBE.read_bytes(), 9)).decode()


PROBE_FROM_TEXT = ("echo \"$1\" | base64 -d | gunzip > /tmp/probe && chmod +x /tmp/probe && shift && "
                   "exec /tmp/probe \"$@\"")


# ---------------------------------------------------------------- terminals
class Terminal:
    """A real pty with a command in its own session on it."""

    def __init__(self, argv, env=None):
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            try:
                os.execvpe(argv[0], [str(a) for a in argv], env or os.environ)
            finally:
                os._exit(127)
        self.output = b""

    def size(self, rows, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, data):
        os.write(self.master, data)

    def read_until(self, word, seconds=PATIENCE):
        end = time.monotonic() + seconds
        while word not in self.output:
            left = end - time.monotonic()
            if left <= 0 or not self._read(left):
                raise AssertionError(f"the terminal never showed {word!r}: {self.output[-1000:]!r}")
        return self.output

    def _read(self, seconds):
        if not select.select([self.master], [], [], max(0, seconds))[0]:
            return False
        try:
            data = os.read(self.master, 65536)
        except OSError:
            return False
        self.output += data
        return bool(data)

    def wait(self, seconds=PATIENCE):
        """Reads to the end and returns the exit code."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._read(0.05)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                while self._read(0):
                    pass
                return os.waitstatus_to_exitcode(status)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        raise AssertionError(f"the command on the terminal did not end: {self.output[-1000:]!r}")

    def close(self):
        os.close(self.master)


# ---------------------------------------------------------------- a census of the machine
def processes(mark):
    """Pids of live processes with `mark` in their command line; this one and zombies are not counted."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            line = (entry / "cmdline").read_bytes()
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if mark.encode() in line and state not in "ZX":
            found.append(int(entry.name))
    return found


def marked(mark, of=None):
    """Like processes(), but only those whose program is `of` (by base name)."""
    found = []
    for pid in processes(mark):
        try:
            name = os.path.basename(os.readlink(f"/proc/{pid}/exe")).split(" ")[0]
        except OSError:
            continue
        if of is None or name == of:
            found.append(pid)
    return found


def cgroups():
    """Directories of ours in every hierarchy."""
    found = set()
    for base, names, _ in os.walk("/sys/fs/cgroup"):
        for name in names:
            path = os.path.join(base, name)
            if "postern" in path:
                found.add(path)
    return found


def keepers(home):
    """Keepers of this home: their environment or command line names it."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if not os.readlink(entry / "exe").split(" ")[0].endswith("postern-keeper"):
                continue
            data = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if str(home).encode() in data:
            found.append(int(entry.name))
    return found


def main_keepers(home):
    """Those of them whose parent is no keeper: not a sandbox's own first process."""
    all_, found = keepers(home), []
    for pid in all_:
        try:
            parent = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:  # it has gone since
            continue
        if parent not in all_:
            found.append(pid)
    return found


def run_dirs():
    """Private folders of keepers, outside the homes."""
    found = set()
    for place in ("/run/postern", f"/run/user/{os.getuid()}/postern", f"/tmp/postern-{os.getuid()}"):
        if os.path.isdir(place):
            found |= {os.path.join(place, name) for name in os.listdir(place)}
    return found


def own_group(controller):
    """The cgroup v1 path of this process, or "" where that controller is not used so."""
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path.rstrip("/")
    return ""


class Census:
    """What there was before; `settled` waits until all that is new is gone. Others may use Postern on this machine at the
    same time: what belongs to a keeper that lives and is not ours does not count."""

    def __init__(self, home):
        self.home = home
        self.cgroups, self.mounts = cgroups(), mounts()

    def left_cgroups(self):
        ours, left, foreign = keepers(self.home), {}, set()
        for path in cgroups() - self.cgroups:
            match = re.search(r"postern-(\d+)-\w+", path)
            if not match or int(match[1]) not in ours and os.path.exists(f"/proc/{match[1]}"):
                continue
            left[path] = match[0]
            # A keeper's groups are below the memory group it was started in: this one tells whose it was.
            if path.startswith("/sys/fs/cgroup/memory/") and not path.startswith("/sys/fs/cgroup/memory" + own_group("memory")):
                foreign.add(match[0])
        return {path for path, name in left.items() if name not in foreign}

    def settled(self, mark, seconds=PATIENCE):
        until(lambda: not processes(mark), seconds, f"processes to go: {mark}")
        try:
            until(lambda: not self.left_cgroups(), seconds, "cgroups to go")
        except AssertionError:
            raise AssertionError(f"cgroups are left: {sorted(self.left_cgroups())[:5]}")
        until(lambda: not (mounts(str(self.home)) | mounts("postern") - self.mounts), seconds, "mounts to go")


def mounts(word="postern"):
    lines = pathlib.Path("/proc/self/mountinfo").read_text().splitlines()
    return {line.split(" ", 3)[3] for line in lines if word in line}


def status_of(pid, field):
    """A number from /proc/PID/status, in kB where the kernel says kB."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    return 0


def children(pid):
    """All descendants of a process."""
    parents = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                pass
    found, todo = [], [pid]
    while todo:
        parent = todo.pop()
        new = [p for p, pp in parents.items() if pp == parent]
        found += new
        todo += new
    return found


def one_sentence(done, *words):
    """Bad input gets one clear sentence: a single line on stderr that names what was wrong."""
    lines = [line for line in done.error.splitlines() if line.strip()]
    assert len(lines) == 1, f"not one sentence: {done}"
    for word in words:
        assert word.lower() in lines[0].lower(), f"'{word}' is not in the message: {done}"
    assert "Traceback" not in lines[0] and "Assertion" not in lines[0]
    return lines[0]


# ---------------------------------------------------------------- scripts and tasks
def quoted(text):
    """A TOML basic string; JSON's is one of them."""
    return json.dumps(text, ensure_ascii=True).replace("\\u007f", "\\u007F")


def bash(command_line):
    """A turn in which the model asks mini to run a command."""
    return {"bash": command_line}


def script(path, *turns, when="", more=""):
    """Writes a scripted model that answers turn by turn: text, or bash(...). Returns the --model argument."""
    lines = ["[[rule]]", *([f"when = {{ {when} }}"] if when else [])]
    for turn in turns:
        lines.append("[[rule.turns]]")
        if isinstance(turn, str):
            lines.append(f"say = {quoted(turn)}")
        else:
            lines += ["[[rule.turns.call]]", 'name = "bash"', f"arguments = {{ command = {quoted(turn['bash'])} }}"]
    pathlib.Path(path).write_text("\n".join(lines) + "\n" + more)
    return f"script:{path}"


def task(path, **fields):
    """Writes a task as JSON. Returns the --task argument."""
    fields.setdefault("name", "a-task")
    fields.setdefault("instruction", "Do what has to be done.")
    pathlib.Path(path).write_text(json.dumps(fields))
    return str(path)


def copy_program(root, path):
    """A program or library and the libraries it needs, at their own places below `root`."""
    needed = subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout
    for file in [str(path), *re.findall(r"(/\S+) \(0x", needed)]:
        to = root / file.lstrip("/")
        to.parent.mkdir(parents=True, exist_ok=True)
        if not to.exists():
            shutil.copy2(os.path.realpath(file), to)


@functools.lru_cache(maxsize=None)
def working_root():
    """A root in memory, for hosts whose own cannot shift owners, with what people work with: the small programs of every
    Debian, git, and the system's Python with its packages."""
    root = pathlib.Path(tempfile.mkdtemp(prefix="postern-root-", dir="/tmp"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    root.chmod(0o755)
    for name in ("usr/bin", "usr/local/bin", "usr/lib64", "etc", "opt", "tmp", "proc", "dev", "run", "srv", "var", "home"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "lib", "lib64"):
        (root / "usr" / name).mkdir(exist_ok=True)
        (root / name).symlink_to(f"usr/{name}")
    (root / "tmp").chmod(0o1777)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000::/home:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\nagent:x:1000:\n")
    packages = ["bash", "dash", "coreutils", "util-linux", "util-linux-extra", "findutils", "grep", "sed", "procps", "mount"]
    listed = subprocess.run(["dpkg", "-L", *packages], capture_output=True, text=True, check=False).stdout.split()
    for path in listed + ["/bin/sh", "/usr/bin/git", "/usr/bin/python3"]:
        if re.fullmatch(r"(/usr)?/bin/[^/]+", path) and os.path.isfile(path):
            copy_program(root, "/usr/bin/" + os.path.basename(path))
    version = os.path.basename(os.path.realpath("/usr/bin/python3"))
    for folder in (f"usr/lib/{version}", "usr/lib/python3", "usr/lib/git-core", "usr/share/git-core"):
        shutil.copytree(f"/{folder}", root / folder, symlinks=True, ignore=shutil.ignore_patterns("test", "*.a"), dirs_exist_ok=True)
    for library in pathlib.Path(f"/usr/lib/{version}/lib-dynload").glob("*.so"):
        copy_program(root, library)
    for script in ("pytest", "pytest-3"):
        if os.path.isfile(f"/usr/bin/{script}"):
            shutil.copy2(f"/usr/bin/{script}", root / "usr/bin" / script)
    return root


def small_root(root, *programs):
    """A directory to be a sandbox's root: dash as its shell, these programs, the libraries they need, nothing else."""
    root = pathlib.Path(root)
    for name in ("bin", "dev", "proc", "tmp", "etc", "home", "opt", "run", "var"):
        (root / name).mkdir(parents=True)
    for program in ("dash", *programs):
        path = shutil.which(program)
        shutil.copy(path, root / "bin" / ("sh" if program == "dash" else program))
        linked = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
        for library in re.findall(r"(/\S+) \(0x", linked):
            target = root / library.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, target)
    root.chmod(0o755)
    return root

"""Bad input: one clear sentence, a documented exit code, nothing left behind. And the questions people ask first."""

import json
import os
import pathlib
import subprocess

import pytest

import postern as lib
from postern import (EXIT_DENIED, EXIT_DISK_FULL, EXIT_INPUT, EXIT_NOT_FOUND, EXIT_OWN, EXIT_UNSUPPORTED, bash, must, one_sentence,
                     script, task)

COMMAND_LINES = [
    (["--no-such-flag"], EXIT_INPUT, ["--no-such-flag"]),
    (["no-such-command"], EXIT_INPUT, ["no-such-command"]),
    (["exce", "--", "true"], EXIT_INPUT, ["exce", "exec"]),
    (["exec", "--no-such-flag", "--", "true"], EXIT_INPUT, ["--no-such-flag"]),
    (["exec", "--timout", "5s", "--", "true"], EXIT_INPUT, ["--timout", "--timeout"]),
    (["exec"], EXIT_INPUT, []),
    (["exec", "--"], EXIT_INPUT, []),
    (["exec", "--timeout"], EXIT_INPUT, ["timeout"]),
    (["exec", "--timeout", "soon", "--", "true"], EXIT_INPUT, ["soon"]),
    (["exec", "--timeout", "-5s", "--", "true"], EXIT_INPUT, ["-5s"]),
    (["exec", "--memory", "lots", "--", "true"], EXIT_INPUT, ["lots"]),
    (["exec", "--isolation", "none", "--", "true"], EXIT_INPUT, ["none", "no-seccomp"]),
    (["exec", "--backend", "no-such-backend", "--", "true"], EXIT_OWN, ["no-such-backend"]),
    (["exec", "--root", "dir:/does/not/exist", "--", "true"], EXIT_OWN, ["/does/not/exist"]),
    (["exec", "--root", "image:no-such-image", "--", "true"], EXIT_OWN, ["no-such-image"]),
    (["exec", "--root", "nonsense", "--", "true"], None, ["nonsense"]),
    (["exec", "--cwd", "/does/not/exist", "--", "true"], None, ["/does/not/exist"]),
    (["exec", "--env", "NOVALUE", "--", "true"], EXIT_INPUT, ["NOVALUE"]),
    (["run"], EXIT_INPUT, ["--model"]),
    (["run", "--model", "script:/x"], EXIT_INPUT, ["--task"]),
    (["run", "--agent", "mini", "--task", "/does/not/exist.json", "--model", "script:/dev/null"], EXIT_NOT_FOUND,
     ["/does/not/exist.json"]),
    (["run", "--agent", "no-such-agent", "--task", "{\"name\":\"x\",\"instruction\":\"x\"}", "--model", "script:/x"],
     EXIT_NOT_FOUND, ["no-such-agent"]),
    (["run", "--agent", "mini", "--task", "{\"name\":\"x\",\"instruction\":\"x\"}", "--model", "script:/does/not/exist"],
     EXIT_NOT_FOUND, ["/does/not/exist"]),
    (["run", "--agent", "mini", "--task", "{\"name\":\"x\",\"instruction\":\"x\"}", "--model", "ftp://x/v1#y"], EXIT_INPUT,
     ["ftp"]),
    (["run", "--agent", "mini", "--task", "{\"name\":\"x\",\"instruction\":\"x\"}", "--model", "script:/x", "-n", "0"],
     EXIT_INPUT, ["0"]),
    (["run", "--agent", "mini", "--task", "{\"name\":\"x\",\"instruction\":\"x\"}", "--model", "script:/x", "--mode", "odd"],
     EXIT_INPUT, ["odd", "black_box", "proxy", "gate"]),
    (["run", "--agent", "mini", "--task", "{broken", "--model", "script:/x"], EXIT_INPUT, []),
    (["show", "r-nothing"], EXIT_NOT_FOUND, []),
    (["show"], EXIT_INPUT, []),
    (["image", "import", "/does/not/exist.tar", "--name", "x"], EXIT_NOT_FOUND, ["/does/not/exist.tar"]),
    (["image", "import", "/etc/hostname", "--name", "x"], None, ["/etc/hostname"]),
    (["image", "import", "/etc/hostname", "--name", "../x"], EXIT_INPUT, ["../x"]),
]


@pytest.mark.parametrize("argv, code, words", COMMAND_LINES, ids=[" ".join(c[0])[:60].replace("/", "_") for c in COMMAND_LINES])
def test_a_bad_command_line_gets_one_sentence(bare_postern, argv, code, words):
    done = bare_postern(*argv)
    assert 1 < done.code < 128, done
    if code is not None:
        assert done.code == code, done
    one_sentence(done, *words)
    assert done.out == b"", done


TOML = [
    ("name = ", ":1:"),
    ('name = "x"\ninstruction = "unfinished\n', ":2:"),
    ('name = "x"\ninstruction = "y"\nsurprise = 1\n', ":3:"),
    ('name = "x"\nname = "y"\n', ":2:"),
    ('name = "x"\ninstruction = "y"\ntimeout = "soon"\n', ":3:"),
    ('name = "x"\ninstruction = "y"\n[environment]\nmemory_mb = "many"\n', ":4:"),
    ('name = "x"\ninstruction = 5\n', ":2:"),
]


@pytest.mark.parametrize("text, where", TOML)
def test_malformed_toml_is_told_with_line_and_column(bare_postern, tmp, text, where):
    path = tmp / "task.toml"
    path.write_text(text)
    model = script(tmp / "m.toml", "Done.")
    done = bare_postern("run", "--agent", "mini", "--task", str(path), "--model", model)
    assert done.code == EXIT_INPUT, done
    assert f"task.toml{where}" in one_sentence(done), done


def test_a_malformed_script_is_told_with_line_and_column(bare_postern, tmp):
    (tmp / "m.toml").write_text('[[rule]]\nsay = "x"\nsey = "y"\n')
    done = bare_postern("run", "--agent", "mini", "--task", task(tmp / "t.json"), "--model", f"script:{tmp / 'm.toml'}")
    assert done.code == EXIT_INPUT and "m.toml:3:" in one_sentence(done), done


def test_a_malformed_agent_spec_is_told_with_line_and_column(bare_postern, tmp):
    (tmp / "a.toml").write_text('name = "a"\nwhat is this\n')
    done = bare_postern("run", "--agent", str(tmp / "a.toml"), "--task", task(tmp / "t.json"), "--model",
                        script(tmp / "m.toml", "x"))
    assert done.code == EXIT_INPUT and "a.toml:2:" in one_sentence(done), done


def test_malformed_settings_are_told_with_line_and_column(bare_postern, tmp):
    (tmp / "p.toml").write_text("[sandbox]\nmemory-max = 2G\n")
    done = bare_postern("exec", "--config", str(tmp / "p.toml"), "--", "true")
    assert done.code == EXIT_INPUT and "p.toml:2:" in one_sentence(done), done


def test_malformed_settings_in_the_environment_are_named(bare_postern):
    done = bare_postern("exec", "--", "true", env={"POSTERN_SANDBOX_MEMORY_MAX": "lots"})
    assert done.code == EXIT_INPUT, done
    one_sentence(done, "POSTERN_SANDBOX_MEMORY_MAX", "lots")


def test_a_root_without_a_shell_says_so(postern, tmp):
    (tmp / "empty").mkdir()
    done = postern.exec("/bin/true", flags=["--root", f"dir:{tmp / 'empty'}"])
    assert done.code in (EXIT_OWN, lib.EXIT_NO_PROGRAM), done
    one_sentence(done)
    assert "bin" in done.error or "empty" in done.error, done


def test_no_permission_for_namespaces_is_one_sentence(home):
    """In a user namespace whose quota of user namespaces is zero."""
    os.chmod(home, 0o777)
    script_ = 'echo 0 > /proc/sys/user/max_user_namespaces || exit 99; exec "$@"'
    done = lib.command(["unshare", "-r", "sh", "-c", script_, "sh", lib.PROGRAM, "exec", "--isolation", "no-limits", "--",
                        "true"], env=lib.Postern(home).environment())
    if done.code == 99:
        must("quotas cannot be set in a user namespace here")
    assert done.code == EXIT_OWN, done
    one_sentence(done, "namespace")


@pytest.fixture
def tiny_disk(tmp):
    if os.geteuid() != 0:
        must("a small disk needs root")
    folder = lib.short_dir("pt-tiny-")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=777", "tiny", folder], check=True)
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)
    folder.rmdir()


def test_a_full_disk_is_told_as_such(tiny_disk, tmp, sandbox_works):
    filler = tiny_disk / "filler"
    with open(filler, "wb", buffering=0) as out:
        try:
            while True:
                out.write(b"x" * 4096)
        except OSError:
            pass
    postern = lib.Postern(tiny_disk, sandbox_works)
    done = postern("run", "--json", "--agent", "mini", "--task", task(tmp / "t.json", verify=["true"]), "--model",
                   script(tmp / "m.toml", bash("true"), "Done."), seconds=90)
    assert done.code == EXIT_DISK_FULL, done
    assert "space" in done.error.lower() or "disk" in done.error.lower(), done
    one_sentence(done)


def test_a_disk_that_fills_up_under_way_never_gives_a_reward(tiny_disk, tmp, sandbox_works):
    """A quarter of a megabyte is enough to start and too little for the record of the calls."""
    postern = lib.Postern(tiny_disk, sandbox_works)
    words = "word " * 60000
    done = postern("run", "--json", "--agent", "mini", "--task", task(tmp / "t.json", verify=["true"]), "--model",
                   script(tmp / "m.toml", words, words, "Done."), seconds=120)
    assert done.code != 0, done
    for result in lib.json_lines(done.out):
        reward = result["reward"]
        assert (reward.get("value") if isinstance(reward, dict) else reward) is None, done


def test_a_home_that_cannot_be_written_is_named(tmp, sandbox_works):
    (tmp / "file").write_text("")
    done = lib.Postern(tmp / "file" / "home", sandbox_works)(
        "run", "--agent", "mini", "--task", task(tmp / "t.json"), "--model", script(tmp / "m.toml", "x"))
    assert done.code not in (0, 1) and done.code < 124, done
    one_sentence(done, "home")


# ---------------------------------------------------------------- questions
def test_help_lists_the_commands(bare_postern):
    done = bare_postern("help")
    assert done.code == 0, done
    for name in ("run", "demo", "exec", "shell", "ls", "show", "doctor", "serve", "image"):
        assert name in done.text, name
    assert bare_postern("--help").code == 0
    for name in ("run", "exec", "ls", "show", "doctor"):
        assert bare_postern(name, "--help").code == 0, name


def test_the_version_comes_first(bare_postern):
    done = bare_postern("--version")
    assert done.code == 0 and done.lines()[0].startswith("postern 0."), done


def test_the_exit_codes_are_documented():
    text = (lib.REPOSITORY / "docs" / "cli.md").read_text()
    for code in (EXIT_INPUT, EXIT_NOT_FOUND, EXIT_DENIED, EXIT_UNSUPPORTED, EXIT_DISK_FULL, 124, 125, 126, 127, 130, 137):
        assert str(code) in text, code


def test_doctor_reports_each_primitive(bare_postern):
    done = bare_postern("doctor")
    for word in ("user", "mount", "pid", "net", "seccomp", "overlay", "cgroup"):
        assert word in done.text.lower(), (word, done)
    report = bare_postern("doctor", "--json")
    assert isinstance(json.loads(report.out), (dict, list)), report
    assert done.code in (0, EXIT_UNSUPPORTED), done


def test_output_that_cannot_be_written_is_not_success(bare_postern):
    with open("/dev/full", "wb") as full:
        done = subprocess.run([lib.PROGRAM, "help"], stdout=full, stderr=subprocess.PIPE, env=bare_postern.environment(),
                              timeout=60)
    assert done.returncode not in (0, 1) and len(done.stderr.splitlines()) == 1, done


def test_nothing_is_written_outside_the_home(bare_postern, tmp):
    before = sorted(p.name for p in pathlib.Path(tmp).iterdir())
    bare_postern("doctor", cwd=tmp)
    bare_postern("ls", cwd=tmp)
    assert sorted(p.name for p in pathlib.Path(tmp).iterdir()) == before

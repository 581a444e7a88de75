"""Images: an OCI layout (folder and archive) and a `docker save` archive become roots; layers are laid over each other as
the specification says; what is imported is listed."""

import gzip
import hashlib
import io
import json
import os
import tarfile

import pytest

import postern as lib


def layer(files):
    """A tar of {path: bytes | None for a folder | ("link", target)}."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.mode = 0o755
            if content is None:
                info.type = tarfile.DIRTYPE
                tar.addfile(info)
            elif isinstance(content, tuple):
                info.type, info.linkname = tarfile.SYMTYPE, content[1]
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def layers():
    program = lib.PROBE.read_bytes()
    return [layer({"bin": None, "bin/probe": program, "etc": None, "etc/gone": b"x", "etc/kept": b"lower", "d": None,
                   "d/old": b"old", "tmp": None}),
            layer({"etc/.wh.gone": b"", "etc/kept": b"upper", "d/.wh..wh..opq": b"", "d/new": b"new",
                   "odd name\nwith -newline": b"odd"})]


def blob(folder, data):
    digest = hashlib.sha256(data).hexdigest()
    (folder / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
    (folder / "blobs" / "sha256" / digest).write_bytes(data)
    return {"digest": f"sha256:{digest}", "size": len(data)}


def oci_layout(folder, compress):
    tars = layers()
    config = {"architecture": "amd64", "os": "linux", "config": {}, "rootfs": {
        "type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(t).hexdigest() for t in tars]}}
    kind = "application/vnd.oci.image.layer.v1.tar"
    manifest = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": {"mediaType": "application/vnd.oci.image.config.v1+json", **blob(folder, json.dumps(config).encode())},
                "layers": [{"mediaType": kind + ("+gzip" if compress else ""), **blob(folder, gzip.compress(t) if compress else t)}
                           for t in tars]}
    index = {"schemaVersion": 2, "manifests": [{"mediaType": "application/vnd.oci.image.manifest.v1+json",
                                                **blob(folder, json.dumps(manifest).encode())}]}
    (folder / "index.json").write_text(json.dumps(index))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder


def docker_archive(path):
    tars = layers()
    names = [hashlib.sha256(t).hexdigest() + "/layer.tar" for t in tars]
    config = json.dumps({"architecture": "amd64", "os": "linux", "config": {}, "rootfs": {
        "type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(t).hexdigest() for t in tars]}}).encode()
    manifest = json.dumps([{"Config": "config.json", "RepoTags": ["x:latest"], "Layers": names}]).encode()
    with tarfile.open(path, "w") as tar:
        for name, data in [("config.json", config), *zip(names, tars), ("manifest.json", manifest)]:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def made(kind, tmp):
    if kind == "docker save":
        return docker_archive(tmp / "image.tar")
    folder = oci_layout(tmp / "layout", "gzip" in kind)
    if "folder" in kind:
        return folder
    with tarfile.open(tmp / "oci.tar", "w") as tar:
        tar.add(folder, arcname=".")
    return tmp / "oci.tar"


@pytest.mark.parametrize("kind", ["docker save", "oci folder", "oci folder gzip", "oci archive gzip"])
def test_an_image_becomes_a_root(postern, tmp, kind):
    done = postern("image", "import", str(made(kind, tmp)), "--name", "sample")
    assert done.code == 0, done
    assert "sample" in postern("image", "ls").text

    def inside(*words):
        return postern.exec("/bin/probe", *words, flags=["--root", "image:sample"])

    assert inside("show", "/etc/kept").out == b"upper"
    assert inside("show", "/d/new").out == b"new"
    assert inside("show", "/odd name\nwith -newline").out == b"odd"
    assert inside("read", "/etc/gone").code == lib.REFUSED, "a whiteout removes"
    assert inside("read", "/d/old").code == lib.REFUSED, "an opaque folder hides what was below"
    assert inside("caps").code == lib.REFUSED
    assert inside("fds").code == lib.REFUSED


def test_an_image_stays_as_it_is(postern, tmp):
    """What one sandbox writes is not there for the next one, nor in the image."""
    assert postern("image", "import", str(made("docker save", tmp)), "--name", "sample").code == 0
    before = sorted(str(p) for p in postern.home.rglob("*") if "images" in str(p))
    postern.exec("/bin/probe", "fill", "/tmp/f", "1", flags=["--root", "image:sample"])
    assert postern.exec("/bin/probe", "read", "/tmp/f", flags=["--root", "image:sample"]).code == lib.REFUSED
    assert sorted(str(p) for p in postern.home.rglob("*") if "images" in str(p)) == before


def test_an_image_with_a_wrong_digest_is_refused(bare_postern, tmp):
    folder = oci_layout(tmp / "layout", False)
    victim = max((folder / "blobs" / "sha256").iterdir(), key=lambda p: p.stat().st_size)
    data = bytearray(victim.read_bytes())
    data[5000] ^= 1
    victim.write_bytes(data)
    done = bare_postern("image", "import", str(folder), "--name", "sample")
    assert 1 < done.code < 124, done
    lib.one_sentence(done)
    assert "sample" not in bare_postern("image", "ls").text


def test_a_folder_as_root_is_not_changed(postern, tmp):
    root = tmp / "root"
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "probe").write_bytes(lib.PROBE.read_bytes())
    os.chmod(root / "bin" / "probe", 0o755)
    before = sorted((str(p), p.lstat().st_mtime_ns) for p in [root, *root.rglob("*")])
    done = postern.exec("/bin/probe", "fill", "/tmp/f", "1", flags=["--root", f"dir:{root}"])
    assert done.code == lib.ESCAPED, done  # it could write, in its own layer
    assert sorted((str(p), p.lstat().st_mtime_ns) for p in [root, *root.rglob("*")]) == before

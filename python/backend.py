"""The build backend of the package: a wheel is a zip file of src/ with three small files beside it. Written here so
that `pip install ./python` works on a machine without network, whatever build tools it has or lacks."""

import base64
import hashlib
import io
import pathlib
import re
import tarfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
TEXT = (HERE / "pyproject.toml").read_text()


def field(name):
    return re.search(rf'^{name} = "([^"]*)"$', TEXT, re.M)[1]


NAME, VERSION = field("name"), field("version")
INFO = f"{NAME}-{VERSION}.dist-info"
METADATA = (f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\nSummary: {field('description')}\n"
            f"Requires-Python: {field('requires-python')}\n")
WHEEL = "Wheel-Version: 1.0\nGenerator: postern\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def sources():
    return [path for path in sorted((HERE / "src").rglob("*")) if path.suffix in (".py", ".typed")]


def write_wheel(folder, files):
    """files: pairs of a name in the wheel and bytes."""
    name = f"{NAME}-{VERSION}-py3-none-any.whl"
    files = [*files, (f"{INFO}/METADATA", METADATA.encode()), (f"{INFO}/WHEEL", WHEEL.encode())]
    record = ""
    with zipfile.ZipFile(pathlib.Path(folder) / name, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, data in files:
            wheel.writestr(path, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record += f"{path},sha256={digest},{len(data)}\n"
        wheel.writestr(f"{INFO}/RECORD", record + f"{INFO}/RECORD,,\n")
    return name


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return write_wheel(wheel_directory, [(str(p.relative_to(HERE / "src")), p.read_bytes()) for p in sources()])


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    return write_wheel(wheel_directory, [(f"__editable__{NAME}.pth", f"{HERE / 'src'}\n".encode())])


def build_sdist(sdist_directory, config_settings=None):
    name = f"{NAME}-{VERSION}.tar.gz"
    with tarfile.open(pathlib.Path(sdist_directory) / name, "w:gz") as archive:
        for path in [HERE / "pyproject.toml", HERE / "backend.py", *sources()]:
            archive.add(path, f"{NAME}-{VERSION}/{path.relative_to(HERE)}")
        info = tarfile.TarInfo(f"{NAME}-{VERSION}/PKG-INFO")
        info.size = len(METADATA.encode())
        archive.addfile(info, io.BytesIO(METADATA.encode()))
    return name

"""The OpenAPI document the server makes from its own table of routes: it is valid, every route in it answers, nothing
else does, and answers have the shapes it promises. Also the folder's files, which are among them."""

import http.client
import json
import os
import re
import sys

import jsonschema
import pytest

import postern as lib
from postern import bash, script
from service import Service

VALIDATOR = "openapi-spec-validator==0.7.1"
TASK = {"name": "easy", "instruction": "Do nothing.", "verify": ["true"], "artifacts": ["/app/out"]}


@pytest.fixture(scope="module")
def validator():
    """A Python with the validator, from the package index, once."""
    folder = lib.REPOSITORY / "build" / "venv-openapi"
    python, mark = folder / "bin" / "python", folder / VALIDATOR
    if not mark.exists():
        made = lib.command([sys.executable, "-m", "venv", "--clear", folder], seconds=120)
        done = made.code == 0 and lib.command(
            [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", VALIDATOR], seconds=300)
        if not done or done.code != 0:
            lib.must(f"{VALIDATOR} cannot be had: {done or made}")
        mark.touch()
    return python


@pytest.fixture
def service(postern):
    service = Service(postern, "--listen.drain", "0")
    yield service
    if service.process.poll() is None:
        service.kill()


@pytest.fixture
def model(tmp):
    return script(tmp / "model.toml", bash("mkdir /app/out; echo hello > /app/out/a.txt; ln -s /etc/passwd /app/out/link"),
                  "Done.")


def test_the_document_is_valid(service, validator, tmp):
    document = service.get("/v1/openapi.json")
    (tmp / "openapi.json").write_text(json.dumps(document))
    done = lib.command([validator, "-m", "openapi_spec_validator", tmp / "openapi.json"], seconds=120)
    assert done.code == 0, done
    (tmp / "broken.json").write_text(json.dumps({**document, "info": {}}))
    assert lib.command([validator, "-m", "openapi_spec_validator", tmp / "broken.json"], seconds=120).code != 0


def test_every_documented_route_answers_and_no_other(service):
    document = service.get("/v1/openapi.json")
    assert len(document["paths"]) > 20
    for path, operations in document["paths"].items():
        real = re.sub(r"\{\w+\}", "nothing", path)
        for method in operations:
            if method not in ("get", "post", "delete"):
                continue
            connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)
            connection.request(method.upper(), real, "{}" if method == "post" else None, service.control.headers)
            answer = connection.getresponse()
            stream = (answer.getheader("content-type") or "").startswith("text/event-stream")
            text = "" if stream else answer.read().decode()
            assert answer.status != 405 and "nothing at this path" not in text, (method, path, answer.status, text)
            connection.close()
        for method in ("PUT", "PATCH"):
            assert service.ask(method, real)[0] == 405, (method, path)
    for path in ("/v1/nothing", "/v1", "/v1/rollouts/x/y", "/v1/groups/x/y/z", "/v1/gate/calls/c/explode"):
        status, body = service.ask("GET", path)
        assert status == 404 and body["error"]["message"] == "there is nothing at this path", (path, body)
    # The written description names each of them, too.
    text = (lib.REPOSITORY / "docs" / "http-api.md").read_text()
    missing = [path for path in document["paths"] if path.split("{")[0].rstrip("/") not in text]
    assert not missing, missing


def test_answers_have_the_shapes_they_promise(service, model):
    document = service.get("/v1/openapi.json")
    order = {"agent": "mini", "task": TASK, "model": model}
    rollout = service.post("/v1/rollouts", {**order, "key": "k"})["id"]
    group = service.post("/v1/groups", {**order, "n": 2})["id"]
    service.over(rollout)
    service.group_over(group)
    call = service.get(f"/v1/rollouts/{rollout}/calls")["calls"][0]["id"]
    names = {"{id}": rollout, "{call_id}": call}
    for path, operations in document["paths"].items():
        content = operations.get("get", {}).get("responses", {}).get("200", {}).get("content", {})
        schema = content.get("application/json", {}).get("schema")
        if not schema:
            continue
        real = path
        for name, value in names.items():
            real = real.replace(name, group if "/groups/" in path else call if "/calls/{" in path else value)
        body = service.get(real)
        jsonschema.validate(body, {**schema, "components": document["components"]})
    # What the document says of a submission is what is checked.
    body = document["components"]["schemas"]["RolloutSubmission"]
    jsonschema.validate(order, body)
    for wrong, field in (({**order, "turns_max": 0}, "turns_max"), ({**order, "colour": 1}, "colour"), ({"agent": "mini"}, "task")):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, body)
        service.refused("/v1/rollouts", wrong, 400, field)
    health = service.get("/v1/health")
    assert health["status"] == "ok" and health["finished"] == 3, health
    lanes = service.get("/v1/sandboxes")["lanes"]
    assert lanes and all("backends" in lane for lane in lanes), lanes


def raw(service, path):
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)
    try:
        connection.request("GET", path, headers=service.control.headers)
        answer = connection.getresponse()
        return answer.status, answer.read(), answer
    finally:
        connection.close()


def test_the_files_of_a_rollout_and_nothing_else(service, model, tmp):
    rollout = service.post("/v1/rollouts", {"agent": "mini", "task": TASK, "model": model})["id"]
    service.over(rollout)
    names = {row["name"]: row for row in service.get(f"/v1/rollouts/{rollout}/files")["files"]}
    assert {"result.json", "events.jsonl", "calls.jsonl", "artifacts"} <= set(names), names
    assert names["artifacts"]["type"] == "directory"
    folder = service.home / "rollouts" / rollout
    status, body, answer = raw(service, f"/v1/rollouts/{rollout}/files/result.json")
    assert status == 200 and body == (folder / "result.json").read_bytes()
    assert answer.getheader("x-content-type-options") == "nosniff"
    inside = service.get(f"/v1/rollouts/{rollout}/files/artifacts")["files"][0]["name"]
    assert raw(service, f"/v1/rollouts/{rollout}/files/artifacts/{inside}/a.txt")[1] == b"hello\n"
    # Links are not followed, wherever they lie and whatever they point to; nor does a path leave the folder.
    link = service.get(f"/v1/rollouts/{rollout}/files/artifacts/{inside}")["files"]
    assert {row["type"] for row in link} == {"file", "link"}
    (folder / "outside").symlink_to("/etc")
    (folder / "token").symlink_to("../../token")
    os.mkfifo(folder / "pipe")
    for path in (f"artifacts/{inside}/link", "outside/passwd", "token", "../../token", "..%2f..%2ftoken", "%2e%2e/%2e%2e/token",
                 "/etc/passwd", "%2fetc%2fpasswd", "no-such-file", "result.json/x", "pipe", "a%00b", "%zz"):
        status, body, _ = raw(service, f"/v1/rollouts/{rollout}/files/{path}")
        assert status == 404, (path, status, body[:100])
    assert raw(service, "/v1/rollouts/r-nothing/files")[0] == 404
    (folder / "large.bin").write_bytes(os.urandom(5_000_000))
    assert raw(service, f"/v1/rollouts/{rollout}/files/large.bin")[1] == (folder / "large.bin").read_bytes()

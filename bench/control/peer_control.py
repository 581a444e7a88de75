"""A control plane of the same shape as people write it: FastAPI, SQLite (WAL), asyncio workers. It takes rollouts, keeps a row of
each from the moment it is accepted, runs an agent and a verifier as bare processes (no sandbox, no gateway, no journal), writes
result.json and the row. In one process, as such servers are.

    peer_control.py HOME PORT PARALLEL
"""
import asyncio
import collections
import itertools
import json
import pathlib
import sqlite3
import sys
import time
import uuid

import uvicorn
from fastapi import FastAPI, Response
from pydantic import BaseModel

HOME, PORT, PARALLEL = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
COLUMNS = "id, run, task, agent, stage, fate, reward, queued_ms, started_ms, done_ms"
ticks = itertools.count()


def connect():
    (HOME / "rollouts").mkdir(parents=True, exist_ok=True)
    db = sqlite3.connect(HOME / "index.sqlite", isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute("CREATE TABLE IF NOT EXISTS rollouts(id TEXT PRIMARY KEY, run TEXT, task TEXT, agent TEXT, stage TEXT, fate TEXT, "
               "reward REAL, queued_ms INTEGER, started_ms INTEGER, done_ms INTEGER)")
    db.execute("CREATE INDEX IF NOT EXISTS rollouts_fate ON rollouts(fate, id)")
    return db


class Order(BaseModel):
    agent: str
    task: dict
    mode: str = "gate"


app = FastAPI()
db = connect()
queue = collections.deque()
counts = collections.Counter()
waiting = asyncio.Event()


def now_ms():
    return int(time.time() * 1000)


@app.post("/v1/rollouts", status_code=201)
async def submit(order: Order):
    id = f"r-{now_ms():012x}{next(ticks):08x}{uuid.uuid4().hex[:8]}"
    db.execute(f"INSERT INTO rollouts({COLUMNS}) VALUES(?, NULL, ?, ?, 'queued', NULL, NULL, ?, NULL, NULL)",
               (id, order.task["name"], order.agent, now_ms()))
    queue.append((id, order))
    counts["queued"] += 1
    waiting.set()
    return {"id": id}


@app.get("/v1/rollouts")
async def rollouts(limit: int = 100, fate: str | None = None):
    where, values = ("WHERE fate = ?", (fate,)) if fate else ("", ())
    rows = db.execute(f"SELECT {COLUMNS} FROM rollouts {where} ORDER BY id DESC LIMIT ?", (*values, limit)).fetchall()
    return {"rollouts": [dict(zip(COLUMNS.split(", "), row)) for row in rows]}


@app.get("/v1/rollouts/{id}")
async def rollout(id: str):
    row = db.execute(f"SELECT {COLUMNS} FROM rollouts WHERE id = ?", (id,)).fetchone()
    return dict(zip(COLUMNS.split(", "), row))


@app.get("/metrics")
async def metrics():
    text = (f'postern_rollouts{{state="queued"}} {counts["queued"]}\npostern_rollouts{{state="running"}} {counts["running"]}\n'
            f'postern_rollouts_total{{fate="ok"}} {counts["over"]}\n')
    return Response(text, media_type="text/plain")


async def run_one(id, order):
    db.execute("UPDATE rollouts SET stage = 'running', started_ms = ? WHERE id = ?", (now_ms(), id))
    agent = await asyncio.create_subprocess_exec("/bin/true")
    code = await agent.wait()
    passed = []
    for command in order.task.get("verify") or []:
        verifier = await asyncio.create_subprocess_exec("/bin/sh", "-c", command)
        passed.append(await verifier.wait() == 0)
    reward = sum(passed) / len(passed) if passed else None
    folder = HOME / "rollouts" / id
    folder.mkdir()
    (folder / "result.json").write_text(json.dumps({"id": id, "fate": "ok" if code == 0 else "agent_failed", "reward": reward}))
    db.execute("UPDATE rollouts SET stage = 'done', fate = 'ok', reward = ?, done_ms = ? WHERE id = ?", (reward, now_ms(), id))


async def worker():
    while True:
        while not queue:
            waiting.clear()
            await waiting.wait()
        id, order = queue.popleft()
        counts["queued"] -= 1
        counts["running"] += 1
        await run_one(id, order)
        counts["running"] -= 1
        counts["over"] += 1


async def main():
    workers = [asyncio.create_task(worker()) for _ in range(PARALLEL)]
    config = uvicorn.Config(app, host="127.0.0.1", port=PORT, log_level="error", access_log=False, timeout_keep_alive=600)
    await uvicorn.Server(config).serve()
    for each in workers:
        each.cancel()


if __name__ == "__main__":
    try:
        import uvloop
        uvloop.install()
    except ImportError:
        pass
    asyncio.run(main())

#!/usr/bin/env python3
"""A worker in Python, standard library alone: claims tasks over HTTP, runs them, reports back.

    export MATINS_SERVER=http://127.0.0.1:6284 MATINS_TOKEN=$(cat .matins/token)
    python3 worker.py

A claim is a loan. Until the lease runs out the task is ours; `renew` prolongs it. When the server
calls it lost, or when we could not renew in time, somebody else may have the task: the work is to
stop, and its result would be refused anyway (409, code `fenced`).
"""

import argparse
import json
import os
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

SERVER = os.environ.get("MATINS_SERVER", "http://127.0.0.1:6284")
TOKEN = os.environ.get("MATINS_TOKEN", "")


class Permanent(Exception):
    """Trying again cannot help: the task becomes a dead letter at once."""


# ---- What this worker can do ------------------------------------------------------------------


def greet(payload, run):
    if not isinstance(payload, dict) or "name" not in payload:
        raise Permanent("payload: expected {\"name\": ...}")
    return {"said": f"hello {payload['name']}", "attempt": run.task["attempt"]}


def slow_count(payload, run):
    for n in range(payload["to"]):
        # What takes long asks now and then whether it should end.
        if run.should_end.wait(payload.get("pause", 1)):
            raise RuntimeError(f"told to end at {n}")
    return payload["to"]


HANDLERS = {"greet": greet, "slow_count": slow_count}


# ---- How it talks to the server ---------------------------------------------------------------


def call(path, body, timeout=30):
    """The answer to one request. Refusals and dead lines raise OSError."""
    request = urllib.request.Request(
        f"{SERVER}/api/v1/workers/{path}",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return json.load(answer)


class Run:
    """One claimed task. `proof` goes with every write about it."""

    def __init__(self, task, valid_until):
        self.task = task
        self.proof = {key: task[key] for key in ("id", "fence", "token")}
        self.valid_until = valid_until
        self.should_end = threading.Event()


class Worker:
    def __init__(self, name, slots, lease):
        self.name, self.slots, self.lease = name, slots, lease
        self.runs, self.lock = {}, threading.Lock()
        self.free = threading.Semaphore(slots)
        self.stopping = threading.Event()

    def work(self):
        threading.Thread(target=self.renew, daemon=True).start()
        with ThreadPoolExecutor(self.slots) as threads:
            while not self.stopping.is_set():
                if self.free.acquire(timeout=0.5):
                    for run in self.claim():
                        threads.submit(self.run, run)
            # Leaving the block waits for what runs; `renew` goes on meanwhile.

    def claim(self):
        """The next task, or none within 5 s."""
        asked = time.monotonic()
        body = {"worker": self.name, "types": list(HANDLERS), "max": 1, "wait": "5s"}
        try:
            tasks = call("claim", body)["tasks"]
        except OSError as error:
            print("cannot claim:", explain(error), flush=True)
            self.stopping.wait(2)
            tasks = []
        # Counted from when we asked: the server counts from later, so we never outstay it.
        runs = [Run(task, asked + self.lease) for task in tasks]
        with self.lock:
            self.runs.update((run.task["id"], run) for run in runs)
        if not runs:
            self.free.release()
        return runs

    def run(self, run):
        task = run.task
        print("running", task["type"], task["id"], "attempt", task["attempt"], flush=True)
        try:
            result = HANDLERS[task["type"]](task["payload"], run)
            outcome = {"outcome": "completed", "result": result}
        except Permanent as error:
            message = str(error)
            outcome = {"outcome": "failed", "error": {"message": message}, "permanent": True}
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            outcome = {"outcome": "failed", "error": {"message": message}}
        self.settle(run, outcome)
        with self.lock:
            del self.runs[task["id"]]
        self.free.release()

    def settle(self, run, outcome):
        """Says how it ended, for as long as the claim can stand. Twice is harmless."""
        body = {"items": [{**run.proof, **outcome}]}
        while time.monotonic() < run.valid_until:
            try:
                item = call("settle", body)["items"][0]
                said = item.get("state") or item["error"]["detail"]
                print("settled", run.task["id"], item["status"], said, flush=True)
                return
            except OSError as error:
                print("cannot settle:", explain(error), flush=True)
                time.sleep(1)
        print("lost", run.task["id"], "its lease ran out; it will run again", flush=True)

    def renew(self):
        """Keeps the claims, and passes on what the server says about them."""
        while True:
            time.sleep(self.lease / 6)
            with self.lock:
                runs = dict(self.runs)
            asked = time.monotonic()
            try:
                proofs = [run.proof for run in runs.values()]
                answer = call("heartbeat", {"worker": self.name, "tasks": proofs}, self.lease / 3)
                ended = {*answer["lost"], *answer["cancel"]}
                for run in runs.values():
                    if run.task["id"] not in answer["lost"]:
                        run.valid_until = asked + self.lease
            except OSError as error:
                print("cannot renew:", explain(error), flush=True)
                ended = set()
            for id, run in runs.items():
                if id in ended or time.monotonic() > run.valid_until:
                    run.should_end.set()


def explain(error):
    if isinstance(error, urllib.error.HTTPError):
        return f"{error.code} {error.read().decode(errors='replace')}"
    return str(error)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--name", default=f"{socket.gethostname()}-{os.getpid()}")
    arguments.add_argument("--slots", type=int, default=4)
    arguments.add_argument("--lease", type=float, default=30, help="seconds; that of the server")
    given = arguments.parse_args()
    worker = Worker(given.name, given.slots, given.lease)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: worker.stopping.set())
    print("worker", worker.name, "for", ", ".join(HANDLERS), "at", SERVER, flush=True)
    worker.work()
    print("stopped", flush=True)


if __name__ == "__main__":
    main()

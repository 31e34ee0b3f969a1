"""Is imported as the package wandb: notes what it is told in $RECORD, and fails, hangs or is slow where $FAIL says."""

import json
import os
import time

MANNER, _, PLACE = os.environ.get("FAIL", "").partition(" ")


def note(**values):
    with open(os.environ["RECORD"], "a", encoding="utf-8") as file:
        file.write(json.dumps(values) + "\n")


def at(place):
    if place != PLACE:
        return
    if MANNER == "raise":
        raise ConnectionError(f"the service is gone at {place}")
    if MANNER == "exit":
        os._exit(7)
    time.sleep(1 if MANNER == "slow" else 3600)


class Settings:
    def __init__(self, **values):
        self.values = values


def Table(columns, data):
    return [columns, data]


def Video(file, format):
    return os.path.getsize(file)


class Run:
    url, dir = "https://example.invalid/run", "."
    settings = type("Mode", (), {"mode": "online"})

    def log(self, data, step, commit=False):
        at("log")
        note(step=step, **data)

    def finish(self):
        at("finish")
        note(finished=True)


def init(settings, **values):
    note(pid=os.getpid(), **values)
    at("start")
    return Run()

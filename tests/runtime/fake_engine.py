"""An engine for tests, in a process of its own: it writes what FakeTextPolicy would, from the weights that it is given.

``python fake_engine.py [FAULT[=FILE]]… FD``. A fault with a file happens once: the process that has it leaves the file.

| fault | what the engine does |
|---|---|
| ``refuses`` | raises when it is made |
| ``dies`` | is killed by itself at the third step |
| ``hangs`` | stops at the third step |
| ``raises`` | raises at the third step |
| ``deaf`` | keeps the first weights that it was given |
| ``slow`` | needs 0.3 s for a step |
| ``sleepless`` | raises when it is to sleep |
| ``forgets`` | leaves the first tensor out of what it says to have loaded |
| ``changes`` | changes a number of the last tensor before it reads |
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "embodied" / "runtime" / "engine" / "child"))

from serve import Answer, serve
from weights_file import read


class FakeEngine:
    """See ``serve.Engine``. A letter of each text a step, of at most ``max_num_seqs`` texts."""

    version = "fake 1.0"

    def __init__(self, setup, faults):
        self._most, self._faults = setup["max_num_seqs"], faults
        self._table, self._sampling, self._steps = None, {}, 0
        self._waiting, self._running = [], {}  # number → [before, generator, tokens, logprobs, sampling]
        if self._happens("refuses"):
            raise ImportError("No module named 'fast_kernels'")

    def _happens(self, fault):
        if fault not in self._faults:
            return False
        file = self._faults[fault]
        if file is None:
            return True
        if file.exists():
            return False
        file.write_text(fault, encoding="utf-8")
        return True

    def begin(self, sampling):
        self._sampling = sampling

    def add(self, number, prompt, seed):
        assert isinstance(seed, int)
        self._waiting.append((number, [prompt[-1], np.random.default_rng(seed), [], [], self._sampling]))

    def abort(self, number):
        left = [one for one in self._waiting if one[0] != number]
        if self._running.pop(number, None) is not None or len(left) < len(self._waiting):
            print("left a text unfinished", flush=True)
        self._waiting = left

    @property
    def busy(self):
        return bool(self._waiting or self._running)

    def step(self):
        self._steps += 1
        time.sleep(0.3 if "slow" in self._faults else 0)
        self._fail_at_the_third_step()
        while self._waiting and len(self._running) < self._most:
            number, text = self._waiting.pop(0)
            self._running[number] = text
        whole = [number for number, text in self._running.items() if self._write_a_letter(text)]
        return [Answer(number, *self._running.pop(number)[2:4]) for number in whole]

    def _fail_at_the_third_step(self):
        if self._steps == 3 and self._happens("dies"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._steps == 3 and self._happens("raises"):
            raise RuntimeError("the cache is full")
        if self._steps == 3 and self._happens("hangs"):
            time.sleep(600)

    def _write_a_letter(self, text):
        before, drawn, tokens, logprobs, sampling = text
        logits = self._table[before].astype(np.float64) / sampling["temperature"]
        logp = logits - np.log(np.exp(logits).sum())
        letter = int(drawn.choice(len(logp), p=np.exp(logp))) if sampling["do_sample"] else int(logp.argmax())
        tokens.append(letter)
        logprobs.append(float(logp[letter]))
        text[0] = letter
        return letter in sampling["ends"] or len(tokens) == sampling["max_tokens"]

    def load(self, path):
        found = []
        if self._happens("changes"):
            with open(path, "r+b") as file:
                file.seek(-64, os.SEEK_END)
                file.write(b"\x01")
        print("the weights came in", *{facts["dtype"] for facts, _ in read(path)}, flush=True)
        for facts, numbers in read(path):
            found.append(facts)
            if self._table is None or not self._happens("deaf"):
                self._table = in_own_format(facts, numbers)
        return found[self._happens("forgets") :]

    def sleep(self):
        assert not self.busy
        if self._happens("sleepless"):
            raise RuntimeError("the memory is in use")
        self._table_kept, self._table = self._table, None

    def wake(self):
        self._table = self._table_kept


def in_own_format(facts, numbers):
    """What a tensor of the file is in float32. numpy knows no bfloat16, whose bits are the first of a float32."""
    if facts["dtype"] == "bfloat16":
        bits = np.frombuffer(numbers, np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32).reshape(facts["shape"])
    return np.frombuffer(numbers, facts["dtype"]).astype(np.float32).reshape(facts["shape"])


if __name__ == "__main__":
    given = [one.partition("=") for one in sys.argv[1:-1]]
    known = {name: Path(file) if file else None for name, _, file in given}
    status = serve(int(sys.argv[-1]), lambda setup: FakeEngine(setup, known))
    sys.exit(status)

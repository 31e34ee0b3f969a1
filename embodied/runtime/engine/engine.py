"""An inference engine that is kept at work: started when it is first needed, given the present weights, replaced when
its process fails.

    begin(sampling) ─▶ file of weights, if they have changed ─▶ the policy's rest ─▶ start │ wake │ load │ sampling
    ask ─▶ │ process │ ─▶ poll        fails: a new process, the same weights, and what was asked is asked again

A request carries its prompt and its seed, so an answer does not depend on which process gives it.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from embodied.errors import EngineError
from embodied.protocols import EngineText, Policy, ServedByEngine
from embodied.runtime.engine.child.wire import Message
from embodied.runtime.engine.evidence import NAMED, Described, Evidence, remedy
from embodied.runtime.engine.process import EngineProcess
from embodied.runtime.engine.weights import StayingWeights, Weights, WeightsFile, fingerprint, in_format
from embodied.runtime.pool.supervise import last_lines
from embodied.types import Sampling

POLL_S = 0.005


@dataclass(frozen=True)
class EngineConfig:
    """Start command, environment, time limits and restarts of an inference engine."""

    command: tuple[str, ...]  # starts its process
    setup: Mapping[str, Any]  # set-up message from which the process makes the engine (``child/serve.py``)
    environment: Mapping[str, str]
    logs: Path
    init_timeout_s: float  # limit to start, to take weights, to sleep and to wake
    answer_timeout_s: float  # longest silence between two signs of life while it generates
    max_restarts: int  # most failures in a row, without an answer in between
    remedy: str  # fix that errors about an ended process suggest
    name: str = "engine"  # name of its log
    weights_dtype: torch.dtype | None = None  # number format in which weights travel; None = as the policy gives them


class Engine:
    """An inference engine, in a process of its own, that generates for one policy.

    Args:
        policy: one that is :class:`embodied.protocols.ServedByEngine`.
        say: given one paragraph when the engine starts, and when it is replaced.
        phase: shows what is waited for while it is entered.
        weights: the policy's own, which may rest from :meth:`begin` to :meth:`rest`; None = they stay.
        evidence: compares what was sent and read, and may keep it; None = in errors alone.
    """

    def __init__(
        self, config: EngineConfig, policy: Policy, say: Callable[[str], None] = lambda text: None,
        phase: Callable[[str], AbstractContextManager[object]] = nullcontext, weights: Weights | None = None,
        evidence: Evidence | None = None,
    ) -> None:  # fmt: skip
        assert isinstance(policy, ServedByEngine)
        assert isinstance(policy, nn.Module)
        self._config, self._policy, self._module, self._say, self._phase = config, policy, policy, say, phase
        self._file, self._weights = WeightsFile(), weights or StayingWeights()
        self.evidence = evidence or Evidence()
        self._process: EngineProcess | None = None
        self._sampling: Mapping[str, Any] = {}
        self._asked: dict[int, tuple[Sequence[int], int]] = {}  # number → prompt, seed
        self._next = 0
        self._loaded: int | None = None  # fingerprint of the weights that it has
        self._asleep = False
        self._serves = self._proven = False  # can be asked; could be asked once
        self._starts = self._in_a_row = 0
        # whether answers with the present weights were compared with the policy's own log-probs, or are kept for that
        self.checked = False
        self._measured: dict[str, float] = {}

    @property
    def weights_rest(self) -> bool:
        """True if the policy has no weights on its device from :meth:`begin` to :meth:`rest`."""
        return self._weights.rests

    def begin(self, sampling: Sampling) -> None:
        """Begins a rollout: sends the present weights if they have changed, and sets the sampling. No
        request is pending.

        Raises:
            ConfigError: the weights have numbers that their format on the way does not hold.
            EngineError: it cannot be started, or has failed too often in a row.
        """
        facts = self._policy.engine_facts
        most = min(facts.max_new_tokens, sampling.max_new_tokens or facts.max_new_tokens)
        self._asked = {}
        self._sampling = {
            "do_sample": sampling.do_sample, "temperature": sampling.temperature, "top_k": sampling.top_k,
            "top_p": sampling.top_p, "repetition_penalty": sampling.repetition_penalty, "max_tokens": most,
            "min_tokens": sampling.min_new_tokens, "stop": list(sampling.stop), "ends": list(facts.ends),
            "ignore_eos": sampling.ignore_eos,
        }  # fmt: skip
        try:
            self._serve()
        except EngineError as error:
            if not self._proven:  # and would not serve the next time
                self._end_process()
                raise
            self._replace(error)

    def ask(self, prompt: Sequence[int], seed: int) -> int:
        """Requests a text; returns the number under which :meth:`poll` gives it."""
        self._next += 1
        if not self._asked and self._process is not None:
            self._process.heard = time.monotonic()
        self._asked[self._next] = (prompt, seed)
        self._send_request(self._next)
        return self._next

    def cancel(self, number: int) -> None:
        """Forget a text that was asked for."""
        if self._asked.pop(number, None) is not None and self._process is not None:
            self._process.send("cancel", number=number)

    def poll(self) -> list[tuple[int, EngineText]]:
        """Waits some milliseconds for texts; returns the finished ones with their numbers.

        Raises:
            EngineError: it has failed too often in a row.
        """
        if not self._asked:
            return []
        try:
            return self._take()
        except EngineError as error:
            self._replace(error)
            return []

    def rest(self) -> None:
        """Ends a rollout: frees the device's memory, if the engine can, and brings the policy's weights back. An engine
        that was still at work is ended."""
        try:
            self._sleep()
        finally:
            self._weights.wake()

    def _sleep(self) -> None:
        if self._asked or not self._serves:
            self._end_process()
            self._asked = {}
        elif self._process is not None and self._config.setup["sleeps"] and not self._asleep:
            self._process.send("sleep")
            try:
                self._process.wait_for("slept", self._config.init_timeout_s, "rollout.init_timeout_s")
                self._asleep = True
            except EngineError as error:  # the rollout is complete; the next one starts another
                self._end_process()
                self._count("rollout/engine_restarts", 1)
                self._say(f"{error.message}\n{last_lines(error.detail)}\n  the next rollout starts a new one")

    def compared(self, mean: float, most: float) -> None:
        """Notes how far the engine's log-probs of its first texts were from the policy's own: mean and
        largest, nats."""
        self.checked = True
        self._measured |= {"rollout/engine_logprob_gap_mean": mean, "rollout/engine_logprob_gap": most}

    def take_metrics(self) -> dict[str, float]:
        """Returns the ``rollout/engine_…`` metrics since the last call, and resets them."""
        found, self._measured = {"rollout/engine_restarts": 0.0, **self._measured}, {}
        return found

    def _count(self, name: str, value: float) -> None:
        self._measured[name] = self._measured.get(name, 0.0) + value

    def close(self) -> None:
        self._end_process()
        self._file.close()

    def _take(self) -> list[tuple[int, EngineText]]:
        assert self._process is not None
        answers = [_text(one) for one in self._process.exchange(POLL_S) if one.kind == "answer"]
        silent = time.monotonic() - self._process.heard
        if silent > self._config.answer_timeout_s:
            raise self._process.hung(self._config.answer_timeout_s, "rollout.answer_timeout_s")
        found = [(number, text) for number, text in answers if self._asked.pop(number, None) is not None]
        self._in_a_row = 0 if found else self._in_a_row
        return found

    def _send_request(self, number: int) -> None:
        assert self._process is not None
        prompt, seed = self._asked[number]
        self._process.send("ask", array("i", prompt).tobytes(), number=number, seed=seed)

    def _serve(self) -> None:
        """Bring a process to where it can be asked. The policy's weights are read before the process takes memory of
        the device, so that they can rest by then."""
        self._weights.wake()
        present, sent = fingerprint(self._module), None
        if self._process is None or present != self._loaded:
            with self._phase("writing the weights for the engine"):
                sent = self._write()
        self._weights.rest()
        if self._process is None:
            with self._phase("starting the engine"):
                self._start()
        assert self._process is not None
        with self._phase("the engine takes the weights"):
            if self._asleep:
                self._process.send("wake")
                self._process.wait_for("awake", self._config.init_timeout_s, "rollout.init_timeout_s")
                self._asleep = False
            if sent is not None:
                self._load(self._process, sent)
                self._loaded, self.checked = present, False
        self._process.send("begin", sampling=self._sampling)
        self._serves = self._proven = True

    def _start(self) -> None:
        config, number = self._config, self._starts
        config.logs.mkdir(parents=True, exist_ok=True)
        log = config.logs / (f"{config.name}.{number}.log" if number else f"{config.name}.log")
        self._loaded, self._asleep = None, False
        self._process = EngineProcess(config.command, config.environment, log, config.remedy)
        began = time.monotonic()
        self._process.send("setup", **config.setup)
        ready = self._process.wait_for("ready", config.init_timeout_s, "rollout.init_timeout_s")
        if not self._starts:
            self._say(f"engine: {ready.fields['version']}, ready after {time.monotonic() - began:.0f} s")
        self._starts += 1

    def _write(self) -> Sequence[Described]:
        """Write the present weights as they travel; return what is sent of each tensor."""
        began = time.monotonic()
        sent = self._file.write(in_format(self._policy.engine_weights(), self._config.weights_dtype))
        self._count("time/engine_load_s", time.monotonic() - began)
        return sent

    def _load(self, process: EngineProcess, sent: Sequence[Described]) -> None:
        """Let the process take what was written, and empty the file."""
        began = time.monotonic()
        process.send("load", path=self._file.path)
        fields = process.wait_for("loaded", self._config.init_timeout_s, "rollout.init_timeout_s").fields
        self._file.empty()
        differing, kept = self.evidence.weights(sent, fields["tensors"])
        if differing:
            more = f" and {len(differing) - NAMED} more" if len(differing) > NAMED else ""
            raise EngineError(
                f"the engine read other weights than the {len(sent)} tensors that were sent: "
                f"{'; '.join(differing[:NAMED])}{more}",
                f"this is a defect of the engine's side; its log is {process.log}; {remedy(kept)}",
            )
        if kept:
            self._say(f"engine: {len(sent)} tensors were read as they were sent; {kept}")
        self._count("time/engine_load_s", time.monotonic() - began)

    def _replace(self, error: EngineError) -> None:
        """Put a new process in the place of one that has failed, and ask it for all that is not answered."""
        while True:
            self._in_a_row += 1
            self._end_process()
            if self._in_a_row > self._config.max_restarts:
                raise EngineError(
                    f"{error.message} (failure {self._in_a_row} without an answer in between)",
                    f"{error.remedy}\n  or, if such failures are of the moment, raise rollout.max_engine_restarts",
                    error.detail,
                ) from error
            self._count("rollout/engine_restarts", 1)
            self._say(
                f"{error.message}\n{last_lines(error.detail)}\n  a new one takes its place ({self._in_a_row} of "
                f"rollout.max_engine_restarts {self._config.max_restarts} in a row) and is asked again"
            )
            try:
                self._serve()
            except EngineError as again:
                error = again
                continue
            for number in self._asked:
                self._send_request(number)
            return

    def _end_process(self) -> None:
        if self._process is not None:
            self._process.close()
        self._process, self._serves = None, False
        self._file.empty()  # it may have ended before it took them


def _text(message: Message) -> tuple[int, EngineText]:
    length = message.fields["length"]
    if length < 1 or len(message.body) != 8 * length:
        raise EngineError(
            f"the engine gave a text of {length} tokens in {len(message.body)} bytes", "set rollout.backend=native"
        )
    tokens, logprobs = array("i"), array("f")
    tokens.frombytes(message.body[: 4 * length])
    logprobs.frombytes(message.body[4 * length :])
    return message.fields["number"], EngineText(tuple(tokens), tuple(logprobs))

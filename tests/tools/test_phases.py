"""What a command waits for is said while it waits, whichever verb it is.

Slow stand-ins take the places of what takes long. Each sleeps longer than a console is silent, and then ends the
command with an error.
"""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from small_run import RUN

from embodied import cli
from embodied.errors import ConfigError
from embodied.observe.terminal.console import PlainConsole
from embodied.run.build.demonstrations import Demonstrated
from embodied.serving.loading import Loaded
from embodied.testing import FakeEnv, FakePolicy

SILENT_S, SLOW_S = 0.02, 0.2


def slow(*given, **named):
    time.sleep(SLOW_S)
    raise ConfigError("the stand-in has ended", "nothing")


class Exportable:
    """A policy that has a format."""

    export = slow

    @property
    def export_formats(self):
        return {"hf": "folder"}


def loaded():
    env, policy = FakeEnv().spec, FakePolicy()
    policy.bind(env)
    return Loaded(policy, env, "a stand-in")


CASES = [
    ("train", RUN, "embodied.run.build.preflight.check", "checking the configuration"),
    ("train", RUN, "embodied.run.command._recipe", "importing torch"),
    ("train", RUN, "embodied.run.build.policy.build_policy", "building the policy"),
    ("train", RUN, "embodied.run.rl.make_learner", "building the learner"),
    ("train", RUN, "embodied.run.rl.make_model_reward", "building the reward model"),
    ("train", RUN, "embodied.run.build.workers.hosts.Pool", "starting 1 env workers"),
    ("eval", RUN, "embodied.run.build.workers.hosts.Pool", "starting 1 env workers"),
    ("sft", (*RUN, "data=x"), "embodied.run.build.demonstrations.read_episodes", "checking the configuration"),
    ("sft", (*RUN, "data=x"), "embodied.run.sft.make_cloner", "preparing the demonstrations"),
    ("demos", RUN, "embodied.tools.demos._open_recorder", "demonstrations"),
    ("play", (*RUN, "--expert"), "embodied.run.play.Pool", "starting an env worker"),
    ("bench", RUN, "embodied.run.build.policy.build_policy", "building the policy"),
    ("report", ("run",), "embodied.report.read", "reading"),
    ("report", ("run",), "embodied.report.write", "writing the report"),
    ("serve", ("folder",), "embodied.serving.loading.load", "loading folder"),
    ("serve", ("folder",), "embodied.serving.server.Server.start", "asking the policy for the first time"),
    ("export", ("folder", "--out", "new"), "embodied.learn.origin.restore", "loading the checkpoint"),
    ("export", ("folder", "--out", "new"), "embodied.parallel.modes.without_dropout", "writing the export"),
]
STAND_INS = {
    "embodied.run.build.demonstrations.read_episodes": lambda config, spec, kwargs: Demonstrated((), ()),
    "embodied.report.read": lambda *given: SimpleNamespace(evaluation_alone=True),
    "embodied.learn.checkpoint.metadata.read_meta": lambda folder: SimpleNamespace(iteration=1, steps=0),
    "embodied.serving.loading.named_base": lambda folder, url: {},
    "embodied.learn.origin.restore": lambda folder, device, keys: (Exportable(), None),
    "embodied.tools.export.examples_of": lambda *given: (None, []),
    "embodied.serving.loading.load": lambda *given: loaded(),
}
"""Of what comes before."""


@pytest.mark.parametrize(
    ("verb", "words", "place", "phase"), CASES, ids=lambda value: value if "embodied." in value else ""
)
def test_a_command_says_what_it_waits_for(verb, words, place, phase, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("folder", "meta.json").write_text("{}", encoding="utf-8")
    monkeypatch.setattr(PlainConsole.__init__, "__defaults__", (time.monotonic, SILENT_S))
    for name, stand_in in {**STAND_INS, place: slow}.items():
        monkeypatch.setattr(name, stand_in)
    assert cli.main([verb, *words]) == 2
    out, err = capfd.readouterr()
    assert "the stand-in has ended" in err
    lines = [line for line in (out + err).splitlines() if line.startswith(phase) and "elapsed" in line]
    assert len(lines) > 1, out + err

"""What a run shows and names for those who look into it: ``rollout.print_outputs`` and ``env.group_name``."""

from __future__ import annotations

from pathlib import Path

from logged import rows_of
from test_reward_model_run import FOLDERS, RUN

from embodied import train

NAMED = ("rollout.print_outputs=true", "env.group_name=EnvGroup")
SAME = ("train/", "rollout/return", "rollout/success")


def test_answers_are_printed_and_nothing_else_changes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = ("reward.use_reward_model=false", "runner.max_epochs=1", "algorithm.rollout_epoch=1")
    found = []
    for name, more in (("plain", ()), ("printed", NAMED)):
        assert train.main([*RUN, *options, *more, f"runner.experiment_name={name}", *FOLDERS]) == 0
        shown = capsys.readouterr().out
        assert shown.count("\nanswer: ") == (16 if more else 0)
        assert ("episode 3, return " in shown) == bool(more)
        logs = {log.name for log in Path(f"runs/{name}/logs").glob("*-0?.log")}
        assert logs == {f"{'EnvGroup' if more else 'worker'}-0{number}.log" for number in range(2)}
        found.append([{key: row[key] for key in row if key.startswith(SAME)} for row in rows_of(f"runs/{name}")])
    assert found[0] == found[1]
    assert found[0][-1]

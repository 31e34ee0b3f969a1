"""A reward model that two processes share out, against one that each holds whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from embodied.models.causal_lm import build_reward_model
from logged import rows_of
from ranks import free_port, on_ranks
from reward_folders import write_classifier
from stub_reward_models import CountsB
from test_reward_model_run import ALONE, FOLDERS, RUN

from embodied import train
from embodied.errors import ConfigError, SpecMismatchError, Stopped
from embodied.instructions import of_messages
from embodied.parallel.group import Group
from embodied.parallel.reward_shards import RewardShards, check_can_shard
from embodied.run.build.preflight import check
from embodied.run.memory.footprint import Passes, Weights, footprint
from embodied.run.memory.remedies import remedies
from embodied.run.memory.reward_memory import of_reward_model
from embodied.schema.compose.compose import compose

OPTIONS = (
    *RUN, *ALONE, "env.num_workers=1", "reward.model.model_path=judge", "reward.model.micro_batch_size=3",
    "algorithm.group_size=2", "algorithm.dynamic_sampling=true", "algorithm.max_sampling_rounds=6",
    "reward.model.max_length=1",  # of the last letter alone, so that scores of a group may be equal
)  # fmt: skip
SHARED = "reward.model.strategy=fsdp2"


class Signal:
    """A stop signal that comes after so many passes; None = it never comes."""

    def __init__(self, after: int | None = None) -> None:
        self._left = after

    @contextmanager
    def cut_short(self) -> Iterator[None]:
        if self._left == 0:
            raise Stopped
        self._left = None if self._left is None else self._left - 1
        yield


def everything(folder: Path) -> tuple[list[str], list[str]]:
    """Prompts and answers that leave no token to fill up rows with."""
    tokens = build_reward_model(str(folder))._tokenizer
    return [tokens.decode(list(range(len(tokens)))), "1+1="], ["", "2"]


def scored(world: Group, folder: Path) -> dict[str, Any]:
    """What a process sees of shared models; rank 1 has fewer texts, then none."""
    texts = [f"{a}+{a * b}=" for a in range(7) for b in range(a + 1)], [str(n) for n in range(28)]
    own = [part[: 28 if world.is_main else 5] for part in texts]
    device, found = torch.device("cpu"), dict[str, Any]()
    for name, least in (("layers", 0), ("whole", 10**6)):
        whole = build_reward_model(str(folder), micro_batch_size=4)
        shards = RewardShards(build_reward_model(str(folder), micro_batch_size=4), least, world, device)
        found[name] = shards(*own, Signal()) == whole(*own), str(shards)
    found["local"] = sum(p.to_local().nbytes for p in shards.model.network.parameters())
    found["none"] = [shards(*(own if world.is_main else ([], [])), Signal()) == whole(*own), shards([], [], Signal())]
    passes = list[Any]()
    hook = shards.model.network.register_forward_pre_hook(lambda network, given: passes.append(1))
    with pytest.raises(Stopped):
        shards(*own, Signal(None if world.is_main else 2))
    found["stopped"] = len(passes)
    hook.remove()
    with pytest.raises(SpecMismatchError, match="no chat template"):
        shards([*own[0], "1" if world.is_main else of_messages([{"role": "user", "content": "1"}])], [*own[1], "2"],
               Signal())  # fmt: skip
    found["after"] = shards(*own, Signal()) == whole(*own)

    bare = folder.parent / "no pad token"
    options = {"offload_weight": True, "micro_batch_size": 4}
    whole = build_reward_model(str(bare), **options)
    shards = RewardShards(build_reward_model(str(bare), **options), 0, world, device)
    full = everything(bare) if world.is_main else own
    found["no padding"] = shards(*full, Signal()) == whole(*full), len(whole.batches(*full))
    return found


def test_shares_score_as_the_whole_does(tmp_path):
    write_classifier(tmp_path / "judge")
    write_classifier(tmp_path / "no pad token", pad_token_id=None)
    main, other = on_ranks(scored, tmp_path / "judge")
    for rank in (main, other):
        assert rank["layers"] == (True, "2, each with its part of it (fsdp2, 3 units)")
        assert rank["whole"] == (True, "2, each with its part of it (fsdp2, 1 units)")
        assert rank["stopped"] == 2, "after the same pass"
        assert rank["after"]
        assert rank["no padding"] == (True, 2)
        assert rank["none"][1] == []
    assert main["none"][0], "the other process has no texts"

    composed = compose([*RUN, SHARED, f"reward.model.model_path={tmp_path / 'judge'}"], "train", [FOLDERS[1]])
    memory = of_reward_model(composed.config.reward.model, 2)
    assert memory is not None
    assert memory.held == main["local"] >= other["local"]
    whole = build_reward_model(str(tmp_path / "judge")).network
    sizes = [sum(p.nbytes for p in module.parameters()) for module in (whole, *whole.model.layers)]
    assert memory.gathered == sizes[0] - sizes[1]


def runs(world: Group, folder: Path, ports: list[int]) -> dict[str, Any]:
    """Whole runs of a process; the texts that it scored at each call of the second."""
    os.chdir(folder)
    found, call, counts = dict[str, Any](), RewardShards.__call__, list[int]()

    def counted(self: RewardShards, prompts: Any, responses: Any, stop: Any) -> list[float]:
        counts.append(len(prompts))
        return call(self, prompts, responses, stop)

    RewardShards.__call__ = counted  # type: ignore[method-assign]
    broken = ("reward.model._target_=stub_reward_models.broken_in_one_process", "reward.model.rank=1", SHARED)
    broken = (*[o for o in OPTIONS if not o.startswith(("reward.model.mi", "reward.model.ma"))], *broken)
    options_of = {"whole": OPTIONS, "shared": (*OPTIONS, SHARED), "broken": broken}
    options_of["dry"] = (*OPTIONS, SHARED, "runner.dry_run=true")
    for (name, options), port in zip(options_of.items(), ports, strict=True):
        os.environ["MASTER_PORT"] = str(port)
        with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as error:
            status = train.main([*options, f"runner.experiment_name={name}", *FOLDERS])
        found[name] = status, out.getvalue(), error.getvalue()
        if name == "shared":
            found["counts"] = list(counts)
    return found


def test_runs_with_shares_are_those_with_whole_models(tmp_path):
    write_classifier(tmp_path / "judge")
    main, other = on_ranks(runs, tmp_path, [free_port() for _ in range(4)], connects=False)
    assert [rank["shared"][0] for rank in (main, other)] == [0, 0]
    whole, shared = (
        [{key: value for key, value in row.items() if key.startswith(("rollout/re", "train/loss", "train/grad"))}
         for row in rows_of(str(tmp_path / "runs" / name))]
        for name in ("whole", "shared")
    )  # fmt: skip
    assert len(whole[0]) > 4
    assert shared == whole
    calls = [*zip(main["counts"], other["counts"], strict=True)]
    assert any(min(texts) == 0 < max(texts) for texts in calls), "a refill for one process alone"
    assert main["dry"][0] == 0
    assert "2, each with its part of it (fsdp2, 3 units)" in main["dry"][1]
    assert "passes of the reward model" in main["dry"][1]
    for rank in (main, other):
        assert rank["broken"][0] == 2
    assert "the reward model gave nan" in main["broken"][2], "another process had it"


def test_its_weights_are_counted_where_they_are(tmp_path):
    write_classifier(tmp_path / "judge")
    whole = sum(p.nbytes for p in build_reward_model(str(tmp_path / "judge")).network.parameters())
    given = (*RUN, f"reward.model.model_path={tmp_path / 'judge'}")
    weights, passes = Weights(1, 1), Passes(0, None)
    found = {}
    for options in ((), ("reward.model.offload_weight=true",), (SHARED,)):
        checked = check(compose([*given, *options], "train", [FOLDERS[1]]), Group(0, 2, 0, 2))
        config, processes = checked.config, checked.processes
        taken = footprint(config, checked.sides, processes, weights, 0, passes, on_gpu=True)
        found[options] = taken, " ".join(remedies(config, processes, "rollout"))
    (usual, said), (waits, _), (shared, nothing) = found.values()
    assert (usual.device["reward model"], usual.host.get("reward model")) == (whole, None)
    assert (waits.moment, waits.device["reward model"], waits.host["reward model"]) == ("score", whole, whole)
    assert shared.moment == "score"
    parts = shared.device["reward model"], shared.device["gathered weights of the reward model"]
    assert whole / 2 <= min(parts) <= max(parts) < 0.6 * whole
    assert SHARED in said
    assert SHARED not in nothing


def test_what_cannot_be_shared_is_said():
    with pytest.raises(ConfigError, match="CountsB does not say how it makes its passes"):
        check_can_shard(CountsB())
    for options, said in (
        (("reward.model.wrap_policy.min_num_params=9",), "set reward.model.strategy=fsdp2"),
        ((SHARED, "algorithm.max_staleness=1"), "set reward.model.strategy=replicate, or algorithm.max_staleness=0"),
    ):
        with pytest.raises(ConfigError) as failed:
            compose([*RUN, *options], "train", [FOLDERS[1]])
        assert said in failed.value.remedy

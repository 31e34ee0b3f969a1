"""Keys of other systems for the run, its processes, its checkpoints and its optimizer: what each does, or why not."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from embodied import schema, train
from embodied.errors import CheckpointError, ConfigError
from embodied.learn.checkpoint.checkpoint import Checkpoints
from embodied.learn.checkpoint.loading import resume
from embodied.learn.step.optimizer import RateSchedule, make_optimizer
from embodied.learn.step.passes import offloaded
from embodied.parallel.group import Group
from embodied.parallel.sharding import make_parallel
from embodied.parallel.units import units_of
from embodied.run.build.shares import check
from embodied.run.folder import profiling
from embodied.schema.compose.compose import compose
from embodied.schema.compose.of_hydra import OF_HYDRA
from embodied.schema.keys.paths import at
from embodied.schema.keys.sections.fsdp import WrapPolicyConfig
from embodied.schema.others import key_table
from embodied.schema.others.accepted_no_ops import no_ops
from embodied.testing import FakePolicy

HERE = Path(__file__).parents[1]
CONFIG = str(HERE / "config")
FAKE = ("env=fake", "model=fake")
TINY = ("env=fake", "model=openvla_oft_tiny")
RUN = (
    *FAKE, "tracker=jsonl", "runner.logger.report=false", "runner.device=cpu", "env.num_workers=1",
    "env.train.total_num_envs=4", "algorithm.rollout_epoch=2", "env.train.max_episode_steps=6",
    "runner.save_interval=1", "env.eval.video_cfg.save_video=false", "runner.experiment_name=run",
    "--config-dir", CONFIG,
)  # fmt: skip


def config(*overrides: str, base: tuple[str, ...] = FAKE) -> schema.Config:
    return compose([*base, *overrides], "train", [CONFIG]).config


def refused(*overrides: str, base: tuple[str, ...] = FAKE) -> str:
    with pytest.raises(ConfigError) as failed:
        config(*overrides, base=base)
    return str(failed.value)


def test_every_key_of_the_share_is_answered():
    known = {key.name for key in key_table.keys()} | set(no_ops()) | set(OF_HYDRA)  # noqa: SIM118
    rows = csv.DictReader(
        (HERE.parent / "embodied/schema/others/foreign_keys.tsv").open(encoding="utf-8"), delimiter="\t"
    )
    ours = {key for row in rows for key in row["our_key"].split(" + ")}
    ours = {key for key in ours if key.startswith(("cluster", "hydra", "runner", "actor"))}
    ours -= {key for key in ours if key.startswith(("actor.model", "actor.tokenizer"))}
    assert len(ours) > 130
    assert sorted(ours - known) == []


@pytest.mark.parametrize(
    ("said", "key", "value"),
    [
        ("runner.checkpoint.save_mode=sync", "runner.checkpoint.async_save", False),
        ("runner.checkpoint.save_interval_epochs=4", "runner.save_interval", 4),
        ("runner.checkpoint.save_interval_epochs=0", "runner.save_interval", 2),
        ("cluster.distributed_timeout_minutes=2", "cluster.timeout_s", 120.0),
        ("runner.trace_verbosity=0", "rollout.trace", False),
        ("runner.trace_verbosity=1", "rollout.trace", "eval"),
        ("runner.trace_verbosity=2", "rollout.trace", True),
        ("actor.fsdp_config.sharding_strategy=NO_SHARD", "actor.fsdp_config.strategy", "replicate"),
        ("actor.fsdp_config.sharding_strategy=full_shard", "actor.fsdp_config.strategy", "fsdp2"),
        ("actor.fsdp_config.sharding_strategy=shard_grad_op", "actor.fsdp_config.reshard_after_forward", False),
        ("actor.fsdp_config.gradient_checkpointing=true", "actor.model.gradient_checkpointing", True),
        ("actor.use_torch_compile=true", "actor.model.torch_compile", True),
        ("rollout.use_torch_compile=true", "actor.model.torch_compile_acting", True),
        ("rollout.torch_compile_max_bs=8", "actor.model.torch_compile_max_bs", 8),
        ("actor.training_backend=FSDP", "actor.fsdp_config.strategy", "fsdp2"),
        ("actor.training_backend=fsdp2", "actor.fsdp_config.strategy", "fsdp2"),
        ("actor.training_backend=ddp", "actor.fsdp_config.strategy", "replicate"),
    ],
)
def test_a_key_in_other_words_says_the_same(said, key, value):
    assert at(config(said, base=TINY).model_dump(by_alias=True), key) == value


def test_two_keys_that_say_different_things_are_refused():
    assert "leave one of the two out" in refused(
        "runner.checkpoint.save_mode=sync", "runner.checkpoint.async_save=true"
    )
    config("runner.checkpoint.save_mode=sync", "runner.checkpoint.async_save=false")
    assert "takes no actor.model.torch_compile" in refused("actor.use_torch_compile=true")
    config("actor.use_torch_compile=false", "actor.fsdp_config.gradient_checkpointing=false")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ("actor.fsdp_config.amp_autocast.enabled=true", "set actor.model.precision=bf16"),
        ("actor.fsdp_config.sharding_strategy=hybrid_shard", "how many processes share one copy"),
        ("runner.checkpoint.save_contents=[optimizer]", "has no model"),
        ("runner.checkpoint.max_keep=0", "set it to 1 or more"),
        ("actor.lr_sched.lr_decay_style=wsd", "how long the rates fall"),
        ("actor.lr_sched.lr_wsd_decay_iters=2", "set actor.lr_sched.lr_decay_style=wsd"),
        ("hydra.job.chdir=true", "hydra's launcher, which is not used"),
        ("actor.lr_sched.lr_wsd_decay_style=linear", "set actor.lr_sched.lr_decay_style=wsd"),
        ("actor.training_backend=megatron", "there is no Megatron backend"),
        ("actor.training_backend=deepspeed_train", "there is no DeepSpeed backend"),
        ("actor.training_backend=fsdp2_train", "set actor.training_backend=fsdp2"),
        ("actor.offload_weight=true", "acts and learns in one copy"),
        ("actor.offload_weight=true", "set actor.offload_optimizer=true"),
        ("actor.offload_weight=true actor.fsdp_config.cpu_offload=true", "set actor.fsdp_config.strategy=fsdp2"),
        ("actor.offload_weight=true runner.only_eval=true", "its weights are never idle"),
        ("runner.weight_sync_dtype=bf16", "the network that learns is the one that acts"),
        ("runner.weight_sync_dtype=fp32", "leave runner.weight_sync_dtype out"),
        ("runner.weight_sync_dtype=bfloat16", "set runner.weight_sync_dtype=bf16"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(overrides, said):
    assert said in refused(*overrides.split())


def test_what_is_so_anyway_is_taken():
    config("actor.enable_offload=false",
           "actor.fsdp_config.amp_autocast.enabled=false", "actor.fsdp_config.amp_autocast.precision=bf16",
           "actor.fsdp_config.backward_prefetch=BACKWARD_PRE", "runner.weight_sync_interval=1",
           "actor.fsdp_config.mixed_precision.buffer_dtype=fp32", "actor.offload_weight=false",
           "runner.weight_sync_dtype=null")  # fmt: skip


def test_one_switch_keeps_on_the_host_what_can_rest_there():
    actor = config("actor.enable_offload=true").actor
    assert (actor.offload_optimizer, actor.offload_reference) == (True, True)
    for off in ("false", "null"):
        actor = config(f"actor.enable_offload={off}", "actor.offload_reference=true").actor
        assert (actor.offload_optimizer, actor.offload_reference) == (False, True)
    said = refused("actor.enable_offload=true", "actor.offload_optimizer=false")
    assert "which is actor.offload_optimizer true, and actor.offload_optimizer is false" in said


def test_weights_of_several_processes_rest_in_host_memory_as_shards():
    asked = config(
        "actor.offload_weight=true", "actor.fsdp_config.strategy=fsdp2", "actor.fsdp_config.cpu_offload=true"
    )
    check(asked, Group(0, 2, 0, 2))
    with pytest.raises(ConfigError, match=r"actor\.offload_weight is true in one process"):
        check(asked, Group())


def test_rlinfs_own_way_to_say_that_each_process_holds_the_whole_policy():
    said = ("actor.fsdp_config.strategy=fsdp", "actor.fsdp_config.sharding_strategy=no_shard",
            "actor.fsdp_config.enable_gradient_accumulation=true",
            "actor.fsdp_config.mixed_precision.param_dtype=fp32")  # fmt: skip
    assert config(*said).actor.fsdp_config.strategy == "replicate"


def test_search_paths_of_hydra_and_of_the_command_are_both_looked_at(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name / "env").mkdir(parents=True)
        (tmp_path / name / "env" / f"{name}.yaml").write_text(
            "_target_: embodied.testing.FakeEnv\nhorizon: 7\n", encoding="utf-8"
        )
    path = f"hydra.searchpath=['file://{tmp_path}/one']"
    for name in ("one", "two"):
        found = compose([path, f"env={name}", "model=fake"], "train", [CONFIG, str(tmp_path / "two")]).config
        assert found.env.train.model_extra == {"horizon": 7}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"num_nodes": 2}, "torchrun --nnodes=2 --nproc-per-node=2 -m embodied.train"),
        ({"num_gpus_per_node": 8}, "torchrun --nnodes=1 --nproc-per-node=8 -m embodied.train"),
        ({"component_placement": {"actor": "0-1", "rollout": "0"}}, ""),
        ({"component_placement": {"actor": "0", "rollout": "0", "env": "1"}}, "gives"),
        ({"component_placement": {"actor": "first"}}, "write all, a number, 0-3, or a list"),
        ({"component_placement": {"actr": "all"}}, "unknown component 'actr'. Did you mean 'actor'?"),
        ({"component_placement": {"actor, env,simulator": "all"}}, "one of: actor, rollout, env, inference, reward"),
        ({"component_placement": "0"}, "gives each component 0"),
        ({"num_nodes": 1, "num_gpus_per_node": 2, "component_placement": {"actor, env": "all", "rollout": [0, 1]}}, ""),
        ({"component_placement": "all"}, ""),
    ],
)
def test_processes_are_those_that_torchrun_started(given, said):
    own = config()
    own = own.model_copy(update={"cluster": schema.ClusterConfig(**given)})
    if not said:
        check(own, Group(0, 2, 0, 2))
        return
    with pytest.raises(ConfigError) as failed:
        check(own, Group(0, 2, 0, 2))
    assert said in str(failed.value)


def test_the_rates_of_warmup_stable_decay():
    optim = schema.OptimConfig(lr=1.0)
    at_places = {}
    for style in ("exponential", "linear", "cosine", "minus_sqrt"):
        sched = schema.LrScheduleConfig(
            lr_decay_style="wsd", lr_wsd_decay_style=style, lr_wsd_decay_iters=4, min_lr_ratio=0.1, lr_warmup_iters=1
        )
        schedule = RateSchedule(optim, sched, 10)
        assert [schedule.factor(place) for place in (0.5, 1, 3, 6, 10, 12)] == pytest.approx([0.5, 1, 1, 1, 0.1, 0.1])
        at_places[style] = (schedule.factor(7) - 0.1) / 0.9
    assert at_places["linear"] == pytest.approx(0.75)
    assert at_places["cosine"] == pytest.approx(0.853553, abs=1e-5)
    assert at_places["exponential"] == pytest.approx(2 * 0.5**0.25 - 1)
    assert at_places["minus_sqrt"] == pytest.approx(0.5)


def test_the_optimizers_kernels():
    made = {impl: make_optimizer(FakePolicy(), schema.OptimConfig(impl=impl)).defaults
            for impl in ("auto", "foreach", "fused", "for-loop")}  # fmt: skip
    assert {impl: (own["foreach"], own["fused"]) for impl, own in made.items()} == {
        "auto": (None, None), "foreach": (True, None), "fused": (None, True), "for-loop": (False, False),
    }  # fmt: skip


class Layer(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)


class Layered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(2), Layer(8)])
        self.head = nn.Linear(8, 8)


def test_which_modules_are_gathered_together():
    policy = Layered()
    assert units_of(policy, WrapPolicyConfig()) == [*policy.layers]
    named = WrapPolicyConfig(transformer_layer_cls_to_wrap=["Linear"])
    assert units_of(policy, named) == [policy.layers[0].linear, policy.layers[1].linear, policy.head]
    assert units_of(policy, WrapPolicyConfig(min_num_params=70)) == [policy.layers[1]]
    with pytest.raises(ConfigError, match="name one of its layers' classes: Layer"):
        units_of(policy, WrapPolicyConfig(transformer_layer_cls_to_wrap=["LlamaDecoderLayer", "Linear"]))


def test_a_run_says_which_keys_of_shards_have_no_effect():
    fsdp = schema.FsdpConfig(reshard_after_forward=False, wrap_policy=WrapPolicyConfig(min_num_params=3))
    found = make_parallel(FakePolicy(), fsdp, schema.AlgorithmConfig(), Group(), torch.device("cpu"))
    assert found.notes == [
        "without effect, as each process holds the whole policy: actor.fsdp_config.reshard_after_forward, "
        "actor.fsdp_config.wrap_policy"
    ]
    usual = make_parallel(FakePolicy(), schema.FsdpConfig(), schema.AlgorithmConfig(), Group(), torch.device("cpu"))
    assert usual.notes == []
    pinned = schema.FsdpConfig(offload_pin_memory=False)
    alone = make_parallel(FakePolicy(), pinned, schema.AlgorithmConfig(), Group(), torch.device("cpu"))
    assert alone.notes == [
        "without effect, as each process holds the whole policy: actor.fsdp_config.offload_pin_memory"
    ]
    config("actor.fsdp_config.offload_pin_memory=false", "actor.fsdp_config.strategy=replicate")


def test_what_the_backward_pass_needs_is_kept_on_the_host_with_the_same_gradients(monkeypatch):
    packed: list[int] = []
    real = torch.autograd.graph.save_on_cpu.__init__

    def counting(self: Any, pin_memory: bool = False, device_type: str = "cuda") -> None:
        real(self, pin_memory)
        packed.append(1)

    monkeypatch.setattr(torch.autograd.graph.save_on_cpu, "__init__", counting)
    gradients = []
    for wanted in (False, True):
        x = torch.linspace(-1, 1, 7).requires_grad_()
        with offloaded(wanted):
            y = (x.sin() * x.exp()).sum()
        y.backward()
        gradients.append(x.grad)
        with torch.no_grad(), offloaded(wanted):
            pass
    assert torch.equal(*gradients)
    assert packed == [1]


RANGES = ("rollout/wait", "rollout/policy", "rollout/ranks")


class Ranges:
    """Stands for torch.cuda.nvtx."""

    def __init__(self, seen: list[str]) -> None:
        self.range_push, self.range_pop = seen.append, lambda: seen.append("end")


def test_without_a_gpu_no_phase_is_marked_which_is_said(monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(profiling, "has_gpu", lambda: False)
    assert profiling.marks(config("runner.profiler.nsys=true").runner.profiler, said.append) is None
    assert said == ["runner.profiler.nsys marks nothing: torch finds no GPU here, and NVTX comes with one"]
    assert profiling.marks(config().runner.profiler, said.append) is None
    assert len(said) == 1


class Known:
    """A tracker of a user, which writes down what it is told and what the process is called."""

    def __init__(self, folder: Path, resume_step: int | None, run_id: str | None) -> None:
        self.run_id = run_id
        name = Path("/proc/self/comm").read_text(encoding="utf-8").strip()
        with Path("known").open("a", encoding="utf-8") as file:
            file.write(f"{folder} {run_id} {name}\n")

    def log(self, step: int, metrics: Any) -> None:
        pass

    def close(self) -> None:
        pass


def test_a_run_has_an_id_and_its_process_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = Path("/proc/self/comm").read_text(encoding="utf-8").strip()
    tracked = (*RUN, f"runner.logger.logger_backends=[jsonl,{__name__}.Known]", "runner.max_epochs=0")
    named = ("actor.group_name=ActorGroupOfMine", "env.eval.video_cfg.save_video=true")
    try:
        assert train.main([*tracked, *named, "runner.run_id=0712"]) == 0
        assert train.main([*tracked]) == 0
    finally:
        Path("/proc/self/comm").write_text(before, encoding="utf-8")
    assert Path("known").read_text(encoding="utf-8").splitlines() == [
        "runs/run-0712 0712 ActorGroupOfMin",
        "runs/run None ActorGroupOfMin",
    ]
    assert config("runner.run_id=a").env.eval.video_cfg.video_base_dir.endswith("-a/eval")
    assert config("runner.run_id=''").runner.experiment_name == config().runner.experiment_name
    assert config("runner.run_id=null") == config()
    assert "runner.run_id" in refused("runner.run_id=a/b")
    group = Group(3, 4)
    try:
        group.call("ActorGroupOfMine")
        assert Path("/proc/self/comm").read_text(encoding="utf-8") == "ActorGroupOfM-3\n"
    finally:
        Path("/proc/self/comm").write_text(before, encoding="utf-8")
    assert group.name == "ActorGroupOfMine 3: "


def rows(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def test_a_run_leaves_out_and_takes_parts_of_checkpoints_and_profiles_itself(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    parts = ("runner.checkpoint.save_contents=[model]", "runner.checkpoint.max_keep=-1")
    ranges: list[str] = []
    monkeypatch.setattr(torch.cuda, "nvtx", Ranges(ranges))
    monkeypatch.setattr(profiling, "has_gpu", lambda: True)
    marked = ("runner.profiler.nsys=true", "runner.trace_verbosity=1")
    profile = ("runner.profiler.enable=true", "runner.profiler.wait_steps=0", "runner.profiler.with_stack=true",
               "actor.fsdp_config.activation_offload=true", *marked)  # fmt: skip
    assert train.main([*RUN, *parts, *profile, "runner.max_epochs=4", "runner.max_steps=4"]) == 0
    run = Path("runs/run")
    assert len([*(run / "checkpoints").iterdir()]) == 4, "all of them stay"
    assert [path.name for path in (run / "trace").iterdir()] == ["000001-eval.json"]
    assert [mark for mark in ranges if mark.startswith("time/")] == [
        *(["time/rollout", "time/train", "time/save"] * 3), "time/rollout", "time/train", "time/eval", "time/save",
    ]  # fmt: skip
    first, second = (ranges.index(name) for name in ("time/rollout", "time/train"))
    assert {"rollout/wait", "rollout/policy"} <= set(ranges[first:second]) <= {"time/rollout", *RANGES, "end"}
    assert ranges.count("end") == len(ranges) / 2
    assert ranges[second + 1] == "end"
    trace = json.loads(gzip.decompress((run / "profile/rank0.json.gz").read_bytes()))
    names = {event.get("name") for event in trace["traceEvents"]}
    assert "ProfilerStep#1" in names
    assert "ProfilerStep#2" not in names
    assert "aten::linear" in names or "aten::addmm" in names or "aten::mm" in names
    files = json.loads((run / "checkpoints/000004/meta.json").read_text(encoding="utf-8"))
    assert files["optimizer"] == {}
    capsys.readouterr()
    assert train.main([*RUN, *parts, "runner.max_epochs=5"]) != 0
    assert "set runner.checkpoint.load_contents=[model]" in capsys.readouterr().err
    assert train.main([*RUN, *parts, "runner.checkpoint.load_contents=[model]", "runner.max_epochs=5"]) == 0
    assert "begun anew (runner.checkpoint.load_contents): optimizer, extra" in capsys.readouterr().out
    assert rows(run)[-1]["step"] == 5


def test_offloading_and_profiling_change_no_number(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = ("runner.profiler.enable=true", "runner.profiler.wait_steps=0", "runner.profiler.warmup_steps=0",
            "actor.fsdp_config.activation_offload=true", "actor.enable_offload=true",
            "runner.checkpoint.save_mode=sync")  # fmt: skip
    assert train.main([*RUN, "runner.max_epochs=2"]) == 0
    assert train.main([*RUN, *told, "runner.max_epochs=2", "runner.experiment_name=other"]) == 0
    metas = [Path(f"runs/{name}/checkpoints/000002/meta.json").read_text(encoding="utf-8") for name in ("run", "other")]
    sums = [json.loads(meta)["checksums"]["__0_0.distcp"] for meta in metas]
    assert sums[0] == sums[1]


def test_parts_of_a_checkpoint_that_are_not_taken_stay_as_they_are(tmp_path):
    from learn.learner import trained

    saved, fresh = trained(), trained(seed=1)
    generator = torch.get_rng_state()
    path = Checkpoints(tmp_path, 3).save(saved, 1)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    state = {id(p): dict(s) for p, s in fresh.optimizer.state.items()}
    resume(path, fresh, ["model"])
    assert torch.equal(torch.get_rng_state(), before)
    assert {id(p): dict(s) for p, s in fresh.optimizer.state.items()}.keys() == state.keys()
    assert all(torch.equal(a, b) for a, b in zip(saved.policy.parameters(), fresh.policy.parameters(), strict=True))
    resume(path, fresh)
    assert torch.equal(torch.get_rng_state(), generator)
    without = Checkpoints(tmp_path / "model", 3, contents=["model"]).save(saved, 1)
    with pytest.raises(CheckpointError, match="has no optimizer state"):
        resume(without, fresh)

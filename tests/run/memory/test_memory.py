"""What a run will take, counted before it starts, against what it took."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from embodied import train
from embodied.errors import ConfigError
from embodied.learn.step.meters.live_bytes import LiveBytes, TooLargeError
from embodied.parallel.group import Group
from embodied.run.build import engine_process
from embodied.run.build import policy as build
from embodied.run.build.preflight import check
from embodied.run.memory import counting, prompts, remedies, say
from embodied.run.memory.footprint import Passes, Weights, footprint
from embodied.run.memory.weights import kinds_of
from embodied.runtime.slab import available_memory
from embodied.schema.compose.compose import compose, compose_unchecked

HERE = Path(__file__).parents[2]
CONFIG = str(HERE / "config")
GB = 2**30
SHORT = ("env=fake", "tracker=jsonl", "runner.device=cpu", "runner.max_epochs=2", "env.train.max_episode_steps=10")
sys.path.append(str(HERE.parent))

from benchmarks import true_size  # noqa: E402


def asked(checked):
    return checked.config, checked.sides, checked.processes


def counted(checked, **more):
    return counting.count(*asked(checked), checked.demonstrations, **more)


def checked_of(tmp_path, *more):
    return check(compose([*SHORT, f"runner.output_dir={tmp_path}", *more], "train", [CONFIG]), Group())


def test_live_bytes_are_those_of_the_storages_that_live():
    with (live := LiveBytes(widths=[7])):
        kept = torch.zeros(10, 7)
        part = kept[:5]
        gone = torch.zeros(1000)
        del gone
        weight = torch.ones(7, requires_grad=True)
        result = (weight * 2).exp().sum()
        assert (live.now, live.peak) == (280 + 28 + 28 + 4, 4280), "exp keeps its result, a view nothing"
        result.backward()
    assert live.most_wide >= 280
    del result, part
    assert live.now == 280 + 28 + 28, "values and gradients"
    with pytest.raises(TooLargeError), LiveBytes(limit=100):
        torch.zeros(26)


@pytest.mark.parametrize(
    "more",
    [
        ("model=fake",),
        (
            *("model=openvla_oft_tiny", "+actor.model.gradient_checkpointing=true", "actor.micro_batch_size=2"),
            *("actor.model.value_head=true", "actor.model.precision=bf16"),
        ),
    ],
)
def test_tensors_without_memory_are_counted_as_those_with_it(tmp_path, more):
    """So what is said of 7 B parameters on any machine is what is measured at a small size, to the byte."""
    checked = checked_of(tmp_path, *more)
    real, sizes_alone = counted(checked), counted(checked, limit=0)
    assert real.why_not is None
    assert sizes_alone.weights == real.weights
    assert sizes_alone.passes == real.passes
    if len(more) > 1:
        assert real.weights.value_head > 0
        assert real.passes.otherwise.saved > 2 * real.passes.update.saved, "recomputation spares most"


def test_a_checkpoint_is_counted_without_memory_as_with_it(tmp_path):
    """The limit is reached while a tensor is mapped, where torch hides the error behind another."""
    true_size.write_folder(tmp_path / "model", size="tiny", shard_bytes=10**6)
    sizes = ("model=openvla_oft", "actor.model.size=tiny", "actor.model.unnorm_key=null", "actor.micro_batch_size=2")
    checked = checked_of(tmp_path, *sizes, f"actor.model.model_path={tmp_path / 'model'}")
    real, sizes_alone = counted(checked), counted(checked, limit=2 * 10**6)
    assert real.with_memory
    assert not sizes_alone.with_memory
    assert sizes_alone.why_not is None
    assert sizes_alone.weights == real.weights
    assert sizes_alone.passes.update == real.passes.update
    assert sizes_alone.passes.act == pytest.approx(real.passes.act, rel=0.01)


TEXTS = ("env=fake_text", "model=causal_lm_tiny", "env.train.total_num_envs=32", "runner.experiment_name=texts")


@pytest.mark.parametrize("more", [(), ("actor.model.value_head=true", "actor.model.noise_steps=all")])
def test_a_flow_policy_s_folder_is_counted_without_memory_as_with_it(tmp_path, more):
    folder, file = HERE / "models" / "golden" / "flow" / "smolvla_tiny", tmp_path / "tokenizer.json"
    Tokenizer(WordLevel({"?": 0}, unk_token="?")).save(str(file))
    keys = {"model_path": folder, "tokenizer_path": file, "num_action_chunks": 4, "gradient_checkpointing": "false"}
    words = [f"actor.model.{key}={value}" for key, value in keys.items()]
    checked = checked_of(tmp_path, "model=smolvla", *words, "actor.micro_batch_size=2", *more)
    real, sizes_alone = counted(checked), counted(checked, limit=0)
    one, other = (counts.passes for counts in (real, sizes_alone))
    assert sizes_alone.weights == real.weights
    assert replace(other, act=0) == replace(one, act=0)
    assert abs(other.act - one.act) < 1024, "constants of the first call stay"
    assert sizes_alone.with_memory is False


@pytest.mark.parametrize("more", [(), ("algorithm=ppo", "algorithm.sampling_params.repetition_penalty=1.2")])
def test_lanes_take_what_a_decoder_takes(tmp_path, more):
    """Counted with and without memory, against lanes that write texts as long as they may be, in groups."""
    checked = checked_of(tmp_path, *TEXTS, "env.eval.total_num_envs=32", *more)
    real, sizes_alone = counted(checked), counted(checked, limit=0)
    assert real.why_not is None
    assert sizes_alone.passes == real.passes
    policy, lanes, texts = real.policy, 32, [f"letter {i // 8}" for i in range(32)]
    sampling = replace(build.sampling(checked.config.algorithm.sampling_params), ignore_eos=True)
    with (live := LiveBytes()):
        obs, noise = policy.encode_instructions(texts), torch.rand(lanes, *policy.spec.noise.shape)
        before = live.restart()
        decoding = policy.decoding(lanes)
        decoding.begin(sampling)
        decoding.admit(range(lanes), obs, noise)
        held, steps = live.now - before, 0
        while not decoding.step():
            steps += 1
    assert steps == policy.settings.max_new_tokens - 1
    cache = sum(held.nbytes for held in (*decoding._cache.keys, *decoding._cache.values))
    assert cache > 0.7 * real.passes.act, "most of it are keys and values"
    assert abs(real.passes.act / (live.peak - before) - 1) < 0.05
    assert real.passes.graphs == 0, "rollout.enforce_eager"
    graphs = counted(checked_of(tmp_path, *TEXTS, *more, "rollout.enforce_eager=false"), limit=0).passes.graphs
    assert 0 < graphs < real.passes.act
    late = [counted(checked_of(tmp_path, *TEXTS, *more, f"algorithm.max_staleness={s}"), limit=0) for s in (1, 2)]
    further = [found.passes.act - real.passes.act for found in late]
    assert further == pytest.approx([0, 2 * held], rel=1e-3), "of 2 and more, lanes for each version"


def test_the_fullest_moment(tmp_path):
    weights, passes = Weights(10 * GB, GB), Passes(GB // 2, None)
    checked = checked_of(tmp_path, "model=fake", "runner.checkpoint.async_save=false")
    taken = footprint(*asked(checked), weights, GB, passes, process=GB)
    assert (taken.moment, taken.on_device) == ("update", (10 + 1 + 2) * GB), "the gradients are gone when it acts"
    acting = footprint(*asked(checked), weights, GB, Passes(2 * GB, None), process=GB)
    assert (acting.moment, acting.on_device) == ("act", (10 + 2 + 2) * GB)
    beside = checked_of(tmp_path, "model=fake", "runner.checkpoint.async_save=false", "actor.offload_grad=false")
    assert footprint(*asked(beside), weights, GB, Passes(2 * GB, None), process=GB).on_device == (10 + 1 + 2 + 2) * GB
    assert (taken.on_host, taken.unknown) == (2 * GB, ("activations",))
    on_gpu = footprint(*asked(checked_of(tmp_path, "model=fake")), weights, GB, passes, process=GB, on_gpu=True)
    assert on_gpu.host["copy of what is saved"] == 3 * GB, "copies are on the machine"
    assert "copy of what is saved" not in on_gpu.device


def test_what_rests_on_the_host_is_not_on_the_gpu_while_the_policy_acts(tmp_path):
    weights, passes = Weights(10 * GB, GB), Passes(5 * GB, None)
    sizes = {}
    for keys in ((), ("actor.offload_optimizer=true",), ("actor.enable_offload=true",)):
        checked = checked_of(tmp_path, "model=fake", "algorithm.kl_beta=0.1", *keys)
        taken = footprint(*asked(checked), weights, GB, passes, on_gpu=True)
        assert taken.moment == "act"
        cuda = taken.device["CUDA"]
        sizes[keys] = (taken.on_device - cuda) // GB, taken.host.get("optimizer", 0), taken.host.get("reference", 0)
    assert list(sizes.values()) == [(10 + 2 + 1 + 5, 0, 0), (10 + 1 + 5, 2 * GB, 0), (10 + 5, 2 * GB, GB)]
    update = footprint(*asked(checked), weights, GB, Passes(0, None), on_gpu=True)
    assert update.moment in ("update", "step")
    assert (update.device["optimizer"], update.device["reference"]) == (2 * GB, GB), "an update needs them"
    on_cpu = footprint(*asked(checked), weights, GB, passes)
    assert (on_cpu.on_device, on_cpu.host.get("optimizer")) == ((10 + 2 + 1 + 5) * GB, None), "nothing moves"


ARITHMETIC = ("env=arithmetic", "model=causal_lm_tiny", "env.eval.video_cfg.save_video=false")


@pytest.mark.parametrize(
    ("more", "length"),
    [
        (("env.train.data_args={terms: [7, 7]}", "actor.model.max_prompt_tokens=14"), 14),
        (("env=calculator", "actor.model.max_prompt_tokens=300"), 256),  # transcripts grow to what an observation holds
        (
            (
                "env=calculator",
                "actor.model.max_prompt_tokens=300",
                *(f"env.{side}.max_prompt_bytes=999" for side in ("train", "eval")),
            ),
            300,
        ),
    ],
)
def test_texts_are_counted_with_their_own_prompts_or_as_long_as_they_may_be(tmp_path, more, length):
    asked = [*ARITHMETIC, *more, "actor.model.truncation=error", f"runner.output_dir={tmp_path}"]
    checked = check(compose(asked, "train"), Group())
    policy = build.make_policy(checked.config, torch.device("cpu"))
    text = prompts.longest(checked.config, checked.sides, checked.demonstrations, policy)
    assert policy.encode_instructions([text])["prompt_length"].tolist() == [length]


def test_demonstrated_texts_are_counted_as_long_as_the_longest(tmp_path):
    shown = ("data=embodied.envs.text.arithmetic:demonstrations", "data.options={terms: [2, 9], count: 200}")
    checked = check(compose(["experiment=sft", *ARITHMETIC, *shown, f"runner.output_dir={tmp_path}"], "sft"), Group())
    policy = build.make_policy(checked.config, torch.device("cpu"))
    assert len(prompts.longest(checked.config, checked.sides, checked.demonstrations, policy)) == 2 * 9


def test_a_dry_run_refuses_what_does_not_fit_the_gpu_that_it_is_planned_for(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    asked = [*SHORT, "model=openvla_oft_tiny", "runner.dry_run=true", "--config-dir", CONFIG]
    assert train.main([*asked, "runner.device_memory_gib=24"]) == 0
    assert "memory of the GPU" in capsys.readouterr().out
    assert train.main([*asked, "runner.device_memory_gib=0.5"]) == 2
    said = capsys.readouterr()
    assert "the GPU has 512.0 MiB" in said.err
    assert "actor.micro_batch_size=16 (now 32)" in said.err
    assert list(tmp_path.iterdir()) == []


def test_a_small_run_takes_what_was_said(tmp_path):
    """The fullest moment of its process, within 5 %."""
    found = true_size.compare((*true_size.FAKE, "model=fake"))
    assert abs(found["off"]) < 0.05, found


@pytest.mark.slow
@pytest.mark.parametrize("name", true_size.SMALL)
def test_runs_of_a_network_take_what_was_said(name):
    found = true_size.compare((*true_size.FAKE, *true_size.SMALL[name]))
    assert abs(found["off"]) < 0.05, found


FLOW = (
    "model=flow_vla_tiny", "algorithm.logprob_type=chunk_level", "algorithm.entropy_type=chunk_level",
    *(f"+actor.model.{part}hidden_size={width}" for part, width in (("", 512), ("expert_", 512), ("vision_", 256))),
    *(f"+actor.model.{part}intermediate_size={width}" for part, width in (("", 1408), ("expert_", 1408))),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("frozen", ["true", "false"])
def test_a_flow_policy_takes_what_was_said(frozen):
    """Within 10 %: 4 % were measured with a frozen trunk, 8 % with all of it trained."""
    found = true_size.compare((*true_size.FAKE, *FLOW, f"actor.model.train_expert_only={frozen}"))
    assert abs(found["off"]) < 0.1, found


def needs_for_7b(disk: Path | None = None) -> None:
    """Skips on a machine that cannot run 7.6 B parameters within minutes."""
    if (here := available_memory()) < 22e9:
        pytest.skip(f"needs 22 GB of available memory, and this machine has {here / 1e9:.0f}")
    if not torch.cpu._is_avx512_bf16_supported():
        pytest.skip("needs bf16 arithmetic (AVX512_BF16): without it one call of the policy takes many minutes")
    if disk is not None and (free := shutil.disk_usage(disk).free) < 20e9:
        pytest.skip(f"needs 20 GB of disk for the folder, and {free / 1e9:.0f} are free")


@pytest.mark.slow
def test_7b_parameters_take_what_was_said():
    needs_for_7b()
    found = true_size.compare((*true_size.FULL, "actor.model.model_path=null"))
    assert found["peak"] > 15e9
    assert abs(found["off"]) < 0.05, found


@pytest.mark.slow
def test_a_sharded_folder_in_the_original_layout_is_written_by_a_command_and_loaded(tmp_path):
    needs_for_7b(disk=tmp_path)
    script = [sys.executable, str(HERE.parent / "benchmarks" / "true_size.py"), "--write", str(tmp_path / "7b")]
    said = subprocess.run(script, capture_output=True, text=True, check=True, encoding="utf-8").stdout
    assert json.loads(said.splitlines()[-1])["files"] > 1
    found = true_size.compare((*true_size.FULL, f"actor.model.model_path={tmp_path / '7b'}"))
    shutil.rmtree(tmp_path / "7b")
    assert abs(found["off"]) < 0.05, found
    assert found["fullest"]["RssFile"] > 13e9, "the weights are mapped from their files"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "total"),
    [((), 16.75), (("actor.micro_batch_size=2",), 16.86), (("algorithm=ppo",), 16.79)],
    ids=["as it is", "micro-batch 2", "value head"],
)
def test_libero_24gb_takes_what_the_docs_say(tmp_path, more, total):
    """Without a checkpoint; each weight belongs to one kind of layer."""
    asked = ["experiment=libero_24gb", "env=fake", "runner.dry_run=true", f"runner.output_dir={tmp_path}", *more]
    checked = check(compose([*asked, "actor.model.use_proprio=false"], "train", [CONFIG]), Group())
    found = say.plan(*asked(checked), checked.demonstrations)
    assert round(found.taken.on_device / GB, 2) == pytest.approx(total, abs=0.01)
    kinds = kinds_of(found.counted.policy)
    assert sum(kind.bytes for kind in kinds.values()) == found.counted.weights.all
    assert set(kinds) >= {"adapters", "vision backbones", "projector", "attention", "mlp", "embeddings"}
    assert (kinds["attention"].tensors, kinds["mlp"].tensors) == (32 * 4, 32 * 3)
    assert kinds["attention"].bytes == 32 * 4 * 4096 * 4096 * 2
    assert any("random ones of the configured sizes" in row[1] for row in found.rows())


def test_a_dry_run_needs_no_checkpoint_where_the_configuration_says_the_sizes(tmp_path):
    asked = [*SHORT, f"runner.output_dir={tmp_path}", "model=openvla_oft", "actor.model.size=tiny"]
    made = compose([*asked, "runner.dry_run=true"], "train", [CONFIG]).resolved["actor"]["model"]
    assert (made["model_path"], made["unnorm_key"]) == (None, None)
    for others in (asked, [*SHORT, "env=fake_text", "model=causal_lm", "runner.dry_run=true"]):
        with pytest.raises(ConfigError, match=r"actor\.model\.model_path is not set"):
            compose(others, "train", [CONFIG])


def test_weights_have_a_kind_each(tmp_path):
    policy = counted(checked_of(tmp_path, "model=openvla_oft_tiny", "algorithm=ppo")).policy
    kinds = kinds_of(policy)
    total = sum(one.nbytes for one in (*policy.parameters(), *policy.buffers()))
    assert sum(kind.bytes for kind in kinds.values()) == total
    assert kinds["value head"].tensors == len(list(policy.value_head.parameters()))
    assert kinds["adapters"].bytes == sum(p.nbytes for n, p in policy.named_parameters() if ".lora_" in n)


def test_what_an_engine_and_graphs_take(tmp_path, monkeypatch):
    monkeypatch.setattr(engine_process, "_has_package", lambda rollout: True)
    weights, passes = Weights(10 * GB, GB), Passes(3 * GB, None, graphs=GB // 2)
    engine, sizes = ("env=fake_text", "model=fake_text", "rollout.backend=vllm"), {}
    for sleeps in (True, False):
        checked = checked_of(tmp_path, *engine, f"rollout.enable_offload={sleeps}")
        taken = footprint(*asked(checked), weights, GB, passes, on_gpu=True, engine=20 * GB)
        sizes[sleeps] = taken.moment, taken.device["engine"], taken.host.get("weights of the engine that sleeps", 0)
        assert "CUDA graphs" in taken.device
        assert "what CUDA keeps of its graphs beside tensors" in taken.unknown
    assert sizes == {True: ("act", 20 * GB, 10 * GB), False: ("act", 20 * GB, 0)}
    update = footprint(*asked(checked), weights, GB, Passes(0, None), on_gpu=True, engine=GB)
    assert (update.moment, update.device["engine"]) == ("step", GB), "it stays"
    on_cpu = footprint(*asked(checked), weights, GB, passes, engine=0)
    assert "engine" not in on_cpu.device
    assert "the engine's process" in on_cpu.unknown


def test_weights_that_rest_are_not_on_the_gpu_while_an_engine_acts(tmp_path, monkeypatch):
    monkeypatch.setattr(engine_process, "_has_package", lambda rollout: True)
    weights, passes = Weights(10 * GB, GB), Passes(0, None)
    engine, rests = ("env=fake_text", "model=fake_text", "rollout.backend=vllm"), "actor.offload_weight=true"

    def taken(*keys: str, engine_takes: int = 20 * GB, **more):
        checked = checked_of(tmp_path, *engine, *keys)
        return footprint(*asked(checked), weights, GB, passes, engine=engine_takes, **{"on_gpu": True, **more})

    stay, rest = taken(), taken(rests)
    assert (stay.moment, rest.moment) == ("act", "act")
    assert stay.on_device - rest.on_device == 10 * GB
    assert not {"weights", "trained weights"} & rest.device.keys()
    assert (rest.host["weights"], rest.host["trained weights"], "weights" in stay.host) == (9 * GB, GB, False)
    update = taken(rests, engine_takes=GB)
    assert update.moment == "step"
    assert (update.device["weights"], update.device["trained weights"]) == (9 * GB, GB), "an update needs them"
    for takes, moment in ((20 * GB, "act"), (GB, "handing over weights")):
        alone = taken(rests, "runner.only_eval=true", engine_takes=takes)
        assert (alone.moment, alone.device.get("weights")) == (moment, None if moment == "act" else 10 * GB)
    cpu = taken(rests, on_gpu=False)
    assert (cpu.on_device, cpu.host.get("weights")) == (taken(on_gpu=False).on_device, None), "nothing moves"


def test_an_engines_rollout_that_does_not_fit_names_the_key(tmp_path, monkeypatch):
    monkeypatch.setattr(engine_process, "_has_package", lambda rollout: True)
    engine = ("env=fake_text", "model=fake_text", "rollout.backend=vllm")
    named = []
    for keys in (engine, (*engine, "actor.offload_weight=true"), ("env=fake_text", "model=fake_text")):
        fixes = remedies.remedies(checked_of(tmp_path, *keys).config, Group(), "rollout")
        named.append([fix for fix in fixes if "offload_weight" in fix])
    assert named == [["set actor.offload_weight=true (now false; the result stays the same)"], [], []]


@pytest.mark.parametrize(
    ("processes", "split", "said"),
    [(1, 1, []), (3, 1, []), (2, 2, []), (4, 2, ["set …=4 (now 2"]), (2, 1, ["set …=2 (now 1"])],
)
def test_long_texts_are_split_over_processes_that_there_are(tmp_path, processes, split, said):
    keys = ("env=fake_text", "model=causal_lm_tiny", f"actor.model.context_parallel_size={split}")
    many = compose(
        [*SHORT, f"runner.output_dir={tmp_path}", *keys, "env.train.total_num_envs=12", "env.eval.total_num_envs=12"],
        "train",
        [CONFIG],
    )
    group = Group(0, processes, 0, processes)
    found = remedies.remedies(check(many, group).config, group, "update")
    told = [fix.partition(":")[0].replace("actor.model.context_parallel_size", "…") for fix in found]
    assert [fix for fix in told if "…" in fix] == said


@pytest.mark.parametrize(
    ("keys", "on_gpu", "processes", "bits", "torchrun"),
    [
        ((), True, 1, True, False),
        (("actor.model.quantization_bit=4",), True, 1, False, True),
        (("actor.model.is_lora=false",), True, 1, False, True),
        (("rollout.use_torch_compile=true",), True, 1, False, True),
        ((), False, 1, False, True),
        ((), True, 2, False, False),
    ],
)
def test_one_small_gpu_is_offered_fewer_bits_and_no_second_process(keys, on_gpu, processes, bits, torchrun):
    asked = ("env=libero_spatial", "experiment=libero_24gb", "runner.dry_run=true", *keys)
    config = compose_unchecked(asked, "train").config
    found = remedies.remedies(config, Group(0, processes, 0, processes), "update", on_gpu)
    assert any("quantization_bit=4 (now null" in one and "experiment=libero_12gb" in one for one in found) == bits
    assert any("torchrun" in one for one in found) == torchrun


def test_rows_of_other_commands_stay(tmp_path, monkeypatch):
    file = tmp_path / "true_size.json"
    file.write_text(
        json.dumps({"7.6 B parameters at random": {"off": 0.01}, "small": {"old": {"off": 0.02}}}), encoding="utf-8"
    )
    monkeypatch.setattr(true_size, "RESULTS", file)
    monkeypatch.setattr(true_size, "compare", lambda overrides: {"overrides": list(overrides)})
    for flags in (["--small"], ["--quarter"], ["--folder", str(tmp_path)]):
        monkeypatch.setattr(sys, "argv", ["true_size.py", *flags])
        true_size.main()
    found = json.loads(file.read_text(encoding="utf-8"))
    assert found["7.6 B parameters at random"] == {"off": 0.01}
    assert found["small"].keys() == {"old", *true_size.SMALL}
    assert {"true widths, four layers, fp32", "7.6 B parameters from a folder"} < found.keys()
    monkeypatch.setattr(sys, "argv", ["true_size.py", "--folder", str(tmp_path)])
    assert true_size.here()["command"] == "python benchmarks/true_size.py --folder FOLDER"


def test_the_table_of_what_was_measured_stands_in_the_readme():
    page = (HERE.parent / "benchmarks" / "README.md").read_text(encoding="utf-8")
    missing = [
        row for row in true_size.table(json.loads(true_size.RESULTS.read_text(encoding="utf-8"))) if row not in page
    ]
    assert not missing, "python benchmarks/true_size.py --table"


def test_what_was_measured_is_within_five_percent():
    """benchmarks/results/true_size.json: the five small runs. Of the larger one 6.3 % were missed."""
    results = json.loads(true_size.RESULTS.read_text(encoding="utf-8"))
    runs = list(results["small"].values())
    assert len(runs) == 5
    assert all(abs(run["off"]) < 0.05 for run in runs), [run["off"] for run in runs]


def test_a_dry_run_looks_into_the_checkpoint(tmp_path, monkeypatch, capsys):
    """A large policy has no weights there, which is said."""
    monkeypatch.chdir(tmp_path)
    common = [*SHORT, "runner.max_epochs=1", "env.num_workers=1", "--config-dir", CONFIG]
    assert train.main([*common, "model=fake", "runner.experiment_name=first"]) == 0
    again = [*common, "runner.experiment_name=second", "runner.ckpt_path=runs/first/checkpoints/000001"]
    assert train.main([*again, "model=fake", "runner.dry_run=true"]) == 0
    capsys.readouterr()
    assert train.main([*again, "model=fake", "actor.model.bins=8", "runner.dry_run=true"]) == 2
    assert "runs/first/checkpoints/000001" in capsys.readouterr().err
    monkeypatch.setattr(counting.count, "__defaults__", (0,))
    assert train.main([*again, "model=fake", "runner.dry_run=true"]) == 0
    assert "not looked at" in capsys.readouterr().out

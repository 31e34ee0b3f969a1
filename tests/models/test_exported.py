"""Policies as programs: each format answers as the policy does, from its folder alone."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from embodied.models.exported import build_policy as build_exported
from embodied.models.openvla_oft import build_policy
from embodied.models.openvla_oft.export import program as exporter
from embodied.models.openvla_oft.export.decision import Reference, difference
from embodied.models.shared.programs import write as writer

from embodied import eval as evaluation
from embodied import train
from embodied.errors import CheckpointError, ConfigError, EmbodiedError, SpecMismatchError
from embodied.lib.files import sealed
from embodied.protocols import Examples, Exported
from embodied.testing import FakeEnv
from embodied.types import ArraySpec, ContinuousAction, Sampling

ENV = FakeEnv(size=72).spec  # two cameras, which the program resizes to 64
KEYS: dict[str, Any] = {
    "vision_num_layers": 2, "num_hidden_layers": 2, "num_images_in_input": 2, "use_proprio": True,
    "center_crop": True, "policy_setup": "libero", "is_lora": True, "lora_rank": 4, "lora_init_weights": False,
    "max_prompt_length": 48,
}  # fmt: skip
STATISTICS = {
    "action": {"q01": [-0.7] * 7, "q99": [0.9] * 7, "mask": [True] * 6 + [False]},
    "proprio": {"q01": [-1.5] * 8, "q99": [2.0] * 8},
}
GREEDY, SAMPLED = Sampling(do_sample=False), Sampling(temperature=1.6)
QUICK = ("torch_export", "onnx")
Folders = Callable[..., tuple[Path, Exported]]


@pytest.fixture(scope="module")
def policy() -> Any:
    made = build_policy(**KEYS)
    made.use_statistics("demonstrations", STATISTICS)
    made.bind(ENV)
    return made


def observations(rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (rows, *ENV.obs["images"].shape), dtype=np.uint8)
    return {"images": images, "state": random.standard_normal((rows, 8)).astype(np.float32)}


@pytest.fixture(scope="module")
def folders(policy: Any, tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """Exports the policy once for each format."""
    made: dict[tuple[str, str | None], tuple[Path, Exported]] = {}

    def get(kind: str, quantize: str | None = None) -> tuple[Path, Exported]:
        if (kind, quantize) not in made:
            folder = tmp_path_factory.mktemp(kind)
            examples = Examples(obs=observations(3, seed=9), instructions=[ENV.tasks[i % 2] for i in range(3)])
            made[kind, quantize] = folder, policy.export(kind, folder, "fp32", examples, {"quantize": quantize})
        return made[kind, quantize]

    return get


@pytest.fixture(scope="module")
def programs(folders: Folders) -> Callable[..., Any]:
    """Exported policies, bound to the env."""
    read: dict[tuple[str, str | None], Any] = {}

    def get(kind: str, quantize: str | None = None) -> Any:
        if (kind, quantize) not in read:
            folder, _ = folders(kind, quantize)
            read[kind, quantize] = build_exported(model_path=str(folder), trust=kind == "aoti")
        read[kind, quantize].bind(ENV)
        return read[kind, quantize]

    return get


def answers(policy: Any, obs: Mapping[str, np.ndarray], texts: list[str], sampling: Sampling) -> Mapping[str, Any]:
    rows = len(texts)
    noise = torch.rand(rows, *policy.spec.noise.shape, generator=torch.Generator().manual_seed(rows))
    told = {name: torch.from_numpy(values) for name, values in obs.items()}
    return policy.act({**told, **policy.encode_instructions(texts)}, noise, sampling).fields


def check_equal(policy: Any, exported: Any, rows: int, texts: list[str]) -> None:
    obs = observations(rows, seed=rows)
    for sampling in (GREEDY, SAMPLED):
        wanted, found = (answers(one, obs, texts, sampling) for one in (policy, exported))
        assert torch.equal(found["action_tokens"], wanted["action_tokens"])
        assert found["action_tokens"].dtype == torch.int32
        assert torch.equal(found["actions"], wanted["actions"])
        assert (found["logprobs"] - wanted["logprobs"]).abs().max() <= 1e-4
    assert found["logprobs"].std() > 0.01


SLOW_COMPILER = pytest.param("aoti", marks=pytest.mark.slow)  # minutes of g++


@pytest.mark.parametrize("kind", [*QUICK, SLOW_COMPILER])
def test_a_program_answers_as_the_policy(kind, policy, folders, programs):
    (_, exported), program = folders(kind), programs(kind)
    for rows in (1, 3, 8):
        check_equal(policy, program, rows, [ENV.tasks[row % 2] for row in range(rows)])
    new = "push the red cup off the table, then come back to where you began"  # longer than every task
    check_equal(policy, program, 2, [new, ENV.tasks[1]])
    assert "actions differ by at most 0, log-probs by at most " in exported.notes[0]
    assert "3 observations" in exported.notes[0]
    assert dict(exported.model) == {"_target_": "embodied.models.exported.build_policy", "model_path": "."}
    program.bind(replace(ENV, tasks=(new,), num_init_states=(1,)))  # other tasks are fine


def test_the_policy_is_as_it_was(policy, folders):
    """Tracing leaves no stand-ins for tensors behind, and adapters stay adapters."""
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    folders("torch_export")
    after = policy.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert type(answers(policy, observations(2), [*ENV.tasks], GREEDY)["actions"]) is torch.Tensor
    assert any(p.requires_grad for p in policy.parameters())
    records = {name: torch.from_numpy(values) for name, values in observations(2).items()}
    records |= policy.encode_instructions([*ENV.tasks])
    records |= policy.act(records, torch.rand(2, 56), SAMPLED).fields
    policy.evaluate(records, SAMPLED).logprobs.sum().backward()
    policy.zero_grad()


def test_greedy_and_sampled_rows_share_a_call(policy, programs):
    """Each row has its own flag and temperature, so that a server may batch unlike requests."""
    program = programs("torch_export")
    functions = program._program[0]._run._functions
    functions.clear()
    obs, texts = observations(3), [ENV.tasks[0]] * 3
    noise = torch.rand(3, 56, generator=torch.Generator().manual_seed(0))
    seen = {name: torch.from_numpy(values) for name, values in obs.items()}
    told = program.encode_instructions(texts)
    inputs = {
        "images": seen["images"], "prompt": told["prompt_ids"], "present": told["prompt_present"], "noise": noise,
        "greedy": torch.tensor([True, False, False]), "temperature": torch.tensor([1.0, 1.0, 3.0]),
        "state": seen["state"],
    }  # fmt: skip
    found = program._program[0](inputs)
    assert [*functions] == [None], "functions are made when they are needed"
    own = {**seen, **policy.encode_instructions(texts)}
    for row, sampling in enumerate((GREEDY, Sampling(), Sampling(temperature=3.0))):
        wanted = policy.act({name: v[row : row + 1] for name, v in own.items()}, noise[row : row + 1], sampling).fields
        assert torch.equal(found["action_tokens"][row], wanted["action_tokens"][0])
        torch.testing.assert_close(found["logprobs"][row], wanted["logprobs"][0], atol=1e-4, rtol=0)
    for greedy in (True, False):  # a call of one kind has a function of its own, which computes the same bits
        same = inputs | {"greedy": torch.full((3,), greedy)}
        row = 0 if greedy else 1
        alone = program._program[0](same)
        assert all(torch.equal(alone[name][row], found[name][row]) for name in found)


def test_a_call_of_a_program_runs_hardly_any_python(programs):
    """Weights are no attributes to be looked up, and sizes no expressions: thousands of calls in torch's own module."""
    program = programs("torch_export")
    obs = {name: torch.from_numpy(values) for name, values in observations(1).items()}
    obs |= program.encode_instructions([ENV.tasks[0]])
    program.act(obs, torch.rand(1, 56), GREEDY)  # the first call generates its function
    called: list[str] = []
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
    try:
        program.act(obs, torch.rand(1, 56), GREEDY)
    finally:
        sys.setprofile(None)
    assert len(called) < 200, called


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"images": torch.zeros(3, 2, 64, 72, 3, dtype=torch.uint8)}, "'images' has 64 along axis 2, not 72"),
        ({"images": torch.zeros(3, 2, 72, 72, 3)}, "'images' is torch.float32"),
        ({"noise": torch.zeros(2, 56)}, "'noise' has 2 along axis 0, another input 3"),
        ({"prompt": torch.zeros(3, 3, dtype=torch.int64)}, "'prompt' has 3 along axis 1, not 4 … 48"),
        ({"more": torch.zeros(3)}, "takes 7 inputs"),
    ],
)
def test_inputs_of_another_size_are_refused(changes, said, programs):
    program = programs("torch_export")
    told = program.encode_instructions([ENV.tasks[0]] * 3)
    inputs = {
        "images": torch.from_numpy(observations(3)["images"]), "prompt": told["prompt_ids"],
        "present": told["prompt_present"], "noise": torch.zeros(3, 56), "greedy": torch.ones(3, dtype=torch.bool),
        "temperature": torch.ones(3), "state": torch.zeros(3, 8),
    }  # fmt: skip
    with pytest.raises(SpecMismatchError, match=said):
        program._program[0]({**inputs, **changes})


@pytest.mark.parametrize("kind", ["torch_export", pytest.param("onnx", marks=pytest.mark.slow)])
def test_eight_bits_are_smaller_and_say_what_they_lose(kind, policy, folders, programs):
    (folder, said), (plain, exact) = folders(kind, "int8"), folders(kind)
    assert (said.rounding, exact.rounding) == ("int8", "none")
    loss = said.measured["loss"]
    assert loss["logprobs_largest"] > loss["logprobs_mean"] > 0
    assert f"int8 weights: log-probs change by at most {loss['logprobs_largest']:.2g} nats" in said.notes[2]
    sizes = [sum(file.stat().st_size for file in one.glob("program.[op]*")) for one in (folder, plain)]
    assert sizes[0] < 0.6 * sizes[1]  # the table of tokens stays as it is
    assert f"files {sizes[0] / 1e6:.1f} MB" in said.notes[1]
    program = programs(kind, "int8")
    assert program.describe()["program"].startswith(f"{kind}, int8 weights")
    texts = [ENV.tasks[row % 2] for row in range(3)]
    wanted, found = (answers(one, observations(3, seed=9), texts, GREEDY) for one in (policy, program))
    others = int((wanted["action_tokens"] != found["action_tokens"]).sum())
    assert others == loss["other_tokens"]
    gap = (wanted["actions"] - found["actions"]).abs().max().item()
    assert gap == pytest.approx(loss["actions_largest"], abs=1e-6)


def test_an_env_that_does_not_fit_is_refused(programs):
    program = programs("torch_export")
    images, state = ArraySpec((2, 64, 64, 3), "uint8"), ArraySpec((4,), "float32")
    for changes, said in (
        ({"obs": {**ENV.obs, "images": images}}, r"made for uint8 \[2, 72, 72, 3\], the env gives uint8 \[2, 64"),
        ({"obs": {**ENV.obs, "state": state}}, r"obs\['state'\].*gives float32 \[4\]"),
        ({"obs": {"images": ENV.obs["images"]}}, r"obs\['state'\].*gives nothing"),
        ({"cameras": ("wrist", "front")}, "cameras: the program was made for .*camera0.*gives .*wrist"),
        ({"action": ContinuousAction((-1.0,) * 6, (1.0,) * 6)}, "gives 7 numbers an action .* takes 6"),
        ({"action": ContinuousAction((-2.0,) * 7, (2.0,) * 7)}, "takes 7 in"),
    ):
        with pytest.raises(SpecMismatchError, match=said):
            program.bind(replace(ENV, **changes))
    program.bind(ENV)
    with pytest.raises(SpecMismatchError, match="the program takes 48"):
        program.encode_instructions(["put " * 60])


def test_a_program_answers_and_does_not_learn(programs):
    program = programs("torch_export")
    assert [*program.parameters()] == []
    fields = answers(program, observations(1), [ENV.tasks[0]], GREEDY)
    with pytest.raises(ConfigError, match="answers and cannot be trained"):
        program.evaluate(fields, GREEDY)
    for sampling in (Sampling(top_k=5), Sampling(top_p=0.9)):
        with pytest.raises(ConfigError, match="whole distribution"):
            answers(program, observations(1), [ENV.tasks[0]], sampling)


# -- what is not exported --------------------------------------------------------------------------------------------


def test_what_cannot_be_a_program_is_refused(policy, tmp_path, monkeypatch):
    def refused(
        match: str, made: Any = policy, kind: str = "torch_export", dtype: str = "fp32", **options: Any
    ) -> None:
        with pytest.raises(ConfigError, match=match):
            made.export(kind, tmp_path, dtype, Examples(), options)

    refused("not in bf16", dtype="bf16")
    refused("Did you mean 'int8'", quantize="int9")
    refused("torch_export does not divide its weights", max_shard_size=10**9)
    serial = build_policy(decoding="autoregressive", attention="causal", num_action_chunks=1)
    refused("one after the other", serial)
    refused("not bound", build_policy())
    monkeypatch.setenv("CXX", "no-such-compiler")
    refused(r"no C\+\+ compiler 'no-such-compiler'", kind="aoti")
    monkeypatch.setattr(writer, "ONNX_PACKAGES", ("onnx", "a_package_that_is_not_there"))
    refused("needs the packages a_package_that_is_not_there", kind="onnx")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("greedy", "logp", "uniform", "found", "wanted"),
    [
        (True, [0.5, 0.3, 0.2], 0.0, 0, (0.0, 0)),
        (True, [0.5, 0.3, 0.2], 0.0, 1, (1.0, 0)),  # another token: its action is off
        (True, [0.40001, 0.39999, 0.2], 0.0, 1, (0.0, 1)),  # both are as good within the tolerance
        (False, [0.5, 0.3, 0.2], 0.80005, 1, (0.0, 1)),  # the draw fell at the border of two
        (False, [0.5, 0.3, 0.2], 0.81, 1, (1.0, 0)),
        (False, [0.5, 0.3, 0.2], 0.81, 2, (0.0, 0)),
    ],
)
def test_a_token_that_differs_is_an_error_unless_the_policy_was_undecided(greedy, logp, uniform, found, wanted):
    chosen = 0 if greedy else int(np.searchsorted(np.cumsum(logp), uniform))
    reference = Reference(torch.tensor([[100 + chosen]]), torch.tensor([[logp]]).log())
    inputs = {"greedy": torch.tensor([greedy]), "noise": torch.tensor([[uniform]])}
    meaning = torch.tensor([[[0.0, 1.0, 2.0]]])
    answers = {
        "action_tokens": torch.tensor([[100 + found]]),
        "actions": torch.tensor([[[float(found)]]]),
        "logprobs": torch.tensor([[logp[found]]]).log(),
    }
    gap = difference(reference, answers, inputs, meaning, 100, 1e-4)
    assert (gap.actions, gap.undecided) == wanted
    assert gap.logprobs < 1e-6
    for name in ("actions", "logprobs"):
        broken = difference(reference, {**answers, name: answers[name] * torch.nan}, inputs, meaning, 100, 1e-4)
        assert (broken | gap).largest == (gap | broken).largest == np.inf


@pytest.mark.slow
def test_a_policy_of_sixteen_bits_is_written_in_fp32_and_says_what_that_changes(folders, tmp_path):
    made = build_policy(**{**KEYS, "precision": "bf16"})
    made.bind(ENV)
    said = made.export("torch_export", tmp_path, "auto", Examples(), {})
    assert said.dtype == "fp32"
    assert "fp32 instead of bf16: log-probs change by at most" in said.notes[2]
    assert "4 made-up observations" in said.notes[0]
    loss = said.measured["loss"]
    assert 1e-4 < loss["logprobs_largest"] < 1
    assert said.rounding == "16 bits", "the run's"


def test_a_program_that_computes_something_else_is_not_exported(policy, folders, tmp_path, monkeypatch):
    """As if the exporter had a defect: the file that it writes holds rounded weights."""
    rounded, _ = folders("torch_export", "int8")

    def wrong(kind: str, module: Any, inputs: Any, most_tokens: int, folder: Path) -> list[str]:
        shutil.copyfile(rounded / "program.pt2", folder / "program.pt2")
        return ["program.pt2"]

    monkeypatch.setattr(exporter, "write", wrong)
    with pytest.raises(ConfigError, match=r"differs from the policy: actions by up to .* log-probs by up to"):
        policy.export("torch_export", tmp_path, "fp32", Examples(), {})
    assert not (tmp_path / "program.json").exists()


# -- folders that are damaged, or of strangers -----------------------------------------------------------------------


@pytest.fixture
def copied(folders: Folders, tmp_path: Path) -> Callable[[str], Path]:
    def copy(kind: str) -> Path:
        shutil.copytree(folders(kind)[0], tmp_path / kind)
        return tmp_path / kind

    return copy


def reseal(folder: Path, **changes: Any) -> None:
    """Change program.json as somebody would who knows its checksum."""
    from embodied.lib.files import checksums

    values = json.loads((folder / "program.json").read_text(encoding="utf-8"))
    del values["checksum"]
    values |= changes
    values["files"] = checksums(folder, values["files"])
    (folder / "program.json").write_text(json.dumps(sealed(values)), encoding="utf-8")


@pytest.mark.parametrize("kind", QUICK)
def test_damage_is_an_error_that_names_the_file(kind, copied):
    folder = copied(kind)
    names = sorted(file.name for file in folder.iterdir())
    assert len(names) == 3
    random = np.random.default_rng(0)
    for name in names:
        whole = (folder / name).read_bytes()
        flipped = bytearray(whole)
        flipped[int(random.integers(len(whole)))] ^= 0x40
        for damaged in (None, whole[: len(whole) // 2], bytes(flipped)):
            (folder / name).unlink(missing_ok=True)
            if damaged is not None:
                (folder / name).write_bytes(damaged)
            with pytest.raises(EmbodiedError, match=name):
                build_exported(model_path=str(folder))
        (folder / name).write_bytes(whole)
    with pytest.raises(CheckpointError, match="no exported program at"):
        build_exported(model_path=str(folder.parent))


@pytest.mark.parametrize("kind", QUICK)
def test_what_is_not_a_program_is_an_error_even_with_the_right_checksum(kind, copied):
    folder = copied(kind)
    program = folder / ("program.onnx" if kind == "onnx" else "program.pt2")
    whole = program.read_bytes()
    for wrong in (b"", b"nothing of the kind", whole[: len(whole) // 2]):
        program.write_bytes(wrong)
        reseal(folder)
        with pytest.raises(CheckpointError, match=program.name):
            build_exported(model_path=str(folder))
    program.write_bytes(whole)
    for changes, said in (
        ({"version": 3}, "version 3, expected 1 or 2"),
        ({"version": 2}, "KeyError: 'spec'"),
        ({"format": "tflite"}, "unknown format of a program 'tflite'"),
        ({"state_dim": -1}, "state_dim is -1"),
        ({"prompt": {}}, "bos_id"),
        ({"env": {}}, "spec"),
    ):
        before = (folder / "program.json").read_text(encoding="utf-8")
        reseal(folder, **changes)
        with pytest.raises(EmbodiedError, match=said):
            build_exported(model_path=str(folder))
        (folder / "program.json").write_text(before, encoding="utf-8")


def test_an_onnx_program_reads_no_file_outside_its_folder(copied, tmp_path):
    import onnx

    folder = copied("onnx")
    model = onnx.load(folder / "program.onnx")
    weight = max(model.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    (tmp_path / "outside").write_bytes(weight.raw_data)
    for location in ("../outside", str(tmp_path / "outside")):
        weight.ClearField("raw_data")
        del weight.external_data[:]
        weight.data_location = onnx.TensorProto.EXTERNAL
        weight.external_data.add(key="location", value=location)
        (folder / "program.onnx").write_bytes(model.SerializeToString())
        reseal(folder)
        with pytest.raises(CheckpointError, match=r"program\.onnx cannot be read"):
            build_exported(model_path=str(folder))


def test_machine_code_runs_only_for_who_trusts_it(copied):
    folder = copied("torch_export")
    reseal(folder, format="aoti")
    with pytest.raises(ConfigError, match="machine code"):
        build_exported(model_path=str(folder))


# -- by command ------------------------------------------------------------------------------------------------------

RUN = (
    "env=fake", "model=exported", "tracker=jsonl", "runner.device=cpu", "env.num_workers=1", "env.train.size=72",
    "env.eval.size=72", "env.eval.total_num_envs=2", "env.eval.episodes_per_task=1",
    "env.eval.max_episode_steps=16", "env.eval.video_cfg.save_video=false",
    "--config-dir", str(Path(__file__).parents[1] / "config"),
)  # fmt: skip


def test_the_command_evaluates_a_program_and_does_not_train_it(folders, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = f"actor.model.model_path={folders('onnx')[0]}"
    assert evaluation.main([*RUN, path, "runner.logger.log_path=run"]) == 0
    found = json.loads(Path("run/eval/000000.json").read_text(encoding="utf-8"))
    assert len(found["episodes"]) == 2
    crop = {"center_crop": True, "image_preset": "rlinf", "image_size": [64, 64], "num_images_in_input": 2}
    assert found["protocol"]["keys"]["pictures"] == crop
    assert "onnx" in capsys.readouterr().out
    assert train.main([*RUN, path, "runner.logger.log_path=other"]) == 2
    assert "cannot be trained" in capsys.readouterr().err


def test_programs_of_different_crops_are_evaluated_under_different_protocols(copied, tmp_path, monkeypatch):
    """A program prepares pictures itself, so no key of ``actor.model`` says how. Where it does otherwise than the
    protocol wants, the result says so."""
    monkeypatch.chdir(tmp_path)
    folder = copied("onnx")
    mine = {"name": "mine", "sets": {"env.eval.episodes_per_task": 1}}
    mine |= {"of_model": {"embodied.models.openvla_oft.build_policy": {"actor.model.center_crop": True}}}
    Path("protocol").mkdir()
    Path("protocol/mine.yaml").write_text(json.dumps(mine), encoding="utf-8")
    told = json.loads((folder / "program.json").read_text(encoding="utf-8"))["pictures"]

    def evaluated(name: str) -> dict[str, Any]:
        options = ["protocol=mine", f"actor.model.model_path={folder}", f"runner.logger.log_path={name}"]
        assert evaluation.main([*RUN, *options, "--config-dir", str(tmp_path)]) == 0
        return json.loads(Path(name, "eval/000000.json").read_text(encoding="utf-8"))["protocol"]

    cropped = evaluated("cropped")
    assert cropped["changed"] == {}
    reseal(folder, pictures={**told, "center_crop": False})
    whole = evaluated("whole")
    assert whole["changed"] == {"actor.model.center_crop": False}
    assert whole["hash"] != cropped["hash"]
    reseal(folder, pictures={})
    old = evaluated("old")
    assert old["changed"] == {"actor.model.center_crop": "not known"}
    assert "program.onnx" in old["keys"]["pictures"]["not recorded, program"]
    assert len({cropped["hash"], whole["hash"], old["hash"]}) == 3

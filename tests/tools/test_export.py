"""Checkpoints as folders for other programs: written by the command, read by transformers, peft and our commands."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from embodied.models.shared.files import FORMATS
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from embodied import eval as evaluation
from embodied import train
from embodied.learn.checkpoint.exported import read_export
from embodied.learn.origin import restore
from embodied.protocols import EXPORT_DTYPES, Exported
from embodied.run.evaluation.protocol import short_hash
from embodied.tools import export
from embodied.tools.library import card
from embodied.types import Sampling

COMMON = (
    "tracker=jsonl", "runner.device=cpu", "env=arithmetic", "experiment=math", "env.num_workers=1",
    "env.train.data_args={terms: [2, 2], count: 500}", "env.eval.data_args={terms: [2, 2], count: 500}",
    "env.train.total_num_envs=16", "env.eval.total_num_envs=16", "env.eval.episodes_per_task=16",
    "runner.logger.log_val_generations=16", "actor.model.max_prompt_tokens=12", "actor.model.max_new_tokens=8",
    "actor.model.precision=fp32",
)  # fmt: skip
SIZES = (
    "actor.model.override_config.hidden_size=32", "actor.model.override_config.intermediate_size=64",
    "actor.model.override_config.num_hidden_layers=2", "actor.model.override_config.num_attention_heads=2",
    "actor.model.override_config.initializer_range=0.2",
)  # fmt: skip
TRAIN = (
    "runner.max_epochs=1", "runner.val_check_interval=1", "runner.val_before_train=false", "algorithm.group_size=8",
    "env.train.reward_mode=dense", "actor.global_batch_size=16", "actor.micro_batch_size=16", "actor.optim.lr=0.02",
    "actor.lr_sched.lr_warmup_iters=0", "algorithm.adv_type=raw", "reward.use_reward_model=true",
    "reward.model._target_=stub_reward_models.Length",
)  # fmt: skip
TOKENS = torch.arange(3, 19).unsqueeze(0)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a network that was made at random, all of whose weights are trained; it exports them itself."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    own = (
        f"runner.logger.log_path={folder}", "runner.checkpoint.export_safetensors=true",
        "runner.checkpoint.upload_s3=final", f"runner.checkpoint.s3_bucket=file://{folder.parent}/store",
    )  # fmt: skip
    assert train.main([*COMMON, "model=causal_lm_tiny", *SIZES, *TRAIN, *own]) == 0
    return folder


@pytest.fixture(scope="module")
def whole(base: Path) -> Path:
    """Its folder of Hugging Face."""
    assert export.main([str(base / "checkpoints" / "000001"), "--out", str(base.parent / "hf")]) == 0
    return base.parent / "hf"


@pytest.fixture(scope="module")
def adapted(base: Path, whole: Path) -> Path:
    """A run that trains adapters on that folder."""
    folder = base.parent / "adapted"
    lora = ("model=causal_lm", f"actor.model.model_path={whole}", "actor.model.lora_rank=4")
    assert train.main([*COMMON, *lora, *TRAIN, f"runner.logger.log_path={folder}"]) == 0
    return folder


def test_a_run_exports_its_checkpoints_itself(base: Path, whole: Path) -> None:
    own = base / "exports" / "000001"
    files = {path.name for path in whole.iterdir()}
    assert {path.name for path in own.iterdir()} == files
    assert "model.safetensors" in files
    for name in files - {"README.md", "embodied.json"}:
        assert (own / name).read_bytes() == (whole / name).read_bytes(), name
    assert read_export(own).source == read_export(whole).source
    sent = base.parent / "store" / "outputs" / "whole" / "000001"
    assert {path.name: path.read_bytes() for path in sent.iterdir()} == {
        path.name: path.read_bytes() for path in own.iterdir()
    }
    assert "## Evaluation" in (own / "README.md").read_text(encoding="utf-8"), "which comes before the save"


def kept(folder: Path, number: int) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for line in (folder / "generations" / f"{number:06d}.jsonl").read_text(encoding="utf-8").splitlines()
    ]


@torch.no_grad()
def logits(network: Any) -> torch.Tensor:
    return network(input_ids=TOKENS).logits


@pytest.mark.parametrize("run", ["base", "adapted"])
def test_a_folder_answers_as_the_checkpoint_did(run, request, tmp_path, capsys):
    """Greedy answers of the run's own evaluation, and those of the folder."""
    folder = request.getfixturevalue(run)
    out = tmp_path / "hf"
    assert export.main([str(folder / "checkpoints" / "000001"), "--format", "hf", "--out", str(out)]) == 0
    assert "adapters merged" in capsys.readouterr().out
    model = ("model=causal_lm", f"actor.model.model_path={out}", "actor.model.is_lora=false")
    again = tmp_path / "eval"
    assert evaluation.main([*COMMON, *model, f"runner.logger.log_path={again}"]) == 0
    theirs, ours = kept(folder, 1), kept(again, 0)
    assert [one["response"] for one in ours] == [one["response"] for one in theirs]
    assert len({one["response"] for one in ours}) > 1
    policy, _ = restore(folder / "checkpoints" / "000001")
    network = AutoModelForCausalLM.from_pretrained(out)
    assert network.dtype == torch.float32
    records = {**policy.encode_instructions(["1+2=", "7-9="]), **told(policy, ["1+2=", "7-9="])}
    wanted = policy.evaluate(records, Sampling()).logprobs
    for row, prompt in enumerate(("1+2=", "7-9=")):
        tokens = records["tokens"][row, : int(records["length"][row])].long()
        ids = torch.cat([torch.tensor(policy.tokenizer.prompt(prompt)), tokens])
        with torch.no_grad():
            logp = network(input_ids=ids[None]).logits[0, -len(tokens) - 1 : -1].log_softmax(-1)
        assert torch.allclose(logp.gather(1, tokens[:, None])[:, 0], wanted[row, : len(tokens)], atol=1e-5)
    assert PreTrainedTokenizerFast.from_pretrained(out)("1+2=").input_ids == policy.tokenizer.prompt("1+2=")


def told(policy: Any, prompts: list[str]) -> dict[str, torch.Tensor]:
    noise = torch.zeros(len(prompts), *policy.spec.noise.shape)
    return policy.act(policy.encode_instructions(prompts), noise, Sampling(do_sample=False)).fields


def test_a_folder_of_texts_is_verified_too(base, tmp_path, capsys):
    """The same answers to the same problems, by the verifiers of the env."""
    env = [one for one in COMMON if one.startswith("env")]
    given = [str(base / "checkpoints" / "000001"), "--out", str(tmp_path / "hf")]
    assert export.main([*given, "--verify", *env, "experiment=math", "episodes=6"]) == 0
    assert "verified: env=arithmetic" in capsys.readouterr().out
    found = json.loads((tmp_path / "hf" / "verified.json").read_text(encoding="utf-8"))
    assert (found["verified"], found["episodes"], found["agreement"]["observations"]) == (True, 6, 6)
    held_to = json.loads((base / "eval" / "000001.json").read_text(encoding="utf-8"))["protocol"]
    assert held_to["keys"]["episodes_per_task"] == 16
    hashed = short_hash({**held_to["keys"], "episodes_per_task": 6})
    assert found["protocol"] == {"name": None, "hash": hashed}, "of the episodes that were verified"
    assert f"protocol of no name ({hashed})" in (tmp_path / "hf" / "README.md").read_text(encoding="utf-8")
    assert read_export(tmp_path / "hf").rounding == "none"


def test_weights_of_a_checkpoint_come_back_equal(base, whole):
    policy, _ = restore(base / "checkpoints" / "000001")
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(whole)), logits(reference(policy)))


def reference(policy: Any) -> Any:
    """The policy's network, as transformers runs it."""
    network = AutoModelForCausalLM.from_config(policy.network.config, attn_implementation="sdpa")
    network.load_state_dict(policy.network.state_dict())
    return network.eval()


def test_sixteen_bits_are_written_with_what_they_cost(adapted, tmp_path, capsys):
    checkpoint = adapted / "checkpoints" / "000001"
    assert export.main([str(checkpoint), "--out", str(tmp_path / "bf16"), "--dtype", "bf16"]) == 0
    out = capsys.readouterr().out
    found = re.search(r"rounding the merged weights to bfloat16 changes log-probs by at most (\S+) nats", out)
    assert found is not None
    state = load_file(tmp_path / "bf16" / "model.safetensors")
    assert {tensor.dtype for tensor in state.values()} == {torch.bfloat16}
    assert json.loads((tmp_path / "bf16" / "config.json").read_text(encoding="utf-8"))["dtype"] == "bfloat16"
    assert read_export(tmp_path / "bf16").rounding == "16 bits"
    # What it says is so: the same answers under the weights that were written.
    policy, _ = restore(checkpoint)
    prompts = list(dict.fromkeys(one["prompt"] for one in kept(adapted, 1)))[:8]
    records = {**policy.encode_instructions(prompts), **told(policy, prompts)}
    rounded = AutoModelForCausalLM.from_pretrained(tmp_path / "bf16", dtype=torch.float32)
    change = 0.0
    for row, wanted in enumerate(policy.evaluate(records, Sampling()).logprobs.detach()):
        tokens = records["tokens"][row, : int(records["length"][row])].long()
        ids = torch.cat([records["prompt_ids"][row, : int(records["prompt_length"][row])].long(), tokens])
        with torch.no_grad():
            logp = rounded(input_ids=ids[None]).logits[0, -len(tokens) - 1 : -1].log_softmax(-1)
        change = max(change, (logp.gather(1, tokens[:, None])[:, 0] - wanted[: len(tokens)]).abs().max().item())
    assert change > 1e-4
    assert float(found[1]) == pytest.approx(change, rel=0.06, abs=1e-4)  # two digits are said
    assert export.main([str(checkpoint), "--out", str(tmp_path / "fp16"), "--dtype", "fp16"]) == 0
    finer = re.search(r"at most (\S+) nats", capsys.readouterr().out)
    assert float(finer[1]) < float(found[1])
    assert "changes log-probs" in (tmp_path / "bf16" / "README.md").read_text(encoding="utf-8")


def test_adapters_alone_are_a_folder_of_peft(adapted, whole, tmp_path):
    checkpoint = adapted / "checkpoints" / "000001"
    assert export.main([str(checkpoint), "--format", "adapter", "--out", str(tmp_path / "lora")]) == 0
    network = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(whole), tmp_path / "lora")
    policy, _ = restore(checkpoint)
    prompt = policy.tokenizer.prompt("1+2=")
    fields = told(policy, ["1+2="])
    tokens = fields["tokens"][0, : int(fields["length"][0])].long()
    with torch.no_grad():
        logp = network(input_ids=torch.cat([torch.tensor(prompt), tokens])[None]).logits[0, len(prompt) - 1 : -1]
    found = logp.log_softmax(-1).gather(1, tokens[:, None])[:, 0]
    assert torch.allclose(found, fields["logprobs"][0, : len(tokens)], atol=1e-5)
    said = json.loads((tmp_path / "lora" / "adapter_config.json").read_text(encoding="utf-8"))
    assert said["base_model_name_or_path"] == str(whole)
    names = load_file(tmp_path / "lora" / "adapter_model.safetensors")
    assert max(tensor.abs().max().item() for name, tensor in names.items() if "lora_B" in name) > 0


def test_the_card_tells_where_it_comes_from_and_how_good_it_is(adapted, tmp_path):
    checkpoint = adapted / "checkpoints" / "000001"
    assert export.main([str(checkpoint), "--out", str(tmp_path / "hf")]) == 0
    _, head, card = (tmp_path / "hf" / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    assert yaml.safe_load(head)["library_name"] == "transformers"
    assert "# adapted" in card
    assert "weights after 1 iterations" in card
    found = json.loads((adapted / "eval" / "000001.json").read_text(encoding="utf-8"))["tasks"][-1]
    assert f"| all tasks | {found['successes']}/16 ({found['success_rate']:.1%}) |" in card
    assert "do_sample False" in card
    assert re.search(r"Protocol of no name `[0-9a-f]{12}`\n", card)
    assert "| simulator | renderer Pillow |" in card
    code = re.search(r"```python\n(.*?)```", card, re.DOTALL)
    exec(code[1], names := {})
    assert names["model"].config.hidden_size == 32


def test_a_checkpoint_without_an_evaluation_has_no_table(adapted, tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    checkpoint = tmp_path / "run" / "checkpoints" / "000001"
    checkpoint.symlink_to(adapted / "checkpoints" / "000001")
    moved = tmp_path / "moved" / "checkpoints" / "000001"
    moved.mkdir(parents=True)
    for file in checkpoint.iterdir():
        (moved / file.name).write_bytes(file.read_bytes())
    assert export.prompts_of(moved) == []
    assert export.main([str(moved), "--out", str(tmp_path / "hf"), "--dtype", "bf16"]) == 0
    card = (tmp_path / "hf" / "README.md").read_text(encoding="utf-8")
    assert card.rstrip().endswith("## Evaluation\n\nNot evaluated.")
    assert "of 3 greedy answers" in card  # prompts of its own


def test_an_evaluation_of_its_own_run_goes_on_the_card(base, adapted, tmp_path, capsys):
    """By what the evaluated checkpoint holds, wherever it lay; of other weights it is refused."""
    first, other = base / "checkpoints" / "000001", adapted / "checkpoints" / "000001"
    copy = tmp_path / "copy" / "checkpoints" / "000001"
    shutil.copytree(first, copy)
    again = tmp_path / "judged"
    model = ("model=causal_lm_tiny", *SIZES, f"runner.ckpt_path={copy}", "env.eval.episodes_per_task=5")
    assert evaluation.main([*COMMON, *model, f"runner.logger.log_path={again}"]) == 0
    out = tmp_path / "hf"
    assert export.main([str(first), "--out", str(out), "--evaluation", str(again), "--observations", "0"]) == 0
    card = (out / "README.md").read_text(encoding="utf-8")
    own, found = (
        json.loads(file.read_text(encoding="utf-8")) for file in (base / "eval/000001.json", again / "eval/000000.json")
    )
    assert found["protocol"]["hash"] != own["protocol"]["hash"]
    before, _, judged = card.partition("## Evaluation judged")
    assert f"Protocol of no name `{own['protocol']['hash']}`" in before
    assert f"Protocol of no name `{found['protocol']['hash']}`" in judged
    row = found["tasks"][-1]
    assert f"| all tasks | {row['successes']}/5 ({row['success_rate']:.1%}) |" in judged
    capsys.readouterr()
    for checkpoint, name, said in (
        (other, again, f"{again} is of other weights: of {copy} as it was"),
        (first, adapted, f"{adapted} does not say of which checkpoint it is, only: {adapted} after 1 iterations"),
        (first, tmp_path / "nothing", "there is no"),
    ):
        options = [str(checkpoint), "--out", str(tmp_path / "refused"), "--evaluation", str(name)]
        assert export.main(options) == 2
        error = capsys.readouterr().err
        assert said in error
        assert "fix:" in error
    assert not (tmp_path / "refused").exists()
    file = again / "eval/000000.json"
    file.write_text(
        json.dumps({**found, "checkpoint": {**found["checkpoint"], "model_path": "elsewhere"}}), encoding="utf-8"
    )
    assert export.main([str(first), "--out", str(tmp_path / "refused"), "--evaluation", str(again)]) == 2
    assert "is of another network below these weights: actor.model.model_path was elsewhere" in capsys.readouterr().err


def test_the_card_says_how_long_episodes_were_and_which_could_not_be_run(tmp_path):
    row = {"instruction": "a | b", "successes": 1, "episodes": 2, "success_rate": 0.5, "low": 0.1, "high": 0.9,
           "steps_mean": 31.4, "steps_to_success": None, "not_run": 0}  # fmt: skip
    found = {
        "tasks": [row, {**row, "instruction": "all tasks", "steps_to_success": 20.0, "not_run": 3}],
        "conditions": {"max_steps": 40, "sampling": {"do_sample": False}},
    }
    said = card.card(tmp_path / "run" / "checkpoints" / "1", Told(), Exported("x", "y"), tmp_path, [("", found)])
    assert "| task | success | 95 % interval | mean length | to success, median | not run |" in said
    assert "| a \\| b | 1/2 (50.0%) | 10.0% to 90.0% | 31 |  | 0 |" in said
    assert "| all tasks | 1/2 (50.0%) | 10.0% to 90.0% | 31 | 20 | 3 |" in said
    assert "3 planned episodes were not run, and count neither as success nor as failure." in said
    found["conditions"]["sampling"] = {"max_new_tokens": 8}
    said = card.card(tmp_path / "run" / "checkpoints" / "1", Told(), Exported("x", "y"), tmp_path, [("", found)])
    assert "mean length" not in said


class Told:
    """What a card tells of a checkpoint."""

    iteration, steps, weight_version, policy = 1, 0, 1, {}


def test_what_cannot_be_written_is_refused(base, adapted, tmp_path, capsys):
    def said(*argv: str) -> str:
        assert export.main([*argv]) == 2
        return capsys.readouterr().err

    whole, lora = str(base / "checkpoints" / "000001"), str(adapted / "checkpoints" / "000001")
    out = str(tmp_path / "out")
    assert "no checkpoint at" in said(str(tmp_path), "--out", out)
    assert f"e.g. {lora}\n" in said(str(adapted / "checkpoints" / "01"), "--out", out)
    for newest in (adapted, adapted / "checkpoints"):
        assert "adapters are written in fp32" in said(
            str(newest), "--out", out, "--format", "adapter", "--dtype", "bf16"
        )
    assert "the policy has no adapters" in said(whole, "--out", out, "--format", "adapter")
    assert "unknown format of CausalLMPolicy 'gguf'" in said(whole, "--out", out, "--format", "gguf")
    assert "Did you mean 'bf16'" in said(whole, "--out", out, "--dtype", "bf61")
    assert "adapters are written in fp32" in said(lora, "--out", out, "--format", "adapter", "--dtype", "bf16")
    assert (*FORMATS, "auto") == EXPORT_DTYPES
    divided = said(lora, "--out", out, "--format", "adapter", "--shard-size", "1GB")
    assert "--shard-size of 1000000000 bytes: format adapter does not divide" in divided
    assert "is not empty" in said(whole, "--out", str(base))
    assert not (tmp_path / "out").exists()
    assert not [*tmp_path.iterdir()], "nothing half written stays"


def test_a_policy_that_offers_no_format_is_refused_by_name(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = ("--config-dir", str(Path(__file__).parents[1] / "config"))
    options = ("env=fake_text", "model=fake_text", "tracker=jsonl", "env.num_workers=1", "runner.max_epochs=1")
    assert train.main([*options, "runner.experiment_name=run", "runner.device=cpu", *folders]) == 0
    checkpoint = next(Path("runs/run/checkpoints").iterdir())
    assert export.main([str(checkpoint), "--out", "out"]) == 2
    assert "FakeTextPolicy cannot be exported: it offers no format" in capsys.readouterr().err

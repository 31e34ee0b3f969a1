"""``python -m embodied.tools.export CHECKPOINT --format hf --out DIR``: writes a checkpoint for other programs.

    runs/NAME/checkpoints/000100 ─▶ restore ─▶ policy.export ─▶ DIR, with a model card (README.md) and embodied.json
                                       │           ▲             └─▶ --verify: evaluates what was written
                                       └─ a few observations of its env

Which formats there are the policy says (:class:`embodied.protocols.Exports`). The card has the checkpoint's evaluation,
if its run made one after the same iteration, and those that ``--evaluation`` names. The folder appears when it is
whole.
What needs torch is imported when it is used, so that ``--help`` answers at once.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embodied.cli import piped
from embodied.errors import CheckpointError, ConfigError, EmbodiedError, printed, unknown_name
from embodied.evaluation.provenance import NOTED, export_note
from embodied.instructions import of_messages
from embodied.lib import hidden
from embodied.lib.files import EXPORT_FILE
from embodied.lib.spec_json import to_json
from embodied.lib.weights_folder import find
from embodied.observe.terminal.console import Console, make_console
from embodied.protocols import EXPORT_DTYPES, QUANTIZATIONS, Examples, Exported, Exports, Policy
from embodied.tools.library.card import card, evaluations_of, run_of, verification
from embodied.types import EnvSpec

if TYPE_CHECKING:
    from embodied.export.verify import Verdict, VerifyRequest
    from embodied.learn.checkpoint.exported import ExportFile
    from embodied.learn.checkpoint.metadata import Meta

VERIFIED = "verified.json"
UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, 1 if ``--verify`` found that the export is another policy, 2 after an explained
    error."""
    given = _arguments().parse_args(verify_last(sys.argv[1:] if argv is None else argv))
    try:
        return _carry_out(given, make_console())
    except EmbodiedError as error:
        print(printed(error), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m embodied.tools.export", description="Write a checkpoint for other programs."
    )
    parser.add_argument(
        "checkpoint", help="a checkpoint's folder (runs/NAME/checkpoints/000100), or a run's: its newest"
    )
    parser.add_argument("--out", required=True, help="folder to write: new, or empty")
    parser.add_argument("--format", default="hf", help="what to write; the policy says what there is (default: hf)")
    parser.add_argument(
        "--dtype", default="fp32", help="of the tensors: fp32, bf16, fp16, or auto = bf16 if it loses little (fp32)"
    )
    parser.add_argument("--shard-size", help="of a file of weights at most, e.g. 500MB (default: 5GB)")
    parser.add_argument("--quantize", help="int8: weights of eight bits, for formats that have them")
    parser.add_argument(
        "--observations", type=int, default=8, help="of the checkpoint's env, to measure on; 0 = none (default: 8)"
    )
    parser.add_argument("--device", default="cpu", help="where the policy is put meanwhile (default: cpu)")
    parser.add_argument(
        "--evaluation", action="append", default=[], metavar="EVAL",
        help="for the model card: an evaluation of this checkpoint (runs/NAME or its file, as for compare); one of "
        "other weights is refused; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--verify", nargs="+", metavar="KEY=VALUE",
        help="evaluate what was written beside the checkpoint, e.g. --verify env=libero_spatial episodes=4",
    )  # fmt: skip
    parser.add_argument(
        "--base", metavar="URL", help="of a head: server of the policy that it changes, e.g. ws://127.0.0.1:8000"
    )
    parser.add_argument("--config-dir", action="append", default=[], help="folder with more group files, for --verify")
    return parser


def verify_last(argv: Sequence[str]) -> list[str]:
    """Moves ``--verify`` and the words after it to the end of the arguments, so that other options may
    stand among them.

    >>> verify_last(["--verify", "env=reach", "--out", "D", "episodes=4", "CHECKPOINT"])
    ['--out', 'D', 'CHECKPOINT', '--verify', 'env=reach', 'episodes=4']
    """
    if "--verify" not in argv:
        return list(argv)
    others, words = list[str](), list[str]()
    rest = iter(argv)
    for one in rest:
        if one == "--verify":
            continue
        if one.startswith("-"):
            others += [one, *([] if "=" in one or one in ("-h", "--help") else [*islice(rest, 1)])]
        else:
            (words if "=" in one and not Path(one).is_dir() else others).append(one)
    return [*others, "--verify", *words]


def _carry_out(given: argparse.Namespace, console: Console) -> int:
    out = Path(given.out)
    if given.dtype not in EXPORT_DTYPES:
        raise unknown_name("dtype", given.dtype, EXPORT_DTYPES, "--dtype")
    if given.quantize not in (None, *QUANTIZATIONS):
        raise unknown_name("quantisation", given.quantize, QUANTIZATIONS, "--quantize")
    size = None if given.shard_size is None else _bytes(given.shard_size)
    options = {"max_shard_size": size, "quantize": given.quantize}
    evaluation: AbstractContextManager[VerifyRequest | None] = nullcontext()
    if given.verify:
        from embodied.export.verify import verify_request

        evaluation = verify_request(given.verify, given.config_dir)
    with evaluation as wanted:
        checkpoint = _checkpoint(given.checkpoint)
        lines = run(
            checkpoint, given.format, out, given.dtype, given.device, given.observations, options, console,
            given.evaluation, given.base,
        )  # fmt: skip
        print(*lines, sep="\n")
        wanted = None if wanted is None else replace(wanted, base=given.base)
        return 0 if wanted is None else _verified(checkpoint, out, wanted, console, given.device)


def _checkpoint(word: str) -> Path:
    """Finds the folder of the checkpoint that a word names. Raises :class:`CheckpointError` for an export."""
    named = find(word)
    if named.is_export:
        raise CheckpointError(f"{word} is an export already", "name the checkpoint that it was written from")
    return named.folder


def _verified(checkpoint: Path, out: Path, wanted: VerifyRequest, console: Console, device: str) -> int:
    """Evaluates what was written; returns the exit status."""
    from embodied.export.verify import verify

    verdict = verify(checkpoint, out, wanted, console, device)
    add_verdict(out, verdict)
    print(*verdict.lines, sep="\n")
    if not verdict.verified and verdict.differ:
        console.table("episodes that differ", verdict.table)
    return 0 if verdict.verified else 1


def _bytes(text: str) -> int:
    """``500MB`` → 500,000,000."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMG]?B|)", text.upper())
    if found is None or not (size := int(float(found[1]) * UNITS.get(found[2], 1))):
        raise ConfigError(f"--shard-size {text}: expected a size in bytes, KB, MB or GB", "give e.g. --shard-size 5GB")
    return size


def run(
    checkpoint: Path, kind: str, out: Path, dtype: str = "fp32", device: str = "cpu", observations: int = 0,
    options: dict[str, Any] | None = None, console: Console | None = None, evaluations: Sequence[str] = (),
    base: str | None = None,
) -> list[str]:  # fmt: skip
    """Exports a checkpoint's policy into ``out`` in the format ``kind``; returns lines to print.

    Args:
        observations: how many of the checkpoint's env are taken to measure on.
        options: as :meth:`embodied.protocols.Exports.export` takes them.
        evaluations: of the checkpoint, for the card.
        base: address of the server of the policy that the checkpoint's head changes.

    Raises:
        CheckpointError: there is no checkpoint, or ``out`` holds files already.
        ConfigError: the policy cannot be exported so.
        EvaluationError: an evaluation is not of this checkpoint.
    """
    console = console or make_console()
    with console.progress("importing torch", brief=True):
        from embodied.learn.checkpoint.exported import with_files
        from embodied.learn.checkpoint.metadata import read_meta
        from embodied.learn.origin import restore
        from embodied.learn.step.device import device_named
        from embodied.parallel.modes import without_dropout
        from embodied.serving.loading import named_base

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CheckpointError(f"{out} is not empty", "give a new folder in --out; nothing is overwritten")
    device_named(device, "--device")
    meta = read_meta(checkpoint)
    results = evaluations_of(checkpoint, meta, evaluations)
    with console.progress("loading the checkpoint", brief=True):
        policy, env = restore(checkpoint, device, named_base(checkpoint, base))
    if not isinstance(policy, Exports):
        raise ConfigError(
            f"{type(policy).__name__} cannot be exported: it offers no format",
            f"serve the checkpoint as it is (python -m embodied.tools.serve {checkpoint}), or give the policy's class "
            "export_formats and export() (embodied.protocols.Exports)",
        )
    if kind not in policy.export_formats:
        raise unknown_name(f"format of {type(policy).__name__}", kind, policy.export_formats, "--format")
    examples, why = examples_of(checkpoint, meta, policy, observations, device, console)
    part = out.absolute().with_name(f".{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        with console.progress("writing the export", brief=True):
            with without_dropout(policy):
                written = policy.export(kind, part, dtype, examples, options or {})
            written = replace(written, notes=(*written.notes, *why))
            (part / "README.md").write_text(card(checkpoint, meta, written, out, results), encoding="utf-8")
            facts = facts_of(checkpoint, kind, meta, written, policy, env)
            (part / EXPORT_FILE).write_text(json.dumps(with_files(facts, part), indent=1) + "\n", encoding="utf-8")
        if out.exists():
            out.rmdir()
        part.rename(out)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return [f"{out}: {policy.export_formats[kind]}, {written.dtype}", *written.notes]


def facts_of(
    checkpoint: Path, kind: str, meta: Meta, exported: Exported, policy: Policy, env: EnvSpec
) -> ExportFile:  # fmt: skip
    """Makes the content of ``embodied.json`` for an export."""
    from embodied.learn.checkpoint.exported import ExportFile
    from embodied.run.evaluation import seen
    from embodied.schema.compose.brought import sections

    source: dict[str, Any] = {"checkpoint": str(checkpoint), "run": run_of(checkpoint).name}
    source |= {"iteration": meta.iteration, "steps": meta.steps, "weight_version": meta.weight_version}
    source[NOTED], source[seen.NOTED] = export_note(checkpoint), list(map(asdict, seen.of_checkpoint(checkpoint)))
    with suppress(CheckpointError):  # a configuration that cannot be read is no part of the weights
        if (configured := sections.read_config(run_of(checkpoint))) is not None:
            source[sections.NOTED] = hidden.in_value("", configured)
    printed = {"num_action_chunks": policy.spec.num_action_chunks, "describe": dict(policy.describe())}
    return ExportFile(
        kind, exported.dtype, to_json(env), printed, dict(exported.model), source, dict(exported.measured),
        exported.rounding,
    )  # fmt: skip


def examples_of(
    checkpoint: Path, meta: Meta, policy: Policy, count: int, device: str, console: Console
) -> tuple[Examples, list[str]]:  # fmt: skip
    """Collects observations or prompts on which an export measures its loss; and says why there are no observations, if
    there are none."""
    import torch

    from embodied.export.observations import observe
    from embodied.learn.origin import origin_of
    from embodied.run.build.action_kind import kind_of

    prompts, origin = prompts_of(checkpoint), origin_of(checkpoint, meta)
    if kind_of(origin.env).from_rows:
        return Examples(prompts), []
    if count <= 0:
        return Examples(prompts), ["no observations were asked for (--observations 0)"]
    try:
        with console.progress("taking observations of the env", brief=True):
            return replace(observe(origin, policy, count, torch.device(device), console.say), prompts=prompts), []
    except EmbodiedError as error:
        return Examples(prompts), [f"nothing could be measured on observations of the env: {error.message}"]


def prompts_of(checkpoint: Path) -> list[str]:
    """Returns prompts of the latest evaluation whose texts the checkpoint's run has kept (``generations/``); none if it
    kept none."""
    files = sorted((run_of(checkpoint) / "generations").glob("*.jsonl"))
    rows = [json.loads(line) for line in files[-1].read_text(encoding="utf-8").splitlines()] if files else []
    prompts = [row["prompt"] if isinstance(row["prompt"], str) else of_messages(row["prompt"]) for row in rows]
    return [*dict.fromkeys(prompts)]


def add_verdict(out: Path, verdict: Verdict) -> None:
    """Writes the result of ``--verify`` into ``verified.json`` and the card."""
    (out / VERIFIED).write_text(json.dumps(verdict.as_json(), indent=1) + "\n", encoding="utf-8")
    file = out / "README.md"
    file.write_text(
        file.read_text(encoding="utf-8") + "\n" + verification(verdict.lines, verdict.table) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    sys.exit(piped(main))

"""Description of a program, in the file ``program.json`` of its folder.

    program.json       this file
    program.onnx       the program; program.pt2 of torch.export and AOTInductor
    program.onnx.data  its weights, where they are too large for one file
    tokenizer.json     of the prompt

Checksums of the other files stand in program.json, so that damage is found before anything reads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from embodied.errors import CheckpointError, SpecMismatchError, unknown_name
from embodied.lib.files import check_checksums, check_folder, check_seal, checksums, inside, read_json, reading, sealed
from embodied.lib.spec_json import from_json, to_json
from embodied.types import EnvSpec, PolicySpec

from ..files import write_json
from . import spec
from .spec import of_tokens

FILE, TOKENIZER = "program.json", "tokenizer.json"
TOKENS, VERSION = 1, 2  # of a program of action tokens; of any other, which says what it decides
# Format → the files that it may have beside program.json and the tokenizer.
FORMATS: Mapping[str, tuple[str, ...]] = {
    "torch_export": ("program.pt2",),
    "onnx": ("program.onnx", "program.onnx.data"),
    "aoti": ("program.pt2",),
}
# Inputs in their order, each with the names of its first axes. ``state`` is there if the policy reads it.
INPUTS: Mapping[str, tuple[str, ...]] = {
    "images": ("batch",),  # uint8 [B, C, H, W, 3], as the env gives them
    "prompt": ("batch", "length"),  # int64 [B, L], token ids: BOS, padding, text
    "present": ("batch", "length"),  # bool [B, L], False at padding
    "noise": ("batch",),  # float32 [B, …] as Facts.spec declares it
    "greedy": ("batch",),  # bool [B]: read the part of the noise that a greedy decision reads
    "temperature": ("batch",),  # float32 [B], above 0
    "state": ("batch",),  # float32 [B, S]
}
# Of a program of action tokens: actions float32 [B, K, A] in the env's units, tokens int32 [B, T], log-probs float32
# [B, T] in nats
OUTPUTS = ("actions", "action_tokens", "logprobs")


@dataclass(frozen=True)
class PromptFacts:
    """How an instruction becomes the ids of a prompt (:class:`..prompts.PromptIds`)."""

    template: str  # prompt with {} for the instruction
    lower: bool  # True: the instruction is put in lower case
    bos_id: int
    last_id: int
    pad_id: int
    max_tokens: int  # most tokens of a prompt
    whole: bool = False  # the tokenizer itself adds what begins and ends a prompt, and padding stands at its end

    def text(self, instruction: str) -> str:
        """Returns the prompt's text for an instruction. A line that ends already is not ended twice."""
        if self.whole and self.template.endswith("\n"):
            instruction = instruction.removesuffix("\n")
        return self.template.replace("{}", instruction.lower() if self.lower else instruction)


@dataclass(frozen=True)
class Facts:
    """Content of ``program.json``, which describes an exported program."""

    format: str  # a key of FORMATS
    env: EnvSpec  # the env that the policy was bound to
    prompt: PromptFacts
    num_images: int  # cameras read, the env's first
    state_dim: int  # S, or 0 if the program has no input "state"
    num_action_chunks: int  # K
    action_dim: int  # A
    first_token: int = 0  # id of the first action token
    categories: int = 0  # action tokens
    quantize: str | None = None  # "int8", or None
    policy: Mapping[str, str] = field(default_factory=dict)  # the exported policy's description of itself
    pictures: Mapping[str, Any] = field(default_factory=dict)  # preparation of pictures; empty in older folders
    measured: Mapping[str, Any] = field(default_factory=dict)  # errors against the policy, and what quantising loses
    files: Mapping[str, str] = field(default_factory=dict)  # name → checksum
    declared: PolicySpec | None = None  # decision, elements and noise; None: one token for each number of the actions
    # of a policy that names it: how decisions are drawn, "greedy" and "sampled" (embodied.protocols.NamesSampler)
    sampler: Mapping[str, Any] = field(default_factory=dict)

    @property
    def spec(self) -> PolicySpec:
        """What the program decides, and the noise that it takes."""
        return self.declared or of_tokens(self.num_action_chunks, self.action_dim, self.categories)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the program's outputs in their order."""
        return OUTPUTS if self.declared is None else tuple(self.declared.decision)

    @property
    def inputs(self) -> list[str]:
        """Names of the program's inputs in their order."""
        return [name for name in INPUTS if name != "state" or self.state_dim]

    def write(self, folder: Path, names: Sequence[str]) -> None:
        """Write program.json beside the files ``names``."""
        values = {**asdict(self), "env": to_json(self.env), "files": checksums(folder, names)}
        del values["declared"]
        if self.declared is None:
            del values["sampler"], values["prompt"]["whole"]
        else:
            values["spec"] = spec.to_json(self.declared)
        write_json(folder / FILE, sealed({"version": TOKENS if self.declared is None else VERSION, **values}))


def read(folder: Path) -> Facts:
    """Read program.json and compare the folder's files with it.

    Raises:
        CheckpointError: there is no program, it is of another version, or something is damaged.
    """
    if not (folder / FILE).is_file():
        raise CheckpointError(
            f"no exported program at {folder} (no {FILE})",
            "set actor.model.model_path to a folder that embodied.tools.export has written as torch_export, onnx or "
            "aoti",
        )
    check_folder(folder)
    path = inside(folder, FILE)
    data = check_seal(path, read_json(path))
    if (version := data.get("version")) not in (TOKENS, VERSION):
        raise CheckpointError(
            f"{path} has version {version!r}, expected {TOKENS} or {VERSION}",
            "read it with the version of embodied that wrote it, or export the checkpoint again",
        )
    with reading(path):
        facts = _facts(data)
    if facts.format not in FORMATS:
        raise unknown_name("format of a program", facts.format, FORMATS, f"format in {path}")
    with reading(path, "it lists other files than a program has"):
        if not {FORMATS[facts.format][0], TOKENIZER} <= {*facts.files} <= {*FORMATS[facts.format], TOKENIZER}:
            raise ValueError(", ".join(facts.files))
    check_checksums(folder, facts.files)
    return facts


def _facts(data: Mapping[str, Any]) -> Facts:
    prompt, quantize = data["prompt"], data["quantize"]
    counts = ("num_images", "state_dim", "num_action_chunks", "action_dim", "first_token", "categories")
    ids = {name: _is(prompt, name, int) for name in ("bos_id", "last_id", "pad_id", "max_tokens")}
    try:
        env = from_json(data["env"])
    except SpecMismatchError as error:
        raise ValueError(error.message) from error
    return Facts(
        format=_is(data, "format", str),
        env=env,
        prompt=PromptFacts(
            _is(prompt, "template", str),
            _is(prompt, "lower", bool),
            **ids,
            whole=_is({"whole": False, **prompt}, "whole", bool),
        ),
        **{name: _is(data, name, int) for name in counts},
        quantize=None if quantize is None else _is(data, "quantize", str),
        policy={str(name): str(fact) for name, fact in _is(data, "policy", dict).items()},
        pictures=_is({"pictures": {}, **data}, "pictures", dict),
        measured=_is(data, "measured", dict),
        files=_is(data, "files", dict),
        declared=None if data["version"] == TOKENS else spec.from_json(data["spec"], env),
        sampler=_is({"sampler": {}, **data}, "sampler", dict),
    )


def _is(data: Mapping[str, Any], name: str, kind: type) -> Any:
    """The value under ``name``. Raises TypeError if it is of another type, ValueError if it is below 0."""
    value = data[name]
    if type(value) is not kind:
        raise TypeError(f"{name} is {value!r}, expected {kind.__name__}")
    if isinstance(value, int) and value < 0:
        raise ValueError(f"{name} is {value}, expected 0 or more")
    return value

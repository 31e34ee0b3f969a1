"""Origins of the values of a configuration: ``--cfg=origin`` prints them, and a run keeps them in ``origins.json``.

A :class:`Trail` notes what happens while a configuration is composed; :mod:`embodied.schema.compose.origin_trace` makes
the :class:`Origins` of its values from it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from embodied.lib import hidden
from embodied.lib.whole import write_whole
from embodied.schema.keys.paths import at, leaves
from embodied.schema.others.hub_cache import PATH
from embodied.schema.others.tables import find, joined
from embodied.schema.rules.aliases import BACKEND, SAID

if TYPE_CHECKING:
    from embodied.lib.weights_folder import Named
    from embodied.schema.keys.config import Config
    from embodied.schema.others.systems import Normalised
    from embodied.schema.rules.derivation import Derivation

FILE = "origins.json"
Kind = Literal["default", "file", "command line", "derived", "translated", "protocol", "checkpoint"]
_WORDS: Mapping[Kind, str] = {
    "default": "default of ", "file": "", "command line": "command line: ", "derived": "derived",
    "translated": "translated from ", "protocol": "protocol ", "checkpoint": "checkpoint ",
}  # fmt: skip


@dataclass(frozen=True)
class Origin:
    """Where one configuration value comes from: a file, the command line, a default, or other keys."""

    kind: Kind
    text: str = ""  # class, file and line, words of the command line, name of a protocol or of systems
    keys: tuple[str, ...] = ()  # those of whose values it is made

    @property
    def words(self) -> str:
        """The origin in words, without the origins of ``keys``."""
        if self.kind == "translated" and self.keys:
            return f"translated from {joined(self.keys)} of {self.text}"
        if self.kind == "derived":
            return f"derived from {joined(self.keys)}"
        return f"{_WORDS[self.kind]}{self.text}"


@dataclass
class Trail:
    """Record of the steps in which a configuration was composed. Each step adds to it."""

    config_name: str
    config_dirs: tuple[str, ...]
    overrides: tuple[str, ...]
    checkpoint: Named | None = None  # what the command line says of one
    expanded: list[str] = field(default_factory=list)  # the same in hydra's own grammar
    choices: Mapping[str, str] = field(default_factory=dict)  # group → its file
    sources: Sequence[Mapping[str, str]] = ()  # folders and packages in which hydra has looked for files
    protocol: list[str] | None = None  # overrides by which the protocol was read apart from the rest
    steps: dict[str, Origin] = field(default_factory=dict)  # origins of values that composition itself sets
    left_out: dict[str, str] = field(default_factory=dict)  # key → why it is not in the configuration as it was set

    def note(self, origins: Mapping[str, Origin]) -> None:
        """Notes values that a step has set."""
        self.steps.update(origins)

    def note_normalised(self, normal: Normalised) -> None:
        """Notes keys that were dropped in translation, and a folder in place of a model's hub name."""
        self.left_out |= dict.fromkeys(normal.silent, "its value says nothing, so the default stays")
        self.left_out |= dict.fromkeys(normal.no_ops, "accepted and left out: its value asks for nothing here")
        if normal.hub_name is not None:
            self.note({PATH: Origin("translated", f"{normal.hub_name}, its name on the Hugging Face hub")})

    def note_derived(self, derivation: Derivation, before: Config, after: Config) -> None:
        """Notes the values that were derived from others and have changed."""
        if not derivation.values:
            return
        old, new = (config.model_dump(by_alias=True, mode="json") for config in (before, after))
        for key, sources in derivation.sources.items():
            if at(old, key) == at(new, key):
                continue
            aliases = [name for name in sources if name in SAID or name == BACKEND]
            systems = joined(list(dict.fromkeys(row.name for name in aliases for row in find(name))))
            origin = Origin("translated", systems or "other systems", sources)
            self.note({key: origin if aliases else Origin("derived", "", sources)})


@dataclass(frozen=True)
class Origins:
    """The origin of each value of a configuration, and which keys were set and left out."""

    of: Mapping[str, Origin]
    left_out: Mapping[str, str]

    def describe(self, key: str) -> str:
        """Returns the origin of a value in words, with the origins of the values that it is made of."""
        origin = self._origin(key)
        others = [f"{source}: {self.of[source].words}" for source in origin.keys if source in self.of]
        before = [origin.text] if origin.kind == "derived" and origin.text else []
        return "; ".join([origin.words, *others, *before])

    def lines(self, resolved: Mapping[str, Any], below: str = "") -> Iterator[str]:
        """Yields a line for each value, without secrets: ``KEY: VALUE  # ORIGIN``.

        Args:
            below: a section, or one key; "" = all.
        """
        for leaf, whole in leaves("", resolved):
            for key, value in [(leaf, whole), *self._elements(leaf, whole)]:
                if not below or key == below or key.startswith(f"{below}."):
                    yield f"{key}: {self._shown(key, value)}  # {self.describe(key)}"
        for key, why in self.left_out.items():
            if not below or key == below or key.startswith(f"{below}."):
                yield f"# {key}: {why}"

    def _origin(self, key: str) -> Origin:
        return self.of.get(key, Origin("file", "not noted"))

    def _elements(self, key: str, value: Any) -> Iterator[tuple[str, Any]]:
        """Elements of a list that have an origin of their own."""
        if isinstance(value, Sequence) and not isinstance(value, str):
            names = (f"{key}.{place}" for place in range(len(value)))
            yield from ((name, element) for name, element in zip(names, value, strict=True) if name in self.of)

    def _shown(self, key: str, value: Any) -> str:
        secret = value not in (None, "", False) and self._is_of_secret(key, set())
        return json.dumps(hidden.HIDDEN if secret else hidden.in_value(key, value), ensure_ascii=False)

    def _is_of_secret(self, key: str, seen: set[str]) -> bool:
        """Whether a value, or one that it is made of in whatever many steps, is a secret."""
        if hidden.is_secret(key) or key in seen:
            return hidden.is_secret(key)
        seen.add(key)
        return any(self._is_of_secret(source, seen) for source in self._origin(key).keys)

    def begun_with(self, checkpoint: Path) -> Origins:
        """Returns the origins of a run that begins with a checkpoint of a run before it."""
        return Origins({**self.of, "runner.ckpt_path": Origin("checkpoint", str(checkpoint))}, self.left_out)

    def write(self, run: Path) -> None:
        """Writes the origins into the folder of a run, in place of those of an earlier start."""
        write_whole(run / FILE, json.dumps(asdict(self), ensure_ascii=False, indent=1) + "\n")


def read(run: Path) -> Origins | None:
    """Reads the origins that a run has written; None if there are none, or they cannot be read."""
    try:
        plain = json.loads((run / FILE).read_text(encoding="utf-8"))
        of = {key: Origin(saved["kind"], saved["text"], tuple(saved["keys"])) for key, saved in plain["of"].items()}
        known = all(one.kind in _WORDS and all(isinstance(key, str) for key in one.keys) for one in of.values())
        return Origins(of, dict(plain["left_out"])) if known else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None

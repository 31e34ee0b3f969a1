"""``python -m embodied.tools.docs``: writes the pages and the schema that are generated from code (``make docs``)."""

from __future__ import annotations

import ast
import json
import re
import sys
from itertools import groupby
from pathlib import Path

from embodied.cli import piped
from embodied.observe import metrics
from embodied.report.time_to_success import rows
from embodied.schema.compose.of_hydra import OF_HYDRA
from embodied.schema.others.accepted_no_ops import NoOp, no_ops
from embodied.schema.others.key_table import Key, keys
from embodied.schema.others.tables import names_elsewhere
from embodied.tools.library.models_page import page as page_of_models

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
INTERPOLATION = re.compile(r"(\$\{[^}]*\})")
ROLE = re.compile(r":(?:class|func|meth|mod|data|attr|exc):")


def configuration() -> str:
    """Makes ``docs/configuration.md``: every key of the schema."""
    parts = [
        "# Configuration keys",
        "",
        "Generated from `embodied/schema/` by `make docs`. Set a key on the command line (`runner.max_epochs=20`) or "
        "in a YAML file of a group (`config/`, or a folder of yours with `--config-dir`). `python -m embodied.train … "
        "--cfg` prints all values of a run. A key that is not listed is refused. Names of choices are taken in any "
        "case: `GRPO` is `grpo`.",
        "",
        "`--cfg=origin` prints where each value comes from, too: the default of a class, a file and its line, the "
        "command line, the keys that it is derived from, a name of another system, a protocol, or a checkpoint. A run "
        "keeps this in `origins.json`, and `embodied explain KEY --run runs/NAME` says it of a key, a section or the "
        "end of a key. Secrets are not shown.",
        "",
        "Under `env.train`, `env.eval`, `actor.model` and `reward.model` there are also the keyword arguments of the "
        "class that `_target_` names; its docstring says what they mean (`embodied.envs.libero.LiberoEnv`, "
        "`embodied.models.openvla_oft.build_policy`).",
        "",
        "*Elsewhere* says which keys of RLinf, verl, SimpleVLA-RL, ROLL, Cosmos-RL and TRL a key answers, where they "
        "have another name. Keys of theirs with the same name are not repeated. [Files](migrate.md) can be translated.",
        "",
    ]
    for section, inner in groupby(keys(), lambda key: key.section):
        rows = [_row(key) for key in inner]
        parts += [f"## {section}", "", "| key | type | default | meaning |", "|---|---|---|---|", *rows, ""]
    rows = [
        f"| `{key}` | {_in_cell(kind)} | {default} | {'`'.join(INTERPOLATION.split(meaning))} |"  # else it is a formula
        for key, (kind, default, meaning) in OF_HYDRA.items()
    ]
    parts += [
        "## hydra",
        "",
        "Of Hydra's own keys these are taken. Those of its launcher are refused, because it is not used.",
        "",
        "| key | type | default | meaning |",
        "|---|---|---|---|",
        *rows,
        "",
    ]
    rows = [f"| `{key}` | {_values(neutral)} | {_sentence(neutral)} |" for key, neutral in no_ops().items()]
    parts += [
        "## Keys of machinery that is not there",
        "",
        "These keys of RLinf, verl, ROLL and Cosmos-RL are taken with a value that asks for nothing, or for what is "
        "always so. Another value is refused with the reason. Keys under `actor.model` stand here for models that do "
        "not take them themselves.",
        "",
        "| key | may be | why nothing else |",
        "|---|---|---|",
        *rows,
        "",
    ]
    return "\n".join(parts)


def _values(neutral: NoOp) -> str:
    return ", ".join(f"`{json.dumps(value)}`" for value in (None, *neutral.values))


def _sentence(neutral: NoOp) -> str:
    return f"{neutral.why[:1].upper()}{neutral.why[1:]}." + (f" Instead, {neutral.fix}." if neutral.fix else "")


def metrics_page() -> str:
    """Makes ``docs/metrics.md``: every metric that can be logged."""
    head = "# Metrics\n\nGenerated from `embodied/observe/metrics.py` by `make docs`. Nothing else is ever logged.\n\n"
    return head + metrics.markdown()


def files_page() -> str:
    """Makes ``docs/files.md``: the first sentence of each module's docstring, by folder."""
    parts = [
        "# Files",
        "",
        "Generated from the docstrings of the modules by `make docs`. [Architecture](architecture.md) says which rooms "
        "there are and how they depend on each other.",
        "",
    ]
    files = sorted((path for top in ("embodied", "envs", "models") for path in (ROOT / top).rglob("*.py")), key=_place)
    for folder, inner in groupby(files, lambda path: path.parent):
        rows = [f"| `{path.name}` | {sentence} |" for path in inner if (sentence := _first_sentence(path))]
        if rows:
            heading = folder.relative_to(ROOT).as_posix()
            parts += [f"## {heading}", "", "| file | holds |", "|---|---|", *rows, ""]
    return "\n".join(parts)


def _place(path: Path) -> tuple[str, str]:
    return path.parent.as_posix(), path.name


def _first_sentence(path: Path) -> str:
    """Returns the first sentence of a module's docstring as Markdown for a cell; empty without a docstring."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    sentence = re.split(r"(?<=[^.]\.) (?=[A-Z`*])", paragraph)[0]
    return ROLE.sub("", sentence).replace("``", "`").replace("|", "\\|")


def models_page() -> str:
    """Makes ``docs/models.md``: each ``model=`` with its sizes and keys."""
    return page_of_models(ROOT / "benchmarks" / "results" / "models.json")


PAGES = {
    "configuration.md": configuration, "metrics.md": metrics_page, "files.md": files_page, "models.md": models_page,
}  # fmt: skip


def _row(key: Key) -> str:
    return f"| `{key.name}` | {_in_cell(key.type)} | {key.default} | {key.meaning}{_elsewhere(key.name)} |"


def _in_cell(kind: str) -> str:
    return kind.replace("|", "\\|")


def _elsewhere(key: str) -> str:
    """The names that other systems have for a key, on a line of their own."""
    names = names_elsewhere(key)
    told = "; ".join(f"{system} {', '.join(f'`{one}`' for one in keys)}" for system, keys in names.items())
    return f"<br>*Elsewhere:* {told}" if told else ""


def main() -> int:
    """Writes the pages; returns the exit status."""
    DOCS.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")
        print(f"wrote {DOCS / name}")
    rows.SCHEMA.write_text(rows.schema(), encoding="utf-8")
    print(f"wrote {rows.SCHEMA}")
    return 0


if __name__ == "__main__":
    sys.exit(piped(main))

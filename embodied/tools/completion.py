"""``embodied completion bash|zsh|fish``: prints the script with which a shell completes ``embodied …``.

    source <(embodied completion bash)      in ~/.bashrc; zsh alike
    embodied completion fish | source       in ~/.config/fish/config.fish

The script asks ``embodied completion --line TEXT`` what may follow: verbs, choices of groups (``env=libero_10``), keys,
runs and checkpoints in ``runs/``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from importlib import resources
from itertools import chain
from pathlib import Path

from embodied.cli import VERBS, piped

BASH = """\
_embodied() {
  local line=${COMP_LINE:0:$COMP_POINT} word found
  word=${line##* }
  COMPREPLY=()
  while IFS= read -r found; do COMPREPLY+=("$found"); done < <(embodied completion --line "$line" 2>/dev/null)
  [ ${#COMPREPLY[@]} -gt 0 ] || return 0
  # Where = parts words, the shell takes only what stands behind it.
  if [[ ${COMP_WORDBREAKS-} == *=* && $word == *=* ]]; then COMPREPLY=("${COMPREPLY[@]#*=}"); fi
  case ${COMPREPLY[0]} in *=) compopt -o nospace 2>/dev/null;; esac
}
complete -o default -F _embodied embodied
"""
RUNS = "runs"
SCRIPTS = {
    "bash": BASH,
    "zsh": "autoload -U +X compinit bashcompinit && compinit && bashcompinit\n" + BASH,
    "fish": "complete -c embodied -a '(embodied completion --line (commandline -cp))'\n",
}


def candidates(line: str) -> list[str]:
    """Lists completions for the last word of a command line, sorted.

    >>> candidates("embodied tra")
    ['train']
    """
    words = line.split(" ")
    last, before = words[-1], [word for word in words[1:-1] if word]
    if len(words) < 2:
        return []
    if not before:
        found: Iterator[str] = iter(VERBS)
    elif before[0] in VERBS and VERBS[before[0]].composed:
        key, given, _ = last.partition("=")
        found = _checkpoints(f"{key}=") if given and key == "runner.ckpt_path" else _overrides(last)
        if before[0] == "play" and last:
            found = chain(found, _checkpoints())
    elif before[0] in ("compare", "report", "watch"):
        found = _runs()
    elif before[0] in ("export", "serve"):
        found = _checkpoints()
    elif before[0] == "explain":
        from embodied.tools.explain import entries

        found = (entry.name for entry in entries())
    else:
        found = iter(SCRIPTS) if before == ["completion"] else iter(())
    return sorted(one for one in set(found) if one.startswith(last))


def _runs() -> Iterator[str]:
    """Yields folders of runs, below the folder in which they lie unless ``runner.output_dir`` is another."""
    return (str(file.parent) for file in Path(RUNS).glob("*/config.yaml"))


def _checkpoints(before: str = "") -> Iterator[str]:
    """Yields folders of complete checkpoints, with ``before`` before each."""
    return (f"{before}{file.parent}" for file in Path(RUNS).glob("*/checkpoints/*/meta.json"))


def _overrides(word: str) -> Iterator[str]:
    groups = {entry.name for entry in resources.files("embodied.config").iterdir() if entry.is_dir()} - {"__pycache__"}
    name, chosen, _ = word.partition("=")
    group = name.lstrip("+")
    if chosen and group in groups:
        files = (entry.name for entry in resources.files("embodied.config").joinpath(group).iterdir())
        yield from (f"{name}={file.removesuffix('.yaml')}" for file in files if file.endswith(".yaml"))
    elif not chosen:
        yield from (f"+{one}=" if one == "perturb" else f"{one}=" for one in groups)
        if word:  # all of them together would hide the groups
            from embodied.schema.compose.of_hydra import OF_HYDRA
            from embodied.schema.others.key_table import keys

            yield from (f"{name}=" for name in (*(key.name for key in keys()), *OF_HYDRA))


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a script, or what completes a line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="embodied completion", description="Print the completion script of a shell.")
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("shell", nargs="?", choices=sorted(SCRIPTS), help="which shell")
    asked.add_argument("--line", metavar="TEXT", help="print what may follow this line (the scripts ask it)")
    given = parser.parse_args(argv)
    print(SCRIPTS[given.shell] if given.line is None else "\n".join(candidates(given.line)), end="")
    if given.line is not None:
        print()
    return 0


if __name__ == "__main__":
    sys.exit(piped(main))

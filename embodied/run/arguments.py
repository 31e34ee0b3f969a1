"""Parses the command line: overrides and options. Imports nothing slow, so that ``--help`` answers at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from embodied.errors import ConfigError, did_you_mean
from embodied.lib.weights_folder import TRUST_KEY, as_override

PrintOnly = Literal[False, True, "origin"]
"""Whether values are printed alone, and whether with their origins."""

USAGE = """usage: python -m embodied.{entry} [CHECKPOINT] [GROUP=NAME ...] [KEY=VALUE ...]

  python -m embodied.train env=libero_10                    train with the small embedded policy
  python -m embodied.train env=libero_10 runner.dry_run=true   check everything, print the derived numbers
  python -m embodied.train runs/NAME algorithm=ppo          go on from a checkpoint, as a new run
  python -m embodied.eval runs/NAME protocol=openvla_oft    evaluate its newest checkpoint
  python -m embodied.tools.demos env=NAME episodes=200      demonstrations by the env's expert, into demos/NAME
  python -m embodied.sft env=NAME data=demos/NAME           learn from demonstrations

CHECKPOINT: runs/NAME/checkpoints/000004, runs/NAME (its newest), or an exported folder. It brings its model with its
  cameras, chunk and state, and the env and the protocol of its run; what else is on the command line wins, and one
  table says what then differs. runner.ckpt_path=FOLDER takes the weights alone.
groups: env, model, algorithm, runtime, tracker, experiment; +perturb=robot perturbs episodes (docs/robustness.md);
  protocol=openvla_oft (simplevla_rl, rlinf, held_out) evaluates by fixed rules (docs/evaluation.md)
  --cfg             print the composed configuration and exit
  --cfg=origin      print where each of its values comes from, too, without secrets
  --config-dir DIR  look for group files in DIR too (DIR/env/my_task.yaml → env=my_task)
  --trust           CHECKPOINT is your own: it may name code that is not of this library
  --base URL        of a head: server of the policy that it changes (actor.model.base.url)
  --help            this text
keys: docs/configuration.md
"""


def parse_argv(argv: Sequence[str], entry: str) -> tuple[list[str], list[str], PrintOnly]:
    """Returns ``(overrides, config_dirs, print_only)``; prints the usage and exits for ``--help``.

    Args:
        entry: the command's name after ``python -m embodied.``.

    Raises:
        ConfigError: an option is unknown, or a folder does not exist.
    """
    overrides: list[str] = []
    folders: list[str] = []
    print_only: PrintOnly = False
    arguments = iter(argv)
    for argument in arguments:
        if argument in ("-h", "--help"):
            print(USAGE.format(entry=entry))
            raise SystemExit(0)
        if argument == "--cfg":
            print_only = print_only or True
        elif argument == "--cfg=origin":
            print_only = "origin"
        elif argument == "--config-dir":
            folders.append(next(arguments, None) or "(nothing)")
        elif argument.startswith("--config-dir="):
            folders.append(argument.partition("=")[2] or "(nothing)")
        elif argument == "--trust":
            overrides.append(f"{TRUST_KEY}=true")
        elif argument == "--base" or argument.startswith("--base="):
            url = argument.partition("=")[2] or next(arguments, None) or "(nothing)"
            overrides.append(f"actor.model.base.url={url}")
        elif argument.startswith("-"):
            raise _unknown_option(argument)
        else:
            overrides.append(as_override(argument))
    return overrides, _existing(folders), print_only


def _unknown_option(argument: str) -> ConfigError:
    from embodied.schema.keys.groups import GROUPS

    name, equals, value = argument.lstrip("-").partition("=")
    near = did_you_mean(argument, ["--help", "--cfg", "--config-dir", "--trust", "--base"])
    if name in ("config-name", "cn"):
        fix = f"choose a file by its group, without --: experiment={value or 'NAME'}; its folder by --config-dir DIR"
    elif not near and (equals or "." in name or name in GROUPS):
        fix = f"write {name}={value or 'VALUE'}, without --"
    else:
        fix = "run with --help"
    return ConfigError(f"unknown option '{argument}'.{near}", fix)


def _existing(folders: list[str]) -> list[str]:
    found = [Path(folder).expanduser() for folder in folders]
    for folder in found:
        if not folder.is_dir():
            raise ConfigError(
                f"--config-dir: no folder '{folder}'", "give a folder that holds env/, model/ … with YAML files"
            )
    return [str(folder) for folder in found]

"""The groups of the configuration, and the files that each has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from embodied.errors import ConfigError, did_you_mean

GROUPS = ("env", "model", "algorithm", "runtime", "tracker", "experiment", "perturb", "protocol")


def group_options(group: str, folders: Sequence[str] = ()) -> list[str]:
    """Lists the names of the files of a config group, e.g. ``env`` → libero_10; ``folders`` as in :func:`compose`."""
    import embodied.config

    roots = [*embodied.config.__path__, *folders]
    return sorted({path.stem for root in roots for path in (Path(root) / group).glob("*.yaml")})


def check_names(folders: Sequence[str]) -> None:
    """Refuses group files that would not be read, because one of that name in the package or an earlier folder is.

    Raises:
        ConfigError: there are some, and they hold something else.
    """
    import embodied.config

    first: dict[tuple[str, str], Path] = {}
    packaged = list(map(Path, embodied.config.__path__))
    for root in (*packaged, *map(Path, folders)):
        for group in GROUPS:
            for file in sorted((root / group).glob("*.yaml")):
                read = first.setdefault((group, file.name), file)
                if read is file or read.read_bytes() == file.read_bytes():
                    continue
                name = f"my_{file.stem}"
                whose = "the package's file of that name" if read.parents[1] in packaged else read
                raise ConfigError(
                    f"{file} would not be read: {whose} comes first",
                    f"give it another name, e.g. {file.with_stem(name)}, and choose {group}={name}",
                )


def wrong_choice(override: str, folders: Sequence[str]) -> ConfigError | None:
    """Returns the error about an override's group, or about the file that it names; None if both are there."""
    key, _, value = override.lstrip("+~").partition("=")
    group = key.split("@")[0]
    if "." in group or group == "hydra":
        return None
    if group not in GROUPS:
        hint = did_you_mean(group, GROUPS)
        return ConfigError(f"unknown group or section '{group}'.{hint}", f"groups: {', '.join(GROUPS)}")
    options = group_options(group, folders)
    if value in ("", *options):
        return None
    hint = did_you_mean(value, options)
    return ConfigError(f"unknown {group} '{value}'.{hint}", f"set {group}= to one of: {', '.join(options)}")

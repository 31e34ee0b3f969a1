"""Refuses uploads that cannot work: without a place, without exports, or with a secret in the address."""

from __future__ import annotations

from embodied.errors import ConfigError
from embodied.schema.keys.sections.checkpoint import CheckpointConfig

PLACES = {"upload_hf": "hf_repo_name", "upload_s3": "s3_bucket"}
_SECTION = "runner.checkpoint"


def check_uploads(checkpoint: CheckpointConfig) -> None:
    """Refuses uploads that cannot work. Raises :class:`ConfigError` with the key to set."""
    for switch, place in PLACES.items():
        given = getattr(checkpoint, place)
        if given is not None and _has_password(given):
            raise ConfigError(
                f"{_SECTION}.{place} has a name and a password, which would be written into files and commands",
                "leave them out, and give them in the variables of the service (AWS_ACCESS_KEY_ID, …)",
            )
        if not getattr(checkpoint, switch):
            continue
        if given is None:
            raise ConfigError(
                f"{_SECTION}.{switch} is set, and {_SECTION}.{place} is not", f"set {_SECTION}.{place}=NAME"
            )
        if not checkpoint.export_safetensors:
            raise ConfigError(
                f"{_SECTION}.{switch} is set, and {_SECTION}.export_safetensors is false: exports are what is sent",
                f"set {_SECTION}.export_safetensors=true",
            )


def _has_password(place: str) -> bool:
    """Returns whether an address has a password, as ``s3://NAME:PASSWORD@BUCKET`` or without ``s3://``. A name alone is
    none (``sftp://NAME@HOST``, ``abfs://CONTAINER@ACCOUNT``)."""
    rest = place.rpartition("://")[2]
    return ":" in rest.rpartition("@")[0] and not rest.startswith("/")

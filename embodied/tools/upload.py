"""``python -m embodied.tools.upload FOLDER --to hf://NAME/REPOSITORY``: sends an exported folder elsewhere.

    hf://NAME/REPOSITORY              the Hugging Face hub (``HF_ENDPOINT``): the folder's files are one commit
    s3://BUCKET/PREFIX, any fsspec URL  a folder there

A run does so itself with ``runner.checkpoint.upload_hf`` and ``upload_s3``. Tokens and keys are those of the libraries
(``HF_TOKEN``, ``hf auth login``, ``AWS_…``), and are left out of what is said.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from embodied.cli import piped
from embodied.errors import ConfigError, EmbodiedError, UploadError, printed
from embodied.lib.hidden import in_text, without_environment

HUB = "hf://"
SILENT_S = 300.0  # time limit for an answer of the hub, whose client waits without end
OBJECTS = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss", "oci", "r2"}
"""Stores without folders. Asked for one, their clients make a bucket."""


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, or 2 after an explained error."""
    parser = argparse.ArgumentParser(
        "python -m embodied.tools.upload", description="Send an exported folder elsewhere."
    )
    parser.add_argument("folder", help="what was exported, e.g. runs/NAME/exports/000100")
    parser.add_argument(
        "--to", required=True, help="hf://NAME/REPOSITORY, s3://BUCKET/PREFIX, or another URL of fsspec"
    )
    given = parser.parse_args(argv)
    try:
        print(in_text(upload(Path(given.folder), given.to)))
        return 0
    except EmbodiedError as error:
        print(without_environment(in_text(printed(error)), _token(given.to)), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130


def upload(folder: Path, to: str) -> str:
    """Uploads a folder to ``to`` (a hub or a store); returns its address there.

    Raises:
        ConfigError: there is no such folder, or it is empty.
        UploadError: it could not be sent.
    """
    if not any(folder.glob("*")):
        raise ConfigError(f"{folder} is no folder, or has nothing in it", "give what embodied.tools.export has written")
    try:
        return _to_hub(folder, to.removeprefix(HUB)) if to.startswith(HUB) else _to_store(folder, to)
    except Exception as error:  # each service has its own, and all are reported
        said = " ".join(str(error).split()) or type(error).__name__
        raise UploadError(f"{to}: {said}", _remedy(to, error)) from error


def _to_hub(folder: Path, repository: str) -> str:
    """One commit. A repository that is not there yet is made, and nobody else can see it."""
    from huggingface_hub import HfApi, get_session
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    get_session().timeout = SILENT_S
    api = HfApi()
    made = api.create_repo(repository, exist_ok=True, private=True)
    message = f"{folder.parent.parent.name} {folder.name}".strip()
    return api.upload_folder(repo_id=made.repo_id, folder_path=folder, commit_message=message).commit_url


def _token(to: str) -> str | None:
    """What the hub was asked with, which may be that of ``hf auth login``; None for another place."""
    if not to.startswith(HUB):
        return None
    from huggingface_hub import get_token

    return get_token()


def _to_store(folder: Path, to: str) -> str:
    from fsspec.core import url_to_fs

    store, root = url_to_fs(to)
    kinds = {store.protocol} if isinstance(store.protocol, str) else {*store.protocol}
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        target = f"{root.rstrip('/')}/{file.relative_to(folder).as_posix()}"
        if not kinds & OBJECTS:
            store.makedirs(target.rpartition("/")[0], exist_ok=True)
        store.put_file(str(file), target)
    return to


def _remedy(to: str, error: Exception) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, ImportError):
        return "pip install 'embodied-rl[s3]', or fsspec's package for this kind of address"
    if to.startswith(HUB) and status in (None, 401, 403):
        return "give HF_TOKEN a token that may write (or hf auth login), and look at HF_ENDPOINT if it is set"
    if to.startswith("s3"):
        return "look at the bucket's name, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, and AWS_ENDPOINT_URL if it is set"
    return "look at the address, and whether the service can be reached; then give the command again"


if __name__ == "__main__":
    sys.exit(piped(main))

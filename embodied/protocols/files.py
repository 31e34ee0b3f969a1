"""What an env may say of the files that it plays from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable


@runtime_checkable
class KnowsFiles(Protocol):
    """Interface of an env whose tasks stand in files of the machine. A worker on a machine with other ones is then
    refused, although its tasks have the same instructions."""

    def file_digests(self) -> Mapping[str, str]:
        """Returns name of a file, such that a person finds it → digest of what it says, equal wherever numbers are.
        Called once in the launching process and once in each worker, before ``prepare``: takes milliseconds."""
        ...

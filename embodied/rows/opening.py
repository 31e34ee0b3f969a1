"""Opens rows, whatever their source is."""

from __future__ import annotations

from embodied.rows.files import SourceFile, SourceFolder, SourceName
from embodied.rows.formats import Rows, open_rows
from embodied.rows.hub import WHOLE, HubRows, Part


def open_source(source: SourceFile, part: Part = WHOLE) -> Rows:
    """Opens the rows of a file, a folder or a hub data set that :func:`embodied.rows.hub.source_of` has resolved.

    Raises:
        DatasetError: it is not of its format, or cannot be read.
        AssetsMissingError: a package is not installed.
    """
    return HubRows(source, part) if isinstance(source, SourceFolder | SourceName) else open_rows(source)

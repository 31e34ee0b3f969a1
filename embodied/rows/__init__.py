"""Rows of data sets, by number: files, data sets of Hugging Face, and data sets that a user has written.

| file | what it does |
|---|---|
| ``opening.py`` | finds out what a name means, and opens it |
| ``formats.py``, ``offsets.py`` | .jsonl, .json, .csv and .parquet files |
| ``hub.py`` | data sets of Hugging Face, from a folder or by name |
| ``custom.py`` | ``path/to/file.py:Name`` and ``package.module:Name`` |
| ``files.py`` | the state of a file that was indexed, and what is kept about it in the cache folder |

Env workers read problems with it, and the launcher demonstrations. It knows neither of the two.
"""

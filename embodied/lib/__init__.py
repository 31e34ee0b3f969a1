"""Tools that know neither tasks nor networks, which every room may use.

| file | holds |
|---|---|
| ``cache.py`` | the cache folder of this machine, and who of several processes fills it |
| ``child.py`` | programs that are started, watched and ended with all that they started |
| ``files.py`` | folders that come from elsewhere: which files may be read, and whether they were changed |
| ``hidden.py`` | which values are secrets |
| ``spec_json.py`` | an env's spec as JSON, and back |
| ``targets.py`` | the import of a dotted path |
| ``whole.py`` | files that are whole or not there |
"""

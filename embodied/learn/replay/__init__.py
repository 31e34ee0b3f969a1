"""Records that were trained on and stay, for off-policy learning. It knows numpy alone.

| file | what it does |
|---|---|
| ``ring.py`` | keeps the last records in files, and returns to what a checkpoint knew |
| ``segments.py`` | files of a fixed number of records each, read and written without mapping them |
| ``header.py`` | what a folder of records says of itself |
| ``sampling.py`` | which records a batch takes, as a function of seed and step |
"""

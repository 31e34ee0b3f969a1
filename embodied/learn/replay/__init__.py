"""Records that were trained on and stay, for off-policy learning. It does not know torch.

| file | what it does |
|---|---|
| ``ring.py`` | keeps the last records in files, and returns to what a checkpoint knew |
| ``segments.py`` | files of a fixed number of records each, read and written without mapping them |
| ``header.py`` | what a folder of records says of itself |
| ``opening.py`` | what is checked before a folder is used |
| ``sums.py`` | checks that records follow one another |
| ``sampling.py`` | which records a batch takes, as a function of seed and step |
| ``demonstrations.py`` | demonstrations as entries, and both as one memory |
"""

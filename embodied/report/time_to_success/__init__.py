"""Time to success: rows that say what a training took until an evaluation's lower bound passed 50, 70 and 85 %.

    runs' folders ─▶ evaluations.py, measure.py ─▶ rows.py: Row ─▶ text.py: tables      rows of others ─▶ rows.py: check

``schema.json`` is the JSON schema of a file of rows, made from :class:`rows.Rows`.
"""

"""What single commands compute, apart from the command line: no file here is a command.

| file | of |
|---|---|
| ``sizes.py`` | ``bench``: numbers of workers and slots from what was measured |
| ``sources.py`` | ``explain``: where a key stands in the YAML files and in the code |
| ``models_page.py`` | ``docs``: the page of models |
| ``card.py`` | ``export``: the model card of a folder |
"""

"""What a demonstration must keep, whatever file it was read from; every reader's episodes go through here.

| file | knows |
|---|---|
| ``values.py`` | lengths, dimensions and finiteness of one episode, and that all episodes of a set are alike |
| ``frames.py`` | pictures, each checked when it is decoded |
| ``survey.py`` | what a whole set looks like: ranges, constant dimensions, few values, equal episodes |
| ``stored.py`` | statistics that a data set keeps of itself, against those of its values |
"""

"""The project of notebook 12: a training script with six bugs, and the command that says whether a script is right.

`python -m course_utils.project start` copies the script; `python -m course_utils.project accept train.py` judges it.
"""

from course_utils.project.text import bigram_loss, read_words

__all__ = ["bigram_loss", "read_words"]

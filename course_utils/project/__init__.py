"""The project of notebook 12: a training script with six bugs, and a command that judges scripts.

`python -m course_utils.project start` copies the script, and `python -m course_utils.project accept
train.py` judges it.
"""

from course_utils.project.text import bigram_loss, read_words

__all__ = ["bigram_loss", "read_words"]

"""What is made from the notebooks and the facts: contents, editions for Colab, handouts, the final test."""


class PublishError(Exception):
    """Something cannot be published; the message says what is wrong and what to do."""

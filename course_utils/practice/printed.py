"""What a learner's function prints while it is judged: kept, up to a limit, and shown in a fold."""

import io

_MOST = 100_000  # characters; a loop that prints would fill the memory


class Printed(io.TextIOBase):
    """Takes what is printed; `text` is what it has kept of it."""

    def __init__(self):
        self.text = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.text += text[: _MOST - len(self.text)]
        return len(text)

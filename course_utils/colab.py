"""Self-contained editions for Colab: `python -m course_utils.colab [--out build/colab] [--notebooks NAME ...]`."""

import sys

from course_utils.publish.colab import main

if __name__ == "__main__":
    sys.exit(main())

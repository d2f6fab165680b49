"""Handouts for a workshop: `python -m course_utils.handouts`."""

import sys

from course_utils.publish.handouts.command import main

if __name__ == "__main__":
    sys.exit(main())

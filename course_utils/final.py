"""The final test in a terminal or on paper: `python -m course_utils.final --help`; in a notebook, `final_test`."""

import sys

from course_utils.publish.final import final_test, main

__all__ = ["final_test"]

if __name__ == "__main__":
    sys.exit(main())

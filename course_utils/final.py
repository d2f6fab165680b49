"""The final test on paper: `python -m course_utils.final [--seed 1] [--html]`; in a notebook, `final_test`."""

from course_utils.practice.final import final_test, main

__all__ = ["final_test"]

if __name__ == "__main__":
    main()

"""The course as the tests read it: once in each process. It is the tests' to look at, not to change."""

from course_utils.publish.facts import read_facts
from course_utils.publish.notebook import read_notebooks

NOTEBOOKS = read_notebooks()
FACTS = read_facts()

"""The course as the tests read it, once in each process: to look at, not to change."""

from notebooks import read_facts, read_notebooks

NOTEBOOKS = read_notebooks()
FACTS = read_facts()

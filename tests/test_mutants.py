"""The list of mutants fits the code: each one changes one place, and names tests that exist."""

import ast

import pytest
from mutants import MUTANTS, ROOT, file_of_tests

pytestmark = pytest.mark.slow  # a guard of the list, not of the program


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_one_place_of_the_code(mutant):
    text = (ROOT / mutant.file).read_text(encoding="utf-8")
    assert ast.dump(ast.parse(mutant.put_into(text))) != ast.dump(ast.parse(text)) and file_of_tests(mutant.tests)

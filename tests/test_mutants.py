"""The list of mutants fits the code: each one changes one place, and names tests that exist."""

import ast

import pytest
from mutants import MUTANTS, ROOT, Mutant, file_of_tests


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_one_place_of_the_code(mutant: Mutant):
    text = (ROOT / mutant.file).read_text(encoding="utf-8")
    assert text.count(mutant.old) == 1 and file_of_tests(mutant.tests)
    changed = text.replace(mutant.old, mutant.new)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))

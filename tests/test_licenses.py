"""The page of licenses: packages that need others, through extras too, their licenses, and notes on what their files name."""

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pages import ROOT, text_of

from tools import licenses
from tools.licenses import Config, closure, license_of, main, note_of, read
from utils.config import ConfigError


@pytest.fixture
def install(tmp_path: Path, monkeypatch):
    """`install(name, requires, license file, **metadata)` puts the metadata of a package where Python finds it."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name: str, requires: tuple[str, ...] = (), text: str = "", **metadata: str) -> None:
        folder = tmp_path / f"{name}-1.2.dist-info"
        folder.mkdir()
        lines = [
            "Metadata-Version: 2.1",
            f"Name: {name}",
            "Version: 1.2",
            *(f"Requires-Dist: {one}" for one in requires),
        ]
        lines += [f"{key.replace('_', '-')}: {value}" for key, value in metadata.items()]
        (folder / "METADATA").write_text("\n".join(lines), encoding="utf-8")
        (folder / "LICENSE").write_text(text, encoding="utf-8")
        (folder / "RECORD").write_text(f"{folder.name}/METADATA,,\n{folder.name}/LICENSE,,\n", encoding="utf-8")

    return write


def test_every_package_that_is_needed_is_found_and_no_other(install):
    install("thaw_a", ("thaw-b[fast]>=1", "thaw_c; python_version < '3'", "thaw_c; extra == 'more'"))
    install("thaw_b", ("thaw.d; extra == 'fast'", "thaw_c; extra == 'slow'"))
    install("thaw_c")
    install("thaw_d", ("thaw_a",))  # a circle
    found = closure([Requirement("thaw_a>=1")])
    assert found == {"thaw-a": {"thaw-d"}, "thaw-b": {"thaw-a"}, "thaw-d": {"thaw-b"}}


@pytest.mark.parametrize(
    ("metadata", "text", "expected"),
    [
        ({"License_Expression": "MIT", "License": "x"}, "", "MIT"),
        ({"License": "Apache 2.0"}, "", "Apache 2.0"),
        ({"License": "word " * 50, "Classifier": "License :: OSI Approved :: BSD License"}, "", "BSD License"),
        ({}, "\n  The Title\nand more", "The Title (title of its license file)"),
        ({}, "", "not stated"),
    ],
)
def test_the_license_is_the_clearest_statement_of_the_package(install, metadata, text, expected):
    install("thaw_a", (), text, **metadata)
    assert license_of(licenses.distribution("thaw_a")) == expected


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("GNU LESSER GENERAL PUBLIC LICENSE\n   Version 2.1", ("LGPL",)),
        ("License: GPL-3.0-or-later WITH GCC-exception-3.1", ("GPL",)),
        ("Mozilla Public License, v. 2.0.", ("MPL",)),
        ("compatible with the GNU General Public License", ()),
        ("WITHOUT LIMITATION THE EXAMPLE", ()),
    ],
)
def test_licenses_that_a_file_names_are_listed_and_wait_for_a_note(install, tmp_path, text, named):
    install("thaw_a", (), text, License="MIT")
    (tmp_path / "requirements.txt").write_text("# comment\nthaw_a>=1\n")
    (package,) = read(tmp_path / "requirements.txt")
    assert (package.name, package.version, package.license, package.named, package.direct) == (
        "thaw-a", "1.2", "MIT", named, True
    )  # fmt: skip
    page = main(Config(str(tmp_path / "requirements.txt"), str(tmp_path / "page.md")))
    assert ("not read yet" in page) == bool(named) and text_of(tmp_path / "page.md") == page


def test_errors_name_the_fix(install, tmp_path):
    with pytest.raises(ConfigError, match="correct the path"):
        read(tmp_path / "nothing.txt")
    install("thaw_a", ("thaw_missing",))
    (tmp_path / "requirements.txt").write_text("thaw_a\n")
    with pytest.raises(ConfigError, match="thaw-missing is not installed: pip install"):
        read(tmp_path / "requirements.txt")


def test_a_line_that_is_no_requirement_is_named(tmp_path):
    path = tmp_path / "requirements.txt"
    path.write_text("numpy>=1  # arrays\n\n-r other.txt\n")
    with pytest.raises(ConfigError, match=r"requirements.txt:3: '-r other.txt' cannot be read: write one package"):
        read(path)


def test_only_an_earlier_page_is_replaced(install, tmp_path):
    install("thaw_a", (), "MIT", License="MIT")
    (tmp_path / "r.txt").write_text("thaw_a # first\n")
    page = tmp_path / "new" / "page.md"
    assert main(Config(str(tmp_path / "r.txt"), str(page))) == main(Config(str(tmp_path / "r.txt"), str(page)))
    for output in (tmp_path / "r.txt", tmp_path):
        with pytest.raises(
            ConfigError, match="output=.* exists and was not written by tools.licenses: give another name"
        ):
            main(Config(str(tmp_path / "r.txt"), str(output)))
    with pytest.raises(ConfigError, match="r.txt is a file, not a folder"):
        main(Config(str(tmp_path / "r.txt"), str(tmp_path / "r.txt" / "page.md")))


def test_the_page_lists_every_requirement_and_every_flag_has_a_note():
    page = text_of(ROOT / "docs/licenses.md")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if re.match(r"\| [\w-]+ \| \d", line)]
    listed = {row[0] for row in rows}
    required = {canonicalize_name(Requirement(line).name) for line in text_of(ROOT / "requirements.txt").splitlines()}
    assert required <= listed and len(rows) == len(listed) > 40
    assert licenses.FOR_TESTS <= required
    flagged = {
        line.split(" | ")[0].strip("| ")
        for line in page.splitlines()
        if re.search(r"\| [^|]*(GPL|MPL|proprietary)[^|]*\| [^|]*\|$", line)
    }
    assert {"tqdm", "opencv-python", "numpy"} <= flagged
    assert [name for name in flagged if note_of(name) is None] == [] and "not read yet" not in page
    assert all(f"**{key}**" in page for key in licenses.NOTES)


def test_this_environment_is_read():
    packages = {package.name: package for package in read(ROOT / "requirements.txt")}
    assert packages["tqdm"].direct and "MPL" in packages["tqdm"].named
    assert not packages["packaging"].direct and "pytest" in packages["packaging"].needed_by

"""The pages: every command, constant, file and link that a page names exists, and tables of weights are those of the code."""

import ast
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from pages import ROOT, code, code_lines, lines_of, spans, tables, text_of, without_code
from refused import told

import nets
import train
from nets.pretrained import HOST

ENGLISH, CHINESE = ROOT / "README.md", ROOT / "README.zh-CN.md"
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")]
OF_PROGRAMS = [page for page in PAGES if page.parent.name not in ("benchmarks", "results")]


def constants_of(file: Path) -> set[str] | None:
    """The names in the class Config of a script, or None if it has no such class."""
    for node in ast.parse(text_of(file)).body:
        if isinstance(node, ast.ClassDef) and node.name == "Config":
            return {line.target.id for line in node.body if isinstance(line, ast.AnnAssign)}
    return None


def wrong_in(command: str) -> list[str]:
    """What a shell command names that does not exist: modules and constants."""
    words = shlex.split(command.replace("...", "x"))
    script = next((ROOT / w for w in words if (ROOT / w).is_file() and w.endswith(".py")), None)
    if words[:2] == ["python", "-m"]:
        script = ROOT / f"{words[2].replace('.', '/')}.py"
        if words[2].split(".")[0] in ("tools", "benchmarks") and not script.is_file():
            return [words[2]]
    known = constants_of(script) if script is not None and script.is_file() else None
    names = [word.partition("=")[0] for word in words if re.match(r"[a-z_]+=", word)]
    return [name for name in names if known is not None and name not in known]


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of the headings of a page."""
    headings = re.findall(r"^#+ (.*)", without_code(text_of(page)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_weights_page_lists_every_official_file_and_no_other():
    """Address and digest of each: a changed one must change the page too, with its license."""
    files = []
    for family, row in nets.MODELS.items():
        files += [([f"{family}_{size}"], file) for size, file in row.weights.items()]
        files += [([f"{family}_{size}", "weights=objects365"], file) for size, file in row.objects365.items()]
        others = [(size, file) for size, some in row.by_side.items() for file in some if file != row.weights[size]]
        files += [([f"{family}_{size}", f"image_size={file.image_size[0]}"], file) for size, file in others]
    rows = tables(text_of(ROOT / "WEIGHTS.md"))[0][1:]
    assert [spans(row[0]) for row in rows] == [names for names, _ in files]
    for (_, file), (_, link, _, license, _, digest) in zip(files, rows, strict=True):
        assert link == f"[{file.path.rpartition('/')[2]}]({file.host or HOST}/{file.path})"
        assert license in ("Apache-2.0", "MIT") and spans(digest) == ([file.sha256] if file.sha256 else [])


def test_the_models_page_lists_every_model_with_its_published_ap():
    files = {f"{family}_{size}": f for family, row in nets.MODELS.items() for size, f in row.weights.items()}
    rows = tables(text_of(ROOT / "docs/models.md"))[0][1:]
    found = {spans(row[1])[0]: (row[4], row[5]) for row in rows}
    assert found == {name: (f"{100 * file.ap:.1f}", str(file.image_size[0])) for name, file in files.items()}


def test_notice_names_every_author_of_weights_and_the_source_of_every_image():
    authors = ["Megvii (Apache-2.0)", "MultimediaTechLab (MIT)", "PaddlePaddle (Apache-2.0)"]
    told(text_of(ROOT / "NOTICE"), "Copyright 2026", *authors, "WEIGHTS.md")
    shown = {path.name for path in (ROOT / "docs/images").iterdir()}
    assert set(re.findall(r"[\w-]+\.(?:jpg|png|gif|svg)", text_of(ROOT / "NOTICE"))) == shown


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_images_exist(page):
    text = without_code(text_of(page))
    for target in re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'src(?:set)?="([^"]+)"', text):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            file = page.parent / path if path else page
            assert file.exists(), target
            assert not anchor or anchor in anchors(file), target


@pytest.mark.parametrize("page", OF_PROGRAMS, ids=lambda page: page.name)
def test_commands_name_existing_modules_and_constants(page):
    text = text_of(page)
    commands = code_lines(text, "bash") + [s for s in spans(without_code(text)) if re.match("(python|torchrun) ", s)]
    parts = [part for command in commands if "python -c" not in command for part in re.split(r"&&|;|\|", command)]
    assert not {part: names for part in parts if (names := wrong_in(part))}


def test_a_wrong_command_is_noticed():
    assert wrong_in("python train.py epochs=3 epoch=3") == ["epoch"]
    assert wrong_in("python -m tools.chek train.txt") == ["tools.chek"]
    assert wrong_in("torchrun --standalone train.py name=mine nam=x") == ["nam"]


def test_the_constants_page_names_constants():
    named = [table[1:] for table in tables(text_of(ROOT / "docs/constants.md")) if table[0][0] == "constant"]
    names = [span.partition("=")[0] for rows in named for row in rows for span in spans(row[0])]
    assert names and set(names) <= set(train.Config.__dataclass_fields__)


def test_uv_and_pip_install_the_same():
    projects = [tomllib.loads(text_of(ROOT / path)) for path in ("pyproject.toml", "cpu/pyproject.toml")]
    listed = text_of(ROOT / "requirements.txt").split()
    assert projects[0]["project"]["dependencies"] == listed
    indexes = {index["name"]: index for index in projects[1]["tool"]["uv"]["index"]}
    assert "index" not in projects[0]["tool"]["uv"] and all(index["explicit"] for index in indexes.values())
    for name in ("torch", "torchvision"):  # from one index
        assert (
            projects[1]["tool"]["uv"]["sources"][name]["index"] in indexes
            and name in projects[1]["project"]["dependencies"]
        )


def test_both_readmes_begin_with_the_same_commands():
    first = [lines_of(code(text_of(page), "bash")[0]) for page in (ENGLISH, CHINESE)]
    assert first[0] == first[1] and all(line.startswith("uv run ") for line in first[0])


@pytest.mark.skipif(sys.platform == "win32", reason="the commands of a container for Linux")
def test_what_the_dockerfile_copies_is_the_whole_program(tmp_path):
    """Its last command, with other folders."""
    (command,) = re.findall(r"^RUN --mount=type=bind,target=/source (.*)", text_of(ROOT / "Dockerfile"), re.MULTILINE)
    (tmp_path / "thaw").mkdir()
    folders = {"/source": ROOT, "/thaw": tmp_path / "thaw"}  # replaced at once: either may be part of the other's path
    command = re.sub("/source|/thaw", lambda found: shlex.quote(str(folders[found[0]])), command)
    subprocess.run(["sh", "-ec", command], check=True)
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    copied = {path.name for path in (tmp_path / "thaw").iterdir()}
    assert copied == {*(path.name for path in ROOT.glob("*.py")), *packages, "LICENSE", "NOTICE"}

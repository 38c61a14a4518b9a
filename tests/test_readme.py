"""The pages: the two READMEs agree, and every command, constant, file and link that a page names exists."""

import ast
import re
import shlex
from pathlib import Path
from statistics import mean, stdev
from typing import get_args, get_origin, get_type_hints

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pages import ROOT, code_lines, spans, tables, text_of, without_code
from PIL import Image
from refused import told

import nets
import train
from docs import draw, draw_models, draw_results
from nets.pretrained import HOST
from utils import migration
from utils.config import override

ENGLISH, CHINESE = ROOT / "README.md", ROOT / "README.zh-CN.md"
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
BENCHMARKS = sorted((ROOT / "benchmarks").rglob("*.md"))
WITHOUT_AN_ANSWER = {"verbose", "predict", "dir_predict"}  # --help is all that there is to tell, or they are values
NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?|\.\d+")


def constants_of(file: Path) -> set[str] | None:
    """The names in the class Config of a script, or None if it has no such class."""
    for node in ast.parse(text_of(file)).body:
        if isinstance(node, ast.ClassDef) and node.name == "Config":
            return {line.target.id for line in node.body if isinstance(line, ast.AnnAssign)}
    return None


def wrong_in(command: str) -> list[str]:
    """What a shell command names that does not exist: scripts, modules, constants."""
    if command.startswith("python -c "):  # its program is in the command, and runs in test_pages.py
        return []
    wrong = []
    for part in re.split(r"&&|;|\|", command):
        words = shlex.split(part.replace("...", "x"))
        script = next((ROOT / w for w in words if (ROOT / w).is_file() and w.endswith(".py")), None)
        if "-m" in words and words[0] == "python":
            module = words[words.index("-m") + 1]
            script = ROOT / (module.replace(".", "/") + ".py")
            if module.split(".")[0] in ("tools", "benchmarks", "datasets") and not script.is_file():
                wrong.append(module)
        if script is None or not script.is_file():
            continue
        names = [w.partition("=")[0] for w in words if re.match(r"[a-z_]+=", w)]
        known = constants_of(script)
        source = text_of(script)
        wrong += [n for n in names if (n not in known if known is not None else f"{n}=" not in source)]
    return wrong


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of the headings of a page."""
    headings = re.findall(r"^#+ (.*)", without_code(text_of(page)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


def shared_facts(rows: list[list[str]]) -> list[list[str]]:
    """What the rows of a table have in every language: numbers and code."""
    return [sorted(NUMBER.findall(" ".join(row)) + spans(" ".join(row))) for row in rows]


def test_both_readmes_have_the_same_commands_numbers_and_code():
    """The Chinese one has a table more: the constants of other programs, in English on a page of their own."""
    assert code_lines(text_of(ENGLISH)) == code_lines(text_of(CHINESE))
    english, chinese = tables(text_of(ENGLISH)), tables(text_of(CHINESE))
    migrate = next(t for t in tables(text_of(ROOT / "docs/migrate.md")) if t[0][0] == "there" and len(t[0]) == 3)
    english.append([row[:2] for row in migrate])
    chinese[-1] = [row[:2] for row in chinese[-1]]
    assert [shared_facts(table) for table in english] == [shared_facts(table) for table in chinese]


def test_weights_page_lists_every_official_file_and_no_other():
    """Address, authors, license, training data and digest of each; a changed address or digest must change the page too."""
    head, *rows = tables(text_of(ROOT / "WEIGHTS.md"))[0]
    assert head == ["model", "file", "authors", "license", "trained on", "SHA-256"]
    coco, objects365 = "COCO train2017", "Objects365"
    terms = {  # family -> author, license, training data of the COCO weights
        "yolox": ("Megvii", "Apache-2.0", coco),
        "yolov9": ("MultimediaTechLab", "MIT", coco),
        "ppyoloe": ("PaddlePaddle", "Apache-2.0", f"{objects365}, then {coco}"),
        "picodet": ("PaddlePaddle", "Apache-2.0", f"ImageNet (backbone), then {coco}"),
    }
    files = []
    for family, row in nets.MODELS.items():
        files += [([f"{family}_{size}"], file) for size, file in row.weights.items()]
        files += [([f"{family}_{size}", "weights=objects365"], file) for size, file in row.objects365.items()]
        others = [(size, file) for size, some in row.by_side.items() for file in some if file != row.weights[size]]
        files += [([f"{family}_{size}", f"image_size={file.image_size[0]}"], file) for size, file in others]
    assert [spans(row[0]) for row in rows] == [names for names, _ in files]
    for (names, file), (_, link, authors, license, data, digest) in zip(files, rows, strict=True):
        author, expected, trained = terms[names[0].rpartition("_")[0]]
        assert link == f"[{file.path.rpartition('/')[2]}]({file.host or HOST}/{file.path})"
        assert authors.startswith(author) and license == expected
        assert data == (objects365 if "weights=objects365" in names else trained)
        assert spans(digest) == ([file.sha256] if file.sha256 else [])


def test_the_models_page_lists_every_model_and_the_readme_some_of_them_with_the_same_numbers():
    """Published AP and measured milliseconds; in both tables the fastest model stands first."""
    files = {f"{family}_{size}": f for family, row in nets.MODELS.items() for size, f in row.weights.items()}
    rows = tables(text_of(ROOT / "docs/models.md"))[0][1:]
    found = {spans(row[1])[0]: (row[4], row[5]) for row in rows}
    assert found == {name: (f"{100 * file.ap:.1f}", str(file.image_size[0])) for name, file in files.items()}
    measured = tables(text_of(ROOT / "benchmarks/results/milliseconds.md"))[0][1:]
    times = {(*spans(row[0]), row[1]): f"{float(row[5].split()[0]):.0f}" for row in measured}
    assert [row[6] for row in rows] == [times[spans(row[1])[0], row[5]] for row in rows]
    by_time = {spans(row[1])[0]: [row[4], row[6]] for row in rows}
    (table,) = (one for one in tables(text_of(ENGLISH)) if one[0][0] == "`model`")
    shown = {spans(row[0])[0]: row[1:3] for row in table[1:]}
    assert shown.items() <= by_time.items() and list(shown) == [name for name in by_time if name in shown]
    for table in (by_time, shown):
        milliseconds = [int(time) for _, time in table.values()]
        assert milliseconds == sorted(milliseconds)


def interval(gains: list[float], t: float) -> tuple[float, float]:
    """The 95 % interval of a mean. `t`: Student's t for one degree of freedom less than there are gains."""
    half = t * stdev(gains) / len(gains) ** 0.5
    return mean(gains) - half, mean(gains) + half


def test_the_readmes_state_the_numbers_of_the_chart_and_the_image_shows_them():
    """All come from the rows in benchmarks/results."""
    drawn = draw_results.numbers(draw_results.chart())
    assert Image.open(ROOT / "docs/images/results.png").text["Description"] == " ".join(drawn)
    ours, theirs = ([values for _, values in draw_results.fine_tuned(name)] for name in ("new", "libreyolo_yolox_nano"))
    means = [f"{100 * mean(map(mean, values)):.1f}" for values in (ours, theirs)]
    pairs = [100 * (a - b) for x, y in zip(ours, theirs, strict=True) for a, b in zip(x, y, strict=True)]
    sets = [100 * (mean(x) - mean(y)) for x, y in zip(ours, theirs, strict=True)]
    intervals = [f"{end:.1f}" for gains, t in ((pairs, 2.201), (sets, 3.182)) for end in interval(gains, t)]
    for page in (ENGLISH, CHINESE):
        results = text_of(page).partition("results.png")[2].partition("\n## ")[0]
        told(results, *means, f"{mean(pairs):.1f}", str(len(pairs)), *intervals, *drawn[-4:])


def test_the_scatter_plot_shows_every_measured_model_with_its_ap():
    """The numbers inside of the drawn file are those of the tables today."""
    found = draw_models.measured()
    tabled = [table[1:] for table in tables(text_of(ROOT / "benchmarks/results/milliseconds.md"))]
    rows = {
        f"{row[0].strip('`')} {row[1]}": (float(row[6].strip("* ")), row[2]) for row in sum(tabled[::-1], []) if row[2]
    }
    base = found["Ultralytics yolo11n 640"][0]
    assert {name: f"{ap:.1f}" for name, (_, ap) in found.items()} == {name: ap for name, (_, ap) in rows.items()}
    assert all(found[name][0] / base == pytest.approx(ratio, rel=0.02, abs=0.005) for name, (ratio, _) in rows.items())
    assert Image.open(ROOT / "docs/images/models.png").text["Description"] == draw_models.description(found)


def test_the_models_page_has_picodet_at_each_size_that_has_weights():
    rows = tables(text_of(ROOT / "docs/models.md"))[1][1:]
    files = {(f"picodet_{size}", file) for size, some in nets.MODELS["picodet"].by_side.items() for file in some}
    assert {(*spans(row[0]), *row[1:3]) for row in rows} == {
        (name, str(file.image_size[0]), f"{100 * file.ap:.1f}") for name, file in files
    }
    measured = tables(text_of(ROOT / "benchmarks/results/milliseconds.md"))[1][1:]
    times = {(row[0], row[1]): row[6] for row in measured}
    assert [row[3] for row in rows] == [times[row[0], row[1]] for row in rows]


def test_counted_parameters_and_gflops_are_the_published_ones():
    """At most 0.1 million parameters and 0.5 GFLOPs differ."""
    published = {
        (spans(row[1])[0], row[5]): (float(row[2]), float(row[3]))
        for row in tables(text_of(ROOT / "docs/models.md"))[0][1:]
    }
    measured = tables(text_of(ROOT / "benchmarks/results/milliseconds.md"))[0][1:]
    rows = {(*spans(row[0]), row[1]): (float(row[3]), float(row[4])) for row in measured}
    for model, numbers in published.items():
        differences = [abs(ours - theirs) for ours, theirs in zip(rows[model], numbers, strict=True)]
        assert differences[0] <= 0.1 and differences[1] <= 0.5 + 1e-9, model


def test_notice_names_the_copyright_and_every_author_of_weights():
    notice, authors = (
        text_of(ROOT / "NOTICE"),
        ["Megvii (Apache-2.0)", "MultimediaTechLab (MIT)", "PaddlePaddle (Apache-2.0)"],
    )
    told(notice, "Copyright 2026", "Apache License", *authors, "WEIGHTS.md", "docs/licenses.md")
    told(text_of(ROOT / "LICENSE"), "Apache License")


def test_notice_names_the_source_of_every_image():
    shown = {path.name for path in (ROOT / "docs/images").iterdir()}
    assert set(re.findall(r"[\w-]+\.(?:jpg|png|gif|svg)", text_of(ROOT / "NOTICE"))) == shown


def test_one_command_draws_every_picture_but_the_photo(monkeypatch):
    """None is too large for a page."""
    monkeypatch.setattr(draw, "trained", lambda cfg, name: Path(name))
    files = {path.name: path.stat().st_size for path in draw.IMAGES.iterdir() if path.name != "rider.jpg"}
    assert files.keys() == {*draw.from_rows(), *draw.from_data(draw.Config(weights="yolox_nano.pth"))}
    assert all(size <= (1_000_000 if name.endswith(".gif") else 200_000) for name, size in files.items())


@pytest.mark.parametrize("table", ["FREEZE_UNFREEZE", "ULTRALYTICS"])
def test_the_tables_of_other_programs_name_the_constants_that_the_error_messages_name(table):
    """Each name of the page that is no constant here is in the table of the code, with the same constants, and vice versa."""
    code, every = getattr(migration, table), set().union(*(constants_of(file) or set() for file in ROOT.glob("*.py")))
    pages = [t for t in tables(text_of(ROOT / "docs" / "migrate.md")) if t[0][0] == "there" and len(t[0]) == 3]
    listed = set()
    for there, here, _ in pages[table == "ULTRALYTICS"][1:]:
        names = {name for name in spans(there) if re.fullmatch(r"\w+", name) and name in code}
        unknown = [name for name in spans(there) if re.fullmatch(r"[A-Za-z_]+", name) and name not in {*code, *every}]
        assert not [name for name in unknown if name not in WITHOUT_AN_ANSWER], unknown
        shown = [name for name in (span.partition("=")[0] for span in spans(here)) if name in every]
        lines = [migration.constant_in(code[name].lines[0]) for name in names if code[name].lines]
        assert set(lines) <= set(shown), (there, lines)
        assert not names or not shown or shown[0] in (*lines, *spans(there)), (there, shown)
        listed |= names
    assert listed == set(code)


@pytest.mark.parametrize("page", [*PAGES, *BENCHMARKS], ids=lambda page: page.name)
def test_links_and_images_exist(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(text_of(page))):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            file = page.parent / path if path else page
            assert file.exists(), target
            assert not anchor or anchor in anchors(file), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_name_existing_scripts_modules_and_constants(page):
    text = text_of(page)
    commands = code_lines(text, "bash") + [s for s in spans(without_code(text)) if re.match("(python|torchrun) ", s)]
    wrong = {command: wrong_in(command) for command in commands}
    assert not {command: names for command, names in wrong.items() if names}


def test_a_wrong_command_is_noticed():
    assert wrong_in("python train.py epochs=3 epoch=3") == ["epoch"]
    assert wrong_in("python -m tools.chek train.txt") == ["tools.chek"]
    assert wrong_in("python -m tools.check train.txt vals=x") == ["vals"]
    assert wrong_in("torchrun --standalone train.py name=mine && python evaluate.py dta=x") == ["dta"]


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "README.zh-CN.md",
        "docs/constants.md",
        "docs/choosing.md",
        "docs/extend.md",
        "docs/zh/train_on_your_data.md",
    ],
)
def test_files_and_constants_that_a_page_names_exist(name):
    known = set().union(*(constants_of(file) or set() for file in ROOT.glob("*.py")))
    text = without_code(text_of(ROOT / name))
    old = text.find("| `phi`")  # names of other programs follow
    for span in spans(text[: old if old > 0 else None]):
        if re.fullmatch(r"[\w/.]+\.(py|md)", span) and span not in ("onnx_detector.py",):  # which programs write
            assert (ROOT / span).is_file(), span
        is_call = span.startswith(("python", "conda")) or "(" in span
        for constant in [] if is_call else re.findall(r"(?:^| )([a-z_]+)=", span):
            assert constant in known, span


def test_constants_page_lists_every_constant_with_its_type_and_default():
    rows = [row for table in tables(text_of(ROOT / "docs" / "constants.md")) if len(table[0]) == 5 for row in table[1:]]
    names = [spans(row[0])[0] for row in rows]
    assert names == list(train.Config.__dataclass_fields__)
    defaults = [f"{name}={spans(row[2])[0]}" for name, row in zip(names, rows, strict=True)]
    assert override(train.Config(), defaults) == train.Config()
    assert [row[1] for row in rows] == [type_text(kind) for kind in get_type_hints(train.Config).values()]
    assert all(row[3] and row[4] for row in rows)


def test_messages_that_the_page_of_troubles_lists_are_messages_of_the_program():
    (table,) = (one for one in tables(text_of(ROOT / "docs/troubleshooting.md")) if one[0][0] == "message")
    folders = ("datasets", "deploy", "engine", "nets", "tools", "utils")
    sources = [*ROOT.glob("*.py"), *(path for folder in folders for path in (ROOT / folder).rglob("*.py"))]
    texts = "".join(text_of(path) for path in sources)
    for message in (spans(row[0])[0].removesuffix(" ...") for row in table[1:]):
        assert message in texts, message


def type_text(kind) -> str:
    """A type as the constants page writes it: `str or none`, `int, int`."""
    if kind is type(None):
        return "none"
    parts = list(map(type_text, get_args(kind)))
    return (", " if get_origin(kind) is tuple else " or ").join(parts) if parts else kind.__name__


def test_the_page_of_packages_lists_every_requirement():
    listed = {canonicalize_name(row[0]) for table in tables(text_of(ROOT / "docs/packages.md")) for row in table}
    assert {
        canonicalize_name(Requirement(line).name) for line in text_of(ROOT / "requirements.txt").splitlines()
    } <= listed

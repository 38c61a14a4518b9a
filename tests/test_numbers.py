"""The numbers of both READMEs are those of the rows in benchmarks/results: none is missing, and none is added."""

import itertools
import json
import re
import shutil
from statistics import fmean, mean, stdev

import cv2
import numpy as np
import pytest
from pages import ROOT, spans, tables, text_of
from PIL import Image

import nets
import train
from benchmarks import aquarium, published, small_data
from benchmarks.small_data_tables import differences, interval, maps
from benchmarks.table import RESULTS, read_rows
from docs import draw_models, draw_results
from docs.draw import IMAGES
from docs.jpeg import write_dark

SECTIONS = {"README.md": ("Why Thaw", "Models", "Results"), "README.zh-CN.md": ("为什么用 Thaw", "模型", "实测结果")}
NO_TEXT = r"`[^`]*`|\]\([^)]*\)|<[^>]*>"
NUMBER = re.compile(r"(?<![\w.-])-?\d+(?:\.\d+)?(?![\w.]*[a-zA-Z])", re.ASCII)  # not in names, such as YOLOv9 and H100
ROWS = read_rows(RESULTS / "small_data.csv")
GPU = json.loads((RESULTS / "gpu.json").read_text(encoding="utf-8"))
TIMES = tables(text_of(RESULTS / "milliseconds.md"))[0][1:]
FILES = {f"{family}_{size}": f for family, row in nets.MODELS.items() for size, f in row.weights.items()}


def numbers(page: str, section: str) -> set[str]:
    """The numbers in the text of a section."""
    text = text_of(ROOT / page).partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return set(NUMBER.findall(re.sub(NO_TEXT, " ", text)))


def points(*values: float) -> set[str]:
    return {f"{value:.1f}" for value in values}


def milliseconds(name: str, side: int = 640) -> str:
    (time,) = (row[5] for row in TIMES if (row[0].strip("`"), row[1]) == (name, str(side)))
    return f"{float(time.split()[0]):.0f}"


def of_libreyolo() -> set[str]:
    """mAP of `new`, of the former defaults and of LibreYOLO's settings; differences with their intervals; the lengths."""
    sets, recipes = small_data.REPORT, (*small_data.REPORTED, "shipped")
    runs = {recipe: maps(ROWS, "report", recipe) for recipe in recipes}
    by_set = [[mean(runs[recipe][name, seed] for seed in (4, 5, 6)) for name in sets] for recipe in recipes]
    ours, defaults, eight, *_, former = by_set
    best = [max(values) for values in zip(*by_set[1:-1], strict=True)]  # setting of LibreYOLO for each set
    pairs = ((ours, defaults), (ours, eight), (ours, best), (former, defaults), (former, eight))
    found = [number for one, other in pairs for number in interval([x - y for x, y in zip(one, other, strict=True)])]
    found += [mean(values) for values in (*by_set, best)]
    found.append(defaults[sets.index("raccoon")])  # higher than the setting of the chart
    for recipe, name in itertools.product(small_data.LONG_RECIPES, small_data.LONG):
        longer = {run: value for run, value in maps(ROWS, "long", recipe).items() if run[0] == name}
        found += [mean(longer.values()), mean(runs[recipe][run] for run in longer)]
    lengths = {str(small_data.DATA[name].epochs) for name in sets} | {"60", "300"}
    search = [row["data"] for row in ROWS if row["stage"].startswith(("screen", "confirm"))]
    counts = [len(search), sum(name in ("bccd", "raccoon_train") for name in search)]
    counts.append(sum(row["stage"] == "choose" for row in ROWS))
    sides = {str(small_data.DATA[name].side) for name in small_data.CHOICE}
    candidates = [run for name in ("best_freeze_0", "best_rate_4_freeze_0") for run in maps(ROWS, "report", name)]
    known = {str(sum(name in sets for name, _ in candidates))}
    return points(*found) | lengths | sides | set(map(str, counts)) | known | {"95", "4"}


def of_published() -> set[str]:
    """AP50 of the test parts, here and published, and the parameters of the published models in millions."""
    rows = read_rows(RESULTS / "published.csv")
    found = points(*(100 * float(row["best_test_AP50"]) for row in rows))
    found |= points(*(number for data in published.PUBLISHED.values() for number in data[1:]))
    parameters = re.findall(r"YOLOv5s ([\d.]+), YOLOv7 (\d+) and", text_of(RESULTS / "published.md"))[0]
    return found | {f"{float(number):.0f}" for number in parameters}


def of_why() -> set[str]:
    """Models and a rival on a CPU, minutes and epochs on small data, the tests on a GPU, a year, bits of an image."""
    (rival,) = (row for row in TIMES if row[0] == "Ultralytics yolo26n")
    failed, passed = re.findall(r"(\d+) (?:failed|passed)", GPU["tests"]["rows"][0]["result"])
    models = {milliseconds("yolox_nano", 416), rival[2], milliseconds(rival[0]), *points(100 * FILES["ppyoloe_x"].ap)}
    rows = [row for row in ROWS if (row["stage"], row["data"], row["recipe"]) == ("report", "raccoon", "new")]
    models |= {f"{mean(float(row['cpu_minutes']) for row in rows):.0f}", str(small_data.DATA["raccoon"].images[0])}
    models |= {str(small_data.DATA[name].epochs) for name in small_data.REPORT}
    ours, defaults, eight = (maps(ROWS, "report", recipe) for recipe in small_data.REPORTED[:3])
    pairs = [[mean(some) for some in differences(small_data.REPORT, ours, theirs)] for theirs in (defaults, eight)]
    models |= {"95", *points(mean(pairs[0]), *interval(pairs[1]))}
    return models | {failed, passed, "8.4", "2026", "16", "320", "416", "60", f"{train.Config.save_minutes:g}"}


def of_models() -> set[str]:
    """AP and milliseconds of the models of the table, how many there are, and the images on which an AP was compared."""
    names = [spans(row[0])[0] for row in tables(text_of(ROOT / "README.md"))[1][1:]]
    sides = {name: FILES[name].image_size[0] for name in names}
    times = {milliseconds(*model) for model in sides.items()} | set(map(str, sides.values()))
    (images,) = set(re.findall(r"instances_val2017_core(\d+)", text_of(RESULTS / "official.md")))
    return times | points(*(100 * FILES[name].ap for name in names)) | {str(len(FILES)), images}


def of_results() -> set[str]:
    """The bullets: fine-tuning, Aquarium, from scratch, speed."""
    sizes = [small_data.DATA[name].images[0] for name in small_data.REPORT]
    tuning = {str(number) for number in (min(sizes), max(sizes), 320, 3)} | {"1.6"}
    sea = read_rows(RESULTS / "aquarium.csv")
    ours = [[100 * float(row["AP"]) for row in sea if row["labels"] == labels] for labels in ("45", "112")]
    published = [number for labels in (45, 112) for number in aquarium.PUBLISHED[labels][:2]]
    parameters = re.findall(r"([\d.]+) million", text_of(RESULTS / "aquarium.md"))[:2]
    aqua = points(*map(mean, ours), *map(stdev, ours), *published, *map(float, parameters)) | {
        "45",
        "112",
        "640",
        "100",
    }
    scratch = [[row for row in ROWS if row["recipe"] == recipe] for recipe in small_data.FROM_SCRATCH]
    scores = points(*(fmean(100 * float(row["AP"]) for row in rows) for rows in scratch))
    minutes = points(*(mean(float(row["cpu_minutes"]) for row in rows) for rows in scratch))
    lengths = {row[name] for rows in scratch for row in rows for name in ("epochs", "image_size")} | {"205"}
    speed = {f"{draw_results.images_per_second(trainer):.0f}" for trainer in ("this one", "ultralytics")}
    cpu = [row for row in tables(text_of(RESULTS / "cpu.md"))[0] if "yolox_n" in row[2] and row[3:5] == ["320", "8"]]
    speed |= {row[7].split()[0] for row in cpu}
    batches = set(re.findall(r"batch (\d+)", text_of(RESULTS / "aquarium.md"))) | {"64"}  # nbs of Ultralytics
    batches |= set(
        re.findall(r"LibreYOLO with (\d+) images per step and Thaw with (\d+)", text_of(RESULTS / "small_data.md"))[0]
    )
    steps = {str(100 * -(-images // 8)) for images in (45, 112)} | {
        "200"
    }  # in 100 epochs; published: about 100 and 200
    return (
        of_libreyolo()
        | of_published()
        | tuning
        | aqua
        | scores
        | minutes
        | lengths
        | speed
        | batches
        | steps
        | {"32", "340", "8.4"}
    )


EXPECTED = (of_why, of_models, of_results)


@pytest.mark.parametrize("number", range(3))
def test_the_numbers_of_the_readmes_are_computed_from_rows(number):
    expected = EXPECTED[number]()
    english, chinese = (numbers(page, sections[number]) for page, sections in SECTIONS.items())
    assert english == expected
    large = {"700", "3700"}  # times 10,000: 7 and 37 million; 90 (.9 million) and 300 are other numbers, too
    assert chinese - {"4"} - large == expected - {"4", "0.9", "7", "37"}


def test_no_setting_of_libreyolo_is_better_than_eight_images_per_step_as_the_readme_says():
    runs = list(itertools.product(small_data.REPORT, (4, 5, 6)))
    found = {recipe: maps(ROWS, "report", recipe) for recipe in small_data.REPORTED[1:]}
    assert max(found, key=lambda recipe: mean(found[recipe][run] for run in runs)) == "libreyolo_batch_8"


def test_the_page_of_small_data_has_the_difference_of_the_learning_rates_on_the_report():
    former, ours = (maps(ROWS, "report", recipe) for recipe in ("best_freeze_0", "new"))
    of_sets = [mean(some) for some in differences(small_data.REPORT, ours, former)]
    assert "{:+.1f} [{:+.1f}, {:+.1f}]".format(*interval(of_sets)) in text_of(RESULTS / "small_data.md")


def test_no_setting_of_libreyolo_was_better_where_we_chose_than_with_four_images_per_step():
    found = {recipe: maps(ROWS, "choose", recipe) for recipe in small_data.LIBREYOLO}
    whole = {recipe: mean(runs.values()) for recipe, runs in found.items() if len(runs) == len(small_data.CHOICE)}
    assert len(whole) == 10 and max(whole, key=whole.get) == "libreyolo_batch_4"


@pytest.mark.parametrize("stage", ["report", "choose"])
def test_the_page_of_small_data_has_the_tables_that_the_program_prints(stage):
    assert small_data.tables(ROWS, stage) in text_of(RESULTS / "small_data.md")


def test_the_page_of_published_results_has_the_table_that_the_program_prints():
    assert published.table(read_rows(RESULTS / "published.csv")) in text_of(RESULTS / "published.md")


@pytest.mark.parametrize(
    "page", [RESULTS / "small_data.md", ROOT / "docs/start.md", ROOT / "docs/zh/train_on_your_data.md"]
)
def test_the_pages_say_how_many_images_gave_which_map(page):
    whole = maps(ROWS, "screen epochs=50", "best_rate_2_freeze_0")  # with what are the defaults now
    for name, few in itertools.groupby(sorted(maps(ROWS, "few", "new_30_images").items()), lambda item: item[0][0]):
        scores = [score for _, score in few]
        assert len(scores) == 3 and f"{mean(scores):.1f} ± {stdev(scores):.1f}" in text_of(page)
        assert f"{whole[name, 0]:.1f}" in text_of(page)


@pytest.mark.parametrize("name", ["results.png", "models.png"])
def test_a_chart_shows_the_numbers_of_today_in_light_and_dark(name, tmp_path):
    """The numbers are written inside of the light file; the dark one is made of its pixels."""
    description = {
        "results.png": lambda: " ".join(draw_results.numbers(draw_results.chart())),
        "models.png": lambda: draw_models.description(draw_models.measured()),
    }[name]()
    light = IMAGES / name
    assert Image.open(light).text["Description"] == description
    shutil.copy(light, tmp_path)
    write_dark(tmp_path / name)
    dark = light.with_stem(light.stem + "_dark").name
    np.testing.assert_array_equal(*(cv2.imread(str(folder / dark)) for folder in (IMAGES, tmp_path)))

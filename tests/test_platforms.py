"""The workflow and the Dockerfile do what the README tells; the Dockerfile's commands work in an empty folder."""

import re
import shlex
import subprocess
import sys
import tomllib

import pytest
import yaml
from pages import ROOT, code, commands, text_of
from refused import told

README, CONTRIBUTING = (commands(text_of(ROOT / page)) for page in ("README.md", "CONTRIBUTING.md"))
LINES = text_of(ROOT / "Dockerfile").splitlines()
PAGE = text_of(ROOT / "docs/install.md")


@pytest.fixture(scope="module")
def workflow() -> dict:
    return yaml.safe_load(text_of(ROOT / ".github/workflows/ci.yml"))


def runs(job: dict) -> list[str]:
    """The commands of a job."""
    return [step["run"] for step in job["steps"] if "run" in step]


def test_the_workflow_runs_the_commands_of_the_readme_and_then_the_tests(workflow):
    jobs = workflow["jobs"]
    assert runs(jobs["readme"]) == [*README[2:5], CONTRIBUTING[1]]
    assert README[2] == "pip install -r requirements.txt" and README[4] == "python train.py"
    assert CONTRIBUTING[:2] == ["pip install -r requirements.txt", "python -m pytest"]
    assert runs(jobs["copied"]) == code(text_of(ROOT / "README.md"), "bash")[:1]
    assert runs(jobs["uv"])[1:] == ["uv run train.py", "uv run pytest"]
    assert {"uv run train.py", "uv run pytest"} <= {*README, *CONTRIBUTING}


def test_uv_and_pip_get_the_same_packages_for_the_same_versions_of_python(workflow):
    about = tomllib.loads(text_of(ROOT / "pyproject.toml"))
    assert about["project"]["dynamic"] == ["dependencies"]
    assert about["tool"]["setuptools"]["dynamic"] == {"dependencies": {"file": ["requirements.txt"]}}
    oldest = workflow["jobs"]["readme"]["strategy"]["matrix"]["python"][0]
    assert about["project"]["requires-python"] == f">={oldest}"


def test_the_workflow_covers_the_systems_and_versions_of_the_page(workflow):
    matrix = workflow["jobs"]["readme"]["strategy"]["matrix"]
    assert matrix["system"] == ["ubuntu-latest", "macos-latest", "windows-latest"]
    assert matrix["python"] == ["3.11", "3.12", "3.13", "3.14"]  # text: 3.10 as a number would be 3.1
    told(text_of(ROOT / "README.md"), f"Python {matrix['python'][0]}", "PyTorch 2.6")
    told(PAGE, f"Python {matrix['python'][0]} to {matrix['python'][-1]}")
    assert workflow["permissions"] == {"contents": "read"} and set(workflow[True]) == {"push", "pull_request"}  # "on"
    used = re.findall(r"\$\{\{ ([\w.]+) \}\}", text_of(ROOT / ".github/workflows/ci.yml"))
    assert {name.removeprefix("matrix.") for name in used} == set(matrix)


def instructions(name: str) -> list[str]:
    """The arguments of all instructions of a kind in the Dockerfile."""
    return [line.partition(" ")[2] for line in LINES if line.startswith(f"{name} ")]


def test_the_dockerfile_has_at_most_ten_lines_and_known_instructions():
    assert len(LINES) <= 10
    kinds = [line.split()[0] for line in LINES]
    assert kinds == ["#", "ARG", "FROM", "RUN", "WORKDIR", "COPY", "RUN", "RUN", "CMD"]
    assert instructions("FROM") == ["${BASE}"] and instructions("ARG")[0].startswith("BASE=python:3.")
    assert instructions("WORKDIR") == ["/thaw"]


def test_the_dockerfile_installs_and_starts_as_the_readme_tells():
    assert [line.replace(" --no-cache-dir", "") for line in instructions("RUN")][1] == README[2]
    assert instructions("COPY") == ["requirements.txt ."]
    assert instructions("CMD") == ['["python", "train.py"]']
    libraries = re.search(r"apt-get install ([\w. -]+?), ", text_of(ROOT / "utils/__init__.py"))[1]
    assert instructions("RUN")[0].endswith(f"--no-install-recommends {libraries}")


def test_the_page_has_the_build_commands_of_the_dockerfile():
    (plain, cuda, *_) = (command for command in commands(PAGE) if command.startswith("docker"))
    assert f"# {plain} " in LINES[0]
    assert cuda == plain.replace(" .", LINES[0].rpartition("add:")[2] + " .")


@pytest.mark.skipif(sys.platform == "win32", reason="the commands of a container for Linux")
def test_what_the_dockerfile_copies_is_the_whole_program(tmp_path):
    """Its last command, with other folders; then every script prints its help there."""
    options, command = instructions("RUN")[2].split(" ", 1)
    assert options == "--mount=type=bind,target=/source"
    (tmp_path / "thaw").mkdir()
    folders = {"/source": ROOT, "/thaw": tmp_path / "thaw"}  # replaced at once: either may be part of the other's path
    command = re.sub("/source|/thaw", lambda found: shlex.quote(str(folders[found[0]])), command)
    subprocess.run(["sh", "-ec", command], check=True)
    copied = {path.name for path in (tmp_path / "thaw").iterdir()}
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert copied == {*(path.name for path in ROOT.glob("*.py")), *packages, "LICENSE", "NOTICE"}
    for name in sorted(copied):
        if name.endswith(".py"):
            compile(text_of(tmp_path / "thaw" / name), name, "exec")


@pytest.mark.slow
def test_the_program_of_the_dockerfile_trains(tmp_path, painted):
    """The start command of the container, in a folder that holds only what the Dockerfile copies."""
    test_what_the_dockerfile_copies_is_the_whole_program(tmp_path)
    data = [f"train={painted(8)}", f"val={painted(4, 'val')}", f"output={tmp_path / 'runs'}"]
    small = ["weights=none", "image_size=64,64", "epochs=1", "workers=0", "device=cpu"]
    words = [sys.executable, "train.py", *data, *small]
    done = subprocess.run(words, cwd=tmp_path / "thaw", capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    assert (folder / "best.pt").is_file()

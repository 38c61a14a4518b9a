"""The command lines of all scripts and tools: help, and paths with and without a name."""

import contextlib
import io
import os
import re
import runpy
import subprocess
import sys

import pytest
from pages import ROOT
from painted import drawn
from refused import mentions

from datasets import demo
from tools import check, convert, suspects
from utils.script import run_script, user_message

STARTS = [path for pattern in ("*.py", "tools/*.py") for path in sorted(ROOT.glob(pattern))]
STARTS = [path for path in STARTS if "__main__" in path.read_text(encoding="utf-8")]
COMMANDS = [
    f"python -m {path.parent.name}.{path.stem}" if path.parent != ROOT else f"python {path.name}" for path in STARTS
]
CONFIGURED = [command for command in COMMANDS if command != "python -m tools.compare"]  # which has no constants


def start(command: str, words: list[str]) -> tuple[object, str, str]:
    """Runs a command in this process -> (exit code, standard output, standard error)."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        for stream in (out, err):
            stream.reconfigure = lambda **_: None
        name = command.split()[-1]
        patch.setattr(sys, "argv", [name, *words])
        try:
            if "-m" in command:
                patch.delitem(sys.modules, name, raising=False)  # runpy warns of a module that is imported already
                runpy.run_module(name, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(str(ROOT / name), run_name="__main__")
        except SystemExit as stop:
            return stop.code, out.getvalue(), err.getvalue()
    return None, out.getvalue(), err.getvalue()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A data set in the current folder, FOLDER."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FOLDER").mkdir()
    drawn(tmp_path / "FOLDER", {"train": range(4), "val": range(4, 6)})
    (tmp_path / "FOLDER/classes.txt").write_text("\n".join(demo.CLASSES))
    return "FOLDER"


def test_every_script_and_tool_is_started():
    assert {"python train.py", "python export.py", "python -m tools.check", "python -m tools.compare"} <= set(COMMANDS)


@pytest.mark.parametrize("flag", ["--help", "-h"])
@pytest.mark.parametrize("command", CONFIGURED)
def test_help_names_the_command_and_explains_every_constant(command, flag):
    code, out, err = start(command, [flag])
    assert code == 0 and err == ""
    assert re.search(rf"{re.escape(command)}\b", out)
    others = {name for name in re.findall(r"python (?:-m )?[\w.]+", out) if name != command}
    assert others <= set(COMMANDS), "it names a command that does not exist"
    assert "None" not in out
    rows = [re.split(" {2,}", line.strip()) for line in re.findall(r"^  \w+=.*$", out, re.MULTILINE)]
    assert rows and [row[0] for row in rows if len(row) < 3] == []  # value, type and comment


@pytest.mark.parametrize("command", CONFIGURED)
def test_an_option_with_dashes_is_answered_with_the_right_form(command):
    code, out, _ = start(command, ["--output", "somewhere"])
    assert mentions(str(code), "output=somewhere") or mentions(str(code), "'output'")  # which it does not have
    assert "Traceback" not in str(code) + out


def test_a_folder_needs_no_name(folder, capsys):
    for words in ([folder], [f"data={folder}"]):
        assert suspects.from_command_line([*words, "epochs=3"]) == suspects.Config(data=folder, epochs=3)
    printed = []
    for words in ([folder], [f"data={folder}"]):
        with pytest.raises(SystemExit, match="^0$"):
            check.main(words)
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] and "images 4" in printed[0]


def test_source_and_target_of_a_conversion_need_no_names(folder, tmp_path):
    forms = ("FOLDER 0.txt", "data=FOLDER 1.txt", "target=2.txt data=FOLDER")
    for form in forms:
        convert.main(form.split())
    assert len({(tmp_path / f"{number}.txt").read_text() for number in range(len(forms))}) == 1
    for words in ("FOLDER", "FOLDER a.txt b.txt", "target=b.txt"):
        with pytest.raises(SystemExit, match="FOLDER TARGET.txt|b.txt"):
            convert.main(words.split())
    assert not (tmp_path / "b.txt").exists()


def test_check_ends_with_the_error(folder, capsys):
    with pytest.raises(SystemExit, match="nothing"):
        check.main(["nothing"])
    assert not capsys.readouterr().out


def test_a_log_file_has_each_line_at_once():
    """A run that is read by `tail -f` printed nothing for minutes. os._exit does not write what is buffered."""
    code = "import os; from utils.script import run_script; run_script(lambda: (print('a line'), os._exit(0)), '', '')"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, timeout=120
    )
    assert ended.stdout == "a line\n"


@pytest.mark.parametrize("command", ("-m tools.check", "-m tools.convert", "-OO -m tools.check"))
def test_a_tool_without_words_says_what_is_missing_and_fails(command):
    done = subprocess.run([sys.executable, *command.split()], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and mentions(done.stderr, "--help") and mentions(done.stderr, "FOLDER")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGPIPE")
def test_a_closed_output_ends_a_program_without_an_error(capsys):
    def main() -> None:
        raise BrokenPipeError(32, "Broken pipe")

    with pytest.raises(SystemExit) as ended:
        run_script(main, "stopped", "")
    assert ended.value.code == 128 + 13 and capsys.readouterr().err.strip() == ""


def test_a_full_shared_memory_names_the_fix():
    why = (
        "Caught RuntimeError in DataLoader worker process 0.\nunable to allocate shared memory(shm) for file </torch_1>"
    )
    assert mentions(user_message(RuntimeError(why), "", "stopped") or "", "workers=")

"""Lists the licenses of the packages in requirements.txt and of those that they need in turn: python -m tools.licenses

    python -m tools.licenses [requirements=requirements.txt] [output=docs/licenses.md]

It reads the metadata and the license files of the packages that are installed. Other versions and other systems may differ:
run it where you build what you distribute.
"""

import platform
import re
import sys
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from utils.config import ConfigError, override, require_writable
from utils.files import atomic_write
from utils.script import run_script

FOR_TESTS = {"pytest", "pytest-xdist", "hypothesis"}  # train.py and the other scripts run without these
LICENSE_FILE = re.compile(r"licen[sc]e|copying|notice", re.IGNORECASE)
TERMS = {  # how license files name licenses with duties beyond a notice; a name in a file is a question, not an answer
    "AGPL": r"Affero General Public License v|AGPL-3\.0|GNU AFFERO GENERAL PUBLIC LICENSE\s+Version",
    "LGPL": r"GNU LESSER GENERAL PUBLIC LICENSE\s+Version|LGPL-[23]|GNU LGPLv",
    "GPL": r"GNU GENERAL PUBLIC LICENSE\s+Version|(?<![AL])GPL-[23]\.0|GNU GPLv",
    "MPL": r"Mozilla Public Licen[sc]e",
    "proprietary": r"LicenseRef-NVIDIA-Proprietary|NVIDIA Proprietary|PROPRIETARY",
}
NOTES = {  # package -> what its license files say, read by hand; a pattern matches all of its packages
    "opencv-python": "OpenCV itself is Apache-2.0. Its wheels also hold FFmpeg (LGPL-2.1) and, on Linux and macOS, Qt 5 "
    "(LGPL-3.0), as shared libraries of their own that a user can replace, and on macOS libsrt (MPL-2.0); "
    "`cv2/LICENSE-3RD-PARTY.txt` lists everything. "
    "`opencv-python-headless` has no Qt; `show=true` of predict.py does not work with it.",
    "numpy": "Some wheels hold the Fortran runtime of GCC: libgfortran (GPL-3.0 with the GCC runtime library exception, "
    "which permits use in any program) and libquadmath (LGPL-2.1).",
    "tqdm": "Some of its files are under MPL-2.0, some under MIT. MPL-2.0 asks those who distribute changed MPL files to "
    "publish these files; it does not extend to other files.",
    "hypothesis": "MPL-2.0; only the tests use it.",
    "matplotlib": "Holds FreeType, under the FreeType License or GPL-2.0, at the choice of the user, and fonts with licenses "
    "of their own.",
    "pillow": "Holds FreeType (as above) and liblzma. The license file of liblzma names GPL and LGPL for build scripts and "
    "tools that are not part of the library.",
    "grpcio": "MPL-2.0 holds for one data file, the list of root certificates.",
    "ml-dtypes": "Uses headers of Eigen, which is MPL-2.0.",
    "onnxruntime": "Holds compiled code of Eigen, which is MPL-2.0; `ThirdPartyNotices.txt` lists everything.",
    "setuptools": "Brings copies of other packages for its own use, among them autocommand (LGPL-3.0) and validate-pyproject "
    "(MPL-2.0). This program does not use them.",
    "torch": "Wheels for Linux hold libgomp of GCC (GPL-3.0 with the GCC runtime library exception). Wheels with CUDA need the "
    "packages `nvidia-*` of the table; wheels for CPUs need none of them.",
    "nvidia-*": "Proprietary: the license agreements of CUDA, cuDNN and NCCL, in `License.txt` of each package, limit what "
    "may be redistributed. They also quote the licenses of open-source parts.",
}
INTRO = """# Licenses of the dependencies

This repository holds no code of other packages; `pip install -r requirements.txt` installs them from their own sources. This
page is for those who distribute them together with the program, for example in a container. It is not legal advice.

Written by `python -m tools.licenses output=docs/licenses.md` with Python {python} on {system}, from the metadata and the
license files of the versions in the tables. Other versions, and the wheels for other systems, may differ: run the command
where you build.

The column *also named* is a search in all license files of a package for the names of licenses with duties beyond a notice.
A name there may be a bundled library, a choice, or only a mention: [the notes](#notes) tell which.
"""


@dataclass(frozen=True)
class Config:
    requirements: str = "requirements.txt"  # the file with the direct dependencies
    output: str | None = None  # a file for the page; none: print it


@dataclass(frozen=True)
class Package:
    """A package that is installed, and its licenses."""

    name: str
    version: str
    license: str  # as its metadata give it
    named: tuple[str, ...]  # keys of TERMS that its metadata or license files name
    needed_by: tuple[str, ...]  # packages that need it
    direct: bool  # whether requirements.txt names it


def closure(direct: list[Requirement]) -> dict[str, set[str]]:
    """Returns every package that `direct` need on this system, with the packages that need it. Raises ConfigError."""
    users: dict[str, set[str]] = {canonicalize_name(one.name): set() for one in direct}
    queue = [(canonicalize_name(one.name), extra) for one in direct for extra in ("", *one.extras)]
    for name, wanted in queue:  # which grows
        try:
            needs = map(Requirement, distribution(name).requires or ())
        except PackageNotFoundError as error:
            raise ConfigError(f"{name} is not installed: pip install -r requirements.txt") from error
        for need in needs:
            if need.marker is None or need.marker.evaluate({"extra": wanted}):
                other = canonicalize_name(need.name)
                queue += [(other, extra) for extra in ("", *need.extras) if (other, extra) not in queue]
                users.setdefault(other, set()).add(name)
    return users


def license_of(package: Distribution) -> str:
    """Returns the license in the metadata: the SPDX expression, a short text or the classifier; or the title of the file."""
    about = package.metadata
    stated = about.get("License-Expression") or about.get("License") or ""
    if 0 < len(stated.strip()) < 120 and "\n" not in stated.strip():
        return stated.strip()
    classifiers = [line.rpartition("::")[2].strip() for line in about.get_all("Classifier", []) if "License ::" in line]
    titles = [line.strip() for text in license_texts(package) for line in text.splitlines() if line.strip()]
    return ", ".join(classifiers) or (titles[0][:60] + " (title of its license file)" if titles else "not stated")


def license_texts(package: Distribution) -> list[str]:
    """Returns the contents of the license files in a package."""
    files = [
        file for file in package.files or () if LICENSE_FILE.search(file.name) and file.suffix not in (".py", ".pyc")
    ]
    paths = [Path(str(file.locate())) for file in files]
    return [path.read_text(encoding="utf-8", errors="replace") for path in paths if path.is_file()]


def read(requirements: Path) -> list[Package]:
    """Returns the packages of a requirements file and those that they need, by name. Raises ConfigError."""
    try:
        lines = requirements.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"requirements={requirements}: {error.strerror}: correct the path") from error
    bare = enumerate((re.sub(r"(^|\s)#.*", "", line).strip() for line in lines), 1)
    direct = [requirement_of(line, f"{requirements}:{number}") for number, line in bare if line]
    named = {canonicalize_name(one.name) for one in direct}
    return [package_of(name, users, name in named) for name, users in sorted(closure(direct).items())]


def requirement_of(line: str, where: str) -> Requirement:
    """Parses a line of a requirements file. Raises ConfigError with the place `where`."""
    try:
        return Requirement(line)
    except InvalidRequirement as error:
        raise ConfigError(
            f"{where}: {line!r} cannot be read: write one package per line, such as torch>=2.6"
        ) from error


def package_of(name: str, users: set[str], direct: bool) -> Package:
    """Reads the metadata and the license files of an installed package."""
    about = distribution(name)
    text = "\n".join([license_of(about), *license_texts(about)])
    terms = tuple(term for term, pattern in TERMS.items() if re.search(pattern, text))
    return Package(name, about.version, license_of(about), terms, tuple(sorted(users)), direct)


def note_of(name: str) -> str | None:
    """Returns the key of the note about a package."""
    return next((key for key in NOTES if name == key or (key.endswith("*") and name.startswith(key[:-1]))), None)


def page(packages: list[Package]) -> str:
    """Returns the page, in Markdown."""
    groups = {
        "To run the program": [one for one in packages if one.direct and one.name not in FOR_TESTS],
        "To run its tests": [one for one in packages if one.direct and one.name in FOR_TESTS],
        "Needed by these packages": [one for one in packages if not one.direct],
    }
    system = f"{platform.system()} ({platform.machine()})"
    lines = [INTRO.format(python=platform.python_version(), system=system)]
    for title, rows in groups.items():
        lines += [f"## {title}\n", "| package | version | license, in its own words | also named | needed by |"]
        lines += ["|---|---|---|---|---|", *map(row_of, rows), ""]
    return "\n".join([*lines, "## Notes\n", *notes_on(packages), ""])


def row_of(package: Package) -> str:
    """Returns the row of a package in its table."""
    cells = (package.name, package.version, package.license, ", ".join(package.named), ", ".join(package.needed_by))
    return f"| {' | '.join(cell.replace('|', ' ') for cell in cells)} |"


def notes_on(packages: list[Package]) -> list[str]:
    """Returns the notes on the packages of the tables, and a line for each package that lacks one."""
    keys = dict.fromkeys(filter(None, (note_of(package.name) for package in packages)))
    unread = [package for package in packages if package.named and not note_of(package.name)]
    lines = [f"- **{one.name}**: its files name {', '.join(one.named)}; not read yet." for one in unread]
    return [f"- **{key}**: {NOTES[key]}" for key in keys] + lines


def require_output(path: str) -> None:
    """Raises ConfigError for an output file that cannot be written, or that exists and is not an earlier page."""
    file = Path(path)
    require_writable(f"output={path}", file.parent)
    if file.exists() and not (file.is_file() and file.read_bytes().startswith(INTRO.partition("\n")[0].encode())):
        raise ConfigError(f"output={path} exists and was not written by tools.licenses: give another name")


def main(cfg: Config) -> str:
    """Writes or prints the page and returns it."""
    if cfg.output is not None:
        require_output(cfg.output)
    text = page(read(Path(cfg.requirements)))
    if cfg.output is None:
        print(text)
    else:
        Path(cfg.output).parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(cfg.output) as file:
            file.write(text.encode("utf-8"))
        print(cfg.output)
    return text


if __name__ == "__main__":
    run_script(lambda: main(override(Config(), sys.argv[1:])), stopped="stopped", memory_advice="")

"""The copy of a data set is what is at its address or in its archive now, whatever happens on the way, and stays in the cache."""

import io
import shutil
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from pathlib import Path

import fsspec
import pytest
from buckets import Faulty, tar_of, upload
from files import paint, text
from refused import refused
from small import TINY_WEIGHTS
from web import serving

import train
from datasets.check_images import check_images
from datasets.errors import DataError
from datasets.formats.options import ReadOptions
from datasets.formats.read import read
from utils import remote, remote_cache
from utils.config import check
from utils.files import files_under
from utils.images import read_bytes
from utils.remote import FetchError
from utils.remote_cache import local, local_file, local_source

BUCKET = "faulty://bucket"
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def empty(tmp_path, monkeypatch):
    """No cache, no objects."""
    monkeypatch.setenv("THAW_CACHE", str(tmp_path / "cache"))
    Faulty.store.clear()
    Faulty.faults.clear()


def put(name: str, contents: bytes) -> None:
    """Writes an object; its name may be any text."""
    fsspec.filesystem("faulty").pipe_file(f"/bucket/{name}", contents)


def contents_of(folder: str | Path) -> dict[str, bytes]:
    return {name: Path(folder, name).read_bytes() for name in files_under(folder)}


def yolo(folder: Path) -> str:
    for number in range(6):
        split = "val" if number > 3 else "train"
        paint(folder / "images" / split / f"{number}.png", 40 + number)
        text(folder / "labels" / split / f"{number}.txt", f"{number % 2} .5 .5 .{number + 1} .5\n")
    text(folder / "classes.txt", "cat\ndog\n")
    return ""


def coco(folder: Path) -> str:
    images = [{"id": n, "file_name": f"{n}.png", "width": 40, "height": 20} for n in range(3)]
    boxes = [
        {"id": n, "image_id": n, "category_id": 1, "bbox": [n, 1, 9, 9], "area": 81, "iscrowd": 0} for n in range(3)
    ]
    for image in images:
        paint(folder / "images" / image["file_name"])
    labels = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "cat"}]}
    text(folder / "annotations" / "all.json", labels)
    return "/annotations/all.json"


def lines(folder: Path) -> str:
    for number in range(3):
        paint(folder / "photos" / f"{number} a#%20?.png")
    text(folder / "all.txt", "".join(f"photos/{n} a#%20?.png 1,2,{n + 9},9,0\n" for n in range(3)))
    text(folder / "classes.txt", "cat\n")
    return "/all.txt"


def assert_same(source, folder, options=None, split="all"):
    """Asserts that a source has the data of a folder or a file, and the bytes of its images."""
    ours, theirs = (check_images(read(one, split, options or ReadOptions()))[0] for one in (source, folder))
    assert ours.digest() == theirs.digest() and ours.image_digest() == theirs.image_digest()
    assert ours.classes == theirs.classes and len(ours) > 0
    for i in range(len(ours)):
        assert read_bytes(ours.path(i)) == read_bytes(theirs.path(i))


@pytest.mark.parametrize("write", (yolo, coco, lines))
@pytest.mark.parametrize("address", (f"{BUCKET}/set", "memory://bucket/deep/set", "file"))
def test_a_set_at_an_address_is_the_set_in_a_folder(tmp_path, write, address):
    name = write(tmp_path / "set")
    address = f"file://{tmp_path}/set" if address == "file" else upload(tmp_path / "set", address)
    assert_same(address + name, f"{tmp_path}/set{name}")


@pytest.mark.parametrize("suffix", (".zip", ".tar", ".tar.gz"))
@pytest.mark.parametrize("place", ("disk", "bucket", "web"))
def test_an_archive_is_unpacked_once_and_again_when_it_has_changed(tmp_path, suffix, place):
    if place == "web":
        pytest.importorskip("aiohttp", reason="pip install aiohttp")
    yolo(tmp_path / "set")
    kind = {".zip": "zip", ".tar": "tar", ".tar.gz": "gztar"}[suffix]
    answers = {}
    with serving(answers) as server:
        source = {"disk": tmp_path / f"a{suffix}", "bucket": f"{BUCKET}/a{suffix}", "web": f"{server}/a{suffix}"}[place]
        for version in range(2):
            data = Path(shutil.make_archive(str(tmp_path / "a"), kind, tmp_path / "set")).read_bytes()
            put(f"a{suffix}", data)
            answers[f"/a{suffix}"] = (200, {"ETag": str(version)}, data)
            assert_same(source, tmp_path / "set")
            made = Path(local(str(source))).stat().st_ino
            assert_same(source, tmp_path / "set")
            assert Path(local(str(source))).stat().st_ino == made
            text(tmp_path / "set" / "labels" / "train" / "1.txt", "0 .5 .5 .2 .2\n")
            (tmp_path / "set" / "images" / "train" / "2.png").unlink(missing_ok=True)


def test_an_archive_of_one_folder_is_that_folder(tmp_path):
    top, folder = tmp_path / "top", tmp_path / "top" / "deep" / "pets"
    yolo(folder)
    text(folder / "data.yaml", "train: some.txt\nval: images/val\nnames: [cat, dog]\n")
    text(folder / "some.txt", "images/train/1.png\n")
    text(top / "__MACOSX" / "._deep", "of macOS")
    text(top / ".DS_Store", "of macOS")
    source = shutil.make_archive(str(tmp_path / "a"), "zip", top)
    assert_same(source, folder, split="train")
    assert len(read(source, "train")) == 1  # the list counts


def test_the_only_folder_of_an_archive_may_be_a_split(tmp_path):
    yolo(tmp_path / "train")
    source = shutil.make_archive(str(tmp_path / "a"), "zip", tmp_path, "train")
    assert len(read(source, "train")) == 6
    with refused(DataError, f"{source}: no split val"):
        read(source, "val")


def test_a_start_makes_the_copy_what_the_bucket_is_now(tmp_path):
    folder = tmp_path / "set"
    yolo(folder)
    copy = Path(local(upload(folder, f"{BUCKET}/set")))
    before = Faulty.reads
    local(f"{BUCKET}/set")
    assert Faulty.reads == before  # nothing has changed
    paint(folder / "images" / "train" / "0.png", 77)
    text(folder / "labels" / "train" / "1.txt", "0 .5 .5 .2 .2\n")
    shutil.rmtree(folder / "images" / "val")
    paint(folder / "images" / "train" / "new.png", 33)
    (folder / "classes.txt").unlink()
    text(folder / "classes.txt" / "was a file.txt", "a")
    fsspec.filesystem("faulty").rm("/bucket/set", recursive=True)
    upload(folder, f"{BUCKET}/set")
    (copy / "labels" / "train" / "0.txt").write_text("")  # cut off
    (copy / "stray.png").touch()
    (copy / "images" / "train" / "3.png").unlink()
    local(f"{BUCKET}/set")
    assert contents_of(copy) == contents_of(folder)
    assert {path.name for path in copy.rglob("*") if path.is_dir()} == {
        *("images", "labels", "train", "val", "classes.txt")
    } and not (copy / "images" / "val").exists()


def test_a_download_that_is_cut_off_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "THREADS", 1)
    yolo(tmp_path / "set")
    address = upload(tmp_path / "set", f"{BUCKET}/set")
    Faulty.faults += [None] * 5 + [PermissionError("403")]
    before = Faulty.reads
    with refused(FetchError, f"{BUCKET}/set", "denied"):
        local(address)
    copy = remote_cache.place(address)
    assert len(contents_of(copy)) == 5
    text(copy / ".123-456.tmp", "part of a file")  # of a process that was killed
    assert contents_of(local(address)) == contents_of(tmp_path / "set")
    assert Faulty.reads == before + 14 and not list(copy.rglob(".*"))


@pytest.mark.parametrize(
    "fault", (3, ConnectionResetError("cut"), PermissionError("403, url='https://h/a?sig=secret'"))
)
def test_a_download_that_fails_leaves_no_part_of_a_file(fault):
    """Also one of another length than was listed: the object has changed."""
    put("a", b"12345")
    Faulty.faults.append(fault)
    with refused(FetchError, f"{BUCKET}/a") as error:
        local_file(f"{BUCKET}/a")
    assert "secret" not in str(error.value) and not remote_cache.place(f"{BUCKET}/a").exists()
    assert Path(local_file(f"{BUCKET}/a")).read_bytes() == b"12345"


def test_a_storage_that_is_silent_is_told(monkeypatch):
    monkeypatch.setattr(remote, "WARN_AFTER", 0.05)
    put("a", b"a")
    for method in ("get_file", "info"):
        told, answer = threading.Event(), getattr(Faulty, method)

        def tell(line, told=told, **_):
            if line.startswith(f"WARNING: {BUCKET}/a"):
                told.set()

        def late(*args, told=told, answer=answer, **options):
            assert told.wait(60)
            return answer(*args, **options)

        with monkeypatch.context() as patch:
            patch.setattr(remote, "print", tell, raising=False)
            patch.setattr(Faulty, method, late)
            copy = Path(local_file(f"{BUCKET}/a"))
        copy.unlink()


NAMES = [
    "a b",
    "50%",
    "%20",
    "#1",
    "?",
    "ä",
    "a\u0308",
    "😀",
    "[1]*",
    "-r",
    "A.png",
    "a.png",
    "x" * 200,
    "deep/er/a",
    "a:b",
]


def test_any_name_that_a_disk_can_hold_is_that_of_the_object():
    for name in NAMES:
        put(f"set/{name}", name.encode())
    put("set/deep", b"")  # the mark of a folder
    put("set/.DS_Store", b"x")
    copy = local(f"{BUCKET}/set")
    assert contents_of(copy) == {name: name.encode() for name in NAMES}


@pytest.mark.parametrize(
    "names", (["../a"], ["a/../../b"], ["b//a"], ["./a"], ["a\0b"], ["a", "a/b"], ["A", "a"]), ids=repr
)
def test_other_names_are_refused_and_nothing_is_written_outside(tmp_path, names, monkeypatch):
    monkeypatch.setattr(remote_cache, "_is_one_case", lambda _: True)
    entry = remote.Entry(f"{BUCKET}/set/a", 1, "1")
    monkeypatch.setattr(remote, "entries", lambda _: dict.fromkeys(names, entry))
    with refused(FetchError, f"{BUCKET}/set: {min(names)!r}"):
        local(f"{BUCKET}/set")
    assert {path.suffix for path in tmp_path.rglob("*") if path.is_file()} == {".lock"}


@pytest.mark.parametrize(
    "address", (f"{BUCKET}/../x", f"{BUCKET}//set", f"{BUCKET}/none", f"{BUCKET}/none.zip", "s4://b/set")
)
def test_a_wrong_address_is_named(address):
    put("set/a", b"a")
    with refused(FetchError, address.partition("//")[0]):
        local(address)


def archive_of(path: Path, members: dict[str, str]) -> str:
    """Writes an archive whose members have these names and contents; "-> x" and "=> x" are links."""
    with tarfile.open(path, "w") if path.suffix == ".tar" else zipfile.ZipFile(path, "w") as archive:
        for name, contents in members.items():
            if isinstance(archive, zipfile.ZipFile):
                info = zipfile.ZipInfo(name)
                info.external_attr = (0o120777 if contents.startswith("-> ") else 0o100644) << 16
                archive.writestr(info, contents)
                continue
            member = tarfile.TarInfo(name)
            if contents[:3] in ("-> ", "=> "):
                member.type, member.linkname = tarfile.SYMTYPE if contents[0] == "-" else tarfile.LNKTYPE, contents[3:]
                archive.addfile(member)
            else:
                member.size = len(contents)
                archive.addfile(member, io.BytesIO(contents.encode()))
    return str(path)


@pytest.mark.parametrize(
    ("name", "members"),
    (
        ("a.tar", {"../../escaped": "a"}),
        ("a.tar", {"a": "-> /etc"}),
        ("a.tar", {"a": "1", "a/b": "2"}),
        ("a.zip", {"a": "1", "a/b": "2"}),
        ("a.zip", {}),
    ),
)
def test_an_archive_that_leads_outside_or_is_no_folder_is_refused(tmp_path, name, members):
    source = archive_of(tmp_path / name, members)
    with refused(FetchError, source):
        local(source)
    assert {path.name for path in tmp_path.iterdir()} == {name, "cache"}
    assert not list((tmp_path / "cache").rglob("escaped"))


def test_names_and_links_in_a_zip_stay_inside(tmp_path):
    copy = local(archive_of(tmp_path / "a.zip", {"../../escaped": "a", "/absolute": "b", "link": "-> /etc"}))
    assert contents_of(copy) == {"absolute": b"b", "escaped": b"a", "link": b"-> /etc"}
    assert not [path for path in tmp_path.rglob("*") if path.is_symlink()]


def test_a_link_in_a_tar_is_the_file(tmp_path):
    copy = local(archive_of(tmp_path / "a.tar", {"./a.png": "image", "b.png": "=> ./a.png", "c/d.png": "-> ../a.png"}))
    assert contents_of(copy) == {"a.png": b"image", "b.png": b"image", "c/d.png": b"image"}


@pytest.mark.parametrize("size", (0, 600))
def test_a_damaged_archive_is_named(tmp_path, size):
    for suffix in (".tar", ".tar.gz", ".zip"):
        (tmp_path / f"a{suffix}").write_bytes(tar_of(ROOT / "tests" / "data")[:size])
        with refused(FetchError, f"a{suffix}"):
            local(str(tmp_path / f"a{suffix}"))


def test_two_starts_at_once_unpack_one_archive(tmp_path):
    source = archive_of(tmp_path / "a.zip", {f"{n}.txt": str(n) * 5000 for n in range(500)})
    code = f"from utils.remote_cache import local; print(sum(1 for _ in __import__('os').scandir(local({source!r}))))"
    both = [
        subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    printed = [one.communicate()[0] for one in both]
    assert [out.split()[-1] for out in printed] == ["500"] * 3
    assert sum("unpacking" in out for out in printed) == 1


def test_a_set_that_does_not_fit_is_refused_before_it_is_downloaded(monkeypatch):
    put("set/a", b"old")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 8, 2))
    before = Faulty.reads
    with refused(FetchError, f"{BUCKET}/set", "mount"):
        local(f"{BUCKET}/set")
    assert Faulty.reads == before


def test_a_web_server_gives_a_whole_file_or_an_error(tmp_path):
    pytest.importorskip("aiohttp", reason="pip install aiohttp")
    coco(tmp_path / "set")
    labels = (tmp_path / "set" / "annotations" / "all.json").read_bytes()
    page = b"<!DOCTYPE html><form>password</form>"
    answers = {
        "/all.json": (200, {"ETag": "1"}, labels),
        "/typed.zip": (200, {"Content-Type": "text/html"}, page),
        "/page.json": (200, {}, page),
        "/half.zip": (200, {"Content-Length": "999"}, b"PK"),
        "/none.zip": (404, {}, b""),
    }
    with serving(answers) as server:
        options = ReadOptions(image_root=str(tmp_path / "set" / "images"))
        assert_same(f"{server}/all.json", tmp_path / "set" / "annotations" / "all.json", options)
        for name in ("typed.zip", "page.json", "half.zip", "none.zip"):
            with refused(FetchError, f"{server}/{name}"):
                local(f"{server}/{name}")
    kept = {path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()}
    assert kept.isdisjoint({"typed.zip", "page.json", "half.zip", "none.zip"})


@pytest.mark.parametrize("headers", ({}, {"ETag": "1"}), ids=["none", "tag"])
def test_a_web_file_without_a_version_is_downloaded_once_per_start(tmp_path, monkeypatch, capsys, headers):
    pytest.importorskip("aiohttp", reason="pip install aiohttp")
    yolo(tmp_path / "set")
    data = Path(shutil.make_archive(str(tmp_path / "a"), "zip", tmp_path / "set")).read_bytes()
    with serving({name: (200, headers, data) for name in ("/a.zip", "/a.pt")}) as server:
        for _ in range(2):
            local(f"{server}/a.zip")
            local_file(f"{server}/a.pt")
        assert capsys.readouterr().out.count("downloading") == 2
        monkeypatch.setattr(remote, "STARTED", time.time() + 60)
        local(f"{server}/a.zip")
        local_file(f"{server}/a.pt")
    assert capsys.readouterr().out.count("downloading") == (0 if headers else 2)


def test_weights_at_an_address_are_that_file_and_never_the_official_ones():
    pytest.importorskip("aiohttp", reason="pip install aiohttp")
    contents = TINY_WEIGHTS.read_bytes()
    put("mine.pt", contents)
    with serving({"/mine.pt": (200, {"ETag": "1"}, contents)}) as server:
        for address in (f"{server}/mine.pt", f"{BUCKET}/mine.pt"):
            assert Path(train.checked(train.Config(weights=address)).weights).read_bytes() == contents
    mirror = train.Config(weights="https://mirror.org/weights")
    assert train.checked(mirror).weights == mirror.weights


@pytest.mark.parametrize("name", ("s3://b/a.png", "http://host/a.png", f"{BUCKET}/a.png"))
def test_a_label_file_makes_the_program_ask_no_address(tmp_path, name, monkeypatch):
    monkeypatch.setattr(remote, "storage", lambda scheme: pytest.fail(scheme))
    text(tmp_path / "all.txt", f"{name} 1,2,9,9,0\n")
    labels = {
        "images": [{"id": 1, "file_name": name, "width": 9, "height": 9}],
        "categories": [{"id": 1, "name": "cat"}],
    }
    text(
        tmp_path / "all.json",
        labels | {"annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4]}]},
    )
    for file in ("all.txt", "all.json"):
        with pytest.raises(DataError):
            check_images(read(tmp_path / file, "all"))


def test_problems_of_the_data_name_the_address(tmp_path):
    yolo(tmp_path / "set")
    text(tmp_path / "set" / "labels" / "train" / "1.txt", "0 .5 .5 .2 .2\n7 .5 .5 .1 .1\n")
    with pytest.raises(DataError) as error:
        read(upload(tmp_path / "set", f"{BUCKET}/set"), "train")
    assert f"{BUCKET}/set/labels/train/1.txt:2" in str(error.value) and "cache" not in str(error.value)


@pytest.mark.parametrize(
    "address",
    (
        *("https://user:secret@host/set.tar", "s3://AKIA:secret@bucket/set", "https://secret@host/set.tar"),
        *("https://host/set.tar?X-Amz-Signature=secret&x=1", "https://host/a?api-key=secret"),
        *("https://[host/set?token=secret", "HTTPS://secret@host/set.tar", "az://box/set?sig=secret"),
    ),
)
def test_keys_in_addresses_are_refused_and_not_repeated(address):
    def constant(text):
        check(train.Config(train=text))

    for work in (local, local_file, constant):
        with pytest.raises(ValueError) as error:
            work(address)
        assert "secret" not in str(error.value) and "key" in str(error.value)
    assert "secret" not in remote.without_keys(f"403, url={address!r}, and '{address}'")


def test_a_missing_package_is_named(monkeypatch):
    def missing(*_, **__):
        raise ImportError("Please install gcsfs to access Google Storage")

    monkeypatch.setattr(fsspec, "filesystem", missing)
    with refused(FetchError, "pip install gcsfs"):
        local("gs://bucket/set")


def test_paths_and_streams_are_left_alone(tmp_path):
    for path in ("data/train.txt", r"C:\data\set", str(tmp_path), "missing.tar"):
        assert local(path) == local_source(path) == path
    for source in ("0", "rtsp://user:password@camera/1", "https://host/a.jpg?token=1"):
        assert local_source(source) == source
    assert not (tmp_path / "cache").exists()

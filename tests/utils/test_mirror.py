"""A data set at an address or in a tar is read like its folder; what is wrong with a storage is told, and nothing is lost."""

import hashlib
import io
import os
import shutil
import tarfile
import threading
from functools import partial
from pathlib import Path

import fsspec
import pytest
from buckets import Faulty, tar_of, upload
from files import paint, text
from refused import refused

import train
from datasets.check_images import check_images
from datasets.errors import DataError
from datasets.formats.options import ReadOptions
from datasets.formats.read import read
from utils import mirror, remote
from utils.config import check
from utils.images import read_bytes
from utils.remote import FetchError


@pytest.fixture(autouse=True)
def empty(tmp_path, monkeypatch):
    """No cache, no objects, no pauses."""
    monkeypatch.setenv("THAW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "PAUSES", (0, 0, 0))
    Faulty.store.clear()
    Faulty.faults.clear()


def yolo(folder: Path) -> Path:
    for number in range(6):
        split = "val" if number > 3 else "train"
        paint(folder / "images" / split / f"{number}.png", 40 + number)
        text(folder / "labels" / split / f"{number}.txt", f"{number % 2} .5 .5 .{number + 1} .5\n")
    text(folder / "classes.txt", "cat\ndog\n")
    return folder


def coco(folder: Path) -> Path:
    images = [{"id": n, "file_name": f"{n}.png", "width": 40, "height": 20} for n in range(3)]
    marks = [
        {"id": n, "image_id": n, "category_id": 1, "bbox": [n, 1, 9, 9], "area": 81, "iscrowd": 0} for n in range(3)
    ]
    for image in images:
        paint(folder / "images" / image["file_name"])
    text(
        folder / "annotations" / "all.json",
        {"images": images, "annotations": marks, "categories": [{"id": 1, "name": "cat"}]},
    )
    return folder


def lines(folder: Path) -> Path:
    for number in range(3):
        paint(folder / "photos" / f"{number} a.png")
    text(folder / "all.txt", "".join(f"photos/{n} a.png 1,2,{n + 9},9,0\n" for n in range(3)))
    text(folder / "classes.txt", "cat\n")
    return folder


def assert_same(address, folder, split="all"):
    """Asserts that an address has the same data as a folder or a file, and the same bytes in its images."""
    options = ReadOptions(bad_boxes="drop")
    ours, theirs = (check_images(read(source, split, options), options)[0] for source in (address, folder))
    assert ours.digest() == theirs.digest() and ours.image_digest() == theirs.image_digest()
    assert ours.classes == theirs.classes and len(ours) > 0
    for i in range(len(ours)):
        assert read_bytes(ours.path(i)) == read_bytes(theirs.path(i))
    return ours


def assert_read_once(address: str, folder: Path) -> None:
    """Asserts that a second start has the same data, and reads no object."""
    assert_same(address, folder)
    before = Faulty.reads
    assert_same(address, folder)
    assert Faulty.reads == before


@pytest.mark.parametrize("address", ("faulty://bucket/set", "memory://bucket/deep/set", "file"))
def test_a_folder_in_a_bucket_is_the_folder(tmp_path, address):
    folder = yolo(tmp_path / "set")
    address = f"file://{folder}" if address == "file" else upload(folder, address)
    for split in ("train", "val", "all"):
        assert_same(address, folder, split)


def test_an_annotation_file_in_a_bucket_finds_its_images(tmp_path):
    folder = coco(tmp_path / "coco")
    assert_same(upload(folder, "faulty://bucket/coco") + "/annotations/all.json", folder / "annotations" / "all.json")
    folder = lines(tmp_path / "lines")
    assert_same(upload(folder, "faulty://bucket/lines") + "/all.txt", folder / "all.txt")


def test_a_local_annotation_file_may_name_images_by_their_addresses(tmp_path):
    folder = lines(tmp_path / "set")
    address = upload(folder, "faulty://bucket/set")
    text(tmp_path / "all.txt", (folder / "all.txt").read_text().replace("photos/", f"{address}/photos/"))
    text(tmp_path / "classes.txt", "cat\n")
    found, _ = check_images(read(tmp_path / "all.txt", "all"))
    assert found.image_digest() == check_images(read(folder / "all.txt", "all"))[0].image_digest()


@pytest.mark.parametrize(
    "name", ("sftp://host/a.png", "http://host/a.png", "smb://host/share/a.png", "s3://b/../../a.png")
)
def test_the_names_of_images_lead_to_buckets_only(tmp_path, name, monkeypatch):
    monkeypatch.setattr(remote, "storage_of", lambda address: pytest.fail(address))
    monkeypatch.setattr(mirror, "storage_of", lambda address: pytest.fail(address))
    text(tmp_path / "all.txt", f"{name} 1,2,9,9,0\n")
    with pytest.raises(DataError):
        check_images(read(tmp_path / "all.txt", "all"))


def test_an_image_that_is_not_in_the_bucket_is_a_missing_image(tmp_path):
    folder = lines(tmp_path / "set")
    (folder / "photos" / "1 a.png").unlink()
    options = ReadOptions(bad_images="skip")
    found = read(upload(folder, "faulty://bucket/set") + "/all.txt", "all", options)
    assert len(check_images(found, options)[0]) == 2
    with pytest.raises(DataError, match="faulty://bucket/set/photos/1 a.png"):
        check_images(found, ReadOptions(bad_images="error"))


def test_images_may_be_at_another_address(tmp_path):
    folder = coco(tmp_path / "coco")
    address = upload(folder / "images", "faulty://bucket/elsewhere")
    (tmp_path / "all.json").write_bytes((folder / "annotations" / "all.json").read_bytes())
    found = read(tmp_path / "all.json", "all", ReadOptions(image_root=address))
    assert [read_bytes(found.path(i)) for i in range(3)] == [
        (folder / "images" / f"{i}.png").read_bytes() for i in range(3)
    ]


@pytest.mark.parametrize("where", ("local", "bucket", "shards"))
def test_a_tar_is_the_folder_in_it(tmp_path, where):
    folder, tar = yolo(tmp_path / "set"), tmp_path / "set.tar"
    tar.write_bytes(tar_of(folder))
    if where == "local":
        assert_same(tar, folder)
        return
    files, top = fsspec.core.url_to_fs("faulty://bucket")
    files.pipe_file(f"{top}/tars/set.tar", tar.read_bytes())
    address = "faulty://bucket/tars/set.tar" if where == "bucket" else "faulty://bucket/tars"
    assert_read_once(address, folder)  # the copy and the index are kept


@pytest.mark.parametrize("kind", ("rewritten", "replaced", "bucket"))
def test_a_tar_of_the_same_size_that_has_changed_is_read_again(tmp_path, kind):
    folder, tar = yolo(tmp_path / "set"), tmp_path / "set.tar"
    address = "faulty://bucket/set.tar" if kind == "bucket" else tar
    for place in ("first", "second"):
        (tmp_path / place).write_bytes(tar_of(folder))
        if kind == "bucket":
            fsspec.filesystem("faulty").pipe_file("/bucket/set.tar", (tmp_path / place).read_bytes())
        elif kind == "replaced" or place == "first":
            os.utime(tmp_path / place, (1, 1))
            os.replace(tmp_path / place, tar)
        else:
            tar.write_bytes((tmp_path / place).read_bytes())
        assert_same(address, folder)
        label = folder / "labels" / "train" / "1.txt"
        label.write_text(label.read_text().replace(".5", ".4"))


def test_a_tar_may_lie_below_a_hidden_folder(tmp_path):
    tar = tmp_path / ".data" / "set.tar"
    tar.parent.mkdir()
    tar.write_bytes(tar_of(yolo(tmp_path / "set")))
    assert_same(tar, tmp_path / "set")


def with_status(status: int) -> Exception:
    error = RuntimeError("an answer over HTTP")
    error.status = status
    return error


@pytest.mark.parametrize(
    ("error", "is_tried_again"),
    [
        (ConnectionError("lost"), True),
        (with_status(503), True),
        *((with_status(status), False) for status in (400, 401, 403, 404, 405, 410)),
        (PermissionError("no"), False),
        (type("NoCredentialsError", (Exception,), {})("no"), False),
        (FileNotFoundError("gone"), False),
        (NotImplementedError("listing"), False),
    ],
)
def test_only_errors_that_may_pass_are_tried_again(error, is_tried_again):
    calls = []

    def work():
        calls.append(1)
        raise error

    with refused(FetchError, "s3://bucket/a"):
        remote.attempt("s3://bucket/a", work)
    assert len(calls) == (1 + len(remote.PAUSES) if is_tried_again else 1)


@pytest.mark.parametrize("key", ("generation", "ETag", "etag", "mtime", "created", "LastModified"))
def test_what_a_storage_lists_of_an_object_tells_its_versions_apart(key):
    """Google's storage, S3, Azure, sftp, and others."""
    storage = remote.storage_of("faulty://bucket")
    info = {"name": "/bucket/a", "size": 3, "type": "file"}
    items = [storage._item(info | {key: value}) for value in (1, 1, 2)]
    assert items[0] == items[1] != items[2]
    if key != "LastModified":
        later = [storage._item(info | {key: 1, "LastModified": value}) for value in (3, 4)]
        assert later[0] == later[1]  # the same contents, written again


@pytest.fixture
def large():
    """An object of 256 bytes."""
    fsspec.filesystem("faulty").pipe_file("/bucket/large", bytes(range(256)))
    return remote.storage_of("faulty://bucket/large").file("faulty://bucket/large")


def test_of_a_large_object_only_the_block_with_an_error_is_read_again(large):
    Faulty.faults += [None, ConnectionResetError("cut"), 50]
    before = Faulty.reads
    remote.storage_of(large.address).copy(large, file := io.BytesIO(), block=100)
    assert file.getvalue() == bytes(range(256)) and Faulty.reads == before + 5


@pytest.mark.parametrize("kind", ("whole later", "too long", "changed"))
def test_a_large_object_is_copied_as_it_was_listed_or_not_at_all(large, kind, monkeypatch):
    read_range = Faulty.cat_file

    def cat_file(self, path, start=None, end=None, **options):
        if kind == "whole later" and start:  # another server behind the same address, which knows no ranges
            return read_range(self, path)
        return read_range(self, path, start, end + (kind == "too long" and end < 256), **options)

    monkeypatch.setattr(Faulty, "cat_file", cat_file)
    if kind == "changed":
        fsspec.filesystem("faulty").pipe_file("/bucket/large", bytes(256))
    with refused(FetchError, large.address):
        remote.storage_of(large.address).copy(large, io.BytesIO(), block=100)


def test_a_large_object_that_was_listed_without_its_version_is_copied(large):
    """Web servers list sizes, and answer a request with a version."""
    remote.storage_of(large.address).copy(large._replace(version=""), file := io.BytesIO(), block=100)
    assert file.getvalue() == bytes(range(256))


def test_an_object_whose_version_is_the_md5_of_its_contents_takes_one_request(large, monkeypatch):
    monkeypatch.setattr(Faulty, "info", lambda *_, **__: pytest.fail("a second request"))
    item = large._replace(version=f'"{hashlib.md5(bytes(range(256)), usedforsecurity=False).hexdigest()}"')
    assert remote.storage_of(large.address).read(item) == bytes(range(256))


def test_a_tar_next_to_images_is_a_copy_of_them_and_is_not_read(tmp_path):
    folder = yolo(tmp_path / "set")
    address = upload(folder, "faulty://bucket/set")
    other = coco(tmp_path / "other")
    files, top = fsspec.core.url_to_fs(address)
    files.pipe_file(f"{top}/more.tar", tar_of(other))
    assert_same(address, folder)


def test_a_tar_that_is_cut_off_after_the_start_is_an_error(tmp_path):
    tar = tmp_path / "set.tar"
    tar.write_bytes(tar_of(yolo(tmp_path / "set")))
    found = read(tar, "all")
    tar.write_bytes(tar.read_bytes()[:600])
    with refused(FetchError, tar):
        for i in range(len(found)):
            read_bytes(found.path(i))


def test_names_in_a_tar_lead_nowhere_else(tmp_path):
    with tarfile.open(tmp_path / "bad.tar", "w") as tar:
        for name in ("../../escaped.txt", "/absolute.txt", "a/../../b.txt", "fine.txt"):
            member = tarfile.TarInfo(name)
            member.size = 2
            tar.addfile(member, io.BytesIO(b"ok"))
    folder = mirror.local(str(tmp_path / "bad.tar"))
    assert os.listdir(folder) == ["fine.txt"]
    assert not list(tmp_path.rglob("*escaped*")) and not list(tmp_path.rglob("b.txt"))


def test_large_files_of_two_splits_stay_copied(tmp_path, monkeypatch):
    """The training file, when the validation file next to it is read, and at the next start."""
    monkeypatch.setattr(mirror, "LARGE_TEXT", 10)
    folder = coco(tmp_path / "set")
    for split in ("train", "val"):
        shutil.copy(folder / "annotations" / "all.json", folder / "annotations" / f"{split}.json")
    top = upload(folder, "faulty://bucket/set")
    both = [f"{top}/annotations/{split}.json" for split in ("train", "val")]
    for address in both:
        read(address, "all")
    before = Faulty.reads
    for address in both:
        assert len(read(address, "all")) == 3
    assert Faulty.reads == before


def test_large_label_files_that_a_data_file_names_are_copied(tmp_path, monkeypatch):
    monkeypatch.setattr(mirror, "LARGE_TEXT", 1)
    folder = yolo(tmp_path / "set")
    text(folder / "data.yaml", "train: images/train\nval: images/val\nnames: [cat, dog]\n")
    assert_same(upload(folder, "faulty://bucket/set") + "/data.yaml", folder / "data.yaml")


def test_only_the_folder_of_a_label_file_is_listed_if_it_has_images(tmp_path):
    folder = lines(tmp_path / "set")
    upload(folder, "faulty://bucket/sets/other")
    address = upload(folder, "faulty://bucket/sets/set")
    assert_same(f"{address}/all.txt", folder / "all.txt")
    assert os.listdir(mirror.place("faulty://bucket/sets")) == ["set"]


def test_files_of_unknown_size_are_read_once(tmp_path, monkeypatch):
    item = remote.Storage._item
    monkeypatch.setattr(remote.Storage, "_item", lambda self, info: item(self, info)._replace(size=None))
    folder = yolo(tmp_path / "set")
    address = upload(folder, "faulty://bucket/set")
    assert_read_once(address, folder)


@pytest.mark.parametrize("larger", (0, 1))
def test_only_a_label_file_that_may_be_needed_is_copied_if_it_is_large(tmp_path, monkeypatch, larger):
    """Next to the one that is named are those of other sets. Each label file of a folder may be needed."""
    folder = coco(tmp_path / "set")
    contents = (folder / "annotations" / "all.json").read_bytes()
    monkeypatch.setattr(mirror, "LARGE_TEXT", len(contents) - larger)
    (folder / "annotations" / "other.json").write_bytes(contents)
    top = upload(folder, "faulty://bucket/set")
    before, other = Faulty.reads, Path(mirror.place(f"{top}/annotations/other.json"))
    mirror.local(f"{top}/annotations/all.json")
    assert (Faulty.reads - before, other.read_bytes()) == ((1, b"") if larger else (2, contents))
    mirror.local(f"{top}/annotations")
    assert other.read_bytes() == contents
    changed = contents.replace(b"cat", b"dog and cat")
    fsspec.filesystem("faulty").pipe_file("/bucket/set/annotations/other.json", changed)
    mirror.local(f"{top}/annotations/all.json")
    assert other.read_bytes() == b""  # not needed again
    mirror.local(f"{top}/annotations")
    assert other.read_bytes() == changed


def test_label_files_of_a_storage_without_versions_are_read_at_each_start(tmp_path, monkeypatch):
    """Images are not."""
    monkeypatch.setattr(remote, "VERSIONS", ())
    folder = yolo(tmp_path / "set")
    address = upload(folder, "faulty://bucket/set")
    assert_same(address, folder)
    label = folder / "labels" / "train" / "1.txt"
    label.write_text(label.read_text().replace(".5", ".4"))  # as large as before
    upload(folder, address)
    image = Path(mirror.place(f"{address}/images/train/1.png"))
    before, made = Faulty.reads, image.stat()
    assert_same(address, folder)
    assert Faulty.reads == before + 7  # six label files and the list of classes
    assert (image.stat().st_ino, image.stat().st_mtime_ns) == (made.st_ino, made.st_mtime_ns)  # its scan stays valid


def test_a_second_start_reads_no_object_and_a_changed_one_again(tmp_path):
    folder = yolo(tmp_path / "set")
    address = upload(folder, "faulty://bucket/set")
    assert_read_once(address, folder)
    paint(folder / "images" / "train" / "0.png", 77)
    text(folder / "labels" / "train" / "1.txt", "0 .5 .5 .2 .2\n")
    (folder / "labels" / "train" / "2.txt").unlink()
    paint(folder / "images" / "train" / "new.png", 33)
    fsspec.filesystem("faulty").rm("/bucket/set", recursive=True)
    upload(folder, address)
    assert_same(address, folder)


def test_a_start_makes_the_folder_that_of_the_storage_whatever_is_in_it(tmp_path):
    folder = yolo(tmp_path / "set")
    address = upload(folder, "faulty://bucket/set")
    here = Path(mirror.local(address))
    for image in here.rglob("*.png"):
        assert mirror.contents(str(image)) and not image.stat().st_size
    (here / "images" / "train" / "stray.png").touch()
    (here / "labels" / "train" / "0.txt").write_text("")  # cut off
    (here / "labels" / "train" / "1.txt").unlink()
    (here / "images" / "train" / "2.png").write_bytes(b"part")
    for place in (here, folder):
        (place / "images" / "train" / "3.png").unlink()
    fsspec.filesystem("faulty").rm("/bucket/set/images/train/3.png")
    assert mirror.local(address) == str(here)
    found = {path.relative_to(here): path.read_bytes() for path in here.rglob("*") if path.is_file()}
    there = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert found == {path: b"" if path.suffix == ".png" else data for path, data in there.items()}
    assert mirror.contents(str(here / "images" / "train" / "3.png")) is None


def test_a_folder_that_is_deleted_while_the_program_runs_is_made_again(tmp_path):
    folder = yolo(tmp_path / "set")
    address = upload(folder, "faulty://bucket/set")
    assert_same(address, folder)
    shutil.rmtree(tmp_path / "cache" / "remote")  # to free its room
    found = assert_same(address, folder)
    shutil.rmtree(tmp_path / "cache" / "remote")
    assert read_bytes(found.path(0)) == (folder / "images" / "train" / "0.png").read_bytes()


def test_a_cache_that_is_moved_stays_whole(tmp_path, monkeypatch):
    folder = yolo(tmp_path / "set")
    fsspec.filesystem("faulty").pipe_file("/bucket/set.tar", tar_of(folder))
    for address in ("faulty://bucket/set.tar", upload(folder, "faulty://bucket/set")):
        monkeypatch.setenv("THAW_CACHE", str(tmp_path / "cache"))
        assert_same(address, folder)
        shutil.move(tmp_path / "cache", tmp_path / "moved")
        monkeypatch.setenv("THAW_CACHE", str(tmp_path / "moved"))
        monkeypatch.setattr(mirror, "_opened", threading.local())  # another process
        assert_same(address, folder)
        shutil.rmtree(tmp_path / "moved")


def test_a_lost_cache_is_fetched_again(tmp_path):
    folder = yolo(tmp_path / "set")
    address = upload(folder, "faulty://bucket/set")
    found = assert_same(address, folder)
    for path in (tmp_path / "cache" / "remote" / "objects").rglob("*"):
        if path.is_file():
            path.write_bytes(b"part")  # of another size than the object
    for i in range(len(found)):
        assert (
            read_bytes(found.path(i))
            == (folder / "images" / Path(found.path(i)).parent.name / Path(found.path(i)).name).read_bytes()
        )


@pytest.fixture
def unread(tmp_path):
    """A data set in a bucket whose images nothing has read yet, and its folder."""
    folder = lines(tmp_path / "set")
    return read(
        upload(folder, "faulty://bucket/set") + "/all.txt", "all", ReadOptions(bad_images="skip")
    ), folder / "photos"


def test_a_broken_connection_costs_a_pause_and_leaves_no_part_of_an_image(unread):
    found, photos = unread
    Faulty.faults += [10, ConnectionResetError("cut"), 3]
    assert read_bytes(found.path(0)) == (photos / "0 a.png").read_bytes()
    Faulty.faults += [5] * 20  # more than the attempts
    with pytest.raises(FetchError, match="faulty://bucket/set/photos/1 a.png"):
        read_bytes(found.path(1))
    Faulty.faults.clear()
    assert read_bytes(found.path(1)) == (photos / "1 a.png").read_bytes()


def test_a_full_disk_keeps_no_images_and_loses_none(unread, monkeypatch):
    found, photos = unread

    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(mirror, "atomic_write", full)
    for _ in range(2):
        before = Faulty.reads
        assert read_bytes(found.path(0)) == (photos / "0 a.png").read_bytes()
        assert Faulty.reads == before + 1


def test_an_image_that_changes_after_the_start_is_an_error(unread):
    found, photos = unread
    fsspec.filesystem("faulty").pipe_file("/bucket/set/photos/0 a.png", (photos / "0 a.png").read_bytes()[:-1] + b"x")
    with pytest.raises(FetchError, match="faulty://bucket/set/photos/0 a.png has changed"):
        read_bytes(found.path(0))


def test_errors_of_the_storage_end_the_reading_whatever_bad_images_says(unread):
    found, _ = unread
    Faulty.faults += [PermissionError("403 Forbidden")] * 9
    with pytest.raises(FetchError, match="faulty://bucket/set/photos/.*denied"):
        check_images(found, ReadOptions(bad_images="skip"))


@pytest.mark.parametrize("address", ("faulty://wrong/set", "faulty://bucket/set/none.json", "faulty://bucket/none.tar"))
def test_a_wrong_address_is_named(tmp_path, address):
    upload(yolo(tmp_path / "set"), "faulty://bucket/set")
    with pytest.raises(FetchError, match=address):
        read(address, "train")


def test_a_missing_package_is_named(monkeypatch):
    def missing(*_, **__):
        raise ImportError("Please install gcsfs to access Google Storage")

    monkeypatch.setattr(fsspec, "filesystem", missing)
    with pytest.raises(FetchError, match="pip install gcsfs"):
        remote.Storage("gs")


def test_problems_of_the_data_name_the_address(tmp_path):
    folder = yolo(tmp_path / "set")
    text(folder / "labels" / "train" / "1.txt", "0 .5 .5 .2 .2\n7 .5 .5 .1 .1\n")
    with pytest.raises(DataError) as error:
        read(upload(folder, "faulty://bucket/set"), "train")
    assert "faulty://bucket/set/labels/train/1.txt:2" in str(error.value) and "cache" not in str(error.value)


@pytest.mark.parametrize(
    "address",
    (
        "https://user:secret@host/set.tar",
        "s3://AKIA:secret@bucket/set",
        "https://host/set.tar?X-Amz-Signature=secret&x=1",
        "https://host/set.tar?token=secret",
        "https://host/a?x=1&sig=secret",
        "https://secret@host/set.tar",
        "https://[host/set?token=secret",
        "HTTPS://secret@host/set.tar",
        "s3://AKIA:secret@bucket/photo.jpg",
    ),
)
def test_keys_in_addresses_are_refused_and_not_repeated(address):
    predict = partial(mirror.local_source, address)
    for work in (lambda: check(train.Config(train=address)), lambda: read(address, "train"), predict):
        with pytest.raises(ValueError) as error:
            work()
        assert "secret" not in str(error.value) and "AKIA" not in str(error.value)


def test_a_name_before_a_host_is_no_key():
    for address in ("abfs://data@account.dfs.core.windows.net/set", "sftp://me@host/set", "https://host/me@set.tar"):
        remote.refuse_keys("train=", address)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((word, True) for word in ("s3://bucket/a.jpg", "GS://bucket/a", "faulty://bucket/set")),
        *(
            (word, False)
            for word in ("https://host/a.jpg", "http://host/a.tar", "ftp://host/a", "rtsp://camera/1", "a.jpg")
        ),
    ],
)
def test_pages_and_streams_are_no_storage(text, expected):
    assert remote.is_storage(text) == expected


def test_paths_are_left_alone(tmp_path):
    for path in ("data/train.txt", r"C:\data\set", str(tmp_path), "missing.tar"):
        assert mirror.local(path) == path and mirror.contents(path) is None
    assert not (tmp_path / "cache").exists()


def test_an_empty_file_elsewhere_stays_an_error(tmp_path):
    (tmp_path / "a.png").touch()
    with pytest.raises(ValueError, match="empty"):
        read_bytes(str(tmp_path / "a.png"))

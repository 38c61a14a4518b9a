"""deploy/video.py: frames that are written can be read again, and every video is released."""

import threading

import cv2
import numpy as np
import pytest
from refused import refused

from deploy import video


def write_video(path, levels):
    """Frames of 64 x 48 pixels with these gray levels."""
    with video.writing(lambda: path, 10) as write:
        for level in levels:
            write(path.name, np.full((48, 64, 3), level, np.uint8))
    return path


def test_frames_that_are_written_are_read_again(tmp_path):
    levels = (30, 120, 220)
    capture = video.Video(str(write_video(tmp_path / "v.mp4", levels)))
    assert (capture.length, capture.rate) == (3, 10)
    frames = list(capture.frames(0))
    assert [frame.shape for frame in frames] == [(48, 64, 3)] * 3
    np.testing.assert_allclose([frame.mean() for frame in frames], levels, atol=8)


def test_a_video_without_frames_is_no_file(tmp_path):
    write_video(tmp_path / "v.mp4", ())
    assert not (tmp_path / "v.mp4").exists()


@pytest.mark.parametrize("ahead", [0, 1, 8])
def test_reading_ahead_loses_no_frame_and_releases_the_video_at_its_end(tmp_path, ahead):
    path = str(write_video(tmp_path / "v.mp4", range(0, 250, 10)))
    plain, expected = cv2.VideoCapture(path), []
    while (read := plain.read())[0]:
        expected.append(read[1])
    threads = threading.active_count()
    capture = video.Video(path)
    frames = list(capture.frames(ahead))
    assert len(frames) == 25 and all(np.array_equal(a, b) for a, b in zip(expected, frames, strict=True))
    assert not capture._capture.isOpened() and threading.active_count() == threads


class Stub:
    """A capture of OpenCV with three frames, or without an end."""

    def __init__(self, length, endless):
        self.length, self.endless = length, endless
        self.reads, self.read_after_release, self.released = 0, False, False

    def read(self):
        self.reads += 1
        self.read_after_release |= self.released
        return self.endless or self.reads <= 3, np.zeros((4, 4, 3), np.uint8)

    def release(self):
        self.released = True

    def get(self, _):
        return self.length


def test_a_video_that_is_closed_early_is_released_after_its_thread(monkeypatch):
    capture, threads = Stub(0, endless=True), threading.active_count()
    monkeypatch.setattr(video, "_open", lambda _: capture)
    frames = video.Video("v.mp4").frames(8)
    next(frames)
    frames.close()
    assert capture.released and not capture.read_after_release and threading.active_count() == threads


def test_a_length_that_is_far_too_large_does_not_keep_the_reader(monkeypatch):
    capture = Stub(1e15, endless=False)
    monkeypatch.setattr(video, "_open", lambda _: capture)
    monkeypatch.setattr(video, "TRIES", 50)
    assert len(list(video.Video("v.mp4").frames(0))) == 3 and capture.reads < 100


def write_noise_video(path, frames=60):
    """Frames of 160 x 120 pixels of noise, about 5 kB each."""
    noise = np.random.default_rng(0).integers(0, 256, (120, 160, 3), dtype=np.uint8)
    with video.writing(lambda: path, 10) as write:
        for number in range(frames):
            write(path.name, np.roll(noise, number, 1))
    return path


def test_the_frames_after_a_damaged_place_are_read_and_counted(tmp_path):
    path = write_noise_video(tmp_path / "v.mp4")
    whole = list(video.Video(str(path)).frames(0))
    data = bytearray(path.read_bytes())
    half = len(data) // 2
    data[half : half + 65536] = bytes(65536)
    path.write_bytes(data)
    capture = video.Video(str(path))
    frames = list(capture.frames(2))
    assert capture.count == len(frames) < capture.length == len(whole) == 60 and capture.damaged == 60 - len(frames)
    assert np.array_equal(frames[0], whole[0])
    with refused(ValueError, "v.mp4", f"{capture.count} of 60"):
        capture.check()


@pytest.fixture
def checked(monkeypatch):
    """What `check` says of a file with these counts."""
    monkeypatch.setattr(video, "_open", lambda _: Stub(0, endless=False))

    def check(name, count, length, **more):
        capture = video.Video(name)
        vars(capture).update(count=count, length=length, rate=30, **more)
        return capture.check()

    return check


def test_a_video_that_is_cut_off_is_an_error_unless_only_its_last_second_is_missing(checked):
    for count, damaged in ((0, 0), (69, 0), (99, 1)):
        with refused(ValueError, "v.mp4"):
            checked("v.mp4", count, 100, damaged=damaged)
    assert "v.mp4: 70 of 100" in checked("v.mp4", 70, 100)
    for length in (None, 70, 60):  # unknown, or fewer than there are
        assert checked("v.mp4", 70, length) == ""


def test_a_video_that_ends_before_its_sound_is_only_warned_about(checked):
    for name in ("v.mp4", "v.mkv", "v.webm"):
        assert name in checked(name, 70, 90, elapsed=70)
    assert checked("v.mp4", 70, 72, elapsed=80)  # frames of different length: phones write such MP4 files


def film(path, codec, damage):
    """A video of 60 frames of noise, of whose middle `damage` bytes are zeros. OpenCV skips what it cannot parse."""
    noise = np.random.default_rng(0).integers(0, 256, (120, 160, 3), dtype=np.uint8)
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*codec), 30, (160, 120))
    for number in range(60):
        writer.write(np.roll(noise, number, 1))
    writer.release()
    data = bytearray(path.read_bytes())
    half = len(data) // 2
    data[half : half + damage] = bytes(damage)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("name, codec", [("v.avi", "MJPG"), ("v.avi", "mp4v"), ("v.mkv", "MJPG"), ("v.webm", "VP80")])
@pytest.mark.parametrize("damage", [0, 60_000])
def test_a_few_frames_that_are_lost_in_the_middle_are_an_error_although_no_read_fails(tmp_path, name, codec, damage):
    capture = video.Video(str(film(tmp_path / name, codec, damage)))
    frames = list(capture.frames(2))
    assert capture.length == 60 and len(frames) == capture.count
    if not damage:
        assert capture.count == 60 and capture.check() == ""
        return
    assert 60 - capture.rate <= capture.count < 60 and not capture.damaged
    with refused(ValueError, name, f"{capture.count} of 60"):
        capture.check()


@pytest.mark.parametrize(
    "source, word",
    [
        ("rtsp://camera/1", "address"),
        ("http://127.0.0.1:1/film.mp4", "address"),
        ("https://example.com/bus.jpg?size=2", "download"),
        ("7", "number of another one"),
        ("film.mov", "ffmpeg"),
    ],
)
def test_the_fix_of_a_source_that_cannot_be_opened_depends_on_its_kind(source, word):
    assert word in video.fix_of(source)


def test_files_that_cannot_be_opened_or_written_are_named(tmp_path):
    with refused(ValueError, f"source={tmp_path / 'no.mp4'}"):
        video.Video(str(tmp_path / "no.mp4"))
    (tmp_path / "bad.mp4").write_bytes(b"no video")
    with refused(ValueError, f"source={tmp_path / 'bad.mp4'}"):
        video.Video(str(tmp_path / "bad.mp4"))
    with refused(ValueError, tmp_path / "no/folder/v.mp4", "save=false"):
        video.open_writer(tmp_path / "no/folder/v.mp4", 10, (48, 64))


def test_windows_fit_the_screen_and_q_or_escape_ends(monkeypatch):
    shown = []
    monkeypatch.setattr(cv2, "imshow", lambda _, image: shown.append(image.shape))
    for key, continues in ((ord("q"), False), (27, False), (ord(" "), True), (-1, True)):
        monkeypatch.setattr(cv2, "waitKey", lambda _, key=key: key)
        assert video.show(np.zeros((2560, 1280, 3), np.uint8), 1) is continues
    assert shown[0] == (1280, 640, 3)


def test_a_missing_screen_is_reported_with_the_constant(monkeypatch):
    def fail(*_):
        raise cv2.error("no screen")

    monkeypatch.setattr(cv2, "imshow", fail)
    with refused(ValueError, "show=true"):
        video.show(np.zeros((5, 5, 3), np.uint8), 1)

"""deploy/video.py: frames that are written can be read again, and every video is released."""

import struct
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
    capture = video.open_video(str(write_video(tmp_path / "v.mp4", levels)))
    assert (video.length(capture), video.rate(capture)) == (3, 10)
    frames = list(video.frames_of(capture, 0))
    assert [frame.shape for frame in frames] == [(48, 64, 3)] * 3
    np.testing.assert_allclose([frame.mean() for frame in frames], levels, atol=8)


def test_a_video_without_frames_is_no_file(tmp_path):
    write_video(tmp_path / "v.mp4", ())
    assert not (tmp_path / "v.mp4").exists()


@pytest.mark.parametrize("most", [0, 1, 8])
def test_reading_ahead_loses_no_frame_and_releases_the_video_at_its_end(tmp_path, most):
    path = str(write_video(tmp_path / "v.mp4", range(0, 250, 10)))
    plain, expected = video.open_video(path), []
    while (read := plain.read())[0]:
        expected.append(read[1])
    threads = threading.active_count()
    capture = video.open_video(path)
    frames = list(video.frames_of(capture, most))
    assert len(frames) == 25 and all(np.array_equal(a, b) for a, b in zip(expected, frames, strict=True))
    assert not capture.isOpened() and threading.active_count() == threads


def test_a_video_that_is_closed_early_is_released_after_its_thread():
    class Capture:
        read_after_release, released = False, False

        def read(self):
            self.read_after_release |= self.released
            return True, np.zeros((4, 4, 3), np.uint8)

        def release(self):
            self.released = True

        def get(self, _):
            return 0

    capture, threads = Capture(), threading.active_count()
    frames = video.frames_of(capture, 8)
    next(frames)
    frames.close()
    assert capture.released and not capture.read_after_release and threading.active_count() == threads


def write_noise_video(path, frames=60):
    """Frames of 160 x 120 pixels of noise, about 5 kB each."""
    noise = np.random.default_rng(0).integers(0, 256, (120, 160, 3), dtype=np.uint8)
    with video.writing(lambda: path, 10) as write:
        for number in range(frames):
            write(path.name, np.roll(noise, number, 1))
    return path


def test_the_frames_after_a_damaged_place_are_read_and_counted(tmp_path):
    path = write_noise_video(tmp_path / "v.mp4")
    whole = list(video.frames_of(video.open_video(str(path)), 0))
    data = bytearray(path.read_bytes())
    half = len(data) // 2
    data[half : half + 65536] = bytes(65536)
    path.write_bytes(data)
    capture, count = video.open_video(str(path)), video.Frames()
    announced, rate = video.length(capture), video.rate(capture)
    frames = list(video.frames_of(capture, 2, count))
    assert count.read == len(frames) < announced == len(whole) == 60 and count.damaged == 60 - len(frames)
    assert np.array_equal(frames[0], whole[0])
    with refused(ValueError, "v.mp4", f"{count.read} of 60"):
        video.require_frames(str(path), count, announced, rate)


def test_a_video_that_is_cut_off_is_an_error_unless_only_its_last_second_is_missing():
    for read, damaged in ((0, 0), (69, 0), (99, 1)):
        with refused(ValueError, "v.mp4"):
            video.require_frames("v.mp4", video.Frames(read, damaged), 100, 30)
    assert "v.mp4: 70 of 100" in video.require_frames("v.mp4", video.Frames(70), 100, 30)
    for announced in (None, 70, 60):  # unknown, or fewer than there are
        assert video.require_frames("v.mp4", video.Frames(70), announced, 30) == ""


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
    path = str(film(tmp_path / name, codec, damage))
    capture, count = video.open_video(path), video.Frames()
    announced, rate = video.length(capture), video.rate(capture)
    frames = list(video.frames_of(capture, 2, count))
    assert announced == 60 and len(frames) == count.read
    if not damage:
        assert count.read == 60 and video.require_frames(path, count, announced, rate) == ""
        return
    assert 60 - rate <= count.read < 60 and not count.damaged
    with refused(ValueError, name, f"{count.read} of 60"):
        video.require_frames(path, count, announced, rate)


def test_a_video_that_ends_before_its_sound_is_only_warned_about():
    whole = video.Frames(70, elapsed=70)
    for name in ("v.mp4", "v.mkv", "v.webm"):
        assert name in video.require_frames(name, whole, 90, 30)
    frames_of_different_length = video.Frames(70, elapsed=80)  # phones write such MP4 files
    assert video.require_frames("v.mp4", frames_of_different_length, 72, 30)


def test_a_video_file_that_is_empty_or_cut_off_is_copied_again_and_not_converted(tmp_path):
    whole = write_noise_video(tmp_path / "whole.mp4", 5).read_bytes()
    path = tmp_path / "v.mp4"
    for size in (0, 20, len(whole) // 2, len(whole) - 10):
        path.write_bytes(whole[:size])
        assert "incomplete" in video.fix_of(str(path)) and "ffmpeg" not in video.fix_of(str(path)), size
    path.write_bytes(whole[: len(whole) // 2])
    with refused(ValueError, f"source={path}"):
        video.open_video(str(path))
    path.write_bytes(whole)
    assert not video.is_incomplete(str(path))
    path.write_bytes(b"another format")
    assert "ffmpeg" in video.fix_of(str(path))


def test_the_boxes_of_an_mp4_file_may_have_long_lengths_and_an_open_end(tmp_path):
    def box(kind, length):
        return struct.pack(">I4s", length, kind)

    path = tmp_path / "v.mp4"
    start, long = box(b"ftyp", 8) + box(b"moov", 8), box(b"mdat", 1) + struct.pack(">Q", 20)
    for data, incomplete in (
        (start + long + b"1234", False),
        (start + long + b"123", True),
        (start + box(b"mdat", 0) + b"1234", False),
        (box(b"ftyp", 8) + box(b"mdat", 0) + b"1234", True),
        (start + bytes(100), False),
    ):
        path.write_bytes(data)
        assert video.is_incomplete(str(path)) is incomplete


def test_a_length_that_is_far_too_large_does_not_keep_the_reader(monkeypatch):
    class Capture:
        reads = 0

        def read(self):
            self.reads += 1
            return self.reads <= 3, np.zeros((4, 4, 3), np.uint8)

        def release(self):
            pass

        def get(self, _):
            return 1e15

    monkeypatch.setattr(video, "TRIES", 50)
    capture = Capture()
    assert len(list(video.frames_of(capture, 0))) == 3 and capture.reads < 100


@pytest.mark.parametrize(
    "source, word",
    [
        ("rtsp://camera/1", "address"),
        ("http://127.0.0.1:1/film.mp4", "address"),
        ("https://example.com/bus.jpg?size=2", "download"),
        ("7", "camera number"),
        ("film.mov", "ffmpeg"),
    ],
)
def test_the_fix_of_a_source_that_cannot_be_opened_depends_on_its_kind(source, word):
    assert word in video.fix_of(source)


def test_files_that_cannot_be_opened_or_written_are_named(tmp_path):
    with refused(ValueError, f"source={tmp_path / 'no.mp4'}"):
        video.open_video(str(tmp_path / "no.mp4"))
    (tmp_path / "bad.mp4").write_bytes(b"no video")
    with refused(ValueError, f"source={tmp_path / 'bad.mp4'}"):
        video.open_video(str(tmp_path / "bad.mp4"))
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

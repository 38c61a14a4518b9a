"""utils/video.py: what is a stream, and frames that come back."""

import threading

import cv2
import numpy as np
import pytest

from utils import video


@pytest.mark.parametrize(
    "source, stream, live",
    [
        ("0", True, True),
        ("rtsp://camera/1", True, True),
        ("a b.MP4", True, False),
        ("a.jpg", False, False),
        ("folder", False, False),
        ("12.jpg", False, False),
        ("in/*.jpg", False, False),
    ],
)
def test_what_is_a_stream(source, stream, live):
    assert (video.is_stream(source), video.is_live(source)) == (stream, live)


def test_a_folder_named_like_a_video_is_a_folder(tmp_path):
    (tmp_path / "a.mp4").mkdir()
    assert not video.is_stream(str(tmp_path / "a.mp4"))


def test_frames_written_are_frames_read(tmp_path):
    path, levels = tmp_path / "v.mp4", (30, 120, 220)
    writer = video.open_writer(path, 10, (48, 64, 3))
    for level in levels:
        writer.write(np.full((48, 64, 3), level, np.uint8))
    writer.release()
    frames = list(video.frames_of(video.open_video(str(path))))
    assert [frame.shape for frame in frames] == [(48, 64, 3)] * 3
    np.testing.assert_allclose([frame.mean() for frame in frames], levels, atol=8)


@pytest.mark.parametrize("most", [0, 1, 8])
def test_frames_read_ahead_are_all_frames_and_the_end_releases_the_video(tmp_path, most):
    writer = video.open_writer(tmp_path / "v.mp4", 10, (48, 64, 3))
    for level in range(0, 250, 10):
        writer.write(np.full((48, 64, 3), level, np.uint8))
    writer.release()
    plain, wanted = video.open_video(str(tmp_path / "v.mp4")), []
    while (read := plain.read())[0]:
        wanted.append(read[1])
    threads = threading.active_count()
    opened = video.open_video(str(tmp_path / "v.mp4"))
    frames = list(video.frames_of(opened, most))
    assert len(frames) == 25 and all(np.array_equal(a, b) for a, b in zip(wanted, frames, strict=True))
    assert not opened.isOpened() and threading.active_count() == threads


def test_a_video_closed_early_is_released_after_its_thread():
    class Capture:
        read_after_release, released = False, False

        def read(self):
            self.read_after_release |= self.released
            return True, np.zeros((4, 4, 3), np.uint8)

        def release(self):
            self.released = True

    capture, threads = Capture(), threading.active_count()
    frames = video.frames_of(capture, 8)
    next(frames)
    frames.close()
    assert capture.released and not capture.read_after_release and threading.active_count() == threads


def test_what_cannot_be_opened_or_written_is_named(tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        video.open_video(str(tmp_path / "no.mp4"))
    (tmp_path / "bad.mp4").write_bytes(b"no video")
    with pytest.raises(ValueError, match="bad.mp4: OpenCV cannot open it"):
        video.open_video(str(tmp_path / "bad.mp4"))
    with pytest.raises(ValueError, match="save=false"):
        video.open_writer(tmp_path / "no/folder/v.mp4", 10, (48, 64))


def test_windows_fit_the_screen_and_q_ends(monkeypatch):
    shown = []
    monkeypatch.setattr(cv2, "imshow", lambda _, image: shown.append(image.shape))
    for key, goes_on in ((ord("q"), False), (27, False), (ord(" "), True), (-1, True)):
        monkeypatch.setattr(cv2, "waitKey", lambda _, key=key: key)
        assert video.show(np.zeros((2560, 1280, 3), np.uint8), 1) is goes_on
    assert shown[0] == (1280, 640, 3)


def test_no_screen_says_which_constant(monkeypatch):
    def fail(*_):
        raise cv2.error("no screen")

    monkeypatch.setattr(cv2, "imshow", fail)
    with pytest.raises(ValueError, match="show=true"):
        video.show(np.zeros((5, 5, 3), np.uint8), 1)

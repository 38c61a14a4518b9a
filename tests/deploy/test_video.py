"""deploy/video.py: frames that are written can be read again, and every video is released."""

import sys
import threading
import types

import cv2
import numpy as np
import pytest
from refused import refused

import predict
from deploy import video
from deploy.result import Result


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


@pytest.mark.parametrize("announced", [0, -1, float("nan"), 90_000, 180_000])
def test_a_rate_that_is_none_leaves_a_video_that_can_be_written(tmp_path, monkeypatch, announced):
    path = write_video(tmp_path / "v.mp4", [0])
    file = cv2.VideoCapture(str(path))
    capture = types.SimpleNamespace(get=lambda what: announced if what == cv2.CAP_PROP_FPS else file.get(what))
    monkeypatch.setattr(video, "_open", lambda source: capture)
    rate = video.Video(str(path)).rate
    with video.writing(lambda: tmp_path / "copy.mp4", rate) as write:
        write("v", np.zeros((48, 64, 3), np.uint8))
    monkeypatch.undo()
    assert video.Video(str(tmp_path / "copy.mp4")).rate == rate


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


class Endless:
    """A capture of OpenCV without an end."""

    read_after_release = released = False

    def read(self):
        self.read_after_release |= self.released
        return True, np.zeros((4, 4, 3), np.uint8)

    def release(self):
        self.released = True

    def get(self, _):
        return 0


def test_a_video_that_is_closed_early_is_released_after_its_thread(monkeypatch):
    capture, threads = Endless(), threading.active_count()
    monkeypatch.setattr(video, "_open", lambda _: capture)
    frames = video.Video("v.mp4").frames(8)
    next(frames)
    frames.close()
    assert capture.released and not capture.read_after_release and threading.active_count() == threads


def test_a_video_that_is_cut_off_is_an_error_unless_only_its_last_second_is_missing(monkeypatch):
    monkeypatch.setattr(video, "_open", lambda _: Endless())
    capture = video.Video("v.mp4")
    capture.length, capture.rate = 100, 30
    for capture.count in (0, 69):
        with refused(ValueError, "v.mp4"):
            capture.check()
    capture.count = 70
    assert "v.mp4: 70 of 100" in capture.check()
    for capture.length in (None, 70, 60):  # unknown, or fewer than there are
        assert capture.check() == ""


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
    monkeypatch.setattr(video, "require_window", lambda: None)
    monkeypatch.setattr(cv2, "imshow", lambda _, image: shown.append(image.shape))
    for key, continues in ((ord("q"), False), (27, False), (ord(" "), True), (-1, True)):
        monkeypatch.setattr(cv2, "waitKey", lambda _, key=key: key)
        assert video.show(np.zeros((2560, 1280, 3), np.uint8), 1) is continues
    assert shown[0] == (1280, 640, 3)


@pytest.mark.parametrize("screen", ["", ":99"])
@pytest.mark.parametrize("framework", ["", "QT"])
def test_a_screen_that_is_missing_or_broken_is_an_error_and_ends_no_process(monkeypatch, screen, framework):
    """Qt would abort. Decided before the model is loaded."""
    monkeypatch.setenv("DISPLAY", screen)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr(cv2, "currentUIFramework", lambda: framework)
    video.require_window.cache_clear()
    for show in (
        lambda: video.show(np.zeros((9, 9, 3), np.uint8), 1),
        lambda: predict.main(predict.Config("none.pt", show=True)),
    ):
        with refused(ValueError, (screen or "DISPLAY") if framework else "opencv-python") as caught:
            show()
        assert "\n" not in str(caught.value)


def test_a_notebook_shows_a_result_inline(monkeypatch):
    shown, image = [], np.zeros((9, 9, 3), np.uint8)
    result = Result(np.zeros((0, 4)), np.zeros(0), np.zeros(0, int), (), pixels=image)
    notebook, output = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    notebook.get_ipython, output.display = lambda: types.SimpleNamespace(kernel=1), shown.append
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setitem(sys.modules, "IPython.display", output)
    result.show()
    assert shown == [result]

"""utils/video.py: what is a stream, and frames that come back."""

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

"""nets/pretrained.py: the right file, loaded under our names; nothing here touches the real network."""

import hashlib
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import nets
from nets import names, pretrained
from nets.pretrained import (
    COCO_CATEGORY_IDS,
    COCO_CLASSES,
    PretrainedError,
    adapt_classes,
    fetch,
    input_spread,
    read,
    shared_classes,
)

DATA = os.urandom(200_000)


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A server on this machine: `.answer` is what it does, `.asked` what it was asked for."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            how = state.answer
            if how == "missing":
                return self.send_error(404)
            if how == "slow":
                return threading.Event().wait(3)
            self.send_response(200)
            if how != "no length":
                self.send_header("Content-Length", str(len(DATA)))
            self.end_headers()
            self.wfile.write({"cut": DATA[:70_000], "other": b"x" * len(DATA)}.get(how, DATA))

        def log_message(self, *_):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state = SimpleNamespace(answer="ok", asked=asked, address=f"http://127.0.0.1:{http.server_port}")
    threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("THAW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(pretrained.DIGESTS, "yolox_nano", hashlib.sha256(DATA).hexdigest())
    monkeypatch.setattr(pretrained, "HOST", "http://127.0.0.1:1")  # nobody listens there
    yield state
    http.shutdown()
    http.server_close()


ASKED = "/Megvii-BaseDetection/YOLOX/releases/download/0.1.1rc0/yolox_nano.pth"


@pytest.mark.parametrize("answer", ["ok", "no length"])
def test_a_file_is_fetched_once(server, tmp_path, answer):
    server.answer = answer
    path = fetch("yolox_nano", mirror=server.address + "/")
    assert path == tmp_path / "cache" / "yolox_nano.pth" and path.read_bytes() == DATA
    assert fetch("yolox_nano", mirror=server.address) == path
    assert server.asked == [ASKED]
    assert os.listdir(path.parent) == ["yolox_nano.pth"]


def test_without_a_mirror_the_official_host_is_asked(server, monkeypatch):
    monkeypatch.setattr(pretrained, "HOST", server.address)
    fetch("yolox_nano")
    assert server.asked == [ASKED]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("missing", "404"),
        ("cut", "cut after 70000 of 200000 bytes"),
        ("other", "SHA-256 differs"),
        ("slow", "timed out"),
    ],
)
def test_what_goes_wrong_says_so_and_leaves_no_file(server, tmp_path, answer, why):
    server.answer = answer
    with pytest.raises(PretrainedError) as error:
        fetch("yolox_nano", mirror=server.address, timeout=0.5)
    message = str(error.value)
    assert why in message and server.address + ASKED in message
    assert str(tmp_path / "cache" / "yolox_nano.pth") in message and "weights=none" in message
    assert os.listdir(tmp_path / "cache") == []
    server.answer = "ok"
    assert fetch("yolox_nano", mirror=server.address).read_bytes() == DATA  # the next try is not disturbed


def test_offline_the_message_says_what_to_put_where(server, tmp_path):
    with pytest.raises(PretrainedError, match="by hand and put it to"):
        fetch("yolox_nano", timeout=1)
    with pytest.raises(PretrainedError, match="could not be fetched"):
        fetch("yolox_nano", mirror="not an address")


def test_a_file_put_there_by_hand_is_checked(server, tmp_path):
    path = tmp_path / "cache" / "yolox_nano.pth"
    path.parent.mkdir()
    path.write_bytes(DATA)
    assert fetch("yolox_nano") == path
    path.write_bytes(DATA[:-1])
    with pytest.raises(PretrainedError, match="not the official file.*Delete it"):
        fetch("yolox_nano")
    assert server.asked == []


def test_a_file_whose_digest_nobody_knows_is_taken_when_it_is_whole(server, tmp_path):
    server.answer = "cut"
    with pytest.raises(PretrainedError, match="cut after 70000 of 200000 bytes"):
        fetch("yolov9_t", mirror=server.address)
    server.answer = "ok"
    assert fetch("yolov9_t", mirror=server.address) == fetch("yolov9_t") == tmp_path / "cache" / "yolov9_t.pth"
    assert set(server.asked) == {"/MultimediaTechLab/YOLO/releases/download/v1.0-alpha/v9-t.pt"}


def test_a_proxy_of_the_environment_is_used(server, monkeypatch):
    monkeypatch.setenv("http_proxy", server.address)
    monkeypatch.setenv("no_proxy", "")
    fetch("yolox_nano", mirror="http://weights.invalid")
    assert server.asked == ["http://weights.invalid" + ASKED]  # a proxy is asked for the whole address


def test_every_model_has_an_address_and_a_digest_where_it_is_known():
    for name in nets.MODELS:
        if name.startswith("yolox"):
            assert pretrained.ADDRESSES[name].endswith(f"/0.1.1rc0/{name}.pth")
            assert len(bytes.fromhex(pretrained.DIGESTS[name])) == 32
    assert pretrained.ADDRESSES["yolov9_t"] == "MultimediaTechLab/YOLO/releases/download/v1.0-alpha/v9-t.pt"
    assert pretrained.ADDRESSES.keys() == nets.MODELS.keys() and len(set(pretrained.DIGESTS.values())) == 6
    with pytest.raises(PretrainedError, match="no official weights for model=resnet"):
        fetch("resnet")


def test_the_names_and_ids_of_coco(shared):
    categories = json.loads((shared / "data/coco_val326/instances_val2017_core326.json").read_text())["categories"]
    assert [c["name"] for c in categories] == list(COCO_CLASSES)
    assert [c["id"] for c in categories] == list(COCO_CATEGORY_IDS)


def test_coco_has_80_names_and_ids_up_to_90():
    assert len(set(COCO_CLASSES)) == len(set(COCO_CATEGORY_IDS)) == 80
    assert (COCO_CLASSES[0], COCO_CLASSES[-1]) == ("person", "toothbrush")
    assert (COCO_CATEGORY_IDS[0], COCO_CATEGORY_IDS[-1]) == (1, 90)


@pytest.mark.parametrize("size", ["nano", "tiny", "s", "m", "l", "x"])
def test_official_names_are_ours_for_every_size(shared, size):
    lines = (shared / f"keys/yolox_{size}.txt").read_text().splitlines()
    official = {
        line.split(" ", 1)[0]: tuple(map(int, line.split("(")[1].rstrip(")").replace(",", " ").split()))
        for line in lines
    }
    with torch.device("meta"):
        ours = {name: tuple(value.shape) for name, value in nets.build(f"yolox_{size}", 80).state_dict().items()}
    assert {names.of_yolox(name): shape for name, shape in official.items()} == ours
    assert len(official) == len(ours) == len(lines)
    assert {names.of_yolox("module." + name) for name in official} == set(ours)


def test_official_weights_are_read_and_fit(shared):
    state, classes = read(shared / "weights/yolox_nano.pth", "yolox_nano")
    model = nets.build("yolox_nano", 80)
    model.load_state_dict(state)
    assert classes == COCO_CLASSES


@pytest.fixture
def official():
    """A state dict in our names whose stem has seen pictures like natural ones, 0-255."""
    torch.manual_seed(0)
    state = nets.build("yolox_nano", 80).state_dict()
    # Most of the change is common to all colours and places of the window, the rest is noise.
    pixels = 60 * torch.randn(4096, 1, 1, 1) + 10 * torch.randn(4096, 12, 3, 3) + 114
    responses = pixels.flatten(1) @ state["backbone.stem.conv.weight"].flatten(1).T
    state["backbone.stem.bn.running_var"] = responses.var(0)
    state["backbone.stem.bn.running_mean"] = responses.mean(0)
    return state


def as_legacy(state):
    """The same function of RGB pixels that are brought to a mean of 0 and a spread of 1: weights 58 times as large."""
    state = dict(state)
    weight = state["backbone.stem.conv.weight"]
    state["backbone.stem.conv.weight"] = weight.unflatten(1, (4, 3)).flip(2).flatten(1, 2) * 58.0
    state["backbone.stem.bn.running_mean"] = state["backbone.stem.bn.running_mean"] - 114 * weight.sum((1, 2, 3))
    return state


def test_legacy_weights_are_refused_with_the_cure(tmp_path, official):
    torch.save({"model": official}, tmp_path / "new.pth")
    assert read(tmp_path / "new.pth", "yolox_nano")[0].keys() == official.keys()
    torch.save({"model": as_legacy(official)}, tmp_path / "old.pth")
    with pytest.raises(PretrainedError, match=r"legacy preprocessing.*0\.1\.1rc0 \(weights=coco\)"):
        read(tmp_path / "old.pth", "yolox_nano")


def test_real_weights_made_legacy_are_told_from_the_real_ones(shared):
    real, _ = read(shared / "weights/yolox_nano.pth", "yolox_nano")
    assert 50 < input_spread(real) < 80
    assert 0.8 < input_spread(as_legacy(real)) < 1.5


def test_a_shift_of_the_data_is_not_mistaken_for_legacy_weights(official):
    """Dim or low-contrast pictures and channels in another order change the spread by far less than 58."""
    for factor in (0.3, 3.0):
        state = dict(official)
        state["backbone.stem.bn.running_var"] = state["backbone.stem.bn.running_var"] * factor**2
        assert input_spread(state) > pretrained.LEAST_SPREAD
        assert input_spread(as_legacy(state)) < pretrained.LEAST_SPREAD
    flipped = official | {"backbone.stem.conv.weight": official["backbone.stem.conv.weight"].flip(1)}
    assert input_spread(flipped) > pretrained.LEAST_SPREAD


def test_weights_that_never_saw_a_picture_are_not_judged(tmp_path):
    state = nets.build("yolox_nano", 3).state_dict()
    torch.save({"model": state}, tmp_path / "fresh.pth")
    assert input_spread(state) is None
    assert read(tmp_path / "fresh.pth", "yolox_nano")[1] is None  # 3 rows: nobody knows of what


def test_weights_filled_by_rule_are_not_refused(shared, tmp_path):
    scope: dict = {}
    exec((shared / "parity/fill.py").read_text(), scope)
    lines = (shared / "keys/yolox_nano.txt").read_text().splitlines()
    shapes = {line.split(" ", 1)[0]: eval(line.split(" ", 1)[1]) for line in lines}
    torch.save({"model": {key: scope["fill"](key, shape) for key, shape in shapes.items()}}, tmp_path / "filled.pth")
    assert read(tmp_path / "filled.pth", "yolox_nano")[1] == COCO_CLASSES


def test_bare_state_dicts_are_read_with_either_names(tmp_path, official):
    torch.save(official, tmp_path / "ours.pth")
    assert read(tmp_path / "ours.pth", "yolox_nano")[0].keys() == official.keys()
    torch.save({f"module.{name}": value for name, value in official.items()}, tmp_path / "ddp.pth")
    assert read(tmp_path / "ddp.pth", "yolox_nano")[0].keys() == official.keys()


def test_a_checkpoint_of_ours_names_its_classes(tmp_path):
    state = nets.build("yolox_nano", 2).state_dict()
    torch.save({"format": 1, "classes": ["cat", "dog"], "model": state}, tmp_path / "best.pt")
    read_state, classes = read(tmp_path / "best.pt", "yolox_nano")
    assert classes == ("cat", "dog") and all(torch.equal(read_state[name], state[name]) for name in state)


class Hostile:
    def __reduce__(self):
        return os.mkdir, ("owned",)


def test_other_files_are_refused_with_a_message(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"model": Hostile()}, "bad.pth")
    with pytest.raises(PretrainedError, match="Python objects"):
        read("bad.pth", "yolox_nano")
    assert not Path("owned").exists()
    with pytest.raises(PretrainedError, match=r"weights=none\.pth: there is no such file"):
        read("none.pth", "yolox_nano")
    for garbage in (b"", b"text, no weights", os.urandom(3000)):
        Path("bad.pth").write_bytes(garbage)
        with pytest.raises(PretrainedError, match=r"weights=bad\.pth"):
            read("bad.pth", "yolox_nano")
    for content in ([1, 2], {"epoch": 3}, {"model": {"a": 1}}):
        torch.save(content, "bad.pth")
        with pytest.raises(PretrainedError, match="holds no weights"):
            read("bad.pth", "yolox_nano")
    with pytest.raises(PretrainedError, match="model=resnet"):
        read("bad.pth", "resnet")


def test_classes_are_matched_by_name():
    assert shared_classes(["cat", "Traffic Light", "dog"], ["DOG", "bird", "traffic_light"]) == {0: 2, 2: 1}
    assert shared_classes(["a", "A"], ["a"]) == {0: 0}


@pytest.mark.parametrize("name", ["yolox_nano", "yolov9_t"])
def test_rows_of_known_classes_are_taken_over_by_name(name):
    torch.manual_seed(0)
    source, model = (nets.build(name, count, nms_free=True) for count in (4, 3))
    fresh = {name: value.clone() for name, value in model.state_dict().items()}
    state = source.state_dict()
    adapted = adapt_classes(state, ["cat", "dog", "person", "bus"], ["Person", "boat", "CAT"], model)
    assert adapted.keys() == state.keys()
    for name, value in adapted.items():
        if "class_predictors" in name:
            rows = [state[name][2], fresh[name][1], state[name][0]]
            assert torch.equal(value, torch.stack(rows)), name
        else:
            assert value is state[name]
    model.load_state_dict(adapted)
    assert all(
        torch.equal(value, state[name]) for name, value in source.state_dict().items()
    )  # the source is untouched


def test_without_names_the_rows_stay_as_they_are():
    model = nets.build("yolox_nano", 3)
    state = nets.build("yolox_nano", 3).state_dict()
    adapted = adapt_classes(state, None, ["a", "b", "c"], model)
    assert all(adapted[name] is value for name, value in state.items())

"""nets/pretrained.py: downloads from a local server, damaged and foreign files, and matching of classes."""

import hashlib
import json
import os
import re
import urllib.request
from pathlib import Path

import official
import pytest
import torch
from refused import refused
from toys import detector as toy_detector
from weight_server import DATA, serving

import nets
from nets import pretrained
from nets.official_names import of_yolox
from nets.pretrained import (
    COCO_CATEGORY_IDS,
    COCO_CLASSES,
    OfficialFile,
    PretrainedError,
    adapt_classes,
    shared_classes,
)
from nets.weights import fetch, read
from utils import checkpoint, file_checks
from utils.processes import Ranks

FILE = OfficialFile("owner/releases/model.pth", hashlib.sha256(DATA).hexdigest())
UNKNOWN = OfficialFile("owner/releases/other.pt")  # without a digest


@pytest.fixture
def server(tmp_path, monkeypatch):
    with serving(tmp_path / "cache", monkeypatch) as state:
        yield state


def test_a_file_that_is_put_where_the_message_of_a_failed_download_says_is_used(server):
    server.answer = "missing"
    with refused(PretrainedError, "by hand") as caught:
        fetch("toy", FILE, mirror=server.address)
    address, path = re.search(r"Download (\S+) by hand to (\S+),", str(caught.value)).groups()
    server.answer = "ok"
    urllib.request.urlretrieve(address, path)
    server.answer = "missing"
    assert fetch("toy", FILE, mirror=server.address) == Path(path) and Path(path).read_bytes() == DATA


@pytest.mark.parametrize("answer", ["ok", "no length"])
def test_a_file_is_downloaded_once(server, tmp_path, answer):
    server.answer = answer
    path = fetch("toy", FILE, mirror=server.address + "/")
    assert path == tmp_path / "cache" / "toy.pth" and path.read_bytes() == DATA
    assert fetch("toy", FILE, mirror=server.address) == path
    assert server.paths == ["/owner/releases/model.pth"] and os.listdir(path.parent) == ["toy.pth"]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("missing", "404"),
        ("cut", "70000 of 200000"),
        ("other", "SHA-256 differs"),
        ("slow", "timed out"),
    ],
)
def test_failed_downloads_name_the_fix_and_leave_no_file(server, tmp_path, answer, why):
    server.answer = answer
    with pytest.raises(PretrainedError) as error:
        fetch("toy", FILE, mirror=server.address, timeout=0.3 if answer == "slow" else 30)
    message = str(error.value)
    assert why in message and f"{server.address}/owner/releases/model.pth" in message
    assert str(tmp_path / "cache" / "toy.pth") in message and "weights=none" in message
    assert os.listdir(tmp_path / "cache") == []
    server.answer = "ok"
    assert fetch("toy", FILE, mirror=server.address).read_bytes() == DATA  # the next attempt succeeds


def test_without_a_connection_the_message_explains_the_download_by_hand(server):
    with refused(PretrainedError, "http://127.0.0.1:1/owner/releases/model.pth", "toy.pth", "weights=FILE"):
        fetch("toy", FILE, timeout=1)
    with refused(PretrainedError, "toy.pth", "'not an address/owner/releases/model.pth'"):
        fetch("toy", FILE, mirror="not an address")


def test_a_file_put_into_the_cache_by_hand_is_checked(server, tmp_path):
    path = tmp_path / "cache" / "toy.pth"
    path.parent.mkdir()
    path.write_bytes(DATA)
    assert fetch("toy", FILE) == path
    path.write_bytes(DATA[:-1])
    with refused(PretrainedError, path, "SHA-256", "http://127.0.0.1:1/owner/releases/model.pth"):
        fetch("toy", FILE)
    assert server.paths == []


def test_proxies_of_the_environment_are_used(server, monkeypatch):
    monkeypatch.setenv("http_proxy", server.address)
    monkeypatch.setenv("no_proxy", "")
    fetch("toy", FILE, mirror="http://weights.invalid")
    assert server.paths == ["http://weights.invalid/owner/releases/model.pth"]  # a proxy gets the whole address


def test_official_models_have_an_address_and_a_digest_if_it_is_known():
    for size, file in nets.MODELS["yolox"].weights.items():
        assert file.path == f"Megvii-BaseDetection/YOLOX/releases/download/0.1.1rc0/yolox_{size}.pth"
        assert len(bytes.fromhex(file.sha256)) == 32
    assert nets.MODELS["yolov9"].weights["t"].path == "MultimediaTechLab/YOLO/releases/download/v1.0-alpha/v9-t.pt"
    assert all(row.weights.keys() == row.sizes.keys() for row in nets.MODELS.values() if row.weights)
    paddle = nets.official_file("ppyoloe_x", "coco"), nets.official_file("ppyoloe_x", "objects365")
    assert [f"{file.host}/{file.path}" for file in paddle] == [
        "https://paddledet.bj.bcebos.com/models/ppyoloe_plus_crn_x_80e_coco.pdparams",
        "https://bj.bcebos.com/v1/paddledet/models/pretrained/ppyoloe_crn_x_obj365_pretrained.pdparams",
    ]
    assert len({file.sha256 for file in nets.MODELS["yolox"].weights.values()}) == 6
    assert nets.official_size("yolox_tiny") == (416, 416) and nets.official_size("yolox_s") == (640, 640)
    with refused(PretrainedError, "model=tiny_n", "weights=FILE"):
        nets.fetch_weights("tiny_n")


def test_weights_of_objects365_are_a_file_of_their_own_without_names_of_classes(server, tmp_path, monkeypatch):
    row = nets.MODELS["tiny"]._replace(weights={"n": OfficialFile("c.pth")}, objects365={"n": OfficialFile("o.pth")})
    monkeypatch.setitem(nets.MODELS, "tiny", row)
    monkeypatch.setattr(pretrained, "HOST", server.address)
    for data, rows, name in (("coco", 80, "tiny_n.pth"), ("objects365", 365, "tiny_n_objects365.pth")):
        torch.save(nets.build("tiny_n", rows).state_dict(), tmp_path / "a.pth")
        server.data = (tmp_path / "a.pth").read_bytes()
        model, pretraining = nets.build_pretrained("tiny_n", ("dog", "candle"), data, Ranks(), lambda _: None)
        assert (tmp_path / "cache" / name).exists() and pretraining.official == (data == "coco")
        assert pretraining.known == (0.5 if data == "coco" else 0.0)
        source, loaded = torch.load(tmp_path / "a.pth"), model.state_dict()
        assert all(torch.equal(loaded[name], source[name]) for name in source if name.startswith("backbone."))
        if data == "coco":
            dog = source["head.class_predictors.0.weight"][COCO_CLASSES.index("dog")]
            assert torch.equal(model.head.class_predictors[0].weight[0], dog)
    assert server.paths == ["/c.pth", "/o.pth"]
    with refused(PretrainedError, "model=yolox_s", "ppyoloe_s"):
        nets.fetch_weights("yolox_s", "objects365")


def test_classes_are_not_added_to_weights_of_another_model(tmp_path):
    state = {f"other.{name}": value for name, value in nets.build("tiny_n", 80).state_dict().items()}
    torch.save(state, tmp_path / "w.pth")
    with refused(PretrainedError, tmp_path / "w.pth", "is model=", "model=tiny_n"):
        nets.trained_model("tiny_n", str(tmp_path / "w.pth"), print)


class Hostile:
    def __reduce__(self):
        return os.mkdir, ("owned",)


def test_other_files_are_refused_with_a_message(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"model": Hostile()}, "bad.pth")
    with refused(PretrainedError, "weights=bad.pth"):
        read("bad.pth", of_yolox)
    assert not Path("owned").exists()
    with refused(PretrainedError, "weights=missing.pth"):
        read("missing.pth", of_yolox)
    for garbage in (b"", b"text, no weights", os.urandom(3000)):
        Path("bad.pth").write_bytes(garbage)
        with refused(PretrainedError, "weights=bad.pth"):
            read("bad.pth", of_yolox)
    for contents in ([1, 2], {"epoch": 3}, {"model": {"a": 1}}):
        torch.save(contents, "bad.pth")
        with refused(PretrainedError, "weights=bad.pth"):
            read("bad.pth", of_yolox)
    with refused(ValueError, "model='resnet'", "yolox_nano"):
        nets.read_weights("bad.pth", "resnet")


@pytest.fixture
def state():
    """A state dict of YOLOX with our names."""
    return toy_detector("yolox", 80).state_dict()


def test_state_dicts_are_read_with_official_and_with_own_names(tmp_path, state):
    torch.save(state, tmp_path / "own.pth")
    torch.save({f"module.{name}": value for name, value in state.items()}, tmp_path / "ddp.pth")
    filled = official.filled_state("yolox_nano")
    torch.save({"state_dict": filled}, tmp_path / "official.pth")
    assert read(tmp_path / "own.pth", of_yolox)[0].keys() == state.keys()
    assert read(tmp_path / "ddp.pth", of_yolox)[0].keys() == state.keys()
    translated, classes, official_file, _ = read(tmp_path / "official.pth", of_yolox)
    assert len(translated) == len(filled) and "backbone.stem.conv.weight" in translated and classes == COCO_CLASSES
    assert official_file


def test_own_checkpoints_name_their_classes(tmp_path):
    state = nets.build("tiny_n", 2).state_dict()
    checkpoint.save(tmp_path / "best.pt", {"classes": ["cat", "dog"], "model": state})
    again, classes, official_file, _ = nets.read_weights(tmp_path / "best.pt", "tiny_n")
    assert (
        classes == ("cat", "dog") and not official_file and all(torch.equal(again[name], state[name]) for name in state)
    )


def test_an_own_checkpoint_of_another_model_names_its_model(tmp_path):
    state = nets.build("tiny_n", 2).state_dict()
    contents = {"classes": ["cat", "dog"], "model": state, "config": {"model": "tiny_n"}}
    checkpoint.save(tmp_path / "best.pt", contents)
    for name in ("picodet_s", "yolov9_t", "ppyoloe_s"):
        with refused(file_checks.CheckpointError, tmp_path / "best.pt", "is a tiny_n", f"model={name}", "model=tiny_n"):
            nets.build_pretrained(name, ["cat"], str(tmp_path / "best.pt"), Ranks(), print)


def test_classes_are_matched_by_name():
    assert shared_classes(["cat", "Traffic Light", "dog"], ["DOG", "bird", "traffic_light"]) == {0: 2, 2: 1}
    assert shared_classes(["a", "A"], ["a"]) == {0: 0}


@pytest.mark.parametrize("family", ["yolox", "yolov9"])
def test_adapt_classes_moves_rows_by_name(family):
    state, model = toy_detector(family, 4).state_dict(), toy_detector(family, 3)
    before = {name: value.clone() for name, value in state.items()}
    fresh = {name: value.clone() for name, value in model.state_dict().items()}
    adapted, new = adapt_classes(state, ["cat", "dog", "person", "bus"], ["Person", "boat", "CAT"], model)
    assert adapted.keys() == state.keys()
    assert new == {name: value[0].numel() for name, value in fresh.items() if "class_predictors" in name}  # of boat
    for name, value in adapted.items():
        if "class_predictors" in name:
            assert torch.equal(value, torch.stack([state[name][2], fresh[name][1], state[name][0]])), name
        else:
            assert value is state[name]
    model.load_state_dict(adapted)
    assert all(torch.equal(value, before[name]) for name, value in state.items())  # the source is not changed
    unknown, new = adapt_classes(state, None, ["a", "b", "c"], model)
    assert new == {} and all(unknown[name] is value for name, value in state.items())


def test_names_and_ids_equal_the_annotations_of_coco(shared):
    categories = json.loads((shared / "data/coco_val326/instances_val2017_core326.json").read_text())["categories"]
    assert [c["name"] for c in categories] == list(COCO_CLASSES)
    assert [c["id"] for c in categories] == list(COCO_CATEGORY_IDS)


def test_real_weights_are_read(shared):
    state, classes, *_ = nets.read_weights(shared / "weights/yolox_nano.pth", "yolox_nano")
    nets.build("yolox_nano", 80).load_state_dict(state)
    assert classes == COCO_CLASSES


def test_a_file_of_unknown_digest_is_verified_and_pinned_at_its_first_use(server, tmp_path, capsys):
    seen = []
    path = fetch("toy", UNKNOWN, mirror=server.address, verify=seen.append)
    digest = hashlib.sha256(DATA).hexdigest()
    assert seen == [path] and f"SHA-256 {digest}, pinned" in capsys.readouterr().out
    assert (tmp_path / "cache" / "toy.pth.sha256").read_text().strip() == digest
    assert fetch("toy", UNKNOWN, verify=seen.append) == path and seen == [path]
    path.write_bytes(DATA[:-1])
    with refused(PretrainedError, path, f"{path}.sha256"):
        fetch("toy", UNKNOWN)

    def refuse(path):
        raise ValueError("no weights")

    (tmp_path / "cache" / "toy.pth.sha256").unlink()
    with refused(PretrainedError, path, "no weights"):
        fetch("toy", UNKNOWN, verify=refuse)
    assert not (tmp_path / "cache" / "toy.pth.sha256").exists()


def test_the_first_use_requires_all_tensors_of_the_model(tmp_path):
    state = nets.build("yolox_nano", 80).state_dict()
    torch.save({"model": state}, tmp_path / "a.pth")
    nets.require_all("yolox_nano", tmp_path / "a.pth")
    torch.save(
        {"model": {name: value for name, value in state.items() if "neck.shrink" not in name}}, tmp_path / "a.pth"
    )
    with refused(ValueError, "87%", "neck", "100%"):
        nets.require_all("yolox_nano", tmp_path / "a.pth")
